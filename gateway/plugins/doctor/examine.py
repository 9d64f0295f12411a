"""`reverie doctor`: runs the checks of all modules (`gateway.config.check_registry`), and renders
the report.

Those that only compute run first, then those that wait for disks and networks, each with a time
bound. A check that breaks, or is not done by then, becomes a finding of its own: unknown.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from itertools import groupby
from time import monotonic
from typing import Final

from gateway.command_line import fill_command
from gateway.config.check_registry import CHECKS, CheckContext, CheckEnvironment
from gateway.config.files_check import check_directory
from gateway.config.loader import ConfigError, read_config
from gateway.config.secrets import collect_secrets
from gateway.config.settings_check import judge_problems
from gateway.core.control_socket import find_gateway_state
from gateway.core.findings import Finding, Severity, bad, run_in_daemon_thread, unknown
from gateway.core.frozen import frozen
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable
from gateway.plugins import find_plugins

AREAS: Final = {
    "config": "Configuration",
    "open": "What the configuration allows",
    "files": "Files and their modes",
    "store": "Store",
    "gateway": "Gateway",
    "ops": "Operator's port",
    "net": "Network",
    "telegram": "Telegram",
    "discord": "Discord",
    "irc": "IRC",
    "model": "Models",
    "sandbox": "Sandbox",
    "mcp": "MCP servers",
    "plugin": "Plugins",
    "versions": "Versions",
    "doctor": "Not checked",
}
"""Titles by the first word of a finding's code, in the order of the report."""
_SIGNS: Final[dict[Severity, tuple[str, str, str]]] = {
    "ok": ("✓", "+", "32"),
    "warning": ("!", "!", "33"),
    "bad": ("✗", "x", "31"),
    "unknown": ("?", "?", "35"),
}
"""Sign, sign in ASCII, and colour (ECMA-48, SGR)."""
_BOLD: Final = "1"
_DIM: Final = "2"


@frozen
class ReportStyle:
    """Abilities of the output."""

    colour: bool = False
    ascii: bool = False

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


@frozen
class DoctorReport:
    """All findings, in the order of the areas."""

    findings: tuple[Finding, ...]
    took_s: float = 0.0
    has_config: bool = True

    @property
    def ok(self) -> bool:
        """True if everything was looked at, and nothing is bad."""
        return not any(one.level in {"bad", "unknown"} for one in self.findings)

    @property
    def exit_code(self) -> int:
        """Exit code: 0 nothing is bad, 1 something is bad, 2 there is no configuration, 3 a check
        could not look.
        """
        if not self.has_config:
            return 2
        return 0 if self.ok else 1 if any(one.level == "bad" for one in self.findings) else 3

    def to_json(self) -> str:
        """Render for programs: ASCII, one line."""
        findings = [asdict(one) for one in self.findings]
        return json.dumps({"ok": self.ok and self.has_config, "findings": findings})

    def render_lines(self, style: ReportStyle) -> list[str]:
        """Render for people: a line for each finding by area, its remedy below it, and the
        totals.
        """
        lines: list[str] = []
        for area, some in groupby(self.findings, key=find_area):
            lines += ["", style.paint(AREAS.get(area, area), _BOLD)]
            for one in some:
                lines += _render_finding(one, style)
        levels: tuple[Severity, ...] = ("ok", "warning", "bad", "unknown")
        good, odd, bad, unseen = (
            sum(one.level == level for one in self.findings) for level in levels
        )
        level: Severity = "bad" if bad else "unknown" if unseen else "warning" if odd else "ok"
        unknown = f"{unseen} unknown, " if unseen else ""
        warnings = f"{odd} warning{'' if odd == 1 else 's'}"
        text = f"{bad} bad, {unknown}{warnings}, {good} good; it took {self.took_s:.1f} s"
        return [*lines[1:], "", style.paint(text, _SIGNS[level][2])]


def find_area(finding: Finding) -> str:
    """Return the area of a finding, the first word of its code."""
    return finding.code.partition(".")[0]


def sort_findings(findings: Sequence[Finding], redactor: Redactor) -> tuple[Finding, ...]:
    """Return the findings in the order of the areas, without duplicates, secrets and control
    characters.
    """
    places = {area: index for index, area in enumerate(AREAS)}

    def clean(text: str) -> str:
        return " ".join(escape_unprintable(redactor(text)).split())

    cleaned = (
        replace(one, what=clean(one.what), fix=clean(one.fix), where=clean(one.where))
        for one in findings
    )
    return tuple(
        sorted(dict.fromkeys(cleaned), key=lambda one: places.get(find_area(one), len(AREAS)))
    )


def _render_finding(one: Finding, style: ReportStyle) -> list[str]:
    sign, plain, colour = _SIGNS[one.level]
    where = f"{one.where}: " if one.where else ""
    code = style.paint(f" [{one.code}]", _DIM)
    lines = [f"  {style.paint(plain if style.ascii else sign, colour)} {where}{one.what}{code}"]
    if one.fix and one.level != "ok":
        lines.append(f"      fix: {one.fix}")
    return (
        [line.encode("ascii", "backslashreplace").decode() for line in lines]
        if style.ascii
        else lines
    )


CHECK_TIMEOUT_S: Final = 12.0
"""Seconds for one check that waits: probes end after ten seconds and report a more precise
reason."""

CHECK_MODULES: Final = (
    "gateway.config.settings_check",
    "gateway.config.files_check",
    "gateway.config.model_check",
    "gateway.store.check",
    "gateway.access.check",
    "gateway.cli.openings",
    "gateway.plugins.check",
)
"""Modules that register checks."""

CONFIG_CHECKS: Final = (
    "price table",
    "place of the store",
    "operator's port",
    "sandbox",
    "skills",
)
"""Checks that `reverie check-config` makes, too: of this machine, quick, and of nothing that the
gateway has written."""

NamedCheck = tuple[str, Callable[[], Awaitable[Sequence[Finding]]], bool]
"""Name for people, the check, and whether it has a time bound. It may raise any exception; that
becomes a finding."""


async def examine(where: CheckEnvironment, names: Container[str] | None = None) -> DoctorReport:
    """Run the checks with these names, None: all. Raises nothing but CancelledError."""
    began = monotonic()
    findings: list[Finding] = []
    checks: list[NamedCheck] = []
    redactor, subject, has_config = Redactor(), "configuration", True
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            found = await run_in_daemon_thread(lambda: read_config(where.directory, where.env))
        subject, path = "store", found.settings.store.path
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            state = await find_gateway_state(path)
    except ConfigError as error:
        first = error.problems[0]
        has_config = (
            len(error.problems) > 1
            or bool(first.line or first.key)
            or first.file.endswith((".yaml", ".yml"))
        )
        if has_config:
            findings += [
                *judge_problems(error.problems),
                unknown(
                    "doctor.unseen",
                    "the store, channels, models, sandbox and the rest",
                    "correct the configuration, and run doctor again",
                ),
            ]
            checks.append(
                (
                    "modes of files",
                    lambda: run_in_daemon_thread(lambda: list(check_directory(where))),
                    True,
                )
            )
        else:
            fix = "run `reverie setup`, or name the right directory with --config"
            findings.append(bad("config.none", first.message, fix, first.file))
    except TimeoutError:
        findings.append(_timeout_finding(subject, CHECK_TIMEOUT_S))
    except Exception as error:  # noqa: BLE001 - a bug of ours or a failing file system: reported, not raised
        findings.append(_crash_finding(subject, error))
    else:
        redactor = Redactor(collect_secrets(found.settings, found.resolved_values))
        context = CheckContext(environment=where, config=found, gateway_state=state)
        checks += _list_checks(context, names)
    findings += await run_checks(checks, check_s=CHECK_TIMEOUT_S)
    return DoctorReport(
        findings=sort_findings(findings, redactor),
        took_s=monotonic() - began,
        has_config=has_config,
    )


def _list_checks(context: CheckContext, names: Container[str] | None) -> list[NamedCheck]:
    used = find_plugins(context.settings.plugins.off).used
    for module in (*CHECK_MODULES, *(one.checks for one in used if one.checks)):
        import_module(module)
    return [
        (f"{one.name} {each}".strip(), partial(one.run, context, each), one.timed)
        for one in CHECKS
        if not (one.online and context.offline) and (names is None or one.name in names)
        for each in (one.each(context.settings) if one.each else ("",))
    ]


async def run_checks(checks: Sequence[NamedCheck], *, check_s: float) -> list[Finding]:
    """Return the findings of all checks. `check_s`: bound in seconds for each that has one; those
    begin when the others, which may keep the processor busy, have ended.
    """
    found = list[Finding]()
    for bound_s in (None, check_s):
        batch = [_run_check(*one[:2], bound_s) for one in checks if one[2] == (bound_s is not None)]
        found += [finding for some in await asyncio.gather(*batch) for finding in some]
    return found


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
    return unknown("doctor.late", f"this check took longer than {after_s:.0f} s", fix, name)


def _crash_finding(name: str, error: Exception) -> Finding:
    reason = (
        error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    )
    fix = "report it, with the version and the system, as a bug of reverie doctor"
    return unknown("doctor.broke", f"this check itself broke: {reason}", fix, name)


INTERRUPTED_CODE = 1
"""Exit code after Ctrl-C or a closed pipe."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie doctor`. Exit codes: 0 nothing is bad; 1 something is; 2 bad usage or
    no configuration; 3 nothing is bad, but some checks could not look.
    """
    fill_command(parser, _run, where="config")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--offline", action="store_true", help="make no connections to other machines"
    )


def _run(args: argparse.Namespace) -> int:
    logging.disable(logging.CRITICAL)  # libraries and adapters log what the findings report
    if sys.stderr.isatty() and not args.json:
        sys.stderr.write("checking ...\n")
    where = CheckEnvironment(directory=args.config, env=os.environ, offline=args.offline)

    async def examine_and_print() -> int:
        """Print before the event loop ends, which waits for name servers that do not answer."""
        report = await examine(where)
        if args.json:
            sys.stdout.write(f"{report.to_json()}\n")
        else:
            # https://no-color.org
            dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
            style = ReportStyle(
                colour=sys.stdout.isatty() and not dull,
                ascii="utf" not in sys.stdout.encoding.lower(),
            )
            sys.stdout.writelines(f"{line}\n" for line in report.render_lines(style))
        sys.stdout.flush()
        return report.exit_code

    try:
        return asyncio.run(examine_and_print())
    except (
        BrokenPipeError
    ):  # the reader closed the pipe (https://docs.python.org/3/library/signal.html)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED_CODE
    except KeyboardInterrupt:
        return INTERRUPTED_CODE
    finally:
        logging.disable(logging.NOTSET)
