"""What tools an agent has, told to people: by family, with who may have them used. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby

from gateway.settings_tools import ToolRule
from gateway.standing import ROLE_ORDER
from gateway.tools.consent import inline_code
from gateway.tools.permits import ToolPermit, apply_rules

_SCOPE_TEXTS = {"any": "", "private": ", in private places only", "room": ", in rooms that are not private only"}
_APPROVAL_TEXTS = {
    "never": "",
    "untrusted": ", approved by an admin once text from outside is in view",
    "always": ", each call approved by an admin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolList:
    """The tools of one agent."""

    families: Mapping[str, Mapping[str, ToolPermit]] = field(default_factory=dict)
    """What each needs by its own permit, by its family (`files`, `shell`, ...) and name."""
    rules: Sequence[ToolRule] = ()
    """The operator's."""
    off: Sequence[str] = ()
    """Globs: tools that no agent is told of. Those that match nothing are told, too: they keep something away."""
    running: Sequence[str] = ()
    """What is under way in the place that is asked about, a few words each."""
    status_lines: Sequence[str] = ()
    """Of what they depend on, one line each: the shell, MCP servers. May hold anybody's words."""

    def render(self) -> str:
        """Everything, in Markdown."""
        lines = [
            f"- {family}: {told}" for family, tools in self.families.items() if (told := self._render_family(tools))
        ]
        lines += [f"- off: {', '.join(inline_code(one) for one in self.off)}"] if self.off else []
        lines += [f"- {inline_code(state, 200)}" for state in self.status_lines]
        return "\n".join(lines) or "I have no tools."

    def _render_family(self, tools: Mapping[str, ToolPermit]) -> str:
        needs = {
            name: apply_rules(name, permit, self.rules)
            for name, permit in sorted(tools.items())
            if not any(fnmatchcase(name, glob) for glob in self.off)
        }
        alike = groupby(sorted(needs, key=lambda name: _permit_sort_key(needs[name])), key=lambda name: needs[name])
        return "; ".join(f"{_format_codes(names)} ({_format_permit(permit)})" for permit, names in alike)


def _permit_sort_key(permit: ToolPermit) -> tuple[int, str, str]:
    return ROLE_ORDER.index(permit.role), permit.scope, permit.approval


def _format_codes(names: Iterable[str]) -> str:
    return ", ".join(map(inline_code, names))


def _format_permit(permit: ToolPermit) -> str:
    role = "anybody" if permit.role == "guest" else f"{permit.role}{'' if permit.role == 'owner' else ' and above'}"
    return f"{role}{_SCOPE_TEXTS[permit.scope]}{_APPROVAL_TEXTS[permit.approval]}"
