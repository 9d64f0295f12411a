"""What tools an agent has, told to people: by family, with who may have them used. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby

from gateway.settings_tools import ToolRule
from gateway.standing import RANKS
from gateway.tools.consent import code
from gateway.tools.permits import Permit, ruled

_SCOPES = {"any": "", "private": ", in private places only", "room": ", in rooms that are not private only"}
_APPROVALS = {
    "never": "",
    "untrusted": ", approved by an admin once text from outside is in view",
    "always": ", each call approved by an admin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """The tools of one agent."""

    families: Mapping[str, Mapping[str, Permit]] = field(default_factory=dict)
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
        lines += [f"- off: {', '.join(code(one) for one in self.off)}"] if self.off else []
        lines += [f"- {code(state, 200)}" for state in self.status_lines]
        return "\n".join(lines) or "I have no tools."

    def _render_family(self, tools: Mapping[str, Permit]) -> str:
        needs = {
            name: ruled(name, permit, self.rules)
            for name, permit in sorted(tools.items())
            if not any(fnmatchcase(name, glob) for glob in self.off)
        }
        alike = groupby(sorted(needs, key=lambda name: _order(needs[name])), key=lambda name: needs[name])
        return "; ".join(f"{_names(names)} ({_need(permit)})" for permit, names in alike)


def _order(permit: Permit) -> tuple[int, str, str]:
    return RANKS.index(permit.role), permit.scope, permit.approval


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))


def _need(permit: Permit) -> str:
    role = "anybody" if permit.role == "guest" else f"{permit.role}{'' if permit.role == 'owner' else ' and above'}"
    return f"{role}{_SCOPES[permit.scope]}{_APPROVALS[permit.approval]}"
