"""What people and programs are shown of an examination. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from gateway.probes.base import Finding, Severity
from gateway.store.lines import escape_unprintable

AREAS: Final = {
    "config": "Configuration",
    "files": "Files and their modes",
    "store": "Store",
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
    "doctor": "Not looked at",
}
"""By the first word of a finding's code, in the order in which they are shown."""
_LAST: Final = len(AREAS)
_SIGNS: Final[dict[Severity, tuple[str, str, str]]] = {
    "ok": ("✓", "+", "32"),
    "warning": ("!", "!", "33"),
    "bad": ("✗", "x", "31"),
}
"""Its sign, the same in ASCII, and its colour (ECMA-48, SGR)."""
_DIM: Final = "2"
_BOLD: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStyle:
    """How it may be written."""

    colour: bool = False
    ascii: bool = False
    """Only ASCII can be shown."""

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """Everything that was found, the areas in their order."""

    findings: tuple[Finding, ...]
    took_s: float = 0.0
    has_config: bool = True
    """False: there is no configuration to examine."""

    @property
    def ok(self) -> bool:
        """Nothing is bad."""
        return all(one.level != "bad" for one in self.findings)

    @property
    def exit_code(self) -> int:
        """The exit code: 0 nothing is bad, 1 something is, 2 there is no configuration."""
        return 2 if not self.has_config else 0 if self.ok else 1

    def to_json(self) -> str:
        """For programs: ASCII, one line."""
        findings = [
            {"code": one.code, "level": one.level, "what": one.what, "fix": one.fix, "where": one.where}
            for one in self.findings
        ]
        return json.dumps({"ok": self.ok and self.has_config, "findings": findings})

    def render_lines(self, style: ReportStyle) -> list[str]:
        """For people: by area a line for each finding, its remedy below, and the sum of all."""
        told: list[str] = []
        for area, some in groupby(self.findings, key=find_area):
            told += ["", style.paint(AREAS.get(area, area), _BOLD)]
            for one in some:
                told += _render_finding(one, style)
        return [*told[1:], "", self._render_totals(style)]

    def _render_totals(self, style: ReportStyle) -> str:
        good, odd, bad = (sum(one.level == level for one in self.findings) for level in ("ok", "warning", "bad"))
        level: Severity = "bad" if bad else "warning" if odd else "ok"
        warnings = f"{odd} warning{'' if odd == 1 else 's'}"
        text = f"{bad} bad, {warnings}, {good} good; looked for {self.took_s:.1f} s"
        return style.paint(text, _SIGNS[level][2])


def find_area(finding: Finding) -> str:
    """Of its code."""
    return finding.code.partition(".")[0]


def sort_findings(findings: Sequence[Finding], redact: Callable[[str], str]) -> tuple[Finding, ...]:
    """In the order of the areas, each once, without secrets and without anything that a terminal could obey."""
    places = {area: index for index, area in enumerate(AREAS)}

    def clean(text: str) -> str:
        return " ".join(escape_unprintable(redact(text)).split())

    told = (
        Finding(code=one.code, level=one.level, what=clean(one.what), fix=clean(one.fix), where=clean(one.where))
        for one in findings
    )
    return tuple(sorted(dict.fromkeys(told), key=lambda one: places.get(find_area(one), _LAST)))


def _render_finding(one: Finding, style: ReportStyle) -> list[str]:
    sign, plain, colour = _SIGNS[one.level]
    where = f"{one.where}: " if one.where else ""
    code = style.paint(f" [{one.code}]", _DIM)
    lines = [f"  {style.paint(plain if style.ascii else sign, colour)} {where}{one.what}{code}"]
    if one.fix and one.level != "ok":
        lines.append(f"      fix: {one.fix}")
    return [line.encode("ascii", "backslashreplace").decode() for line in lines] if style.ascii else lines
