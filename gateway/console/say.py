"""How each thing that happens is told, as lines of a pane. Pure."""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import islice

from gateway.console import events, text
from gateway.console.line import PaneLine, StyledSpan, Tone

_MESSAGE_KINDS = frozenset({"", "direct", "mention", "room", "post", "command", "message"})
"""Kinds of notifications that are somebody's words."""
_INDENT = 4


def format_clock(at: datetime | None, zone: tzinfo | None) -> str:
    """The time of day, there. Empty: it is not known."""
    return at.astimezone(zone).strftime("%H:%M:%S") if at is not None else ""


def render_remark(time: str, what: str, tone: Tone = "note") -> list[PaneLine]:
    """A remark of one paragraph or more."""
    first, *rest = text.safe_lines(what)
    lead: tuple[StyledSpan, ...] = (("time", f"{time} "),) if time else ()
    return [PaneLine((*lead, (tone, first)), 2), *(PaneLine((("plain", "  "), (tone, one)), 2) for one in rest)]


def render_message(time: str, who: str, said: str, *, ours: bool, place: str = "", kind: str = "") -> list[PaneLine]:
    """Somebody says something. `place`: where, if it is to be told; `describe_kind`: what it is, if not words."""
    first, *rest = text.safe_lines(said.strip("\n"))
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    if place:
        spans.append(("time", f"{text.one_line(place, 40)} "))
    spans.append(("ours" if ours else "who", text.one_line(who, 40) or "?"))
    if kind:
        spans.append(("time", f" ({text.one_line(kind, 20)})"))
    return [
        PaneLine((*spans, ("plain", f"  {first}")), _INDENT),
        *(PaneLine((("plain", f"{' ' * _INDENT}{one}"),), _INDENT) for one in rest),
    ]


def describe_kind(said: str) -> str:
    """What to say of the kind of a notification. Empty: it is somebody's words."""
    return "" if said in _MESSAGE_KINDS else said


def message_text(one: events.ConsoleNotification | events.ConsoleMessage) -> str:
    """What somebody said; a command as it is written."""
    return f"/{one.text}" if one.kind == "command" else one.text


def render_heading(time: str, what: str, where: str) -> PaneLine:
    """What somebody begins, and where."""
    return PaneLine((("time", f"{time} "), ("head", what), ("time", f"  {text.one_line(where, 60)}")), 2)


def render_text(words: str) -> list[PaneLine]:
    """The end of something, on lines of their own."""
    return [PaneLine((*_padding(), ("plain", one)), 2) for one in text.safe_lines(words.strip("\n")) if one.strip()]


def render_tool_call(time: str, tool: events.ConsoleToolEvent, where: str) -> list[PaneLine]:
    """A tool begins, with all that it was given."""
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    spans += [("tool", f"▶ {text.one_line(tool.name, 60)}"), ("time", f"  {text.one_line(where, 60)}")]
    return [
        PaneLine(tuple(spans), 2),
        *(PaneLine((*_padding(), *spans), _INDENT) for spans in _argument_spans(tool.arguments)),
    ]


def render_tool_result(time: str, tool: events.ConsoleToolEvent, seconds: float | None) -> list[PaneLine]:
    """It ended, with all that it gave."""
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    mark: StyledSpan = ("bad", "✗ ") if tool.error else ("good", "✓ ")
    took = f"  {format_duration(seconds)}" if seconds is not None else ""
    spans += [mark, ("tool", text.one_line(tool.name, 60)), ("time", took)]
    tone: Tone = "bad" if tool.error else "result"
    body = tool.result.rstrip("\n")
    return [
        PaneLine(tuple(spans), 2),
        *(PaneLine((*_padding(), (tone, one)), _INDENT) for one in (text.safe_lines(body) if body else ())),
    ]


def describe_turn_end(turn: events.ConsoleTurnEvent, seconds: float | None) -> str:
    """How a turn ended, in a sentence without an end."""
    parts = [turn.outcome or "ended"]
    if seconds is not None:
        parts.append(format_duration(seconds))
    asked = sum(filter(None, (turn.input_tokens, turn.read_tokens, turn.written_tokens)))
    if asked:
        parts.append(f"{format_tokens(asked)} in ({format_percent((turn.read_tokens or 0) / asked)} read)")
    if turn.output_tokens:
        parts.append(f"{format_tokens(turn.output_tokens)} out")
    if turn.cost_usd:
        parts.append(format_usd(turn.cost_usd))
    return ", ".join(parts)


def describe_dmn(mind: events.ConsoleDmnState) -> str:
    """Where an agent's network stands."""
    parts = [f"{mind.agent} is {mind.mode}"]
    if mind.quiet:
        parts.append("quiet")
    if mind.next_tick_s is not None:
        parts.append(f"looks again in {format_duration(mind.next_tick_s)}")
    if mind.held:
        parts.append(f"starts nothing by itself: {'; '.join(mind.held)}")
    return ", ".join(parts)


def describe_reload(read: events.ConsoleReload) -> str:
    """The configuration was read again."""
    parts = [f"{len(read.problems)} problems: {'; '.join(read.problems)}" if read.problems else ""]
    parts.append(f"now in force: {', '.join(read.taken)}" if read.taken else "")
    parts.append(f"after a restart: {', '.join(read.later)}" if read.later else "")
    return f"configuration read again; {'; '.join(filter(None, parts)) or 'nothing changed'}"


def format_duration(seconds: float) -> str:
    """A span of time, short."""
    if seconds < 10:  # noqa: PLR2004 - tenths tell something up to here
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"  # noqa: PLR2004 - two hours


def format_tokens(number: int) -> str:
    """A number of tokens, in three digits or a little more."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 100 * size else f"{number / size:.0f}{unit}"
    return str(number)


def format_percent(part: float) -> str:
    """Per cent."""
    return f"{part * 100:.0f} %"


def format_usd(usd: float) -> str:
    """US dollars: cents, and what is less to two digits that tell something."""
    return f"${usd:.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def _padding() -> tuple[StyledSpan, ...]:
    return (("plain", "  "),)


def _argument_spans(said: str) -> Iterator[tuple[StyledSpan, ...]]:
    """A line for each, and one for each further line of a text."""
    try:
        found = json.loads(said)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        yield from ((("plain", one),) for one in text.safe_lines(said) if said)
        return
    for name, value in found.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines = text.safe_lines(written)
        yield ("time", f"{text.one_line(str(name), 40)}: "), ("plain", lines[0])
        yield from ((("plain", f"  {one}"),) for one in islice(lines, 1, None))
