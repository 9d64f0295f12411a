"""Findings of checks, which `reverie doctor` shows, and how checks collect them.

Checks stand beside what they check, registered by `@check` of `gateway.config.check_registry`.
Probes, which `reverie setup` uses too, are named `probe_*`.

Rules: checks and probes change nothing and take neither the store's lock nor a session that a
running gateway uses. A probe ends within `PROBE_TIMEOUT_S` and raises nothing but CancelledError:
what goes wrong becomes a finding. A finding is about one thing; its code is stable and its first
word is its area; docs/troubleshooting.md has an entry for each code. What a server says goes
through `FindingCollector.clean`, so no secret and no control character reaches a terminal.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Literal, TypeVar

from gateway.core.frozen import frozen
from gateway.core.redaction import REDACTED, Redactor
from gateway.core.text_safety import escape_unprintable, shorten

Severity = Literal["ok", "warning", "bad", "unknown"]
"""`warning`: it works, but will surprise somebody; `bad`: it does not work; `unknown`: the check
could not look."""
PROBE_TIMEOUT_S: Final = 10.0
"""Seconds for one probe as a whole."""
T = TypeVar("T")


@frozen
class Finding:
    """Result of one check."""

    code: str
    """Stable code of the check, for programs: dotted, lower case, e.g. `telegram.token`."""
    level: Severity
    what: str
    """The state in one sentence without secrets. Quotes of servers are printable."""
    fix: str = ""
    """One sentence that tells the operator what to do. Never empty unless the level is `ok`."""
    where: str = ""
    """Key of the configuration, file or channel. Empty: the machine."""


def ok(code: str, what: str, where: str = "") -> Finding:
    """Build a finding of something that is as it should be."""
    return Finding(code=code, level="ok", what=what, where=where)


def warning(code: str, what: str, fix: str, where: str = "") -> Finding:
    """Build a finding of something that works, but will surprise somebody."""
    return Finding(code=code, level="warning", what=what, fix=fix, where=where)


def bad(code: str, what: str, fix: str, where: str = "") -> Finding:
    """Build a finding of something that does not work."""
    return Finding(code=code, level="bad", what=what, fix=fix, where=where)


def unknown(code: str, what: str, fix: str, where: str = "") -> Finding:
    """Build a finding of something that a check could not look at."""
    return Finding(code=code, level="unknown", what=f"not known: {what}", fix=fix, where=where)


class FindingCollector:
    """Collects the findings of one probe, in order, without secrets and safe for any terminal."""

    def __init__(self, where: str = "", secrets: Iterable[str] = ()) -> None:
        """`where`: see `Finding.where`. `secrets`: texts that never appear in a finding."""
        known = [secret for secret in secrets if secret]
        self._where, self._redactor = where, Redactor(known)
        self._short_secrets = [secret for secret in known if len(secret) > 2]  # noqa: PLR2004 - less is in any word
        self.findings: list[Finding] = []

    def ok(self, code: str, what: str) -> None:
        self.add(ok(code, what))

    def warn(self, code: str, what: str, fix: str) -> None:
        self.add(warning(code, what, fix))

    def bad(self, code: str, what: str, fix: str) -> None:
        self.add(bad(code, what, fix))

    def unknown(self, code: str, what: str, fix: str) -> None:
        self.add(unknown(code, what, fix))

    def add(self, finding: Finding) -> None:
        """Add a finding, cleaned, and at the place of this probe."""
        what, fix = self.clean(finding.what), self.clean(finding.fix)
        self.findings.append(
            Finding(code=finding.code, level=finding.level, what=what, fix=fix, where=self._where)
        )

    @property
    def has_failed(self) -> bool:
        """True if a finding is bad."""
        return any(finding.level == "bad" for finding in self.findings)

    def clean(self, text: object) -> str:
        """Return foreign text as one printable line, limited in length, without secrets."""
        line = self._redactor(" ".join(str(text).split()))
        for (
            secret
        ) in self._short_secrets:  # secrets too short for the redactor: a server may quote them
            line = line.replace(secret, REDACTED)
        return shorten(escape_unprintable(line), 400)


def clean_person_name(name: str) -> str:
    """Return the name without control characters, in at most 60 characters."""
    return FindingCollector().clean(name)[:60]


async def run_in_daemon_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a daemon thread: neither the caller nor the end of the process has
    to wait for it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(end: Callable[[], None]) -> None:
        if not done.done():
            end()

    def work() -> None:
        end: Callable[[], None]
        try:
            end = partial(done.set_result, function())
        except Exception as error:  # noqa: BLE001 - passed to the caller
            end = partial(done.set_exception, error)
        try:
            loop.call_soon_threadsafe(tell, end)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    threading.Thread(target=work, name="doctor", daemon=True).start()
    return await done
