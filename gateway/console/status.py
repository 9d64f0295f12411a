"""The two rows at the bottom: the connection, the minds and what goes on; the model and what was used today. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from gateway.console import say, text
from gateway.console.line import StyledRow, StyledSpan, Tone
from gateway.console.model import ConsoleModel

SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPAN_GAP: Final[StyledSpan] = ("time", " │ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConnection:
    """With the gateway."""

    state: Literal["up", "down", "starting", "gone"]
    """gone: there will be none any more."""
    address: str
    """Host and port."""
    is_own: bool = False
    """It is run by this console."""
    detail: str = ""
    """Why it is not up, and what comes next."""


_CONNECTION_SIGNS: Final[dict[str, tuple[Tone, str]]] = {
    "up": ("good", "●"),
    "down": ("bad", "○"),
    "starting": ("note", "◌"),
    "gone": ("bad", "✗"),
}


def render_status(
    console: ConsoleModel, connection: ConsoleConnection, now: datetime, width: int, beat: int = 0
) -> tuple[StyledRow, StyledRow]:
    """Both, neither of them wider than `width`. `beat` turns the sign of activity."""
    first = [_connection_spans(connection), *_dmn_spans(console), *_activity_spans(console, now, beat)]
    return _join_spans(first, width), _join_spans(_usage_spans(console), width)


def _connection_spans(one: ConsoleConnection) -> list[StyledSpan]:
    tone, sign = _CONNECTION_SIGNS[one.state]
    how = "runs here" if one.is_own else "attached"
    said = how if one.state == "up" else one.detail or one.state
    where = f" {one.address}" if one.state == "up" else ""
    return [(tone, f"{sign} "), ("plain", text.one_line(f"{said}{where}", 100))]


def _dmn_spans(console: ConsoleModel) -> list[list[StyledSpan]]:
    shown: list[list[StyledSpan]] = []
    for mind in console.dmn_states.values():
        said: list[StyledSpan] = [
            ("head", text.one_line(mind.agent, 20)),
            ("plain", f" {text.one_line(mind.mode, 20)}"),
        ]
        if mind.quiet:
            said.append(("note", " quiet"))
        shown.append(said)
    return shown


def _activity_spans(console: ConsoleModel, now: datetime, beat: int) -> list[list[StyledSpan]]:
    sign = SPINNER[beat % len(SPINNER)]
    busy: list[list[StyledSpan]] = []
    for key, turn in console.turns.items():
        call = next((one for one in reversed(console.tool_calls.values()) if one.turn == key), None)
        what = text.one_line(call.name, 30) if call is not None else "thinks"
        since = call.since if call is not None else turn.since
        took = f" {say.format_duration(max(0.0, (now - since).total_seconds()))}" if since is not None else ""
        busy.append(
            [
                ("tool", f"{sign} {what}"),
                ("plain", took),
                ("time", f" {text.one_line(console.title(turn.conversation), 40)}"),
            ]
        )
    return busy or [[("time", "idle")]]


def _usage_spans(console: ConsoleModel) -> list[list[StyledSpan]]:
    status = console.status
    if status is None:
        return [[("time", "nothing is known yet")]]
    today = status.today
    asked = today.input_tokens + today.read_tokens + today.written_tokens
    used: list[StyledSpan] = [("time", "today "), ("plain", f"{say.format_tokens(asked)} in")]
    if today.read_share is not None:
        used.append(("good", f" {say.format_percent(today.read_share)} read"))
    used.append(("plain", f" {say.format_tokens(today.output_tokens)} out"))
    if today.cost_usd is not None:
        used.append(("plain", f" {say.format_usd(today.cost_usd)}"))
    shown: list[list[StyledSpan]] = [used, [("time", "model "), ("plain", text.one_line(status.model, 60) or "-")]]
    shown += [
        [("time", "autonomous turns "), ("plain", f"{one.turns_today} of {one.daily_turns}")]
        for one in console.dmn_states.values()
        if one.daily_turns
    ]
    if not status.ready:
        shown.append([("bad", "not ready")])
    return shown


def _join_spans(parts: list[list[StyledSpan]], width: int) -> StyledRow:
    """Parts with gaps between them, cut where there is no more room."""
    row, room = list[StyledSpan](), width
    for number, part in enumerate(parts):
        for tone, said in ([_SPAN_GAP] if number else []) + part:
            fits = text.truncate_cells(said, room)
            if fits:
                row.append((tone, fits))
            room -= text.cell_width(fits)
            if fits != said:
                return tuple(row)
    return tuple(row)
