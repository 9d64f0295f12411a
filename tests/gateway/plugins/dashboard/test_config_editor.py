"""The configuration over HTTP: read, checked and saved by an owner, and no secret leaves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.scripted import Script
from gateway.core.redaction import Redactor
from gateway.plugins.dashboard.config_editor import find_secret
from tests.kits.ops import TOKEN, Operated, operated

BEN = {"name": "ben", "role": "operate", "token": "the-token-of-ben-0123456789"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Operated]:
    file = tmp_path / "reverie.yaml"
    async with operated(tmp_path, Script(), ops={"tokens": [BEN]}) as made:
        text = file.read_text(encoding="utf-8")
        for name, token in (("own", TOKEN), ("ben", BEN["token"])):
            (tmp_path / name).write_text(token, encoding="utf-8")
            text = text.replace(token, f"${{file:{name}}}")
        file.write_text(text, encoding="utf-8")
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


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ("", ""),
        ("channels: {irc.x: {password: hunter2}}", "channels.irc.x.password"),
        ("a: {api_key: &key 'sk-one, two'}\nb: {api_key: *key}", "a.api_key"),
        ("a:\n  token: |\n    first line\n    second line", "a.token"),
        ('irc: {keys: {"#garden": abc}}', "irc.keys.#garden"),
        ("irc: {on_connect: [OPER me def]}", "irc.on_connect[0]"),
        ("irc: {env: {KEY: ghi}}", "irc.env.KEY"),
        ("headers: {X-Key: jkl}", "headers.X-Key"),
        ("a: {credentials: mno}", "a.credentials"),
        ("a: {bot_tokens: stu}", "a.bot_tokens"),
        ("a: {token: 123456}", "a.token"),
        ('a: {api_key: "${KEY:-pqr}"}', "a.api_key"),
    ],
)
def test_a_secret_that_is_no_reference_is_found(changed: str, key: str) -> None:
    """Before the gateway has read them it does not know them."""
    fine = """\
channels: {irc.y: {sasl: {password: "${IRC}"}}}
headers: ["Bearer ${TOKEN}", none]
llm: {api_key: "${file:secrets/key}", token: null, first_token: 60s}
models: {main: {context_tokens: 200000, max_output_tokens: 16_384}}
"""
    found = find_secret(f"{fine}{changed}\n", Redactor())
    assert (key in found, bool(found)) == (True, bool(key))
    assert not key or found.startswith("line ")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1))
def test_any_password_is_found(password: str) -> None:
    written = "'" + password.replace("'", "''") + "'"
    found = find_secret(f"a:\n  password: {written} # it\n  b: 1\n", Redactor())
    plain = password.strip().lower()
    assert found or not plain or plain in {"none", "null", "~"} or "${" in password


async def test_a_file_with_a_secret_is_neither_shown_nor_written(
    gateway: Operated, tmp_path: Path
) -> None:
    file = tmp_path / "reverie.yaml"
    whole = file.read_text(encoding="utf-8")
    (shown,) = (await gateway.get("/api/config"))["files"]
    literal = whole.replace("${file:ben}", BEN["token"])
    draft = {"name": shown["name"], "text": literal, "sha256": shown["sha256"]}
    for path in ("check", "save"):
        answer = await gateway.client.post(f"/api/config/{path}", json=draft)
        assert (answer.status_code, "ops.tokens[0].token" in answer.text) == (409, True)
    file.write_text(literal, encoding="utf-8")
    answer = await gateway.client.get("/api/config")
    assert BEN["token"] not in answer.text
    assert not answer.json()["files"][0]["writable"]
    answer = await gateway.client.post("/api/config/check", json={**draft, "text": whole})
    assert (answer.status_code, BEN["token"] in answer.text) == (409, False)


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
    steps = Path(*["x" * 200] * 12)
    (tmp_path / steps).mkdir(parents=True)
    (tmp_path / "half").symlink_to(steps)
    (tmp_path / "half" / steps).mkdir(parents=True)
    file.rename(tmp_path / "half" / steps / "a.yaml")  # below a path longer than PATH_MAX
    file.symlink_to(tmp_path / "half" / steps / "a.yaml")
    draft = {"name": shown["name"], "text": shown["text"], "sha256": shown["sha256"]}
    answer = await gateway.client.post("/api/config/save", json=draft)
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    (act,) = (await gateway.get("/api/audit"))["items"]
    assert (act["command"], act["ok"]) == ("/api/config/save", False)
