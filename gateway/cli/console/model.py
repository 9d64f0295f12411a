"""From what the API tells to what stands in the panes. Pure: times come with the events.

Above on the left: what the agents do by themselves, and what any of them thinks while it thinks it. Below: the
conversation that is followed. On the right: every call of a tool, whole.

How each thing that happens is told, as lines of a pane. Pure.

What is typed: its history, which commands there are, what a line means, and how one that is begun goes on. Pure.

The two rows at the bottom: the connection, the minds and what goes on; the model and what was used today. Pure.

What goes on: turns and tools under way. Pure.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import islice
from typing import Final, Literal, TypeVar

from gateway.cli.console.client import (
    ConsoleApiModel,
    ConsoleChannelState,
    ConsoleConversation,
    ConsoleDelivery,
    ConsoleDmnState,
    ConsoleEventsLost,
    ConsoleFate,
    ConsoleHistory,
    ConsoleLogRecord,
    ConsoleMessage,
    ConsoleNotification,
    ConsolePost,
    ConsoleReload,
    ConsoleStatus,
    ConsoleTextDelta,
    ConsoleThinkingDelta,
    ConsoleToolEvent,
    ConsoleTurnEvent,
)
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
from gateway.commands.table import COMMANDS, CommandDefinition, format_arg

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
"""What the API takes at once, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCommand:
    """A command of the console."""

    name: LocalCommandName
    args: str


def parse_input(typed: str) -> LocalCommand | str:
    """A command of ours, or what is to be said to the gateway as it is (its own commands are said, too)."""
    name, _, args = typed.strip().partition(" ")
    args = args.strip()
    match name:
        case "/quit" | "/clear" if not args:
            return LocalCommand(name="quit" if name == "/quit" else "clear", args="")
        case "/follow":
            return LocalCommand(name="follow", args=args)
        case "/help" if not args:
            return LocalCommand(name="help", args="")
    return typed.strip()


class InputHistory:
    """What was said before, gone through with up and down."""

    def __init__(self) -> None:
        self._messages: list[str] = []
        self._index = 0
        self._draft = ""

    def add(self, line: str) -> None:
        """It is the newest now."""
        if line and self._messages[-1:] != [line]:
            self._messages.append(line)
            del self._messages[:-MAX_HISTORY]
        self._index, self._draft = len(self._messages), ""

    def older(self, now: str) -> str | None:
        """The one before; `now`: what stands there, which is kept. None: there is none."""
        if self._index == 0:
            return None
        if self._index == len(self._messages):
            self._draft = now
        self._index -= 1
        return self._messages[self._index]

    def newer(self) -> str | None:
        """The one behind, at last what stood there at first. None: there is none."""
        if self._index == len(self._messages):
            return None
        self._index += 1
        return self._messages[self._index] if self._index < len(self._messages) else self._draft


def find_completions(typed: str, conversations: Iterable[str] = ()) -> list[str]:
    """How the last word of a command may go on, whole words; empty: it is no command, or nothing is known of it."""
    if not typed.startswith("/") or "\n" in typed:
        return []
    *before, word = typed[1:].split(" ")
    before = [one for one in before if one]
    return [one for one in _list_candidates(before, conversations) if one.startswith(word) and one != word]


def complete_input(typed: str, found: Sequence[str]) -> str:
    """As far as all of `found` agree; one alone is whole, and a space behind it."""
    head, space, word = typed.rpartition(" ")
    if not space:
        head, word = "", typed.removeprefix("/")
    goal = f"{found[0]} " if len(found) == 1 else _common_prefix(found)
    start = f"{head} " if space else "/"
    return f"{start}{goal if len(goal) > len(word) else word}"


def _common_prefix(found: Sequence[str]) -> str:
    """What all of them begin with."""
    first, last = min(found, default=""), max(found, default="")  # whatever these two share, those between them have
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def format_usage(typed: str) -> str:
    """What a command that is typed is for, and how it is written. Empty: it is none."""
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
    """One under way."""

    agent: str
    conversation: str
    since: datetime | None
    autonomous: bool
    written_text: str = ""
    """So far, in a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleActiveCall:
    """A tool under way."""

    turn: str
    name: str
    conversation: str
    since: datetime | None


def find_newest(found: Iterable[T], *wishes: Callable[[T], bool]) -> T | None:
    """The last one for which the first wish holds, else the second, and so on, else the last of all. None: no one."""
    known = [*found]
    for wish in wishes:
        fits = [one for one in known if wish(one)]
        if fits:
            return fits[-1]
    return known[-1] if known else None


def is_same_text(written: str, posted: str) -> bool:
    """Whether what grew is what was said then."""
    grown, whole = "".join(written.split()), "".join(posted.split())
    return bool(grown) and (whole.startswith(grown) or grown.endswith(whole))


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from one to the other. None: one of them is not known."""
    return (end - start).total_seconds() if start is not None and end is not None else None


_MESSAGE_KINDS = frozenset({"", "direct", "mention", "room", "post", "command", "message"})
"""Kinds of notifications that are somebody's words."""
_INDENT = 4


def format_clock(at: datetime | None, zone: tzinfo | None) -> str:
    """The time of day, there. Empty: it is not known."""
    return at.astimezone(zone).strftime("%H:%M:%S") if at is not None else ""


def render_remark(time: str, what: str, tone: Tone = "note") -> list[PaneLine]:
    """A remark of one paragraph or more."""
    first, *rest = safe_lines(what)
    lead: tuple[StyledSpan, ...] = (("time", f"{time} "),) if time else ()
    return [PaneLine((*lead, (tone, first)), 2), *(PaneLine((("plain", "  "), (tone, one)), 2) for one in rest)]


def render_message(time: str, who: str, said: str, *, ours: bool, place: str = "", kind: str = "") -> list[PaneLine]:
    """Somebody says something. `place`: where, if it is to be told; `describe_kind`: what it is, if not words."""
    first, *rest = safe_lines(said.strip("\n"))
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


def describe_kind(said: str) -> str:
    """What to say of the kind of a notification. Empty: it is somebody's words."""
    return "" if said in _MESSAGE_KINDS else said


def message_text(one: ConsoleNotification | ConsoleMessage) -> str:
    """What somebody said; a command as it is written."""
    return f"/{one.text}" if one.kind == "command" else one.text


def render_heading(time: str, what: str, where: str) -> PaneLine:
    """What somebody begins, and where."""
    return PaneLine((("time", f"{time} "), ("head", what), ("time", f"  {one_line(where, 60)}")), 2)


def render_text(words: str) -> list[PaneLine]:
    """The end of something, on lines of their own."""
    return [PaneLine((*_padding(), ("plain", one)), 2) for one in safe_lines(words.strip("\n")) if one.strip()]


def render_tool_call(time: str, tool: ConsoleToolEvent, where: str) -> list[PaneLine]:
    """A tool begins, with all that it was given."""
    spans: list[StyledSpan] = [("time", f"{time} ")] if time else []
    spans += [("tool", f"▶ {one_line(tool.name, 60)}"), ("time", f"  {one_line(where, 60)}")]
    return [
        PaneLine(tuple(spans), 2),
        *(PaneLine((*_padding(), *spans), _INDENT) for spans in _argument_spans(tool.arguments)),
    ]


def render_tool_result(time: str, tool: ConsoleToolEvent, seconds: float | None) -> list[PaneLine]:
    """It ended, with all that it gave."""
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


def describe_turn_end(turn: ConsoleTurnEvent, seconds: float | None) -> str:
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


def describe_dmn(mind: ConsoleDmnState) -> str:
    """Where an agent's network stands."""
    parts = [f"{mind.agent} is {mind.mode}"]
    if mind.quiet:
        parts.append("quiet")
    if mind.next_tick_s is not None:
        parts.append(f"looks again in {format_duration(mind.next_tick_s)}")
    if mind.held:
        parts.append(f"starts nothing by itself: {'; '.join(mind.held)}")
    return ", ".join(parts)


def describe_reload(read: ConsoleReload) -> str:
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
        yield from ((("plain", one),) for one in safe_lines(said) if said)
        return
    for name, value in found.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines = safe_lines(written)
        yield ("time", f"{one_line(str(name), 40)}: "), ("plain", lines[0])
        yield from ((("plain", f"  {one}"),) for one in islice(lines, 1, None))


OPERATOR_CONVERSATION: Final = "console/operator"
"""The operator's own direct conversation."""
ALL_CONVERSATIONS: Final = "*"
"""Follows every conversation."""
_NORMAL_OUTCOMES: Final = frozenset({"replied", "silent", "yielded"})
_FAILED_DELIVERIES: Final = frozenset({"failed", "uncertain"})


class ConsoleModel:
    """All that is shown."""

    def __init__(self, *, zone: tzinfo | None = None, follows: str = OPERATOR_CONVERSATION) -> None:
        """`zone`: in which times are told. None: that of the system."""
        self.autonomous_pane, self.conversation_pane, self.tools_pane = Pane(), Pane(), Pane()
        self.followed = follows
        self.turns: dict[str, ConsoleActiveTurn] = {}
        self.tool_calls: dict[str, ConsoleActiveCall] = {}
        self.dmn_states: dict[str, ConsoleDmnState] = {}
        self.status: ConsoleStatus | None = None
        self.conversations: tuple[ConsoleConversation, ...] = ()
        """Conversations that are known, the newest first."""
        self._titles: dict[str, str] = {}
        """What people call conversations."""
        self._zone = zone
        self._agent_names: dict[str, str] = {}  # who answers where
        self._ended_turns: deque[str] = deque(maxlen=200)
        """Turns that are over, the last ones."""
        self._missing_turns: set[str] = set()
        """Turns that ran no more when the status was asked for last, and whose end was not told yet."""
        self._history_seq = 0  # up to here the conversation was filled from the log

    def apply_event(self, event: ConsoleApiModel) -> None:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
        """Something happened."""
        self.learn_titles([event])
        time = format_clock(event.at, self._zone)
        match event:
            case ConsoleNotification():
                self._add_notification(event, time)
            case ConsolePost():
                self._add_post(event, time)
            case ConsoleDelivery():
                if event.outcome in _FAILED_DELIVERIES and self._is_followed(event.conversation):
                    self.conversation_pane.add(
                        render_remark(time, f"not delivered ({event.outcome}): {event.reason}", "bad")
                    )
            case ConsoleFate():
                if event.fate == "refused" and self._is_followed(event.conversation):
                    self.conversation_pane.add(render_remark(time, f"refused by {event.rule}"))
            case ConsoleTurnEvent():
                self._apply_turn(event, time)
            case ConsoleThinkingDelta():
                self._append_thinking(event, time)
            case ConsoleTextDelta():
                self._append_text(event, time)
            case ConsoleToolEvent():
                self._apply_tool(event, time)
            case ConsoleDmnState():
                self._update_dmn(event, time)
            case ConsoleChannelState():
                reason = f": {event.reason}" if event.reason else ""
                self.autonomous_pane.add(render_remark(time, f"channel {event.channel} is {event.state}{reason}"))
            case ConsoleReload():
                self.autonomous_pane.add(
                    render_remark(time, describe_reload(event), "bad" if event.problems else "note")
                )
            case ConsoleLogRecord():
                words = f"{event.level} {event.logger}: {event.message}"
                self.autonomous_pane.add(render_remark(time, words, "note" if event.level == "warning" else "bad"))
            case ConsoleEventsLost():
                self.autonomous_pane.add(
                    render_remark(time, f"{event.count} events are missing here: they came too fast", "bad")
                )
            case _:
                pass

    def learn_titles(self, told: Iterable[ConsoleApiModel]) -> None:
        """What conversations are called."""
        for one in told:
            conversation = getattr(one, "conversation", "")
            if one.title and conversation:
                self._titles[conversation] = one.title

    def title(self, conversation: str) -> str:
        """What people call that conversation."""
        return self._titles.get(conversation, conversation)

    def find_conversation(self, wanted: str) -> str:
        """The conversation that somebody names: by its title if only one is called so, else as it is written."""
        named = [one for one, title in self._titles.items() if title.casefold() == wanted.strip().casefold()]
        return named[0] if len(named) == 1 else wanted

    def add_remark(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """The console itself says something, where the operator looks."""
        self.conversation_pane.add(render_remark(format_clock(at, self._zone), what, "bad" if bad else "note"))

    def add_gateway_note(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """The same about the gateway."""
        self.autonomous_pane.add(render_remark(format_clock(at, self._zone), what, "bad" if bad else "note"))

    def handle_connected(self, status: ConsoleStatus) -> None:
        """A connection stands, at first or again: what is said not to run any more ended meanwhile."""
        for turn in self.turns.keys() - {one.turn for one in status.activity}:
            self._end_turn(turn)
        self.tool_calls = {call: one for call, one in self.tool_calls.items() if one.turn in self.turns}
        self.update_status(status)
        for mind in status.agents:
            self._update_dmn(mind, format_clock(status.now, self._zone))

    def update_status(self, status: ConsoleStatus) -> None:
        """The gateway's state as it is now."""
        self.status = status
        self.learn_titles(status.activity)
        gone = self.turns.keys() - {one.turn for one in status.activity}
        for turn in gone & self._missing_turns:  # twice in a row: its end was lost
            self._end_turn(turn)
        self._missing_turns = gone - self._missing_turns
        for one in status.activity:
            self._agent_names[one.conversation] = one.agent
            self.turns.setdefault(
                one.turn,
                ConsoleActiveTurn(agent=one.agent, conversation=one.conversation, since=one.since, autonomous=False),
            )

    def follow(self, conversation: str, past: ConsoleHistory | None) -> None:
        """Show another conversation, from its newest messages on; None: from now on."""
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

    def add_summary(self, place: ConsoleConversation) -> None:
        """What was said last somewhere."""
        if not place.last_text:
            return
        who = place.last_who or place.agent or "agent"
        time = format_clock(place.last_at, self._zone)
        self.conversation_pane.add(
            render_message(time, who, place.last_text, ours=not place.last_who, place=self.title(place.conversation))
        )

    def find_call_to_kill(self) -> ConsoleActiveCall | None:
        """The tool that is meant by killing one: the newest, if possible in the conversation that is followed."""
        return find_newest(self.tool_calls.values(), lambda call: self._is_followed(call.conversation))

    def find_turn_to_stop(self) -> ConsoleActiveTurn | None:
        """The turn that is meant by stopping one: likewise, then one that nobody asked for."""
        turns = self.turns.values()
        return find_newest(turns, lambda turn: self._is_followed(turn.conversation), lambda turn: turn.autonomous)

    def needs_confirmation(self, turn: ConsoleActiveTurn) -> bool:
        """Whether stopping it takes something from people who are not looked at."""
        return not turn.autonomous and not self._is_followed(turn.conversation)

    def _agent_name(self, conversation: str) -> str:
        """Which agent speaks there."""
        return self._agent_names.get(conversation) or (
            next(iter(self.dmn_states)) if len(self.dmn_states) == 1 else "agent"
        )

    def _place_title(self, conversation: str) -> str:
        return self.title(conversation) if self.followed == ALL_CONVERSATIONS else ""

    def _is_followed(self, conversation: str) -> bool:
        return bool(conversation) and self.followed in (ALL_CONVERSATIONS, conversation)

    def _add_notification(self, event: ConsoleNotification, time: str) -> None:
        if not self._is_followed(event.conversation) or 0 < event.seq <= self._history_seq:
            return
        said, kind = message_text(event), describe_kind(event.kind)
        self.conversation_pane.add(
            render_message(time, event.who, said, ours=False, place=self._place_title(event.conversation), kind=kind)
        )

    def _add_post(self, event: ConsolePost, time: str) -> None:
        if not self._is_followed(event.conversation) or 0 < event.seq <= self._history_seq:
            return
        for key, turn in self.turns.items():
            if turn.conversation == event.conversation and is_same_text(turn.written_text, event.text):
                turn.written_text = ""
                self.conversation_pane.drop_block(f"talk {key}")
        who, place = self._agent_name(event.conversation), self._place_title(event.conversation)
        self.conversation_pane.add(render_message(time, who, event.text, ours=True, place=place))

    def _apply_turn(self, event: ConsoleTurnEvent, time: str) -> None:
        self._agent_names[event.conversation] = event.agent
        if event.state == "started":
            self.turns[event.turn] = ConsoleActiveTurn(
                agent=event.agent, conversation=event.conversation, since=event.at, autonomous=event.autonomous
            )
            if event.autonomous:
                self.autonomous_pane.add(
                    [
                        render_heading(
                            time, f"{event.agent} starts by itself: {event.cause}", self.title(event.conversation)
                        )
                    ]
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
        self.conversation_pane.drop_block(f"talk {key}")  # what was to be said of it was posted
        if turn is not None:
            self.tool_calls = {call: one for call, one in self.tool_calls.items() if one.turn != key}

    def _append_thinking(self, event: ConsoleThinkingDelta, time: str) -> None:
        head = f"{time} {event.agent} thinks, in {one_line(self.title(event.conversation), 60)}"
        line = PaneLine((("thinking", head),), 2, "thinking")
        self.autonomous_pane.append_delta(f"think {event.turn}", event.delta, head=[line], tone="thinking", indent=2)
        if event.turn in self._ended_turns:
            self.autonomous_pane.finish_block(f"think {event.turn}")
        else:
            self._ensure_turn(event)

    def _append_text(self, event: ConsoleTextDelta, time: str) -> None:
        if event.turn in self._ended_turns:  # the log told the end before its last words were gathered
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
            head = PaneLine((("time", f"{time} "), ("ours", event.agent), ("time", "  is writing ...")), 2)
            self.conversation_pane.append_delta(
                f"talk {event.turn}", event.delta, head=[head], tone="note", indent=4, held=True
            )

    def _ensure_turn(self, event: ConsoleTextDelta) -> ConsoleActiveTurn:
        """The turn in which that is written; its beginning may not have been told."""
        made = ConsoleActiveTurn(
            agent=event.agent, conversation=event.conversation, since=event.at, autonomous=event.autonomous
        )
        return self.turns.setdefault(event.turn, made)

    def _apply_tool(self, event: ConsoleToolEvent, time: str) -> None:
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

    def _update_dmn(self, mind: ConsoleDmnState, time: str) -> None:
        before = self.dmn_states.get(mind.agent)
        self.dmn_states[mind.agent] = mind
        if before is None or (before.mode, before.quiet, before.held) != (mind.mode, mind.quiet, mind.held):
            self.autonomous_pane.add(render_remark(time, describe_dmn(mind)))


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
    return [(tone, f"{sign} "), ("plain", one_line(f"{said}{where}", 100))]


def _dmn_spans(console: ConsoleModel) -> list[list[StyledSpan]]:
    shown: list[list[StyledSpan]] = []
    for mind in console.dmn_states.values():
        said: list[StyledSpan] = [
            ("head", one_line(mind.agent, 20)),
            ("plain", f" {one_line(mind.mode, 20)}"),
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
    asked = today.input_tokens + today.read_tokens + today.written_tokens
    used: list[StyledSpan] = [("time", "today "), ("plain", f"{format_tokens(asked)} in")]
    if today.read_share is not None:
        used.append(("good", f" {format_percent(today.read_share)} read"))
    used.append(("plain", f" {format_tokens(today.output_tokens)} out"))
    if today.cost_usd is not None:
        used.append(("plain", f" {format_usd(today.cost_usd)}"))
    shown: list[list[StyledSpan]] = [used, [("time", "model "), ("plain", one_line(status.model, 60) or "-")]]
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
            fits = truncate_cells(said, room)
            if fits:
                row.append((tone, fits))
            room -= cell_width(fits)
            if fits != said:
                return tuple(row)
    return tuple(row)
