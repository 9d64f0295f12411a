"""Mistakes that people make in a configuration, and which command finds each one.

What needs servers is in `doctor_kit.SERVERS`.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.cli.main import main
from tests.gateway.plugins.doctor.doctor_kit import changed

TOKEN = "7000000001:AAtoken-of-a-bot_0123456789"
BASE: dict[str, Any] = {
    "channels": {
        "irc.x": {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": 6667,
            "tls": False,
            "nick": "bot",
            "rooms": ["#a"],
        },
        "tg": {"platform": "telegram", "token": "${TOKEN}", "rooms": ["-1001"]},
    },
    "agents": [{"id": "r"}],
    "llm": {"providers": {"dry": {"kind": "scripted"}}, "models": {"main": {"provider": "dry"}}},
    "access": {"roles": {"owner": ["tg:77"]}},
    "store": {"path": "data/r.db"},
    "ops": {"port": 0},
}
OTHER_BOT = {"platform": "telegram", "token": "${TOKEN_AGAIN}"}
CHECK, DOCTOR = "check-config", "doctor"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("TOKEN", "TOKEN_AGAIN"):
        monkeypatch.setenv(name, TOKEN)
    (tmp_path / "file").touch()
    return tmp_path


def outcome(
    command: str, directory: Path, config: object, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """Exit code, and all that the command printed of what is wrong."""
    file = directory / "reverie.yaml"
    file.write_text(json.dumps(config, indent=1))
    file.chmod(0o600)
    more = ["--offline"] if command == DOCTOR else []
    try:
        code = main([command, *more, "--config", str(directory)])
    except SystemExit as end:
        code = int(str(end.code))
    printed = capsys.readouterr()
    assert TOKEN not in printed.out + printed.err
    return code, printed.out if command == DOCTOR else printed.err


class Mistake(NamedTuple):
    name: str
    command: str
    """The command that finds it."""
    code: int
    """Its exit code."""
    key: str
    fix: str
    """Words of the remedy."""
    more: dict[str, Any]
    """What the configuration has instead."""


def agent(**more: object) -> dict[str, Any]:
    return {"agents": {0: more}}


def openai(**more: object) -> dict[str, Any]:
    """Instead of its model that one at OpenAI."""
    provider = {"kind": "openai", **more}
    return {"llm": {"providers": {"dry": provider}, "models": {"main": {"name": "gpt-6"}}}}


MISTAKES = (
    Mistake(
        "one token in two channels",
        CHECK,
        2,
        "channels.tg2.token",
        "is the token of channels.tg, too; remove",
        {"channels": {"tg2": OTHER_BOT}},
    ),
    Mistake(
        "a name as a Telegram room",
        CHECK,
        2,
        "channels.tg.rooms",
        "`reverie setup` lists the groups",
        {"channels": {"tg": {"rooms": ["@friends"]}}},
    ),
    Mistake(
        "a person as a Telegram room",
        CHECK,
        2,
        "channels.tg.rooms",
        "begins with a minus",
        {"channels": {"tg": {"rooms": ["1001"]}}},
    ),
    *(
        Mistake(
            f"a webhook that Telegram does not call: {url}",
            CHECK,
            0,
            "channels.tg.webhook.url",
            "https:// only",
            {"channels": {"tg": {"webhook": {"port": 0, "secret": "s" * 16, "url": url}}}},
        )
        for url in ("http://bot.example.org/t", "https://bot.example.org:9000/t")
    ),
    Mistake(
        "one token of the operator for two roles",
        CHECK,
        2,
        "ops.tokens",
        "a token of its own",
        {"ops": {"token": "t" * 16, "tokens": [{"name": "ann", "token": "t" * 16}]}},
    ),
    Mistake(
        "a skill in a binding that is not there",
        CHECK,
        0,
        "agents.r.workspace",
        "there is no skill trip",
        agent(bindings=[{"skills": ["trip"]}]),
    ),
    Mistake(
        "a name as a room in IRC's form",
        CHECK,
        2,
        "channels.irc.x.rooms[0]",
        'write it as "#name"',
        {"channels": {"irc.x": {"rooms": ["lounge"]}}},
    ),
    Mistake(
        "a room that is listed twice",
        CHECK,
        0,
        "channels.irc.x.rooms[1]",
        "remove one",
        {"channels": {"irc.x": {"rooms": ["#a", "#A"]}}},
    ),
    Mistake(
        "an account of IRC without a contact",
        CHECK,
        2,
        "channels.irc.x",
        "add who runs this bot",
        {"channels": {"irc.x": {"host": "irc.example.org", "tls": True}}},
    ),
    *(
        Mistake(
            f"a password with {character} in the URL of the database",
            CHECK,
            2,
            "store.url",
            "write %40 for @",
            {"store": {"url": f"postgresql://reverie:${{TOKEN}}{character}@database/reverie"}},
        )
        for character in "@/#?[% "
    ),
    Mistake(
        "a password over plain text",
        CHECK,
        2,
        "channels.irc.x",
        "write `tls: true`",
        {"channels": {"irc.x": {"host": "irc.example.org", "contact": "a", "password": "b"}}},
    ),
    Mistake(
        "a certificate file that is not there",
        CHECK,
        0,
        "channels.irc.x.tls",
        "correct the names of the files",
        {"channels": {"irc.x": {"tls": {"ca_file": "no.pem"}}}},
    ),
    Mistake(
        "a channel that no agent reads",
        CHECK,
        0,
        "channels.irc.x",
        "add a binding",
        agent(bindings=[{"match": {"channel": "tg"}}]),
    ),
    Mistake(
        "a binding for a channel that is not there",
        CHECK,
        0,
        "agents[0].bindings[0].match.channel",
        "there are irc.x, tg",
        agent(bindings=[{"match": {"channel": "discord.*"}}, {}]),
    ),
    Mistake(
        "a binding below one that takes all",
        CHECK,
        0,
        "agents[0].bindings[1]",
        "put this one above",
        agent(bindings=[{}, {"match": {"channel": "tg"}, "listen": "all"}]),
    ),
    Mistake(
        "two agents of which the first takes all",
        CHECK,
        2,
        "agents[0]",
        "put it last",
        {"agents": [{"id": "a"}, {"id": "b"}]},
    ),
    Mistake(
        "an owner by the nick",
        CHECK,
        0,
        "access.roles.owner[0]",
        "write e.g. irc.x:account:someone",
        {"access": {"roles": {"owner": ["irc.x:alice"]}}},
    ),
    Mistake(
        "an owner by the name",
        CHECK,
        0,
        "access.roles.owner[0]",
        "write e.g. tg:1001",
        {"access": {"roles": {"owner": ["tg:@alice"]}}},
    ),
    Mistake(
        "an owner in a channel that is not there",
        CHECK,
        2,
        "access.roles.owner[0]",
        "in channels: irc.x, tg",
        {"access": {"roles": {"owner": ["telegram:77"]}}},
    ),
    Mistake(
        "nobody is an owner",
        DOCTOR,
        0,
        "access.roles.owner",
        "pair seed",
        {"access": {"roles": {"owner": []}}},
    ),
    Mistake(
        "a person with two roles",
        CHECK,
        2,
        "access.roles.member[0]",
        "keep one",
        {"access": {"roles": {"member": ["tg:77"]}}},
    ),
    Mistake(
        "a budget of nothing",
        CHECK,
        0,
        "access.budgets.sender_usd",
        "null: no limit",
        {"access": {"budgets": {"sender_usd": 0}}},
    ),
    Mistake(
        "a model that is not there",
        CHECK,
        2,
        "agents[0].model",
        "in llm.models: main",
        agent(id="r", model="big"),
    ),
    Mistake(
        "a window that the persona fills",
        CHECK,
        0,
        "llm.models.main.context_tokens",
        "at least 4096",
        {"llm": {"models": {"main": {"context_tokens": 1000}}}},
    ),
    Mistake(
        "an answer as long as the window",
        CHECK,
        2,
        "llm.models.main.max_output_tokens",
        "smaller than context_tokens",
        {"llm": {"models": {"main": {"context_tokens": 8000, "max_output_tokens": 8000}}}},
    ),
    Mistake(
        "a key of another provider",
        CHECK,
        0,
        "llm.providers.dry.api_key: is a key for api.anthropic.com, not for api.openai.com",
        "correct it",
        openai(api_key="sk-ant-api03-abcdefgh"),
    ),
    Mistake(
        "the place for a key",
        CHECK,
        0,
        "llm.providers.dry.api_key: is not a key",
        "write the one that api.openai.com gave you",
        openai(api_key="your-api-key-here"),
    ),
    Mistake(
        "no key where one is wanted",
        CHECK,
        0,
        "llm.providers.dry.api_key: api.openai.com wants a key",
        "write the one that it gave you",
        openai(),
    ),
    Mistake(
        "fallbacks in a circle",
        CHECK,
        2,
        "llm.models.main.fallbacks",
        "take one of them out",
        {"llm": {"models": {"main": {"fallbacks": ["main"]}}}},
    ),
    Mistake(
        "a time zone that is not there",
        CHECK,
        2,
        "dmn.timezone",
        "write an IANA name",
        {"dmn": {"timezone": "Europe/Zuerich"}},
    ),
    Mistake(
        "a section of a plugin that is not installed",
        CHECK,
        2,
        "weather",
        "`reverie plugins`",
        {"weather": {"city": "Bern"}},
    ),
    Mistake(
        "a plugin that is not installed",
        CHECK,
        2,
        "plugins.need",
        "`reverie plugins`",
        {"plugins": {"need": ["weather"]}},
    ),
    Mistake(
        "a platform whose plugin is off",
        CHECK,
        2,
        "channels.tg.platform",
        "plugins.off",
        {"plugins": {"off": ["telegram"]}},
    ),
    Mistake(
        "a key with a letter too many",
        CHECK,
        2,
        "agents[0].modell",
        "did you mean `model`",
        agent(modell="main"),
    ),
    Mistake(
        "a key of an earlier version",
        CHECK,
        2,
        "tools.clean_view",
        "take this line out",
        {"tools": {"clean_view": True}},
    ),
    Mistake(
        "a rule for a tool that is not there",
        CHECK,
        2,
        "tools.off[0]",
        "did you mean bash?",
        {"tools": {"off": ["bsh"]}},
    ),
    Mistake(
        "a program for voice notes that is not there",
        CHECK,
        0,
        "media.transcribe",
        "install it",
        {"media": {"transcribe": ["whisper-nope", "{file}"]}},
    ),
    Mistake(
        "a program that calls to mind that is not there",
        CHECK,
        0,
        "recall.prefetch.command",
        "install it",
        {"recall": {"prefetch": {"command": ["notes-nope", "search"]}}},
    ),
    Mistake(
        "an MCP server that is not there",
        CHECK,
        0,
        "tools.mcp.x.command",
        "install it",
        {"tools": {"mcp": {"x": {"command": ["mcp-nope"]}}}},
    ),
    Mistake(
        "a variable that is not set",
        CHECK,
        2,
        "channels.tg.token",
        "set it",
        {"channels": {"tg": {"token": "${TOKEN_OF_NOBODY}"}}},
    ),
    Mistake(
        "a store where no directory can be",
        CHECK,
        2,
        "file/r.db",
        "set store.path",
        {"store": {"path": "file/r.db"}},
    ),
    Mistake(
        "a directory as the store", CHECK, 2, "a directory", "name a file", {"store": {"path": "."}}
    ),
    Mistake(
        "the name of a language",
        CHECK,
        2,
        "agents[0].bindings[0].language",
        "must look like",
        agent(id="r", bindings=[{"language": "german"}]),
    ),
    Mistake(
        "files of an agent where no directory can be",
        CHECK,
        2,
        "agents.r.files",
        "take `files` out",
        {"agents": {0: {"id": "r", "files": "file"}}},
    ),
    Mistake(
        "a workspace that is not there",
        DOCTOR,
        1,
        "agents.r.workspace",
        "create it with an IDENTITY.md",
        agent(id="r", workspace="persona"),
    ),
    Mistake(
        "hours that are none",
        CHECK,
        2,
        "attention.presence.sleep",
        "write a start and an end",
        {"attention": {"presence": {"sleep": "23-7"}}},
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: one.name)
def test_a_mistake_is_found_with_its_key_and_remedy(
    directory: Path, capsys: pytest.CaptureFixture[str], mistake: Mistake
) -> None:
    code, printed = outcome(mistake.command, directory, changed(BASE, mistake.more), capsys)
    assert code == mistake.code, printed
    assert mistake.key in printed
    assert mistake.fix in printed


def test_nothing_is_told_of_what_is_right(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(CHECK, directory, BASE, capsys) == (0, "")
