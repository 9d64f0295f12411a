"""Two configurations that differ in every key, and what a gateway holds, as plain values that can
be compared.

A gateway that has read the second must hold what one holds that was started with it.
"""

import asyncio
import contextlib
import json
import types
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import SecretStr

from gateway import app
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.models import Settings
from gateway.config.reload import RESTART_KEYS, LiveSettings, ReloadResult
from gateway.config.secrets import collect_secrets
from gateway.core.clock import ManualClock
from gateway.core.fields import ConfigSection
from gateway.core.redaction import Redactor
from gateway.plugins import settings_model
from gateway.runtime.models import open_model_services
from gateway.store import Store
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE
from tests.kits.commands import TABLE
from tests.kits.tasks import LooseTasks

Json = dict[str, Any]


def _service_account(name: str) -> str:
    """The key of an account, which nothing is signed with."""
    return json.dumps(
        {
            "type": "service_account",
            "private_key_id": name,
            "private_key": f"private-key-of-{name}",
            "client_email": f"{name}@example.org",
            "token_uri": "http://127.0.0.1:1006/token",
        }
    )


def document(second: bool) -> Json:
    """Everything that can be said, one way or the other."""

    def either(first: Any, other: Any) -> Any:
        return other if second else first

    def tool(**more: Any) -> Json:
        return {"tool": either("bash", "web_*"), **more}

    return {
        "channels": {"home": {"platform": "console", "rooms": [either("lobby", "hall")]}},
        "agents": [
            {
                "id": "ana",
                "model": either("main", "other"),
                "workspace": either("w1", "w2"),
                "files": either("f1", "f2"),
                "context_optimization": dict.fromkeys(
                    ("prompt_cache", "compaction", "token_counter", "workspace_cache"),
                    either(True, False),
                ),
                "bindings": [
                    {
                        "match": {
                            "channel": either("home", "ho*"),
                            "room": either("lobby", "hall"),
                            "thread": either("one", "two"),
                        },
                        "listen": either("mention", "all"),
                        "speaks_up": either("when_useful", "sometimes"),
                        "addressing": either("anywhere", "start"),
                        "prompt": either("Prompt one.", "Prompt two."),
                        "language": either("en", "de"),
                        "private": either(False, True),
                        "group": either("one", "two"),
                        "skills": [either("one", "two")],
                        "arrivals": either("steer", "queue"),
                    }
                ],
            },
            {"id": "bob", "model": "small"},
        ],
        "llm": {
            "overload_wait": either(901.5, 902.5),
            "providers": {
                "claude": {
                    "kind": "anthropic",
                    "base_url": either("http://127.0.0.1:1001", "http://127.0.0.1:1002"),
                    "api_key": either("first-api-key-71", "second-api-key-72"),
                    "timeout": either(11.25, 12.25),
                    "first_token": either(61.5, 62.5),
                    "proxy": either("http://127.0.0.1:1011", "http://127.0.0.1:1012"),
                },
                "open": {
                    "kind": either("openai", "llamacpp"),
                    "base_url": "http://127.0.0.1:1003",
                    "api_key": "third-api-key-73",
                    "identity_in": either("system", "user"),
                },
                "cloud": {
                    "kind": "vertex",
                    "project": either("first-project", "second-project"),
                    "region": either("eu", "us"),
                    "credentials": _service_account(either("one", "two")),
                    "metadata_url": either("http://127.0.0.1:1004", "http://127.0.0.1:1005"),
                },
                "dry": {
                    "kind": "scripted",
                    "replies": [{"match": either("one", "two"), "reply": either("yes", "no")}],
                    "delay": either(0.0, 0.25),
                    "busy": either(0, 1),
                },
            },
            "models": {
                "main": {
                    "provider": "claude",
                    "name": either("claude-sonnet-5-5", "claude-opus-5"),
                    "context_tokens": either(200_001, 200_002),
                    "max_output_tokens": either(4_001, 4_002),
                    "sees": either(True, False),
                    "effort": either("low", "medium"),
                    "thinking": either("default", "off"),
                    "fallbacks": [either("small", "dry")],
                    "leaks": either(False, True),
                },
                "other": {"provider": "claude", "name": "claude-haiku-4-5"},
                "small": {"provider": either("open", "dry"), "name": either("gpt-4o", "small")},
                "dry": {"provider": "dry"},
            },
            "context_optimization": {
                "prompt_cache": {
                    "enabled": either(True, False),
                    "policy": either("auto", "fixed"),
                    "long_ttl": either("1h", "5m"),
                    "short_ttl": either("1h", "5m"),
                    "long_ttl_providers": [either("anthropic", "claude")],
                    "keep_warm_usd": either(0.0625, 0.125),
                },
                "compaction": {
                    "enabled": either(False, True),
                    "compact_at_pct": either(0.51, 0.52),
                    "tail_keep_tokens": either(20_001, 20_002),
                    "tool_result_max_pct": either(0.31, 0.32),
                    "summarizer_model": either("dry", "small"),
                    "lock_ttl_seconds": either(301, 302),
                },
                "folds": {
                    "policy": either("auto", "always"),
                },
                "token_counter": {
                    "enabled": either(True, False),
                    "backend": either("auto", "tiktoken"),
                    "cache_capacity": either(1_025, 1_026),
                },
                "workspace_cache": {
                    "enabled": either(True, False),
                    "watch_debounce_ms": either(501, 502),
                    "max_age_seconds": either(61, 62),
                },
            },
        },
        "dmn": {
            "parallel_turns": either(11, 12),
            "engaged": either(5.5, 6.5),
            "working": either(3.5, 4.5),
            "foraging": either(30.5, 31.5),
            "resting": either(300.5, 301.5),
            "max_autonomous_turns": either(21, 22),
            "daily_turns": either(201, 202),
            "daily_cost_usd": either(2.5, 2.75),
            "forage": either(False, True),
            "forage_per_day": either(3, 4),
            "tell": {"per_day": either(7, 8)},
            "dream_every": either(64_801.5, 64_802.5),
            "dream_tokens": either(501, 502),
            "timezone": either("Europe/Zurich", "Asia/Tokyo"),
        },
        "recall": {
            "ambient_tokens": either(151, 152),
            "prefetch": {"command": [either("/bin/true", "/bin/false")]},
        },
        "tools": {
            "off": [either("web_search", "grep")],
            "max_rounds": either(9, 10),
            "unasked_role": either("member", "guest"),
            "rules": [
                tool(
                    role=either("owner", "admin"),
                    scope=either("private", "room"),
                    approval=either("always", "never"),
                )
            ],
            "files": {"max_bytes": either(10_000_001, 10_000_002)},
            "bash": {
                "sandbox": either("bubblewrap", "off"),
                "network": either(False, True),
                "timeout": either(60.5, 61.5),
                "max_timeout": either(600.5, 601.5),
                "memory_bytes": either(1_073_741_825, 1_073_741_826),
                "processes": either(65, 66),
                "disk_bytes": either(104_857_601, 104_857_602),
            },
            "web": {
                "allow_private": [either("one.example", "two.example")],
                "search": {
                    "provider": either("brave", "tavily"),
                    "api_key": either("first-search-81", "second-search-82"),
                    "base_url": either("http://one.example", "http://two.example"),
                },
            },
            "mcp": {
                "program": {
                    "command": [either("/bin/one", "/bin/two")],
                    "env": {"KEY": either("first-env-91", "second-env-92")},
                    "role": either("admin", "owner"),
                    "approval": either("untrusted", "always"),
                    "tools": [either("one", "two")],
                    "timeout": either(64.5, 65.5),
                },
                "server": {
                    "url": either("http://one.example/mcp", "http://two.example/mcp"),
                    "headers": {"X-Key": either("first-header-91", "second-header-92")},
                },
            },
            "approvals": {
                "room": either("home/lobby", "home/hall"),
                "timeout": either(120.5, 121.5),
            },
        },
        "attention": {
            "coalesce": either(1.25, 1.75),
            "rules": [
                {
                    "type": either("home.room", "home.mention"),
                    "urgency": either("low", "normal"),
                    "keyword": either("one", "two"),
                    "role": either("member", "admin"),
                }
            ],
            "thresholds": {"home": either("low", "normal")},
            "presence": {
                "idle": either(900.5, 901.5),
                "away": either(14_400.5, 14_401.5),
                "sleep": either("23:00-07:00", "22:00-06:00"),
                "timezone": either("Europe/Zurich", "Asia/Tokyo"),
            },
        },
        "access": {
            "dm": either("pairing", "open"),
            "rooms": either("approval", "listed"),
            "roles": {
                role: [f"home:{either(number, number + 50)}"]
                for number, role in enumerate(("owner", "admin", "member", "guest", "blocked"), 1)
            },
            "grants": [
                {
                    "who": either("home:21", "home:22"),
                    "role": "member",
                    "agent": either("ana", "bob"),
                },
                {
                    "who": "home:23",
                    "role": either("member", "blocked"),
                    "room": either("home/lobby", "home/hall"),
                },
            ],
            "platform_roles": [
                {
                    "channel": either("home", "ho*"),
                    "room": either("lobby", "hall"),
                    "has": either("op", "voice"),
                    "role": either("member", "guest"),
                }
            ],
            "masks": either(False, True),
            "rates": {
                whose: {
                    "burst": either(number, number + 50),
                    "per_minute": either(number + 0.5, number + 50.5),
                }
                for number, whose in enumerate(
                    ("sender", "room", "agent", "sender_turns", "agent_turns"), 31
                )
            },
            "budgets": {
                "sender_usd": either(1.5, 1.75),
                "room_usd": either(3.5, 3.75),
                "agent_usd": either(9.5, 9.75),
            },
            "tell": either("home/lobby", "home/hall"),
            "max_bot_exchanges": either(7, 8),
        },
        "commands": {
            "prefix": either("!", "+"),
            "contact": either("ann", "bob"),
            "per_minute": either(11, 12),
        },
        "media": {
            "max_bytes": either(10_000_003, 10_000_004),
            "transcribe": [either("/bin/one", "/bin/two"), "{file}"],
            "transcribe_timeout": either(62.5, 63.5),
            "keep": either(86_400.5, 86_401.5),
            "pdf_pages": either(0, 7),
        },
        "store": {
            "path": either("reverie.db", "other.db"),
            "url": either(None, "postgresql://ann@127.0.0.1/other"),
            "exit_after": either(605.5, None),
            "keep": either(34_560_000.5, 34_560_001.5),
        },
        "plugins": {
            "off": [either("telegram", "discord")],
            "need": [either("irc", "recall")],
        },
        "ops": {
            "host": either("127.0.0.1", "::1"),
            "port": either(0, 9),
            "token": either("first-token-of-ops-1", "second-token-of-ops-2"),
            "hosts": [either("one.example", "two.example")],
            "tokens": [
                {
                    "name": either("ann", "ben"),
                    "role": either("read", "operate"),
                    "token": either("first-token-of-ann-1", "second-token-of-ben-2"),
                }
            ],
        },
    }


def leaves(
    section: type[ConfigSection] | None = None, above: tuple[str, ...] = ()
) -> Iterator[str]:
    """All keys that hold a value, `*` for any name or place."""
    for name, field in (section or settings_model()).model_fields.items():
        below = list(_sections(field.annotation))
        for through, found in below:
            yield from leaves(found, (*above, name, *through))
        if not below:
            yield ".".join((*above, name))


def _sections(annotation: Any) -> Iterator[tuple[tuple[str, ...], type[ConfigSection]]]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        yield (), annotation
    elif origin is Annotated:
        yield from _sections(arguments[0])
    elif origin is dict:
        yield from ((("*", *through), found) for through, found in _sections(arguments[1]))
    elif origin is tuple:
        yield from (
            (("*", *through), found) for one in arguments for through, found in _sections(one)
        )
    elif origin in (Union, types.UnionType):
        yield from (found for one in arguments for found in _sections(one))


def said(value: object, above: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """What a configuration says under each of these keys, the default too; one key may come several
    times."""
    if isinstance(value, ConfigSection):
        for name, below in value:
            yield from said(below, (*above, name))
    elif isinstance(value, dict) and any(isinstance(one, ConfigSection) for one in value.values()):
        for below in value.values():
            yield from said(below, (*above, "*"))
    elif isinstance(value, tuple) and any(isinstance(one, ConfigSection) for one in value):
        for below in value:
            yield from said(below, (*above, "*"))
    else:
        yield ".".join(above), value


_MACHINERY = {"__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"}
_OURS = ("gateway.", "agent.", "channels.")


def held(root: object, *, leave: AbstractSet[str]) -> dict[str, str]:
    """Everything that can be reached from there, by how it is reached. `leave`: attributes that are
    not looked at."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    kept: list[object] = []  # so that no other object has the number of one that was seen
    queue: deque[tuple[str, object]] = deque([("", root)])
    while queue:
        path, value = queue.popleft()
        plain = _plain(value)
        if plain is not None:
            found[path] = plain
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        queue.extend(
            (f"{path}.{name}", below)
            for name, below in _inside(value)
            if name not in leave | _MACHINERY
        )
    return found


def _plain(value: object) -> str | None:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, ConfigSection):
        return repr([(key, _plain(one) or repr(one)) for key, one in said(value)])
    if value is None or isinstance(
        value, bool | int | float | str | bytes | Path | datetime | Enum
    ):
        return repr(value)
    return None


def _inside(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key in list(value):
            yield f"[{_name(key)}]", value[key]
    elif isinstance(value, AbstractSet):
        yield from ((f"{{{_name(one)}}}", one) for one in sorted(value, key=_name))
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{place}]", one) for place, one in enumerate(value))
    elif isinstance(value, partial):
        yield from (("()", value.func), ("(args)", value.args), ("(keywords)", value.keywords))
    elif isinstance(value, types.MethodType):
        yield "(self)", value.__self__
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield f"({name})", cell.cell_contents
    elif type(value).__module__.startswith(_OURS):
        names = [
            *getattr(value, "__dict__", ()),
            *(n for kind in type(value).__mro__ for n in _slots(kind)),
        ]
        for name in names:
            if hasattr(value, name):
                yield name, getattr(value, name)


def _name(key: object) -> str:
    """The same in both, and of its own kind."""
    told = getattr(key, "name", None) or (key[0] if isinstance(key, tuple) else None)
    return (
        f"{type(key).__name__} {told}"
        if isinstance(told, str)
        else f"{key}"
        if _plain(key)
        else type(key).__name__
    )


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


# A gateway that has read its configuration again is like one that was started with it, key by
# key.

LEAVE = frozenset(
    {
        # not of the settings: the clock, tasks, the store, files of the process beside it
        *(
            "clock",
            "_clock",
            "tasks",
            "_tasks",
            "store",
            "_store",
            "_store_path",
            "reader",
            "_reader",
            "_unsubscribe",
        ),
        *("process", "_process", "_control"),
        # what came of the reading, and what it has set going
        *("_warned", "_later", "_read", "_trace", "_save_task", "_reported_level", "presence"),
        # follows the settings at its next use
        "_buckets",
        # what was secret once stays so
        *("redactor", "_redactor", "secret_listeners", "(redactor)", "_encoded", "_known"),
    }
)
ADAPTERS = "channels.*."
"""Channels that come, go and change have tests of their own; here is one that is given, and its
rooms."""


def settings(directory: Path, *, second: bool, everything: bool = False) -> Settings:
    """`everything`: the second one also has other values for what needs a restart."""
    first, said = document(False), document(second)
    for key in () if everything else RESTART_KEYS:
        _copy(first, said, *key.split("."))
    (directory / "reverie.yaml").write_text(json.dumps(said))
    (directory / "reverie.yaml").chmod(0o600)
    return read_config(directory, {}).settings


def _copy(source: Any, target: Any, name: str, *below: str) -> None:
    if name == "*":
        for one, other in zip(source, target, strict=True):
            _copy(one, other, *below)
    elif below:
        _copy(source[name], target[name], *below)
    elif name in source:
        target[name] = source[name]


@contextlib.asynccontextmanager
async def gateway(live: LiveSettings, path: Path) -> AsyncIterator[app.GatewayServices]:
    """Wired, and not begun."""
    clock = ManualClock()
    async with (
        open_model_services(live, clock, model=None) as equipment,
        await Store.open(path, clock) as store,
    ):
        yield app.GatewayServices(
            commands=TABLE,
            store=store,
            clock=clock,
            channels={CONSOLE: ConsoleChannel(CONSOLE, lambda _: None, now=clock.now)},
            make=None,
            model_services=equipment,
            states={},
            chosen={},
            redactor=Redactor(collect_secrets(live.settings)),
            tasks=LooseTasks(),
        )


async def twins(folder: Path) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Where one that reloaded does not hold what one does that was started so."""
    first = settings(folder, second=False)
    live = LiveSettings(first, ConfigFiles(folder, {}))
    async with gateway(live, folder / "a.db") as one:
        second = settings(folder, second=True)
        assert (await live.reload()).applied
        reloaded = held(one, leave=LEAVE)
    async with gateway(LiveSettings(second, ConfigFiles(folder, {})), folder / "b.db") as other:
        started = held(other, leave=LEAVE)
    assert len(started) > 1_000
    wrong = [
        path for path in reloaded.keys() | started.keys() if reloaded.get(path) != started.get(path)
    ]
    return {path: reloaded.get(path) for path in wrong}, {path: started.get(path) for path in wrong}


def test_a_gateway_that_reloaded_holds_what_one_holds_that_was_started_so(tmp_path: Path) -> None:
    reloaded, started = asyncio.run(twins(tmp_path))
    assert reloaded == started == {}


def test_the_two_differ_in_every_key(tmp_path: Path) -> None:
    """A new key has to be written into `reload_twins.document`, and is held to all of this then."""
    first, second = (
        said(settings(tmp_path, second=second, everything=True)) for second in (False, True)
    )
    spoken: dict[str, tuple[list[object], list[object]]] = {}
    for place, some in enumerate((first, second)):
        for key, value in some:
            spoken.setdefault(key, ([], []))[place].append(value)
    keys = {key for key in leaves() if not key.startswith(ADAPTERS)} | {"channels.*.rooms"}
    assert {key for key, (one, other) in spoken.items() if one != other} == keys - {"agents.*.id"}


@pytest.mark.parametrize("pattern", RESTART_KEYS)
def test_each_key_that_needs_a_restart_is_one_and_makes_all_wait(
    pattern: str, tmp_path: Path
) -> None:
    first = settings(tmp_path, second=False)
    live, said = LiveSettings(first, ConfigFiles(tmp_path, {})), document(False)
    _copy(document(True), said, *pattern.split("."))
    (tmp_path / "reverie.yaml").write_text(json.dumps(said | {"commands": {"prefix": "?"}}))
    came = asyncio.run(live.reload())
    assert came == ReloadResult(after_restart=came.after_restart)
    assert came.after_restart
    assert live.settings is first
    assert RESTART_KEYS[pattern].strip()
