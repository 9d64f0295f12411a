"""What an agent is told of its tools for one turn: how they run, what is approved, what came and went. Pure."""

from collections.abc import Sequence

MAX_NAMES = 20


def render_tool_status(shell: str, approved: Sequence[str], came: Sequence[str], went: Sequence[str]) -> str:
    """A line each, in the operator's weight: names of tools have no characters that could be anything else.

    `shell`: empty, where nobody can have it used.
    """
    lines = [shell] if shell else []
    if approved:
        lines.append(f"Approved here until it is taken back: {_format_names(approved)}.")
    if came:
        lines.append(
            f"Tools that came since yours were listed: {_format_names(came)}. Call them by call_capability; "
            "without args that "
            "tells what they take."
        )
    if went:
        lines.append(f"Tools that are gone: {_format_names(went)}.")
    return "\n".join(lines)


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"
