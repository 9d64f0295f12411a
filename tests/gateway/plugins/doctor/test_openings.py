"""What the configuration opens: each opening is named with its key, and nothing else is."""

from pathlib import Path
from typing import Any

import pytest

from gateway.cli.openings import find_openings
from gateway.config.loader import parse_config
from gateway.core.tool import permits_of
from gateway.plugins import find_plugins

CLOSED: dict[str, Any] = {
    "channels": {
        "telegram.main": {"platform": "telegram", "token": "1:x", "rooms": ["-1"]},
        "irc.libera": {
            "platform": "irc",
            "host": "127.0.0.1",
            "tls": False,
            "nick": "bot",
            "rooms": ["#a"],
        },
    },
    "agents": [{"id": "reverie"}],
    "llm": {"providers": {"p": {"kind": "scripted"}}, "models": {"main": {"provider": "p"}}},
    "tools": {"mcp": {"files": {"command": ["files-server"]}}},
}
HOOK = {
    "listen": "0.0.0.0",
    "port": 8443,
    "url": "https://bot.example.org/hook",
    "secret": "s" * 24,
}

OPENINGS: list[tuple[str, str, dict[str, Any]]] = [
    ("open.dm", "access.dm", {"access": {"dm": "open"}}),
    (
        "open.rooms",
        "channels.telegram.main.rooms",
        {"channels": {"telegram.main": {"rooms": ["*"]}}},
    ),
    (
        "open.private",
        "agents[0].bindings[1].private",
        {
            "agents": [
                {
                    "id": "reverie",
                    "bindings": [{"private": True}, {"private": False}, {"private": None}],
                }
            ]
        },
    ),
    (
        "open.group",
        "agents[0].bindings[0].group",
        {"agents": [{"id": "reverie", "bindings": [{"group": "staff"}]}]},
    ),
    *(
        ("open.budget", f"access.budgets.{name}", {"access": {"budgets": {name: None}}})
        for name in ("sender_usd", "room_usd", "agent_usd")
    ),
    (
        "open.rate",
        "access.rates.room",
        {"access": {"rates": {"room": {"burst": 0, "per_minute": 0}}}},
    ),
    ("open.unasked", "tools.unasked_role", {"tools": {"unasked_role": "owner"}}),
    (
        "open.tool",
        "tools.rules[0].role",
        {"tools": {"rules": [{"tool": "web_*", "role": "guest"}]}},
    ),
    (
        "open.tool",
        "tools.rules[1].role",
        {"tools": {"rules": [{"tool": "who"}, {"tool": "bash", "role": "member"}]}},
    ),
    (
        "open.tool",
        "tools.rules[0].role",
        {"tools": {"rules": [{"tool": "mcp_files_*", "role": "member"}]}},
    ),
    (
        "open.approval",
        "tools.rules[0].approval",
        {"tools": {"rules": [{"tool": "bash", "approval": "never"}]}},
    ),
    ("open.network", "tools.bash.network", {"tools": {"bash": {"network": True}}}),
    ("open.web", "tools.web.allow_private", {"tools": {"web": {"allow_private": ["10.0.0.0/8"]}}}),
    ("open.mcp", "tools.mcp.files.role", {"tools": {"mcp": {"files": {"role": "guest"}}}}),
    ("open.mcp", "tools.mcp.files.approval", {"tools": {"mcp": {"files": {"approval": "never"}}}}),
    (
        "open.mcp",
        "tools.mcp.far.url",
        {"tools": {"mcp": {"far": {"url": "http://mcp.example.org/"}}}},
    ),
    ("open.ops", "ops.host", {"ops": {"host": "::", "token": "t" * 24}}),
    (
        "open.webhook",
        "channels.telegram.main.webhook.listen",
        {"channels": {"telegram.main": {"webhook": HOOK}}},
    ),
    ("open.leaks", "llm.models.main.leaks", {"llm": {"models": {"main": {"leaks": True}}}}),
]
CLOSED_TOO: list[dict[str, Any]] = [
    {},
    {"access": {"dm": "disabled"}},
    {
        "tools": {
            "rules": [{"tool": "*", "role": "owner", "approval": "always", "scope": "private"}]
        }
    },
    {"tools": {"rules": [{"tool": "bash", "role": "admin"}, {"tool": "bash", "role": "guest"}]}},
    {"tools": {"off": ["web_*"], "rules": [{"tool": "web_*", "role": "guest"}]}},
    {"tools": {"mcp": {"near": {"url": "http://127.0.0.1:1/"}}}},
    {"ops": {"host": "localhost"}},
    {
        "llm": {
            "providers": {"near": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
            "models": {"more": {"provider": "near", "name": "qwen", "leaks": True}},
        }
    },
    {"agents": [{"id": "reverie", "bindings": [{"private": True}]}]},
]


def merge(base: Any, more: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return base | {key: merge(base.get(key), value) for key, value in more.items()}


def openings(more: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    found = list(
        find_openings(
            parse_config(merge(CLOSED, more), folder), permits_of(*find_plugins().classes)
        )
    )
    assert all(one.level == "warning" and one.what and one.fix for one in found)
    return [(one.code, one.where) for one in found]


@pytest.mark.parametrize(
    ("code", "where", "more"), OPENINGS, ids=lambda one: one if isinstance(one, str) else ""
)
def test_an_opening_is_named_with_its_key_and_nothing_else_is(
    code: str, where: str, more: dict[str, Any], tmp_path: Path
) -> None:
    assert openings(more, tmp_path) == [(code, where)]


@pytest.mark.parametrize("more", CLOSED_TOO, ids=str)
def test_nothing_is_named_where_nothing_is_open(more: dict[str, Any], tmp_path: Path) -> None:
    assert openings(more, tmp_path) == []


def test_what_publishes_the_ports_of_a_container_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REVERIE_IMAGE", "yes")
    assert openings({"ops": {"host": "0.0.0.0", "token": "t" * 24}}, tmp_path) == []


def is_mergeable(more: dict[str, Any]) -> bool:
    """Whether it holds no list, which would take the place of another's."""
    return "rules" not in more.get("tools", {}) and "agents" not in more


def test_openings_are_named_one_by_one(tmp_path: Path) -> None:
    more: dict[str, Any] = {}
    for _, _, one in OPENINGS:
        more = merge(more, one) if is_mergeable(one) else more
    expected = [(code, where) for code, where, one in OPENINGS if is_mergeable(one)]
    assert sorted(openings(more, tmp_path)) == sorted(expected)
