"""Contents of the console: what the panes, the status rows and the input line show.

Pure: times come with the events.

The upper left pane shows autonomous turns, and the thinking of all agents; the lower left pane the followed
conversation; the right pane every tool call in full. `ConsoleModel` applies the events of the API to them.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import islice
from typing import Final, Literal, TypeVar, cast

from pydantic import BaseModel

from gateway.cli.console.pane import (
    Pane,
    PaneLine,
    StyledRow,
    StyledSpan,
    Tone,
    cell_width,
    one_line,
    safe_lines,
    truncate_cells,
)
from gateway.commands.definition import CommandDefinition, format_arg
from gateway.commands.table import COMMANDS
from gateway.core.api_models import (
    ApiEvent,
    ChannelEvent,
    ConversationDetail,
    ConversationMessage,
    ConversationSummary,
    DeliveryEvent,
    DmnEvent,
    FateEvent,
    GatewayStatus,
    LogEvent,
    LostEvent,
    NotificationEvent,
    PostEvent,
    ReloadedEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
    TurnEvent,
)
from gateway.core.control_messages import DmnStatus
from gateway.core.format import format_usd
from gateway.runtime.dmn_admin import format_dmn_status
from gateway.store.format import TURN_CAUSE_TEXTS, TURN_OUTCOME_TEXTS

LocalCommandName = Literal["quit", "clear", "follow", "help"]
LOCAL_COMMANDS: Final[dict[LocalCommandName, str]] = {
    "quit": "leave the console",
    "clear": "empty the pane above",
    "follow": "show another conversation: its name, `own`, or `all`",
    "help": "this screen; with a command's name, what the gateway says of it",
}
"""Commands of the console itself."""
MAX_HISTORY: Final = 500
MAX_MESSAGE_CHARS: Final = 16_000
"""Longest text that the API accepts, in characters."""


def parse_input(typed: str) -> tuple[LocalCommandName | None, str]:
    """Parse the input: a command of the console and its arguments, or None and a text for the gateway."""
    name, _, args = typed.strip().partition(" ")
    match name, args.strip():
        case ("/quit", "") | ("/clear", "") | ("/help", ""):
            return cast("LocalCommandName", name[1:]), ""
        case "/follow", wanted:
            return "follow", wanted
    return None, typed.strip()


class InputHistory:
    """Earlier inputs, for the up and down keys."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._index = 0
        self._draft = ""

    def add(self, line: str) -> None:
        """Add the newest input."""
        if line and self._messages[-1:] != [line]:
            self._messages.append(line)
            del self._messages[:-MAX_HISTORY]
        self._index, self._draft = len(self._messages), ""

    def older(self, now: str) -> str | None:
        """Return the previous input; `now`, the current text, is kept. None: there is none."""
        if self._index == 0:
            return None
        if self._index == len(self._messages):
            self._draft = now
        self._index -= 1
        return self._messages[self._index]

    def newer(self) -> str | None:
        """Return the next input, at the end the current text. None: there is none."""
        if self._index == len(self._messages):
            return None
        self._index += 1
        return self._messages[self._index] if self._index < len(self._messages) else self._draft


def find_completions(typed: str, conversations: Iterable[str] = ()) -> list[str]:
    """Return possible completions of the last word of a command; empty: no command, or nothing to complete."""
    if not typed.startswith("/") or "\n" in typed:
        return []
    *before, word = typed[1:].split(" ")
    before = [one for one in before if one]
    return [one for one in _list_candidates(before, conversations) if one.startswith(word) and one != word]


def complete_input(typed: str, found: Sequence[str]) -> str:
    """Complete the input as far as all of `found` agree; a single one is completed with a space."""
    head, space, word = typed.rpartition(" ")
    if not space:
        head, word = "", typed.removeprefix("/")
    goal = f"{found[0]} " if len(found) == 1 else _common_prefix(found)
    start = f"{head} " if space else "/"
    return f"{start}{goal if len(goal) > len(word) else word}"


def _common_prefix(found: Sequence[str]) -> str:
    """Return the common prefix."""
    # the words between these two share their common prefix
    first, last = min(found, default=""), max(found, default="")
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def format_usage(typed: str) -> str:
    """Return the usage and summary of the command in the input. Empty: not a command."""
    name, *words = typed.removeprefix("/").split(" ")
    row = _find_command(name)
    if not typed.startswith("/") or row is None:
        return LOCAL_COMMANDS.get(name, "") if typed.startswith("/") else ""  # type: ignore[call-overload]  # any text may be asked for
    sub = row.find_sub(words[0]) if words else None
    args = " ".join(map(format_arg, sub.args if sub else row.args))
    return " ".join(filter(None, (f"/{row.name}", sub.name if sub else "", args))) + f": {(sub or row).summary}"


def _list_candidates(before: Sequence[str], conversations: Iterable[str]) -> Iterable[str]:
    if not before:
        return sorted({*LOCAL_COMMANDS, *(row.name for row in COMMANDS)})
    if before == ["follow"]:
        return ["all", "own", *conversations]
    row = _find_command(before[0])
    if row is None:
        return []
    if before[0] == "help" and len(before) == 1:
        return sorted(one.name for one in COMMANDS)
    sub = row.find_sub(before[1]) if len(before) > 1 else None
    if len(before) == 1 and row.subs:
        return [one.name for one in row.subs]
    args = sub.args if sub is not None else row.args
    place = len(before) - (2 if sub is not None else 1)
    return args[place].choices if place < len(args) else []


def _find_command(name: str) -> CommandDefinition | None:
    return next((row for row in COMMANDS if row.name == name), None)


T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ConsoleActiveTurn:
    """A running turn."""

    agent: str
    conversation: str
    since: datetime | None
    autonomous: bool
    written_text: str = ""
    """Text of the answer so far, in a followed conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleActiveCall:
    """A running tool call."""

    turn: str
    name: str
    conversation: str
    since: datetime | None


def find_newest(found: Iterable[T], *wishes: Callable[[T], bool]) -> T | None:
    """Return the last item that fulfils the first wish, else the second, and so on, else the last of all.

    None: there are no items.
    """
    known = [*found]
    for wish in wishes:
        fits = [one for one in known if wish(one)]
        if fits:
            return fits[-1]
    return known[-1] if known else None


def is_same_text(written: str, posted: str) -> bool:
    """Return whether a streamed answer and a post are the same text."""
    grown, whole = "".join(written.split()), "".join(posted.split())
    return bool(grown) and (whole.startswith(grown) or grown.endswith(whole))


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Return the seconds between two times. None: one of them is not known."""
    return (end - start).total_seconds() if start is not None and end is not None else None


_MESSAGE_KINDS = frozenset({"", "direct", "mention", "room", "post", "command", "message"})
"""Kinds of notifications that are messages."""
_INDENT = 4


def format_clock(at: datetime | None, zone: tzinfo | None) -> str:
    """Return the time of day in the time zone. Empty: not known."""
    return at.astimezone(zone).strftime("%H:%M:%S") if at is not None else ""


def render_remark(time: str, what: str, tone: Tone = "note") -> list[PaneLine]:
    """Render a remark; later lines are indented."""
    first, *rest = safe_lines(what)
    lead: tuple[StyledSpan, ...] = (("time", f"{time} "),) if time else ()
    return [PaneLine((*lead, (tone, first)), 2), *(PaneLine((("plain", "  "), (tone, one)), 2) for one in rest)]


def render_message(time: str, who: str, text: str, *, ours: bool, place: str = "", kind: str = "") -> list[PaneLine]:
    """Render a message. `place`: conversation to show; `kind`: kind of notification, if it is not a message."""
    first, *rest = safe_lines(text.strip("\n"))
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    if place:
        spans.append(("time", f"{one_line(place, 40)} "))
    spans.append(("ours" if ours else "who", one_line(who, 40) or "?"))
    if kind:
        spans.append(("time", f" ({one_line(kind, 20)})"))
    return [
        PaneLine((*spans, ("plain", f"  {first}")), _INDENT),
        *(PaneLine((("plain", f"{' ' * _INDENT}{one}"),), _INDENT) for one in rest),
    ]


def describe_kind(kind: str) -> str:
    """Return the kind of a notification to show. Empty: it is a message."""
    return "" if kind in _MESSAGE_KINDS else kind


def message_text(one: NotificationEvent | ConversationMessage) -> str:
    """Return the text of a message; a command as it is typed."""
    return f"/{one.text}" if one.kind == "command" else one.text


def render_heading(time: str, what: str, where: str) -> PaneLine:
    """Render the heading of something that begins in a conversation."""
    return PaneLine((("time", f"{time} "), ("head", one_line(what, 100)), ("time", f"  {one_line(where, 60)}")), 2)


def render_text(words: str) -> list[PaneLine]:
    """Render the rest of a text on lines of its own."""
    return [PaneLine((*_padding(), ("plain", one)), 2) for one in safe_lines(words.strip("\n")) if one.strip()]


def render_tool_call(time: str, tool: ToolEvent, where: str) -> list[PaneLine]:
    """Render the start of a tool call with all its arguments."""
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    spans += [("tool", f"▶ {one_line(tool.name, 60)}"), ("time", f"  {one_line(where, 60)}")]
    return [
        PaneLine(tuple(spans), 2),
        *(PaneLine((*_padding(), *spans), _INDENT) for spans in _argument_spans(tool.arguments)),
    ]


def render_tool_result(time: str, tool: ToolEvent, seconds: float | None) -> list[PaneLine]:
    """Render the end of a tool call with its whole result."""
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    mark: StyledSpan = ("bad", "✗ ") if tool.error else ("good", "✓ ")
    took = f"  {format_duration(seconds)}" if seconds is not None else ""
    spans += [mark, ("tool", one_line(tool.name, 60)), ("time", took)]
    tone: Tone = "bad" if tool.error else "result"
    body = tool.result.rstrip("\n")
    return [
        PaneLine(tuple(spans), 2),
        *(PaneLine((*_padding(), (tone, one)), _INDENT) for one in (safe_lines(body) if body else ())),
    ]


def describe_turn_end(turn: TurnEvent, seconds: float | None) -> str:
    """Describe how a turn ended, without a full stop."""
    parts = [TURN_OUTCOME_TEXTS.get(turn.outcome, turn.outcome or "ended")]
    if seconds is not None:
        parts.append(format_duration(seconds))
    prompt_tokens = turn.input_tokens + turn.read_tokens + turn.written_tokens
    if prompt_tokens:
        parts.append(f"{format_tokens(prompt_tokens)} in ({format_percent(turn.read_tokens / prompt_tokens)} read)")
    if turn.output_tokens:
        parts.append(f"{format_tokens(turn.output_tokens)} out")
    if turn.cost_usd:
        parts.append(format_usd(turn.cost_usd))
    return ", ".join(parts)


def describe_dmn(mind: DmnStatus, now: datetime) -> str:
    """Describe the state of an agent's DMN."""
    held = f"; it starts nothing by itself: {'; '.join(mind.held)}" if mind.held else ""
    return f"{format_dmn_status(mind, now)[0]}{held}"


def describe_reload(read: ReloadedEvent) -> str:
    """Describe a reload of the configuration."""
    parts = [f"{len(read.problems)} problems: {'; '.join(read.problems)}" if read.problems else ""]
    parts.append(f"now in force: {', '.join(read.taken)}" if read.taken else "")
    parts.append(f"after a restart: {', '.join(read.later)}" if read.later else "")
    return f"configuration read again; {'; '.join(filter(None, parts)) or 'nothing changed'}"


def format_duration(seconds: float) -> str:
    """Format a duration briefly."""
    if seconds < 10:  # noqa: PLR2004 - tenths are informative up to here
        return f"{max(0.0, seconds):.1f}".removesuffix(".0") + " s"
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"  # noqa: PLR2004 - two hours


def format_tokens(number: int) -> str:
    """Format a number of tokens with about three digits."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}" if number < 100 * size else f"{number / size:.0f}{unit}"
    return str(number)


def format_percent(part: float) -> str:
    """Format a share in percent."""
    return f"{part * 100:.0f} %"


def _padding() -> tuple[StyledSpan, ...]:
    return (("plain", "  "),)


def _argument_spans(arguments: str) -> Iterator[tuple[StyledSpan, ...]]:
    """Yield the spans of each argument, and of each further line of a text."""
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        yield from ((("plain", one),) for one in safe_lines(arguments) if arguments)
        return
    for name, value in found.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines = safe_lines(written)
        yield ("time", f"{one_line(str(name), 40)}: "), ("plain", lines[0])
        yield from ((("plain", f"  {one}"),) for one in islice(lines, 1, None))


OPERATOR_CONVERSATION: Final = "console/operator"
"""The operator's own direct conversation."""
ALL_CONVERSATIONS: Final = "*"
"""Follow every conversation."""
_NORMAL_OUTCOMES: Final = frozenset({"replied", "silent", "yielded"})
_FAILED_DELIVERIES: Final = frozenset({"failed", "uncertain"})


class ConsoleModel:
    """Contents of all panes, and the state behind them."""

    def __init__(self, *, zone: tzinfo | None = None, follows: str = OPERATOR_CONVERSATION) -> None:
        """`zone`: time zone of shown times. None: that of the system."""
        self.autonomous_pane, self.conversation_pane, self.tools_pane = Pane(), Pane(), Pane()
        self.followed = follows
        self.turns: dict[str, ConsoleActiveTurn] = {}
        self.tool_calls: dict[str, ConsoleActiveCall] = {}
        self.dmn_states: dict[str, DmnStatus] = {}
        self.status: GatewayStatus | None = None
        self.conversations: tuple[ConversationSummary, ...] = ()
        """Known conversations, the most recently active first."""
        self._titles: dict[str, str] = {}
        """Display titles of conversations."""
        self._zone = zone
        self._agent_names: dict[str, str] = {}  # agent by conversation
        self._ended_turns: deque[str] = deque(maxlen=200)
        """Recently ended turns."""
        self._missing_turns: set[str] = set()
        """Turns that the last status no longer listed, and whose end event has not come."""
        self._history_seq = 0  # the conversation pane was filled from the log up to this position

    def apply_event(self, event: ApiEvent) -> None:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
        """Apply an event."""
        self.learn_titles([event])
        time = format_clock(event.at, self._zone)
        match event:
            case NotificationEvent():
                self._add_notification(event, time)
            case PostEvent():
                self._add_post(event, time)
            case DeliveryEvent():
                if event.outcome in _FAILED_DELIVERIES and self._is_followed(event.conversation):
                    self.conversation_pane.add(
                        render_remark(time, f"not delivered ({event.outcome}): {event.reason}", "bad")
                    )
            case FateEvent():
                if event.fate == "refused" and self._is_followed(event.conversation):
                    self.conversation_pane.add(render_remark(time, f"refused by {event.rule}"))
            case TurnEvent():
                self._apply_turn(event, time)
            case ThinkingEvent():
                self._append_thinking(event, time)
            case TextEvent():
                self._append_text(event, time)
            case ToolEvent():
                self._apply_tool(event, time)
            case DmnEvent():
                self._update_dmn(event, event.at)
            case ChannelEvent():
                reason = f": {event.reason}" if event.reason else ""
                self.autonomous_pane.add(render_remark(time, f"channel {event.channel} is {event.state}{reason}"))
            case ReloadedEvent():
                self.autonomous_pane.add(
                    render_remark(time, describe_reload(event), "bad" if event.problems else "note")
                )
            case LogEvent():
                words = f"{event.level} {event.logger}: {event.message}"
                self.autonomous_pane.add(render_remark(time, words, "note" if event.level == "warning" else "bad"))
            case LostEvent():
                self.autonomous_pane.add(
                    render_remark(time, f"{event.count} events are missing here: they came too fast", "bad")
                )
            case _:
                pass

    def learn_titles(self, models: Iterable[BaseModel]) -> None:
        """Remember the display titles in these events or answers."""
        for one in models:
            conversation, title = getattr(one, "conversation", ""), getattr(one, "title", "")
            if title and conversation:
                self._titles[conversation] = title

    def title(self, conversation: str) -> str:
        """Return the display title of a conversation."""
        return self._titles.get(conversation, conversation)

    def find_conversation(self, wanted: str) -> str:
        """Return the conversation with this title if it is unambiguous, else the name as given."""
        named = [one for one, title in self._titles.items() if title.casefold() == wanted.strip().casefold()]
        return named[0] if len(named) == 1 else wanted

    def add_remark(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """Add a remark of the console to the conversation pane."""
        self.conversation_pane.add(render_remark(format_clock(at, self._zone), what, "bad" if bad else "note"))

    def add_gateway_note(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """Add a remark about the gateway to the autonomous pane."""
        self.autonomous_pane.add(render_remark(format_clock(at, self._zone), what, "bad" if bad else "note"))

    def handle_connected(self, status: GatewayStatus) -> None:
        """Handle a new connection: turns that the status does not list have ended meanwhile."""
        for turn in self.turns.keys() - {one.turn for one in status.activity}:
            self._end_turn(turn)
        self.tool_calls = {call: one for call, one in self.tool_calls.items() if one.turn in self.turns}
        self.update_status(status)
        for mind in status.agents:
            self._update_dmn(mind, status.now)

    def update_status(self, status: GatewayStatus) -> None:
        """Update the state of the gateway."""
        self.status = status
        self.learn_titles(status.activity)
        gone = self.turns.keys() - {one.turn for one in status.activity}
        for turn in gone & self._missing_turns:  # missing twice in a row: its end event was lost
            self._end_turn(turn)
        self._missing_turns = gone - self._missing_turns
        for one in status.activity:
            self._agent_names[one.conversation] = one.agent
            self.turns.setdefault(
                one.turn,
                ConsoleActiveTurn(agent=one.agent, conversation=one.conversation, since=one.since, autonomous=False),
            )

    def follow(self, conversation: str, past: ConversationDetail | None) -> None:
        """Follow another conversation. `past`: its newest messages; None: start empty."""
        self.followed, self._history_seq = conversation, 0
        for turn in self.turns:
            self.conversation_pane.drop_block(f"talk {turn}")
        self.conversation_pane.clear()
        if past is not None and past.agent:
            self._agent_names[conversation] = past.agent
        for one in past.messages if past is not None else ():
            self._history_seq = max(self._history_seq, one.seq)
            who = one.who or self._agent_name(conversation)
            time = format_clock(one.at, self._zone)
            self.conversation_pane.add(
                render_message(time, who, message_text(one), ours=one.ours, kind=describe_kind(one.kind))
            )
        self.conversation_pane.scroll_to_end()

    def add_summary(self, place: ConversationSummary) -> None:
        """Show the last message of a conversation."""
        if not place.last_text:
            return
        who = place.last_who or place.agent or "agent"
        time = format_clock(place.last_at, self._zone)
        self.conversation_pane.add(
            render_message(time, who, place.last_text, ours=not place.last_who, place=self.title(place.conversation))
        )

    def find_call_to_kill(self) -> ConsoleActiveCall | None:
        """Return the tool call that `kill` applies to: the newest, preferably in the followed conversation."""
        return find_newest(self.tool_calls.values(), lambda call: self._is_followed(call.conversation))

    def find_turn_to_stop(self) -> ConsoleActiveTurn | None:
        """Return the turn that `stop` applies to: preferably in the followed conversation, then an autonomous one."""
        turns = self.turns.values()
        return find_newest(turns, lambda turn: self._is_followed(turn.conversation), lambda turn: turn.autonomous)

    def needs_confirmation(self, turn: ConsoleActiveTurn) -> bool:
        """Return whether stopping the turn affects people in a conversation that is not followed."""
        return not turn.autonomous and not self._is_followed(turn.conversation)

    def _agent_name(self, conversation: str) -> str:
        """Return the agent of a conversation."""
        return self._agent_names.get(conversation) or (
            next(iter(self.dmn_states)) if len(self.dmn_states) == 1 else "agent"
        )

    def _place_title(self, conversation: str | None) -> str:
        return self.title(conversation) if conversation and self.followed == ALL_CONVERSATIONS else ""

    def _is_followed(self, conversation: str | None) -> bool:
        return bool(conversation) and self.followed in (ALL_CONVERSATIONS, conversation)

    def _add_notification(self, event: NotificationEvent, time: str) -> None:
        if not self._is_followed(event.conversation) or 0 < event.seq <= self._history_seq:
            return
        text, kind = message_text(event), describe_kind(event.kind)
        self.conversation_pane.add(
            render_message(time, event.who, text, ours=False, place=self._place_title(event.conversation), kind=kind)
        )

    def _add_post(self, event: PostEvent, time: str) -> None:
        if not self._is_followed(event.conversation) or 0 < event.seq <= self._history_seq:
            return
        for key, turn in self.turns.items():
            if turn.conversation == event.conversation and is_same_text(turn.written_text, event.text):
                turn.written_text = ""
                self.conversation_pane.drop_block(f"talk {key}")
        who, place = self._agent_name(event.conversation), self._place_title(event.conversation)
        self.conversation_pane.add(render_message(time, who, event.text, ours=True, place=place))

    def _apply_turn(self, event: TurnEvent, time: str) -> None:
        self._agent_names[event.conversation] = event.agent
        if event.state == "started":
            self.turns[event.turn] = ConsoleActiveTurn(
                agent=event.agent, conversation=event.conversation, since=event.at, autonomous=event.autonomous
            )
            if event.autonomous:
                why = TURN_CAUSE_TEXTS.get(event.cause, event.cause)
                self.autonomous_pane.add(
                    [render_heading(time, f"{event.agent} starts by itself: {why}", self.title(event.conversation))]
                )
            return
        before = self.turns.get(event.turn)
        seconds = seconds_between(before.since if before else None, event.at)
        self._end_turn(event.turn)
        if event.autonomous:
            self.autonomous_pane.add(render_remark(time, f"{event.agent} is done: {describe_turn_end(event, seconds)}"))
        elif event.outcome not in _NORMAL_OUTCOMES and self._is_followed(event.conversation):
            self.conversation_pane.add(
                render_remark(time, f"{event.agent} {event.outcome or 'ended'}: nothing more comes", "bad")
            )

    def _end_turn(self, key: str) -> None:
        turn = self.turns.pop(key, None)
        self._ended_turns.append(key)
        self.autonomous_pane.finish_block(f"think {key}")
        self.autonomous_pane.finish_block(f"write {key}")
        self.conversation_pane.drop_block(f"talk {key}")  # its answer was posted
        if turn is not None:
            self.tool_calls = {call: one for call, one in self.tool_calls.items() if one.turn != key}

    def _append_thinking(self, event: ThinkingEvent, time: str) -> None:
        head = f"{time} {one_line(event.agent, 40)} thinks, in {one_line(self.title(event.conversation), 60)}"
        line = PaneLine((("thinking", head),), 2, "thinking")
        self.autonomous_pane.append_delta(f"think {event.turn}", event.delta, head=[line], tone="thinking", indent=2)
        if event.turn in self._ended_turns:
            self.autonomous_pane.finish_block(f"think {event.turn}")
        else:
            self._ensure_turn(event)

    def _append_text(self, event: TextEvent, time: str) -> None:
        if event.turn in self._ended_turns:  # the log reported the end before the last text was flushed
            if event.autonomous:
                self.autonomous_pane.add(render_text(event.delta))
            return
        self.autonomous_pane.finish_block(f"think {event.turn}")
        turn = self._ensure_turn(event)
        if event.begins:
            turn.written_text = ""
            self.autonomous_pane.finish_block(f"write {event.turn}")
            self.conversation_pane.drop_block(f"talk {event.turn}")
        if event.autonomous:
            head = render_heading(time, f"{event.agent} writes", self.title(event.conversation))
            self.autonomous_pane.append_delta(f"write {event.turn}", event.delta, head=[head], indent=2)
        if self._is_followed(event.conversation):
            turn.written_text += event.delta
            head = PaneLine(
                (("time", f"{time} "), ("ours", one_line(event.agent, 40)), ("time", "  is writing ...")), 2
            )
            self.conversation_pane.append_delta(
                f"talk {event.turn}", event.delta, head=[head], tone="note", indent=4, held=True
            )

    def _ensure_turn(self, event: TextEvent | ThinkingEvent) -> ConsoleActiveTurn:
        """Return the turn of this text; its start event may be missing."""
        started = ConsoleActiveTurn(
            agent=event.agent, conversation=event.conversation, since=event.at, autonomous=event.autonomous
        )
        return self.turns.setdefault(event.turn, started)

    def _apply_tool(self, event: ToolEvent, time: str) -> None:
        self.autonomous_pane.finish_block(f"think {event.turn}")
        self.autonomous_pane.finish_block(f"write {event.turn}")
        if event.state == "started":
            self.tool_calls[event.call] = ConsoleActiveCall(
                turn=event.turn, name=event.name, conversation=event.conversation, since=event.at
            )
            self.tools_pane.add(render_tool_call(time, event, self.title(event.conversation)))
            return
        before = self.tool_calls.pop(event.call, None)
        self.tools_pane.add(
            render_tool_result(time, event, seconds_between(before.since if before else None, event.at))
        )

    def _update_dmn(self, mind: DmnStatus, at: datetime) -> None:
        before = self.dmn_states.get(mind.agent)
        self.dmn_states[mind.agent] = mind
        if before is None or (before.mode, before.quiet, before.held) != (mind.mode, mind.quiet, mind.held):
            self.autonomous_pane.add(render_remark(format_clock(at, self._zone), describe_dmn(mind, at)))


SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SPAN_GAP: Final[StyledSpan] = ("time", " │ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConnection:
    """Connection to the gateway."""

    state: Literal["up", "down", "starting", "gone"]
    """gone: it will not come back."""
    address: str
    """Host and port."""
    is_own: bool = False
    """True if this console runs the gateway."""
    detail: str = ""
    """Reason why it is not up, and what happens next."""


_CONNECTION_SIGNS: Final[dict[str, tuple[Tone, str]]] = {
    "up": ("good", "●"),
    "down": ("bad", "○"),
    "starting": ("note", "◌"),
    "gone": ("bad", "✗"),
}


def render_status(
    console: ConsoleModel, connection: ConsoleConnection, now: datetime, width: int, beat: int = 0
) -> tuple[StyledRow, StyledRow]:
    """Render the two status rows, not wider than `width`. `beat` animates the activity sign."""
    first = [_connection_spans(connection), *_dmn_spans(console), *_activity_spans(console, now, beat)]
    return _join_spans(first, width), _join_spans(_usage_spans(console), width)


def _connection_spans(one: ConsoleConnection) -> list[StyledSpan]:
    tone, sign = _CONNECTION_SIGNS[one.state]
    how = "runs here" if one.is_own else "attached"
    status = how if one.state == "up" else one.detail or one.state
    where = f" {one.address}" if one.state == "up" else ""
    return [(tone, f"{sign} "), ("plain", one_line(f"{status}{where}", 100))]


def _dmn_spans(console: ConsoleModel) -> list[list[StyledSpan]]:
    parts: list[list[StyledSpan]] = []
    for mind in console.dmn_states.values():
        spans: list[StyledSpan] = [
            ("head", one_line(mind.agent, 20)),
            ("plain", f" {one_line(mind.mode, 20)}"),
        ]
        if mind.quiet:
            spans.append(("note", " quiet"))
        parts.append(spans)
    return parts


def _activity_spans(console: ConsoleModel, now: datetime, beat: int) -> list[list[StyledSpan]]:
    sign = SPINNER[beat % len(SPINNER)]
    busy: list[list[StyledSpan]] = []
    for key, turn in console.turns.items():
        call = next((one for one in reversed(console.tool_calls.values()) if one.turn == key), None)
        what = one_line(call.name, 30) if call is not None else "thinks"
        since = call.since if call is not None else turn.since
        took = f" {format_duration(max(0.0, (now - since).total_seconds()))}" if since is not None else ""
        busy.append(
            [
                ("tool", f"{sign} {what}"),
                ("plain", took),
                ("time", f" {one_line(console.title(turn.conversation), 40)}"),
            ]
        )
    return busy or [[("time", "idle")]]


def _usage_spans(console: ConsoleModel) -> list[list[StyledSpan]]:
    status = console.status
    if status is None:
        return [[("time", "nothing is known yet")]]
    today = status.today
    prompt_tokens = today.input_tokens + today.read_tokens + today.written_tokens
    used: list[StyledSpan] = [("time", "today "), ("plain", f"{format_tokens(prompt_tokens)} in")]
    if today.read_share is not None:
        used.append(("good", f" {format_percent(today.read_share)} read"))
    used.append(("plain", f" {format_tokens(today.output_tokens)} out {format_usd(today.cost_usd)}"))
    parts: list[list[StyledSpan]] = [used, [("time", "model "), ("plain", one_line(status.model, 60) or "-")]]
    parts += [
        [("time", "autonomous turns "), ("plain", f"{one.turns_today} of {one.daily_turns}")]
        for one in console.dmn_states.values()
        if one.daily_turns
    ]
    if not status.ready:
        parts.append([("bad", "not ready")])
    return parts


def _join_spans(parts: list[list[StyledSpan]], width: int) -> StyledRow:
    """Join parts with gaps, cut at `width`."""
    row, room = list[StyledSpan](), width
    for number, part in enumerate(parts):
        for tone, text in ([_SPAN_GAP] if number else []) + part:
            fits = truncate_cells(text, room)
            if fits:
                row.append((tone, fits))
            room -= cell_width(fits)
            if fits != text:
                return tuple(row)
    return tuple(row)
