"""Runs all checks side by side. Each has a bound, and so has everything; what breaks is a finding of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from time import monotonic
from typing import Final

from gateway.doctor.base import DoctorCheck, DoctorContext, DoctorEnvironment, run_in_thread
from gateway.doctor.checks import clock, configuration, files, machine, models, network, ops, running, sandbox, store
from gateway.doctor.checks.channels import channel_checks
from gateway.doctor.checks.mcp import mcp_checks
from gateway.doctor.checks.versions import check_versions
from gateway.doctor.report import DoctorReport, sort_findings
from gateway.doctor.rules.configuration import judge_problems, missing_config
from gateway.known_secrets import collect_secrets
from gateway.probes.base import Finding
from gateway.redaction import Redactor
from gateway.settings_load import ConfigError, read_config
from gateway.settings_source import ConfigProblem

CHECK_TIMEOUT_S: Final = 12.0
"""Of one check: probes end by themselves after ten, and say more of why than we could."""
TOTAL_TIMEOUT_S: Final = 30.0
CLEANUP_S: Final = 2.0
"""Of these, for whatever has to be ended."""

LOCAL_CHECKS: Final[tuple[tuple[str, DoctorCheck], ...]] = (
    ("configuration", configuration.check_configuration),
    ("price table", configuration.check_prices),
    ("modes of files", files.check_modes),
    ("workspaces", files.check_workspaces),
    ("files that are named", files.check_references),
    ("store", store.check_store),
    ("posts that wait", store.check_outbox),
    ("gateway", running.check_running),
    ("what the gateway goes by", running.check_config_freshness),
    ("operator's port", ops.check_port),
    ("clock", clock.check_clock),
    ("embedded model", models.check_embedded),
    ("fallbacks", models.check_fallbacks),
    ("cacheable prefix", models.check_prefix),
    ("sandbox", sandbox.check_sandbox),
    ("machine", machine.check_machine),
)
"""What is looked at on this machine, apart from the clock."""

ProgressCallback = Callable[[int, int, Sequence[str]], None]
"""How many checks are done, of how many, and which are not."""


@dataclass(frozen=True, slots=True)
class NamedCheck:
    """A check, and what people call it."""

    name: str
    run: Callable[[], Awaitable[Sequence[Finding]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExaminationPlan:
    """What is known before anything is looked at, and what is to be looked at."""

    findings: Sequence[Finding]
    checks: Sequence[NamedCheck] = ()
    redact: Callable[[str], str] = field(default_factory=Redactor)
    readable: bool = True


async def examine(where: DoctorEnvironment, told: ProgressCallback = lambda *_: None) -> DoctorReport:
    """Look at everything. Never raises, but for cancellation, whatever is there. Takes 30 s at most."""
    began = monotonic()
    plan = await _build_plan(where)
    left_s = max(CLEANUP_S, TOTAL_TIMEOUT_S - CLEANUP_S - (monotonic() - began))
    findings = [*plan.findings, *await run_checks(plan.checks, told, all_s=left_s)]
    return DoctorReport(
        findings=sort_findings(findings, plan.redact), took_s=monotonic() - began, has_config=plan.readable
    )


async def _build_plan(where: DoctorEnvironment) -> _ExaminationPlan:
    versions = NamedCheck("versions", lambda: check_versions(where))
    subject = "configuration"
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            found = await run_in_thread(lambda: read_config(where.directory, where.env))
            subject = "store"
            state = await run_in_thread(
                lambda: running.find_gateway_state(where, found.settings.store.path, datetime.now(UTC))
            )
    except ConfigError as error:
        if len(error.problems) == 1 and _is_missing_config(error.problems[0]):
            return _ExaminationPlan(findings=[missing_config(error.problems[0])], readable=False)
        modes = NamedCheck("modes of files", lambda: files.check_directory(where))
        return _ExaminationPlan(findings=[*judge_problems(error.problems), _unread_finding()], checks=[modes, versions])
    except TimeoutError:
        return _ExaminationPlan(
            findings=[replace(_timeout_finding(subject, CHECK_TIMEOUT_S), level="bad")], checks=[versions]
        )
    except Exception as error:  # noqa: BLE001 - a bug of ours, or a file system that breaks: told, not raised
        return _ExaminationPlan(findings=[replace(_crash_finding(subject, error), level="bad")], checks=[versions])
    checks = _list_checks(DoctorContext(environment=where, config=found, gateway_state=state))
    redact = Redactor(collect_secrets(found.settings, found.resolved_values))
    return _ExaminationPlan(findings=[], checks=[*checks, versions], redact=redact)


def _list_checks(subject: DoctorContext) -> list[NamedCheck]:
    some = [*LOCAL_CHECKS, *mcp_checks(subject), *models.model_checks(subject)]
    if not subject.offline:
        some += [*channel_checks(subject), ("servers", network.check_servers)]
    return [NamedCheck(name, partial(check, subject)) for name, check in some]


async def run_checks(
    checks: Sequence[NamedCheck],
    told: ProgressCallback,
    *,
    check_s: float = CHECK_TIMEOUT_S,
    all_s: float = TOTAL_TIMEOUT_S - CLEANUP_S,
) -> list[Finding]:
    """What all of them find, in their order. Each may take `check_s`, all together `all_s`, in seconds."""
    found: list[Sequence[Finding] | None] = [None] * len(checks)

    def tell() -> None:
        left = [check.name for check, some in zip(checks, found, strict=True) if some is None]
        told(len(checks) - len(left), len(checks), left)

    async def one(place: int, check: NamedCheck) -> None:
        found[place] = await _run_check(check, check_s)
        tell()

    tell()
    if tasks := [asyncio.create_task(one(place, check)) for place, check in enumerate(checks)]:
        try:
            await asyncio.wait(tasks, timeout=all_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    late = [
        [_timeout_finding(check.name, all_s)] if some is None else some
        for check, some in zip(checks, found, strict=True)
    ]
    return [finding for some in late for finding in some]


async def _run_check(check: NamedCheck, check_s: float) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(check_s):
            return await check.run()
    except TimeoutError:
        return [_timeout_finding(check.name, check_s)]
    except Exception as error:  # noqa: BLE001 - whatever one check meets, the others go on, and nobody sees a traceback
        return [_crash_finding(check.name, error)]


def _timeout_finding(name: str, after_s: float) -> Finding:
    return Finding(
        code="doctor.late",
        level="warning",
        what=f"looking at it took longer than {after_s:.0f} s",
        fix="run it again; if it stays, the disk or the network there hangs",
        where=name,
    )


def _crash_finding(name: str, error: Exception) -> Finding:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return Finding(
        code="doctor.broke",
        level="warning",
        what=f"this check itself broke: {reason}",
        fix="report it, with the version and the system, as a bug of reverie doctor",
        where=name,
    )


def _unread_finding() -> Finding:
    return Finding(
        code="doctor.unseen",
        level="ok",
        what="store, channels, models, sandbox and the rest are looked at once the configuration can be read",
    )


def _is_missing_config(one: ConfigProblem) -> bool:
    """There is no configuration at all."""
    return not one.line and not one.key and not one.file.endswith((".yaml", ".yml"))
