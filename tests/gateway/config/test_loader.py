"""Configurations as an operator writes them, and their values."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from channels.console import ConsoleConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig
from channels.telegram.config import TelegramConfig
from gateway.config.loader import ConfigError, parse_config, read_config
from gateway.core.fields import ConfigSection
from gateway.plugins import settings_model
from tests.kits.examples import examples

EXAMPLE = Path(__file__).parents[3] / "config" / "reverie.example.yaml"
ENV = {
    "IRC_PASSWORD": "planted-irc",
    "TELEGRAM_TOKEN": "planted-telegram",
    "DISCORD_TOKEN": "planted-discord",
    "ANTHROPIC_API_KEY": "planted-anthropic",
    "REVERIE_TOKEN": "planted-ops-token",
}
MINIMAL = """
agents: [{id: a}]
llm:
  providers: {p: {kind: local}}
  models: {main: {provider: p}}
"""
CONTRACT = """
channels:
  irc.libera:
    platform: irc
    host: irc.libera.chat
    port: 6697
    tls: true
    nick: reverie
    sasl: {mechanism: plain, account: reverie, password: "${IRC_PASSWORD}"}
    contact: "who runs this bot, reachable"
    rooms: ["#reverie"]
    flood: {burst: 4, per_s: 1.0}
  telegram.main:
    platform: telegram
    token: "${TELEGRAM_TOKEN}"
    base_url: https://api.telegram.org
    rooms: ["-1001234567890"]
  discord.main:
    platform: discord
    token: "${DISCORD_TOKEN}"
    api_url: https://discord.com/api/v10
    gateway_url: wss://gateway.discord.gg
    rooms: ["123456789012345678"]
agents:
  - id: reverie
    workspace: ./workspace
    model: main
    context_optimization: {prompt_cache: true, compaction: true, token_counter: true, workspace_cache: true}
    bindings:
      - match: {channel: "irc.*", room: "#reverie"}
        listen: mention
        prompt: "Keep it short here."
        language: en
      - match: {channel: "*"}
llm:
  providers:
    anthropic: {kind: anthropic, base_url: https://api.anthropic.com, api_key: "${ANTHROPIC_API_KEY}"}
    vllm: {kind: openai, base_url: http://127.0.0.1:8000/v1, api_key: none}
    llamacpp: {kind: llamacpp, base_url: http://127.0.0.1:9931}
    embedded: {kind: local}
  models:
    main:
      {provider: anthropic, name: claude-sonnet-5-5, context_tokens: 200000,
       max_output_tokens: 16384, fallbacks: [small]}
    small: {provider: embedded}
  context_optimization:
    prompt_cache: {enabled: true, policy: auto, long_ttl: 1h, short_ttl: 5m, long_ttl_providers: [anthropic, vertex]}
    compaction:
      {enabled: false, compact_at_pct: 0.75, tail_keep_tokens: 20000, tool_result_max_pct: 0.30,
       summarizer_model: "", lock_ttl_seconds: 300}
    token_counter: {enabled: true, backend: auto, cache_capacity: 1024}
    workspace_cache: {enabled: true, watch_debounce_ms: 500, max_age_seconds: 0}
dmn:
  {engaged: 5s, working: 3s, foraging: 30s, resting: 300s, max_autonomous_turns: 20,
   daily_turns: 200, daily_cost_usd: 2.0, forage: true}
attention: {coalesce: 1.5s, rules: [], thresholds: {}}
access:
  dm: pairing
  roles: {owner: ["telegram.main:1001", "irc.libera:account:someone"], admin: [], blocked: []}
store: {path: ./data/reverie.db}
ops: {host: 127.0.0.1, port: 9090, token: "${REVERIE_TOKEN}"}
"""


def written(directory: Path, text: str, name: str = "reverie.yaml") -> Path:
    (directory / name).write_text(text, encoding="utf-8")
    (directory / name).chmod(0o600)
    return directory


def test_the_contract_loads(tmp_path: Path) -> None:
    loaded = read_config(written(tmp_path, CONTRACT), ENV)
    settings, warnings = loaded.settings, loaded.warnings
    assert warnings == ()
    assert [type(c) for c in settings.channels.values()] == [
        IrcConfig,
        TelegramConfig,
        DiscordConfig,
    ]
    assert settings.agents[0].bindings[0].listen == "mention"
    assert settings.llm.context_optimization.prompt_cache.long_ttl == 3600
    assert settings.attention.coalesce == 1.5
    assert settings.ops.token == SecretStr("planted-ops-token")


def test_the_contracts_defaults_are_the_defaults(tmp_path: Path) -> None:
    full = read_config(written(tmp_path, CONTRACT), ENV).settings
    bare = read_config(written(tmp_path, MINIMAL), {}).settings
    for section in ("dmn", "attention", "store"):
        assert getattr(full, section) == getattr(bare, section)
    assert full.llm.context_optimization == bare.llm.context_optimization
    assert (full.access.dm, full.ops.host, full.ops.port) == (
        bare.access.dm,
        bare.ops.host,
        bare.ops.port,
    )
    assert bare.agents[0].model == "main"
    assert bare.agents[0].workspace is None
    assert bare.agents[0].bindings[0].match.channel == "*"


def test_the_example_loads_and_says_the_same_as_the_contract(tmp_path: Path) -> None:
    example = read_config(written(tmp_path, EXAMPLE.read_text(encoding="utf-8")), ENV).settings
    assert example == read_config(written(tmp_path, CONTRACT), ENV).settings


def _forms(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from _forms(field.annotation)
    for argument in get_args(annotation):
        yield from _forms(argument)


def test_the_example_names_every_key() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    missing = [
        f"{form.__name__}.{name}"
        for form in _forms(settings_model())
        for name in form.model_fields
        if not re.search(rf"\b{name}:", text)
    ]
    assert missing == []


def test_defaults_that_are_not_checked_at_the_start_are_good() -> None:
    sections = [ConfigSection]
    for section in sections:  # all of them, while the list grows
        sections += [one for one in section.__subclasses__() if one not in sections]
    unchecked = [
        field.default
        for section in sections
        for field in section.model_fields.values()
        if isinstance(field.default, ConfigSection)
    ]
    assert len(unchecked) > 20
    for default in unchecked:
        given_ones = {name: getattr(default, name) for name in default.model_fields_set}
        assert type(default).model_validate(given_ones) == default


def test_files_are_merged_by_key(tmp_path: Path) -> None:
    written(
        tmp_path,
        "agents: [{id: a}]\nllm: {providers: {p: {kind: local}}}\nops: {port: 1}",
        "a.yaml",
    )
    written(tmp_path, "llm: {models: {main: {provider: p}}}\nops: {host: h}", "b.yml")
    for skipped in ("prices.yaml", "old.example.yaml", ".hidden.yaml", "notes.txt"):
        written(tmp_path, "nonsense: [", skipped)
    (tmp_path / "below").mkdir()
    written(tmp_path / "below", "nonsense: [", "c.yaml")
    settings = read_config(tmp_path, {}).settings
    assert (settings.ops.host, settings.ops.port) == ("h", 1)


def test_paths_start_at_the_configuration_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = MINIMAL.replace("{id: a}", "{id: a, workspace: ./w, files: ./f}") + (
        "channels: {i: {platform: irc, host: localhost, nick: n, tls: {ca_file: ca.pem}}}"
    )
    (tmp_path / "conf").mkdir()
    written(tmp_path / "conf", text)
    monkeypatch.chdir(tmp_path)
    settings = read_config(Path("conf"), {}).settings
    assert settings.store.path == tmp_path / "conf" / "data" / "reverie.db"
    assert settings.agents[0].workspace == tmp_path / "conf" / "w"
    assert settings.agents[0].files == tmp_path / "conf" / "f"
    irc = settings.channels["i"]
    assert isinstance(irc, IrcConfig)
    assert not isinstance(irc.tls, bool)
    assert irc.tls.ca_file == str(tmp_path / "conf" / "ca.pem")
    absolute = read_config(written(tmp_path, MINIMAL + "store: {path: /var/db}"), {}).settings
    assert absolute.store.path == Path("/var/db")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "one"),
        ("<${A}-${B}>", "<one-2>"),
        ("$${A}", "${A}"),
        ("$BTC", "$BTC"),
        ("$A {A} $", "$A {A} $"),
        ("${file:secret.txt}", "from file"),
        ("off", "off"),
        ("yes", "yes"),
        ("2026-01-01", "2026-01-01"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ('"12"', "12"),
    ],
)
def test_texts(tmp_path: Path, text: str, value: str) -> None:
    written(tmp_path, "  from file\n\n", "secret.txt")
    settings = read_config(
        written(tmp_path, f"{MINIMAL}\nops: {{host: {quoted(text)}}}"), {"A": "one", "B": "2"}
    ).settings
    assert settings.ops.host == value


def quoted(text: str) -> str:
    return f"'{text}'" if set(text) & set("${}") else text


def test_a_reference_alone_may_stand_for_a_number_or_a_truth(tmp_path: Path) -> None:
    text = MINIMAL + (
        'ops: {port: "${PORT}", token: "${DIGITS}"}\n'
        'dmn: {forage: "${YES}", daily_cost_usd: "${COST}", engaged: "${TIME}"}\n'
    )
    env = {"PORT": "81", "DIGITS": "0123456789012345", "YES": "true", "COST": "1.5", "TIME": "2m"}
    settings = read_config(written(tmp_path, text), env).settings
    assert settings.ops.port == 81
    assert settings.ops.token == SecretStr("0123456789012345")
    assert (settings.dmn.forage, settings.dmn.daily_cost_usd, settings.dmn.engaged) == (
        True,
        1.5,
        120,
    )


def test_listen_off_is_a_word(tmp_path: Path) -> None:
    settings = read_config(
        written(tmp_path, MINIMAL.replace("{id: a}", "{id: a, bindings: [{listen: off}]}")), {}
    ).settings
    assert settings.agents[0].bindings[0].listen == "off"


def test_thresholds_are_numbers_or_names(tmp_path: Path) -> None:
    text = MINIMAL + "attention: {thresholds: {a: urgent, b: 0, c: inherit, d: -1}}"
    assert read_config(written(tmp_path, text), {}).settings.attention.thresholds == {
        "a": 3,
        "b": 0,
        "c": -1,
        "d": -1,
    }


def test_parse_takes_values_and_leaves_them_alone(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "agents": [{"id": "a", "workspace": "w"}],
        "llm": {"providers": {"p": {"kind": "local"}}, "models": {"main": {"provider": "p"}}},
        "channels": {"console": {"platform": "console", "rooms": ["room"]}},
    }
    settings = parse_config(data, tmp_path)
    assert settings.channels["console"] == ConsoleConfig(platform="console", rooms=("room",))
    assert settings.agents[0].workspace == tmp_path / "w"
    assert data["agents"][0]["workspace"] == "w"
    assert "store" not in data
    with pytest.raises(ConfigError) as caught:
        parse_config(data | {"ops": {"prot": 1}}, tmp_path)
    assert str(caught.value) == "ops.prot: unknown key; did you mean `port`?"


def test_secrets_that_others_can_read_are_warned_of(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("planted-file-of-a-token")
    secret.chmod(0o644)
    written(tmp_path, MINIMAL + 'ops: {token: "${file:token}"}')
    written(
        tmp_path, "channels:\n  t:\n    platform: telegram\n    token: planted-literal\n", "t.yaml"
    ).chmod(0o755)
    (tmp_path / "t.yaml").chmod(0o640)
    warnings = read_config(tmp_path, {}).warnings
    assert [(Path(w.file).name, w.line) for w in warnings] == [("t.yaml", 4), ("token", 0)]
    assert not any("planted" in str(one) for one in warnings)
    secret.chmod(0o600)
    (tmp_path / "t.yaml").chmod(0o600)
    assert read_config(tmp_path, {}).warnings == ()


def test_no_secret_in_any_repr(tmp_path: Path) -> None:
    assert "planted" not in repr(read_config(written(tmp_path, CONTRACT), ENV).settings)


# Messages about a wrong configuration: file, line, key and remedy


def problems(directory: Path, env: dict[str, str] | None = None) -> list[tuple[str, int, str, str]]:
    with pytest.raises(ConfigError) as caught:
        read_config(directory, ENV if env is None else env)
    return [(Path(p.file).name, p.line, p.key, p.message) for p in caught.value.problems]


IDENTIFY = "PRIVMSG NickServ :IDENTIFY ACCOUNT PASSWORD"
STAYS = "it stays out until an admin has it join"
HINT = "; texts with #, {, [, * or : need quotes, and lines are indented by spaces"
IRC = "channels:\n  i:\n    platform: irc\n    host: localhost\n    nick: n\n"
"""Five lines; a sixth is a key of the channel if it is indented by four."""


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        pytest.param(
            "a: 1\nb: [1, 2\nc: 3",
            3,
            "",
            "not YAML: did not find expected ',' or ']' while parsing a flow sequence that begins in "
            f"line 2, column 4 (column 2){HINT}",
            id="bracket",
        ),
        pytest.param(
            "a: b\n c: d",
            2,
            "",
            f"not YAML: mapping values are not allowed in this context (column 3){HINT}",
            id="indentation",
        ),
        pytest.param(
            "a: 1\nb: *planted",
            2,
            "",
            f"not YAML: found undefined alias (column 4){HINT}",
            id="alias",
        ),
        pytest.param(
            'store: {path: "a\\0b"}',
            1,
            "store.path",
            "a path cannot contain the character NUL",
            id="nul",
        ),
        pytest.param("[" * 100_000, 1, "", "not YAML: nested too deep", id="depth"),
        pytest.param("a: \x01", 1, "", "not YAML: contains control characters", id="control"),
        pytest.param(
            "a: 1\né: 2\nb: \x01", 3, "", "not YAML: contains control characters", id="control-line"
        ),
        pytest.param("- a", 1, "", "must be a mapping of sections, e.g. `channels:`", id="list"),
        pytest.param("text", 1, "", "must be a mapping of sections, e.g. `channels:`", id="text"),
        pytest.param(
            f"{IRC}    port: 1\n    port: 2",
            7,
            "channels.i.port",
            "appears twice, first on line 6; keep one",
            id="twice",
        ),
        pytest.param(
            "dmn: {}\ndmn: {}",
            2,
            "dmn",
            "appears twice, first on line 1; keep one",
            id="section twice",
        ),
        pytest.param("dmn:\n  {}: 1", 1, "dmn", "line 2: a key must be plain text", id="key"),
        pytest.param(
            "ops:\n  host: !planted x",
            2,
            "ops.host",
            "tags (`!name`) are not supported; a value that starts with `!` needs quotes",
            id="tag",
        ),
        pytest.param(
            'attention:\n  rules:\n    - {type: irc, urgency: low, regex: "("}',
            3,
            "attention.rules[0].regex",
            "is no setting any more; write a rule with `keyword` for each word",
            id="regex",
        ),
        pytest.param(
            "attention:\n  salience:\n    people: [nick]",
            2,
            "attention.salience",
            "is no setting any more; for questions write `speaks_up: when_useful` in the binding of "
            "a room; for words and people put rules under `attention.rules`, with "
            "`type: '*.room.*'`, `urgency: normal`, and `keyword` or `role` (a rule names no single "
            "person)",
            id="salience",
        ),
        pytest.param(
            "attention:\n  rules:\n    - {type: irc, urgency: low, role: boss}",
            3,
            "attention.rules[0].role",
            "must be 'guest', 'member', 'admin' or 'owner'",
            id="role",
        ),
        pytest.param(
            "chanels: {}", 1, "chanels", "unknown key; did you mean `channels`?", id="section"
        ),
        pytest.param(
            f"{IRC}    prot: 1",
            6,
            "channels.i.prot",
            "unknown key; did you mean `port`?",
            id="typo",
        ),
        pytest.param(
            f"{IRC}    ping_timeout: 9s",
            6,
            "channels.i.ping_timeout",
            "is no setting any more; it is always 30 s now; take this line out",
            id="removed",
        ),
        *(
            pytest.param(
                f"{IRC}    {line}",
                6,
                f"channels.i.{line.partition(':')[0]}",
                f"is no setting any more; {remedy}",
                id=f"removed {line}",
            )
            for line, remedy in (
                ("username: rev", "it is made of the nick now; take this line out"),
                ("nickserv: {}", f"use `sasl`, or write `{IDENTIFY}` under `on_connect`"),
                ("rejoin_after_kick: true", f"thrown out of a room, {STAYS}; take this line out"),
                ("history_age: 2h", "it is always 1 h now; take this line out"),
            )
        ),
        pytest.param(
            "store:\n  keep_kinds: {room: 90d}",
            2,
            "store.keep_kinds",
            "is no setting any more; all kinds of entries leave together, after `store.keep`; take "
            "this line out",
            id="removed ages of kinds",
        ),
        pytest.param(
            "store:\n  keep: 20d",
            2,
            "store.keep",
            "must be at least 31d, because whole months leave",
            id="age",
        ),
        pytest.param(
            f"{IRC}    page-lines: 1",
            6,
            "channels.i.page-lines",
            "unknown key; did you mean `page_lines`?",
            id="dash",
        ),
        pytest.param(
            "store:\n  zzz: 1",
            2,
            "store.zzz",
            "unknown key; known here: exit_after, keep, path, url",
            id="unknown without a likely one",
        ),
        pytest.param(
            f"{IRC}    sasl: {{mechanism: external, password:planted}}",
            6,
            "channels.i.sasl.password",
            "unknown key; write a space after the colon",
            id="colon",
        ),
        pytest.param(
            f"{IRC}    port: '1'", 6, "channels.i.port", "must be a whole number", id="int"
        ),
        pytest.param(
            f"{IRC}    port: 1.5",
            6,
            "channels.i.port",
            "must be a whole number",
            id="float for int",
        ),
        pytest.param(
            f"{IRC}    port: 0", 6, "channels.i.port", "must be at least 1", id="too small"
        ),
        pytest.param(
            f"{IRC}    port: 99999", 6, "channels.i.port", "must be at most 65535", id="too large"
        ),
        pytest.param(
            f"{IRC}    password: 5",
            6,
            "channels.i.password",
            "must be text; put it in quotes",
            id="number",
        ),
        pytest.param(
            f"{IRC}    rooms:\n      - '#a'\n      - 5",
            8,
            "channels.i.rooms[1]",
            "must be text; put it in quotes",
            id="item",
        ),
        pytest.param(
            f"{IRC}    rooms: x", 6, "channels.i.rooms", "must be a list, e.g. [a, b]", id="no list"
        ),
        pytest.param(
            f"{IRC}    flood: x",
            6,
            "channels.i.flood",
            "must be a mapping of keys to values",
            id="no mapping",
        ),
        pytest.param(
            f"{IRC}    tls: yes",
            6,
            "channels.i.tls",
            "must be true or false, or a mapping of keys to values",
            id="union",
        ),
        pytest.param(
            f"{IRC}    tls: {{verify: 1}}",
            6,
            "channels.i.tls.verify",
            "must be true or false",
            id="inside a union",
        ),
        pytest.param(
            "channels:\n  t:\n    platform: telegram",
            2,
            "channels.t.token",
            "is required",
            id="missing",
        ),
        pytest.param(
            "channels:\n  t:\n    token: x",
            2,
            "channels.t.platform",
            "is required",
            id="no platform",
        ),
        pytest.param(
            "channels:\n  t:\n    platform: planted",
            3,
            "channels.t.platform",
            "must be one of 'irc', 'telegram', 'discord', 'console'; others come with plugins "
            "(`reverie plugins`)",
            id="platform",
        ),
        pytest.param(
            "channels:\n  'a b':\n    platform: console",
            2,
            "channels.a b",
            "a name has letters, digits, `.`, `_` and `-` only",
            id="channel name",
        ),
        pytest.param(
            "dmn:\n  engaged: 5x",
            2,
            "dmn.engaged",
            "not a duration; write seconds (300) or a number with ms, s, m, h or d (5m)",
            id="duration",
        ),
        pytest.param(
            "access:\n  dm: planted",
            2,
            "access.dm",
            "must be 'pairing', 'allowlist', 'open' or 'disabled'",
            id="choice",
        ),
        pytest.param(
            "access:\n  roles:\n    owner: [nick]",
            3,
            "access.roles.owner[0]",
            "write `<channel>:<sender id>`, e.g. telegram.main:1001",
            id="person",
        ),
        pytest.param(
            "access:\n  roles:\n    owner: [a:1]\n    blocked:\n      - a:1",
            5,
            "access.roles.blocked[0]",
            "already has another role (access.roles.owner[0]); keep one",
            id="two roles",
        ),
        pytest.param(
            "ops:\n  token: ${NOPE}",
            2,
            "ops.token",
            "the environment variable NOPE is not set; set it, or write ${file:...}",
            id="variable",
        ),
        pytest.param(
            "ops:\n  token: $REVERIE_TOKEN_OF_MINE",
            2,
            "ops.token",
            "unfinished reference: write ${NAME} or ${file:PATH}, or $${ for a plain ${",
            id="shell's reference",
        ),
        pytest.param(
            "ops:\n  token: ${planted",
            2,
            "ops.token",
            "unfinished reference: write ${NAME} or ${file:PATH}, or $${ for a plain ${",
            id="unfinished reference",
        ),
        pytest.param(
            'ops:\n  port: "${IRC_PASSWORD}"',
            2,
            "ops.port",
            "must be a whole number",
            id="no number",
        ),
        pytest.param(
            'ops:\n  port: "1${ONE}"',
            2,
            "ops.port",
            "must be a whole number",
            id="number in pieces",
        ),
        pytest.param(
            "llm:\n  context_optimization:\n    prompt_cache:\n      long_ttl: 30m",
            4,
            "llm.context_optimization.prompt_cache.long_ttl",
            "providers cache for 5m or for 1h; write one of these",
            id="lifetime",
        ),
        pytest.param(
            "llm:\n  context_optimization:\n    prompt_cache:\n      short_ttl: 0",
            4,
            "llm.context_optimization.prompt_cache.short_ttl",
            "providers cache for 5m or for 1h; write one of these",
            id="no lifetime",
        ),
        pytest.param(
            "llm:\n  context_optimization:\n    prompt_cache:\n      long_ttl: 5m\n      "
            "short_ttl: 1h",
            5,
            "llm.context_optimization.prompt_cache.short_ttl",
            "must not be longer than long_ttl; write 5m, or long_ttl: 1h",
            id="lifetimes",
        ),
        pytest.param(
            "llm:\n  context_optimization:\n    prompt_cache:\n      keep_warm_usd: -1",
            4,
            "llm.context_optimization.prompt_cache.keep_warm_usd",
            "must be at least 0.0",
            id="budget",
        ),
        pytest.param(
            "ops: 5", 1, "ops", "must be a mapping of keys to values", id="section of one value"
        ),
    ],
)
def test_one_problem(tmp_path: Path, text: str, line: int, key: str, message: str) -> None:
    written(tmp_path, MINIMAL, "base.yaml")
    found = problems(written(tmp_path, text), ENV | {"ONE": "1"})
    assert found == [("reverie.yaml", line, key, message)]


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("llm: {models: {}, providers: {}}", 1, "agents", "is required"),
        (
            MINIMAL.replace("{id: a}", "{id: a}, {id: b}"),
            2,
            "agents[0]",
            (
                "gets every conversation, so the agents below get none; give it bindings, or put it "
                "last"
            ),
        ),
        (
            MINIMAL.replace("{id: a}", "{id: a, bindings: []}, {id: a}"),
            2,
            "agents[1].id",
            "there are two agents with the id 'a'; choose another",
        ),
        (
            MINIMAL.replace("[{id: a}]", "[]"),
            2,
            "agents",
            "at least one agent is needed: add one with an id",
        ),
        (
            MINIMAL.replace("{id: a}", "{id: a, model: m}"),
            2,
            "agents[0].model",
            "no such model; in llm.models: main",
        ),
        (
            MINIMAL.replace("main:", "other:"),
            2,
            "agents[0].model",
            "no such model; in llm.models: other",
        ),
        (
            MINIMAL.replace("provider: p", "provider: q"),
            5,
            "llm.models.main.provider",
            "there is no 'q' in llm.providers (there: p); add it or correct the name",
        ),
        (
            MINIMAL.replace("provider: p", "provider: p, fallbacks: [main]"),
            5,
            "llm.models.main.fallbacks",
            "fall back in a circle (main -> main); take one of them out",
        ),
        (MINIMAL.replace("kind: local", "kind: lokal"), 4, "llm.providers.p.kind", None),
        (
            MINIMAL + "  context_optimization: {compaction: {summarizer_model: x}}",
            6,
            "llm.context_optimization.compaction.summarizer_model",
            "no such model; in llm.models: main",
        ),
        (
            f"{MINIMAL}\ntools: {{approvals: {{room: lobby}}}}",
            7,
            "tools.approvals.room",
            "not an address; write a channel, a slash and a room, e.g. telegram.main/-1001",
        ),
        (
            f"{MINIMAL}\ntools: {{approvals: {{room: irc.x/#a}}}}",
            7,
            "tools.approvals.room",
            "no such channel; in channels: none",
        ),
        (
            f"{MINIMAL}\ntools: {{rules: [{{tool: mcp_x_y}}, {{tool: bsh, role: owner}}]}}",
            7,
            "tools.rules[1].tool",
            "no tool has that name; did you mean bash?",
        ),
        (f"{MINIMAL}\ntools: {{off: ['web_*', '']}}", 7, "tools.off[1]", "no tool has that name"),
        (
            f"{MINIMAL}\ntools: {{web: {{search: {{provider: searxng}}}}}}",
            7,
            "tools.web.search",
            None,
        ),
        (
            f"{MINIMAL}\ntools: {{web: {{search: {{provider: brave}}}}}}",
            7,
            "tools.web.search",
            None,
        ),
        (f"{MINIMAL}\ntools: {{mcp: {{a: {{url: 'ftp://x'}}}}}}", 7, "tools.mcp.a", None),
        (
            f"{MINIMAL}\ntools: {{mcp: {{a: {{command: [x], headers: {{A: b}}}}}}}}",
            7,
            "tools.mcp.a",
            None,
        ),
        (f"{MINIMAL}\ntools: {{bash: {{timeout: 20m}}}}", 7, "tools.bash", None),
    ],
)
def test_one_problem_between_sections(
    tmp_path: Path, text: str, line: int, key: str, message: str | None
) -> None:
    [(file, at, what, said)] = problems(written(tmp_path, text))
    assert (file, at, what) == ("reverie.yaml", line, key)
    assert said == message or message is None


def test_no_directory_and_no_file(tmp_path: Path) -> None:
    [(_, _, _, said)] = problems(tmp_path / "nowhere")
    assert said == (
        "cannot read the configuration directory (No such file or directory); name another with "
        "--config"
    )
    [(_, _, _, said)] = problems(tmp_path)
    assert said == "has no configuration (*.yaml); `reverie setup` writes one"


def test_empty_files_lack_what_is_required(tmp_path: Path) -> None:
    found = problems(written(tmp_path, "# nothing yet\n"))
    assert found == [
        ("reverie.yaml", 1, "agents", "is required"),
        ("reverie.yaml", 1, "llm", "is required"),
    ]


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: 1\nb: \xff")
    assert problems(tmp_path) == [("a.yaml", 2, "", "is not UTF-8 text; save it as UTF-8")]


def test_a_value_in_two_files_names_both(tmp_path: Path) -> None:
    written(tmp_path, MINIMAL + "ops: {port: 1}", "a.yaml")
    found = problems(written(tmp_path, "ops:\n  host: h\n  port: 1", "b.yaml"))
    assert found == [
        ("b.yaml", 3, "ops.port", f"also in {tmp_path / 'a.yaml'}:6; keep one of the two")
    ]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere", "cannot read the file nowhere (No such file or directory)"),
        (".", "cannot read the file . (Is a directory)"),
        ("binary", "cannot read the file binary (not a readable text file)"),
        ("empty", "the file empty is empty"),
    ],
)
def test_unreadable_secret_files(tmp_path: Path, path: str, reason: str) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "empty").write_text("\n")
    found = problems(written(tmp_path, f"{MINIMAL}ops:\n  token: ${{file:{path}}}"))
    assert [(line, key) for _, line, key, _ in found] == [(7, "ops.token")]
    assert found[0][3].startswith(reason)


def test_what_holds_itself_ends(tmp_path: Path) -> None:
    found = problems(written(tmp_path, MINIMAL + "store: &a {path: *a}"))
    assert ("reverie.yaml", 6, "store.path.path", "too large or nested too deep") in found


def test_what_doubles_forty_times_ends(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    assert "too large or nested too deep" in {
        found[3] for found in problems(written(tmp_path, "\n".join(lines)))
    }


def test_a_broken_file_does_not_hide_the_others_problems(tmp_path: Path) -> None:
    written(tmp_path, "agents: [", "a.yaml")
    found = problems(written(tmp_path, "ops: {prot: 1}", "b.yaml"))
    assert [(file, key) for file, _, key, _ in found] == [("a.yaml", ""), ("b.yaml", "ops.prot")]


def test_everything_at_once_in_the_order_of_the_files(tmp_path: Path) -> None:
    written(
        tmp_path,
        """channels:
  irc.libera:
    platform: irc
    hots: localhost
    port: "${PORT}"
    nick: reverie
    nick: again
  t: {platform: telegram, token: "${NOPE}"}
agents:
  - id: a
    model: nah
    bindings: [{match: {chanel: x}, listen: maybe}]
llm:
  providers: {p: {kind: local}, q: {}}
  models: {main: {provider: gone}, small: {provider: q, fallbacks: [nobody]}}
""",
        "a.yaml",
    )
    written(
        tmp_path,
        "dmn: {engaged: soon, daily_turns: -1}\nops: {token: '${file:none}'}\nfoo: 1\n",
        "b.yaml",
    )
    assert [found[:3] for found in problems(tmp_path, {"PORT": "x"})] == [
        ("a.yaml", 2, "channels.irc.libera.host"),
        ("a.yaml", 4, "channels.irc.libera.hots"),
        ("a.yaml", 5, "channels.irc.libera.port"),
        ("a.yaml", 7, "channels.irc.libera.nick"),
        ("a.yaml", 8, "channels.t.token"),
        ("a.yaml", 12, "agents[0].bindings[0].listen"),
        ("a.yaml", 12, "agents[0].bindings[0].match.chanel"),
        ("a.yaml", 14, "llm.providers.q.kind"),
        ("b.yaml", 1, "dmn.daily_turns"),
        ("b.yaml", 1, "dmn.engaged"),
        ("b.yaml", 2, "ops.token"),
        ("b.yaml", 3, "foo"),
    ]


@pytest.mark.parametrize(
    "damage", [("platform: irc", "platform: ${SECRET}"), ("kind: local", "kind: ${SECRET}")]
)
def test_a_secret_in_the_wrong_place_is_not_shown(tmp_path: Path, damage: tuple[str, str]) -> None:
    written(tmp_path, CONTRACT.replace(*damage))
    _assert_silent(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        "provider",
        "name",
        "listen",
        "dm",
        "nick",
        "host",
        "port",
        "tls",
        "rooms",
        "fallbacks",
        "base_url",
        "id",
    ],
)
@pytest.mark.parametrize(
    "value", ['"${SECRET} x"', "[${SECRET}]", '["${SECRET}"]', '{"${SECRET}": 1}', '"${SECRET}"']
)
def test_a_secret_anywhere_is_not_shown(tmp_path: Path, key: str, value: str) -> None:
    head, _, tail = CONTRACT.partition(f"{key}: ")
    end = min(at for at in (tail.find(mark) for mark in (",", "\n", "}")) if at >= 0)
    written(tmp_path, f"{head}{key}: {value}{tail[end:]}")
    _assert_silent(tmp_path)


def _outcome(directory: Path, env: dict[str, str]) -> str:
    """Return the whole text of a refusal; empty if there was none."""
    try:
        read_config(directory, env)
    except ConfigError as error:
        return f"{error} {error!r} {error.problems} {error.__cause__}"
    return ""


def _assert_silent(directory: Path) -> None:
    assert "planted" not in _outcome(directory, ENV | {"SECRET": "planted-here"})


_WORDS = st.sampled_from(
    [
        *(
            "channels",
            "i",
            "platform",
            "irc",
            "tls",
            "rooms",
            "agents",
            "id",
            "llm",
            "models",
            "main",
            "provider",
        ),
        *(
            "providers",
            "kind",
            "local",
            "fallbacks",
            "access",
            "roles",
            "owner",
            "a:1",
            "store",
            "path",
            "ops",
            "port",
        ),
        *(
            "token",
            "5m",
            "1",
            "true",
            "~",
            "~x/y",
            "1e999",
            "${A}",
            "${file:x}",
            "${",
            "$${",
            "*a",
            "&a",
            "!t",
            "<<",
        ),
        *("-", "''", '"', "#", "|", ">", "\x00"),
    ]
)
_PIECES = st.one_of(
    _WORDS,
    st.sampled_from([": ", "\n", "\n  ", "\n    ", ", ", "[", "]", "{", "}", "- "]),
    st.text(),
)


def _load_text(text: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        _outcome(written(Path(directory), text), {"A": "planted"})


@settings(max_examples=examples(300))
@given(st.lists(_PIECES, max_size=40).map("".join))
def test_any_text_loads_or_is_bad_config(text: str) -> None:
    _load_text(text.encode("utf-8", "replace").decode())


def _level(below: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(below, st.lists(below, max_size=3), st.dictionaries(_WORDS, below, max_size=4))


_LEAF: st.SearchStrategy[object] = st.one_of(
    _WORDS, st.integers(), st.floats(), st.booleans(), st.none()
)
_TREE = _level(_level(_level(_LEAF)))


@settings(max_examples=examples(300))
@given(st.dictionaries(_WORDS, _TREE, max_size=5))
def test_any_tree_loads_or_is_bad_config(tree: dict[str, object]) -> None:
    _load_text(yaml.safe_dump(tree))


@pytest.mark.parametrize(
    ("files", "holds"),
    [
        (".", ["the configuration", "the store", "the workspace of b"]),
        ("data", ["the store"]),
        ("mind", ["the workspace of b"]),
        ("mind/files", []),
        ("data/files", []),
        ("data/mind", ["the notes of a", "the notes of b"]),
    ],
)
def test_files_of_an_agent_that_hold_what_is_not_its_own(
    tmp_path: Path, files: str, holds: list[str]
) -> None:
    told = yaml.safe_load(MINIMAL)
    bound = {"bindings": [{"match": {"room": "a"}}]}
    told["agents"] = [
        {"id": "a", "files": files, **bound},
        {"id": "b", "workspace": "mind", "bindings": [{"match": {"room": "b"}}]},
    ]
    told["store"] = {"path": "data/r.db"}
    warnings = read_config(written(tmp_path, yaml.safe_dump(told)), ENV).warnings
    said = [
        (one.key, one.message.partition(",")[0])
        for one in warnings
        if "readable" not in one.message
    ]
    assert said == [("agents[0].files", f"contains {what}") for what in holds]


# Messages about a wrong, or an unwise, list of people

SASL = {"mechanism": "plain", "account": "a", "password": "p"}
CHECKS_IRC = {"irc.x": {"platform": "irc", "host": "localhost", "nick": "n"}}


def told(tmp_path: Path, access: object) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Errors and warnings, each with its key."""
    tree = {**yaml.safe_load(MINIMAL), "channels": CHECKS_IRC, "access": access}
    try:
        warnings = read_config(written(tmp_path, yaml.safe_dump(tree)), ENV).warnings
    except ConfigError as error:
        return [(one.key, one.message) for one in error.problems], []
    return [], [(one.key, one.message) for one in warnings]


@pytest.mark.parametrize(
    ("access", "key", "says"),
    [
        (
            {"roles": {"owner": ["irc.x:mask:*!*@home"]}},
            "access.roles.owner[0]",
            "anybody can have that mask",
        ),
        (
            {"roles": {"member": ["irc.y:account:a"]}},
            "access.roles.member[0]",
            "no such channel; in channels: irc.x",
        ),
        ({"roles": {"member": ["a"]}}, "access.roles.member[0]", "write `<channel>:<sender id>`"),
        (
            {"roles": {"owner": ["irc.x:account:a"], "admin": ["irc.x:account:a"]}},
            "access.roles.admin[0]",
            "already has another role",
        ),
        (
            {"grants": [{"who": "irc.x:mask:*", "role": "admin", "room": "irc.x/#a"}]},
            "access.grants[0].who",
            "anybody can have that mask",
        ),
        (
            {"grants": [{"who": "irc.x:account:a", "role": "admin"}]},
            "access.grants[0]",
            "name an agent or a room",
        ),
        (
            {"grants": [{"who": "irc.x:account:a", "role": "admin", "agent": "b"}]},
            "access.grants[0].agent",
            "no such agent; in agents: a",
        ),
        (
            {"grants": [{"who": "irc.x:account:a", "role": "admin", "room": "irc.y/#a"}]},
            "access.grants[0].room",
            "no such channel; in channels: irc.x",
        ),
        (
            {"grants": [{"who": "irc.x:account:a", "role": "admin", "room": "#a"}]},
            "access.grants[0].room",
            "write `<channel>/<room>`",
        ),
        (
            {"platform_roles": [{"channel": "discord.*", "has": "role:1", "role": "member"}]},
            "access.platform_roles[0].channel",
            "matches no channel; the channels are: irc.x",
        ),
        ({"tell": "irc.y/ann"}, "access.tell", "no such channel; in channels: irc.x"),
        ({"tell": "ann"}, "access.tell", "write `<channel>/<room>`"),
        ({"tell": "*"}, "access.tell", "write `<channel>/<room>`"),
        (
            {"grants": [{"who": "irc.x:account:a", "role": "admin", "room": "*"}]},
            "access.grants[0].room",
            "write `<channel>/<room>`",
        ),
        ({"rooms": "open"}, "access.rooms", "approval"),
        (
            {"rates": {"sender": {"burst": -1, "per_minute": 1}}},
            "access.rates.sender.burst",
            "must be at least 0",
        ),
    ],
)
def test_a_mistake_names_its_key_and_the_fix(
    tmp_path: Path, access: object, key: str, says: str
) -> None:
    (((where, message),), _) = told(tmp_path, access)
    assert where == key
    assert says in message


@pytest.mark.parametrize(
    ("access", "key"),
    [
        ({"masks": True}, "access.masks"),
        ({"roles": {"member": ["irc.x:mask:*!*@home"]}}, "access.roles.member[0]"),
        (
            {"grants": [{"who": "irc.x:mask:*!*@h", "role": "member", "room": "irc.x/#a"}]},
            "access.grants[0].who",
        ),
        (
            {"platform_roles": [{"channel": "irc.*", "has": "op", "role": "admin"}]},
            "access.platform_roles[0].room",
        ),
    ],
)
def test_what_lets_in_more_than_is_meant_is_a_warning(
    tmp_path: Path, access: object, key: str
) -> None:
    assert [where for where, _ in told(tmp_path, access)[1]] == [key]


def test_what_is_fine_is_silent(tmp_path: Path) -> None:
    fine = {
        "roles": {"owner": ["irc.x:account:a"], "blocked": ["irc.x:mask:*!*@spam"]},
        "grants": [{"who": "irc.x:mask:*!*@h", "role": "blocked", "room": "irc.x/#a"}],
        "platform_roles": [{"channel": "irc.x", "room": "#a", "has": "op", "role": "admin"}],
        "tell": "irc.x/ann!account:ann",
    }
    assert told(tmp_path, fine) == ([], [])


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"tls": {"verify": False}, "password": "x"}, "channels.irc.x.tls.verify"),
        ({"tls": {"verify": False}, "sasl": SASL}, "channels.irc.x.tls.verify"),
        ({"tls": {"verify": False}}, None),
        ({"tls": {"verify": True}, "sasl": SASL}, None),
        ({"sasl": SASL}, None),
    ],
)
def test_a_password_for_a_server_that_nobody_checks_is_a_warning(
    tmp_path: Path, more: dict[str, object], key: str | None
) -> None:
    channel = {"platform": "irc", "host": "irc.example.org", "nick": "r", "contact": "ann"}
    tree = {**yaml.safe_load(MINIMAL), "channels": {"irc.x": channel | more}}
    found = read_config(written(tmp_path, yaml.safe_dump(tree)), ENV).warnings
    assert [one.key for one in found if one.key] == ([key] if key else [])
    assert all(
        "; name the server's root certificate in tls.ca_file" in one.message
        for one in found
        if one.key
    )


@pytest.mark.parametrize("around", [" {} ", "{}\n", "\ufeff{}\r\n", "\n\t{}"])
@pytest.mark.parametrize("reference", ["${TOKEN}", "${file:token}"])
def test_white_space_and_a_mark_around_a_secret_are_no_part_of_it(
    tmp_path: Path, around: str, reference: str
) -> None:
    (tmp_path / "token").write_text(around.format("1:abc"), encoding="utf-8")
    text = f"{MINIMAL}\nchannels: {{t: {{platform: telegram, token: '{reference}'}}}}\n"
    channel = read_config(
        written(tmp_path, text), {"TOKEN": around.format("1:abc")}
    ).settings.channels["t"]
    assert isinstance(channel, TelegramConfig)
    assert channel.token.get_secret_value() == "1:abc"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ('"1:abc"', "has quotes around its value, which count as a part of it; take them out"),
        ("'1:abc'\n", "has quotes around its value, which count as a part of it; take them out"),
        ('""', "has quotes around its value, which count as a part of it; take them out"),
        ("1:abc\n2:def", "not a token: one word without blanks and line breaks; copy it"),
        (" \n", "is "),
    ],
)
@pytest.mark.parametrize("platform", ["telegram", "discord"])
@pytest.mark.parametrize("reference", ["${TOKEN}", "${file:token}"])
def test_why_a_secret_cannot_be_right_is_named(
    tmp_path: Path, value: str, says: str, platform: str, reference: str
) -> None:
    (tmp_path / "token").write_text(value)
    text = f"{MINIMAL}\nchannels: {{c: {{platform: {platform}, token: '{reference}'}}}}\n"
    ((_, _, key, message),) = problems(written(tmp_path, text), {"TOKEN": value})
    name = "the environment variable TOKEN " if reference == "${TOKEN}" else "the file token "
    assert (key, message.removeprefix(name).startswith(says)) == ("channels.c.token", True), message
    assert "abc" not in message
