"""Runs all checks, and renders the report.

Those that only compute run first, one by one and without a time bound: a busy machine makes them slow. The others wait
for disks and networks; they run side by side, each with a time bound from its own start. A check that breaks, or is not
done by then, becomes a finding of its own: unknown.
"""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from time import monotonic
from typing import Final

from gateway.cli.doctor import configuration, gateway, model, net, openings, processes, store, system
from gateway.cli.doctor.base import (
    DoctorContext,
    DoctorEnvironment,
    Finding,
    Severity,
    bad,
    ok,
    run_in_thread,
)
from gateway.cli.doctor.mcp import check_mcp_server
from gateway.config.loader import ConfigError, read_config
from gateway.config.models import ChannelConfig
from gateway.config.secrets import collect_secrets
from gateway.config.source import ConfigProblem
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable
from gateway.store import StoreError, StoreLocation, store_location
from gateway.stream.supervisor import import_adapter

AREAS: Final = {
    "config": "Configuration",
    "open": "What the configuration allows",
    "files": "Files and their modes",
    "store": "Store",
    "process": "Processes",
    "gateway": "Gateway",
    "ops": "Operator's port",
    "clock": "Clock",
    "net": "Network",
    "telegram": "Telegram",
    "discord": "Discord",
    "irc": "IRC",
    "model": "Models",
    "sandbox": "Sandbox",
    "mcp": "MCP servers",
    "versions": "Versions",
    "machine": "Machine",
    "doctor": "Not checked",
}
"""Titles by the first word of a finding's code, in the order of the report."""
_LAST: Final = len(AREAS)
_SIGNS: Final[dict[Severity, tuple[str, str, str]]] = {
    "ok": ("✓", "+", "32"),
    "warning": ("!", "!", "33"),
    "bad": ("✗", "x", "31"),
    "unknown": ("?", "?", "35"),
}
"""Sign, sign in ASCII, and colour (ECMA-48, SGR)."""
_UNSEEN: Final = "doctor checks the store, channels, models, sandbox and the rest when the configuration can be read"
_NICK_SUFFIX: Final = "-dr"
"""Suffix of our nick while the gateway may be using the nick itself."""
_NICK_CHARS: Final = 6
"""Characters of the nick that are kept, so that nick and suffix fit every server (9 characters, RFC 1459, 1.2)."""
_DIM: Final = "2"
_BOLD: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStyle:
    """Abilities of the output."""

    colour: bool = False
    ascii: bool = False
    """True: only ASCII can be shown."""

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All findings, in the order of the areas."""

    findings: tuple[Finding, ...]
    took_s: float = 0.0
    has_config: bool = True
    """False: there is no configuration to examine."""

    @property
    def ok(self) -> bool:
        """True if everything was looked at, and nothing is bad."""
        return not any(one.level in {"bad", "unknown"} for one in self.findings)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 nothing is bad, 1 something is bad, 2 there is no configuration, 3 a check could not look."""
        if not self.has_config:
            return 2
        return 0 if self.ok else 1 if any(one.level == "bad" for one in self.findings) else 3

    def to_json(self) -> str:
        """Render for programs: ASCII, one line."""
        findings = [
            {"code": one.code, "level": one.level, "what": one.what, "fix": one.fix, "where": one.where}
            for one in self.findings
        ]
        return json.dumps({"ok": self.ok and self.has_config, "findings": findings})

    def render_lines(self, style: ReportStyle) -> list[str]:
        """Render for people: a line for each finding by area, its remedy below it, and the totals."""
        lines: list[str] = []
        for area, some in groupby(self.findings, key=find_area):
            lines += ["", style.paint(AREAS.get(area, area), _BOLD)]
            for one in some:
                lines += _render_finding(one, style)
        return [*lines[1:], "", self._render_totals(style)]

    def _render_totals(self, style: ReportStyle) -> str:
        levels: tuple[Severity, ...] = ("ok", "warning", "bad", "unknown")
        good, odd, bad, unseen = (sum(one.level == level for one in self.findings) for level in levels)
        level: Severity = "bad" if bad else "unknown" if unseen else "warning" if odd else "ok"
        unknown = f"{unseen} unknown, " if unseen else ""
        warnings = f"{odd} warning{'' if odd == 1 else 's'}"
        text = f"{bad} bad, {unknown}{warnings}, {good} good; it took {self.took_s:.1f} s"
        return style.paint(text, _SIGNS[level][2])


def find_area(finding: Finding) -> str:
    """Return the area of a finding, the first word of its code."""
    return finding.code.partition(".")[0]


def sort_findings(findings: Sequence[Finding], redactor: Redactor) -> tuple[Finding, ...]:
    """Return the findings in the order of the areas, without duplicates, secrets and control characters."""
    places = {area: index for index, area in enumerate(AREAS)}

    def clean(text: str) -> str:
        return " ".join(escape_unprintable(redactor(text)).split())

    cleaned = (
        Finding(code=one.code, level=one.level, what=clean(one.what), fix=clean(one.fix), where=clean(one.where))
        for one in findings
    )
    return tuple(sorted(dict.fromkeys(cleaned), key=lambda one: places.get(find_area(one), _LAST)))


def _render_finding(one: Finding, style: ReportStyle) -> list[str]:
    sign, plain, colour = _SIGNS[one.level]
    where = f"{one.where}: " if one.where else ""
    code = style.paint(f" [{one.code}]", _DIM)
    lines = [f"  {style.paint(plain if style.ascii else sign, colour)} {where}{one.what}{code}"]
    if one.fix and one.level != "ok":
        lines.append(f"      fix: {one.fix}")
    return [line.encode("ascii", "backslashreplace").decode() for line in lines] if style.ascii else lines


CHECK_TIMEOUT_S: Final = 12.0
"""Seconds for one check that waits: probes end after ten seconds and report a more precise reason."""

CHECKS: Final = (
    ("configuration", configuration.check_configuration),
    ("posts that wait", store.check_outbox),
    ("growth of the store", store.check_growth),
    ("processes", processes.check_processes),
    ("gateway", gateway.check_running),
    ("settings in force", gateway.check_config_freshness),
    ("operator's port", gateway.check_port),
    ("clock", system.check_clock),
    ("sandbox", system.check_sandbox),
)
"""Checks of this machine. Only the clock's also asks servers."""
BLOCKING_CHECKS: Final = (
    ("price table", configuration.check_prices),
    ("modes of files", system.check_modes),
    ("workspaces", system.check_workspaces),
    ("files that the configuration names", system.check_references),
    ("store", store.check_store),
    ("embedded model", model.check_embedded),
    ("machine", system.check_machine),
)
"""Checks of this machine that run in threads."""
COMPUTING_CHECKS: Final = (
    ("budgets", model.check_budgets),
    ("windows", model.check_windows),
    ("openings", openings.check_openings),
    ("fallbacks", model.check_fallbacks),
)
"""Checks of the settings, which wait for nothing; they run in threads, too."""

NamedCheck = tuple[str, Callable[[], Awaitable[Sequence[Finding]]], bool]
"""Name for people, the check, and whether it has a time bound. It may raise any exception; that becomes a finding."""
ProgressCallback = Callable[[int, int, Sequence[str]], None]
"""Receives the number of finished checks, the number of all checks, and the names of the running ones."""


async def examine(where: DoctorEnvironment, progress: ProgressCallback = lambda *_: None) -> DoctorReport:
    """Run all checks. Raises nothing but CancelledError."""
    began = monotonic()
    findings: list[Finding] = []
    checks: list[NamedCheck] = []
    redactor, subject, has_config = Redactor(), "configuration", True
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            found = await run_in_thread(lambda: read_config(where.directory, where.env))
        subject, path = "store", found.settings.store.path
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            state = await run_in_thread(lambda: gateway.find_gateway_state(where, path, datetime.now(UTC)))
    except ConfigError as error:
        first = error.problems[0]
        has_config = len(error.problems) > 1 or not _is_missing_config(first)
        if has_config:
            findings += [*configuration.judge_problems(error.problems), ok("doctor.unseen", _UNSEEN)]
            checks.append(_in_thread("modes of files", lambda: system.check_directory(where)))
        else:
            fix = "run `reverie setup`, or name the right directory with --config"
            findings.append(bad("config.none", first.message, fix, first.file))
    except TimeoutError:
        findings.append(_timeout_finding(subject, CHECK_TIMEOUT_S))
    except Exception as error:  # noqa: BLE001 - a bug of ours or a failing file system: reported, not raised
        findings.append(_crash_finding(subject, error))
    else:
        redactor = Redactor(collect_secrets(found.settings, found.resolved_values))
        checks += _list_checks(DoctorContext(environment=where, config=found, gateway_state=state))
    if has_config:
        checks.append(_in_thread("versions", system.check_versions, is_timed=False))
    findings += await run_checks(checks, progress, check_s=CHECK_TIMEOUT_S)
    return DoctorReport(findings=sort_findings(findings, redactor), took_s=monotonic() - began, has_config=has_config)


def _list_checks(context: DoctorContext) -> list[NamedCheck]:
    found: list[NamedCheck] = []
    for name, blocking_check in COMPUTING_CHECKS:
        found.append(_in_thread(name, partial(blocking_check, context), is_timed=False))
    found.append(("cacheable prefix", partial(model.check_prefix, context), False))
    for name, check in CHECKS:
        found.append((name, partial(check, context), True))
    for name, blocking_check in BLOCKING_CHECKS:
        found.append(_in_thread(name, partial(blocking_check, context)))
    servers = context.settings.tools.mcp
    found += [(f"MCP server {name}", partial(check_mcp_server, name, context), True) for name in servers]
    models = model.list_used_models(context.settings)
    found += [(f"model {key}", partial(model.check_model, key, context), True) for key in models]
    if not context.offline:
        channels = context.settings.channels
        loading = partial(_import_adapters, channels.values())
        found.append(_in_thread("libraries of the platforms", loading, is_timed=False))
        found += [(name, partial(_check_channel, name, one, context), True) for name, one in channels.items()]
        found.append(("servers", partial(net.check_servers, context), True))
    return found


def _in_thread(name: str, check: Callable[[], Iterable[Finding]], *, is_timed: bool = True) -> NamedCheck:
    return name, lambda: run_in_thread(lambda: list(check())), is_timed


def _import_adapters(channels: Iterable[ChannelConfig]) -> list[Finding]:
    for one in channels:
        import_adapter(one)
    return []


async def _check_channel(name: str, config: ChannelConfig, context: DoctorContext) -> Sequence[Finding]:
    alive = context.gateway_state.is_alive
    match config.platform:
        case "irc":
            from gateway.cli.doctor.irc import probe_irc  # noqa: PLC0415 - heavy: only where IRC is used

            new = () if alive else await _find_unseen_rooms(name, config.rooms, store_location(context.settings.store))
            nick = f"{config.nick[:_NICK_CHARS]}{_NICK_SUFFIX}" if alive else config.nick
            return await probe_irc(config.model_copy(update={"nick": nick, "rooms": new}), where=name)
        case "telegram":
            from gateway.cli.doctor.telegram import probe_telegram  # noqa: PLC0415 - heavy: only where it is used

            return (await probe_telegram(config, where=name, listen=not alive)).findings
        case "discord":
            from gateway.cli.doctor.discord import probe_discord  # noqa: PLC0415 - heavy: only where it is used

            return (await probe_discord(config, where=name)).findings
        case "console":
            return []


async def _find_unseen_rooms(name: str, rooms: Sequence[str], path: StoreLocation) -> tuple[str, ...]:
    """Return the rooms without entries in the log.

    A room that the gateway was in exists, even if it is hidden from those outside.
    """
    places = {room: Address(channel=ChannelName(name), room=RoomId(room)).conversation for room in rooms}
    try:
        async with await store.open_reader(path, alive=False) as reader:
            known = {room for room, at in places.items() if await reader.entry_rows(conversation=at, limit=1)}
    except (StoreError, sqlite3.Error, OSError):  # the store's own check reports the reason
        known = set()
    return tuple(room for room in rooms if room not in known)


async def run_checks(
    checks: Sequence[NamedCheck],
    progress: ProgressCallback,
    *,
    check_s: float = CHECK_TIMEOUT_S,
) -> list[Finding]:
    """Return the findings of all checks, in their order. `check_s`: bound in seconds for each that has one."""
    found: dict[int, Sequence[Finding]] = {}

    def report_progress() -> None:
        left = [name for place, (name, *_) in enumerate(checks) if place not in found]
        progress(len(found), len(checks), left)

    async def one(place: int) -> None:
        name, check, is_timed = checks[place]
        found[place] = await _run_check(name, check, check_s if is_timed else None)
        report_progress()

    report_progress()
    for place, (_, _, is_timed) in enumerate(checks):
        if not is_timed:
            await one(place)
    async with asyncio.TaskGroup() as tasks:
        for place, (_, _, is_timed) in enumerate(checks):
            if is_timed:
                tasks.create_task(one(place))
    return [finding for place in range(len(checks)) for finding in found[place]]


async def _run_check(
    name: str, check: Callable[[], Awaitable[Sequence[Finding]]], check_s: float | None
) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(check_s):
            return await check()
    except TimeoutError:
        return [_timeout_finding(name, check_s or 0.0)]
    except Exception as error:  # noqa: BLE001 - the other checks go on, and nobody sees a traceback
        return [_crash_finding(name, error)]


def _timeout_finding(name: str, after_s: float) -> Finding:
    fix = "run doctor again; if this stays, the disk or the network hangs"
    what = f"not known: this check took longer than {after_s:.0f} s"
    return Finding(code="doctor.late", level="unknown", what=what, fix=fix, where=name)


def _crash_finding(name: str, error: Exception) -> Finding:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    fix = "report it, with the version and the system, as a bug of reverie doctor"
    return Finding(
        code="doctor.broke", level="unknown", what=f"not known: this check itself broke: {reason}", fix=fix, where=name
    )


def _is_missing_config(one: ConfigProblem) -> bool:
    return not one.line and not one.key and not one.file.endswith((".yaml", ".yml"))
