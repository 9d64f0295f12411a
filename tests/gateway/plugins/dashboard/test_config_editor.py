"""The configuration over HTTP: read, checked and saved by an owner, and no secret leaves."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.scripted import Script
from gateway.core.redaction import Redactor
from gateway.core.route import RouteRefused
from gateway.plugins.dashboard.config_editor import MASK, mask_secrets, restore_secrets
from tests.kits.ops import TOKEN, Operated, operated

BEN = {"name": "ben", "role": "operate", "token": "the-token-of-ben-0123456789"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Operated]:
    async with operated(tmp_path, Script(), ops={"tokens": [BEN]}) as made:
        yield made


async def test_the_configuration_is_read_and_saved_without_its_secrets(
    gateway: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    before = file.read_text(encoding="utf-8")
    answer = await gateway.client.get("/api/config")
    assert TOKEN not in answer.text
    assert BEN["token"] not in answer.text
    (shown,) = answer.json()["files"]
    draft = {**shown, "text": shown["text"].replace('"coalesce": 0', '"coalesce": 0.5')}
    draft.pop("writable")
    checked = await gateway.post("/api/config/check", draft)
    assert (checked["problems"], checked["saved"]) == ([], False)
    assert "+" in checked["diff"]
    assert file.read_text(encoding="utf-8") == before
    saved = await gateway.post("/api/config/save", draft)
    assert (saved["saved"], saved["needs_restart"]) == (True, [])
    assert file.read_text(encoding="utf-8") == before.replace('"coalesce": 0', '"coalesce": 0.5')
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


async def test_mistakes_are_told_by_line_and_key_and_nothing_is_written(
    gateway: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    before = file.read_text(encoding="utf-8")
    (shown,) = (await gateway.get("/api/config"))["files"]
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


def test_what_is_masked_comes_back_as_it_was() -> None:
    masked = mask_secrets(FILE, Redactor())
    for secret in ("hunter2", "sk-one", "first line"):
        assert secret not in masked
    for kept in ("${IRC}", "${TOKEN}", "*key", "&key", "# of the garden", "irc.example"):
        assert kept in masked
    back = restore_secrets(masked, FILE)
    assert (
        back.replace('"first line\\nsecond line\\n"', "|\n        first line\n        second line")
        == FILE
    )
    changed = masked.replace(MASK.findall(masked)[0], "other")
    assert 'password: "other"' in restore_secrets(changed, FILE)


def test_a_secret_is_written_back_below_its_own_names_alone() -> None:
    """A mask that is moved would else have the secret sent to another host, or told to a model."""
    file = "a: {password: one, host: x}\nb: {password: two, host: y}\n"
    mask = MASK.findall(mask_secrets(file, Redactor()))[0]
    for moved in (
        f'\nb: {{password: "{mask}"}}\n',
        f'\na: {{host: "{mask}"}}\n',
        f'\na: {{password: "Bearer {mask}"}}\n',
        '\na: {password: "<secret 00000000>"}\n',
    ):
        with pytest.raises(RouteRefused, match="line 2"):
            restore_secrets(moved, file)


def test_values_of_secret_sections_are_masked_whatever_their_keys() -> None:
    """Before the gateway has read them it does not know them."""
    text = """\
irc: {keys: {"#garden": abc}, on_connect: [OPER me def], env: {KEY: ghi}}
headers: {X-Key: jkl, Authorization: "Bearer ${TOKEN}"}
providers: {a: {credentials: mno, api_key: "${KEY:-pqr}"}}
"""
    masked = mask_secrets(text, Redactor())
    assert len(MASK.findall(masked)) == 6
    assert "Bearer ${TOKEN}" in masked
    assert restore_secrets(masked, text) == text


def test_a_secret_stays_with_the_member_of_a_list_that_it_belongs_to() -> None:
    """Else who reads would have the power of an owner once their own token is taken out."""
    ben, ann = "{name: ben, role: read, token: one}", "{name: ann, role: own, token: two}"
    file = f"tokens: [{ben}, {ann}]\n"
    without = re.sub(r"\{name: ben.*?\}, ", "", mask_secrets(file, Redactor()))
    assert restore_secrets(without, file) == f"tokens: [{ann}]\n"
    lines = mask_secrets("on_connect: [one, two]\n", Redactor())
    without = re.sub(r'".*", ', "", lines)
    assert restore_secrets(without, "on_connect: [one, two]\n") == "on_connect: [two]\n"


def test_the_secret_of_an_anchor_stays_without_its_aliases() -> None:
    file = "a: {api_key: &key one}\nb: {api_key: *key}\n"
    masked = mask_secrets(file, Redactor()).replace("b: {api_key: *key}\n", "")
    assert restore_secrets(masked, file) == "a: {api_key: &key one}\n"


async def test_a_mistake_in_another_file_is_told_with_its_name(
    gateway: Operated, tmp_path: Path
) -> None:
    (shown,) = (await gateway.get("/api/config"))["files"]
    (tmp_path / "zoo.yaml").write_text("\n\nzoo: 1\n", encoding="utf-8")
    draft = {"name": shown["name"], "text": shown["text"]}
    (mistake,) = (await gateway.post("/api/config/check", draft))["problems"]
    assert (mistake["line"], mistake["key"]) == (0, "zoo")
    assert "zoo.yaml" in mistake["message"]


async def test_a_file_that_cannot_be_written_is_refused_and_audited(
    gateway: Operated, tmp_path: Path
) -> None:
    (shown,) = (await gateway.get("/api/config"))["files"]
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
def test_any_password_is_masked_and_kept(password: str) -> None:
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
        assert MASK.search(masked)
    assert restore_secrets(masked, text) == text
