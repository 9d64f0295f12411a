"""Collects what one probe finds, without secrets and fit for any terminal. Pure."""

from collections.abc import Iterable

from gateway.probes.base import Finding, Severity
from gateway.redaction import REDACTED, Redactor
from gateway.store.lines import escape_unprintable

_MAX_SENTENCE_CHARS = 400
"""Characters of a sentence that quotes a server."""


class FindingCollector:
    """Findings in the order in which they were made."""

    def __init__(self, where: str = "", secrets: Iterable[str] = ()) -> None:
        """`where`: as `Finding.where`. `secrets`: what never stands in a finding, whoever says it."""
        known = [secret for secret in secrets if secret]
        self._where, self._redact = where, Redactor(known)
        self._short_secrets = [secret for secret in known if len(secret) > 2]  # noqa: PLR2004 - less is in any word
        self.findings: list[Finding] = []

    def ok(self, code: str, what: str) -> None:
        """It is as it should be."""
        self._add(code, "ok", what, "")

    def warn(self, code: str, what: str, fix: str) -> None:
        """It works, and something will surprise somebody."""
        self._add(code, "warning", what, fix)

    def bad(self, code: str, what: str, fix: str) -> None:
        """It does not work."""
        self._add(code, "bad", what, fix)

    @property
    def has_failed(self) -> bool:
        """Something does not work."""
        return any(finding.level == "bad" for finding in self.findings)

    def clean(self, text: object) -> str:
        """What somebody else said: one line, limited, without secrets."""
        said = self._redact(" ".join(str(text).split()))
        for secret in self._short_secrets:  # shorter ones than a redactor takes out: here they may be quoted back
            said = said.replace(secret, REDACTED)
        said = escape_unprintable(said)
        return said if len(said) <= _MAX_SENTENCE_CHARS else said[: _MAX_SENTENCE_CHARS - 1] + "…"

    def _add(self, code: str, level: Severity, what: str, fix: str) -> None:
        made = Finding(code=code, level=level, what=self.clean(what), fix=self.clean(fix), where=self._where)
        self.findings.append(made)
