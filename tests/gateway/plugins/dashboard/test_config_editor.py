"""The configuration over HTTP: read, checked and saved by an owner, and no secret leaves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.scripted import Script
from gateway.core.redaction import Redactor
from gateway.core.route import RouteRefused
from gateway.plugins.dashboard.config_editor import MASK, mask_secrets
from tests.kits.ops import TOKEN, Operated, operated

BEN = {"name": "ben", "role": "operate", "token": "the-token-of-ben-0123456789"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Operated]:
    async with operated(tmp_path, Script(), ops={"tokens": [BEN]}) as made:
        yield made


async def with_references(gateway: Operated, tmp_path: Path) -> dict[str, str]:
    """Put references in place of the secrets of the file; what the API then shows of it."""
    file, text = tmp_path / "reverie.yaml", (tmp_path / "reverie.yaml").read_text(encoding="utf-8")
    for name, secret in (("OPS_TOKEN", TOKEN), ("BENS_TOKEN", BEN["token"])):
        (tmp_path / name).write_text(secret, encoding="utf-8")
        text = text.replace(secret, f"${{file:{tmp_path / name}}}")
    file.write_text(text, encoding="utf-8")
    (shown,) = (await gateway.get("/api/config"))["files"]
    assert shown.pop("writable")
    assert shown["text"] == text
    return dict(shown)


async def test_the_configuration_is_read_and_saved(gateway: Operated, tmp_path: Path) -> None:
    file = tmp_path / "reverie.yaml"
    shown = await with_references(gateway, tmp_path)
    before = file.read_text(encoding="utf-8")
    draft = {**shown, "text": shown["text"].replace('"coalesce": 0', '"coalesce": 0.5')}
    checked = await gateway.post("/api/config/check", draft)
    assert (checked["problems"], checked["saved"]) == ([], False)
    assert "+" in checked["diff"]
    assert file.read_text(encoding="utf-8") == before
    saved = await gateway.post("/api/config/save", draft)
    assert (saved["saved"], saved["needs_restart"]) == (True, [])
    assert file.read_text(encoding="utf-8") == draft["text"]
    live = gateway.live
    assert live is not None
    await gateway.until(lambda: live.settings.attention.coalesce == 0.5)
    late = await gateway.client.post("/api/config/save", json=draft)
    assert late.status_code == 409
    acts = (await gateway.get("/api/audit"))["items"]
    assert [(one["command"], one["ok"]) for one in acts] == [
        ("/api/config/save", False),
        ("/api/config/save", True),
    ]


async def test_a_file_with_literal_secrets_is_shown_masked_and_not_changed(
    gateway: Operated, tmp_path: Path
) -> None:
    before = (tmp_path / "reverie.yaml").read_text(encoding="utf-8")
    answer = await gateway.client.get("/api/config")
    assert TOKEN not in answer.text
    assert BEN["token"] not in answer.text
    (shown,) = answer.json()["files"]
    draft = {key: shown[key] for key in ("name", "text", "sha256")}
    for path in ("check", "save"):
        refused = await gateway.client.post(f"/api/config/{path}", json=draft)
        assert refused.status_code == 409
        assert "${file:PATH}" in refused.json()["detail"]
    assert (tmp_path / "reverie.yaml").read_text(encoding="utf-8") == before


async def test_mistakes_are_told_by_line_and_key_and_nothing_is_written(
    gateway: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    shown = await with_references(gateway, tmp_path)
    before = file.read_text(encoding="utf-8")
    draft = {"name": shown["name"], "sha256": shown["sha256"]}
    wrong = {**draft, "text": shown["text"].replace('"coalesce"', '\n"coalesse"')}
    (mistake,) = (await gateway.post("/api/config/check", wrong))["problems"]
    assert (mistake["line"], mistake["key"]) == (2, "attention.coalesse")
    assert not (await gateway.post("/api/config/save", wrong))["saved"]
    (mistake,) = (await gateway.post("/api/config/check", {**draft, "text": "a: [\n"}))["problems"]
    assert mistake["line"] == 2
    later = {**draft, "text": shown["text"].replace('"port": 0', '"port": 1')}
    assert (await gateway.post("/api/config/check", later))["needs_restart"] == ["ops.port"]
    for name in ("../reverie.yaml", "/etc/passwd", "other.yaml", ""):
        answer = await gateway.client.post(
            "/api/config/save", json={**draft, "name": name, "text": ""}
        )
        assert answer.status_code == 409
    assert file.read_text(encoding="utf-8") == before


async def test_only_an_owner_sees_the_configuration(gateway: Operated) -> None:
    gateway.client.headers["Authorization"] = f"Bearer {BEN['token']}"
    draft = {"name": "reverie.yaml", "text": "", "sha256": ""}
    for answer in (
        await gateway.client.get("/api/config"),
        await gateway.client.post("/api/config/check", json=draft),
        await gateway.client.post("/api/config/save", json=draft),
    ):
        assert answer.status_code == 403
        assert "own" in answer.json()["detail"]


FILE = """\
# of the garden
channels:
  irc.x: {password: hunter2, host: "irc.example", sasl: {password: "${IRC}"}}
llm:
  providers:
    a: {api_key: &key 'sk-one, two'}
    b: {api_key: *key}
    c:
      headers: ["Bearer ${TOKEN}", none]
      token: |
        first line
        second line
"""


def test_literal_secrets_are_masked_and_all_else_is_shown() -> None:
    masked = mask_secrets(FILE, Redactor())
    for secret in ("hunter2", "sk-one", "first line"):
        assert secret not in masked
    for kept in ("${IRC}", "${TOKEN}", "*key", "# of the garden", "irc.example"):
        assert kept in masked


def test_values_of_secret_sections_are_masked_whatever_their_keys() -> None:
    """Before the gateway has read them it does not know them."""
    text = """\
irc: {keys: {"#garden": abc}, on_connect: [OPER me def], env: {KEY: ghi}}
headers: {X-Key: jkl, Authorization: "Bearer ${TOKEN}"}
providers: {a: {credentials: mno, api_key: "${KEY:-pqr}"}}
"""
    masked = mask_secrets(text, Redactor())
    assert masked.count(MASK) == 6
    assert "Bearer ${TOKEN}" in masked


async def test_a_mistake_in_another_file_is_told_with_its_name(
    gateway: Operated, tmp_path: Path
) -> None:
    shown = await with_references(gateway, tmp_path)
    (tmp_path / "zoo.yaml").write_text("\n\nzoo: 1\n", encoding="utf-8")
    draft = {"name": shown["name"], "text": shown["text"]}
    (mistake,) = (await gateway.post("/api/config/check", draft))["problems"]
    assert (mistake["line"], mistake["key"]) == (0, "zoo")
    assert "zoo.yaml" in mistake["message"]


async def test_a_file_that_cannot_be_written_is_refused_and_audited(
    gateway: Operated, tmp_path: Path
) -> None:
    shown = await with_references(gateway, tmp_path)
    file = tmp_path / shown["name"]
    (tmp_path / "real").mkdir()
    file.rename(tmp_path / "real" / f"{'x' * 250}.yaml")  # no temporary name fits beside it
    file.symlink_to(tmp_path / "real" / f"{'x' * 250}.yaml")
    draft = {"name": shown["name"], "text": shown["text"], "sha256": shown["sha256"]}
    answer = await gateway.client.post("/api/config/save", json=draft)
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    (act,) = (await gateway.get("/api/audit"))["items"]
    assert (act["command"], act["ok"]) == ("/api/config/save", False)


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1))
def test_any_password_is_masked(password: str) -> None:
    written = "'" + password.replace("'", "''") + "'"
    text = f"a:\n  password: {written} # it\n  b: 1\n"
    try:
        masked = mask_secrets(text, Redactor())
    except RouteRefused:
        return
    if (
        password.strip()
        and password.strip().lower() not in {"none", "null", "~"}
        and "${" not in password
    ):
        assert f'"{MASK}"' in masked
