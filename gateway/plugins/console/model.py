"""Contents of the console: what the panes, the status rows and the input line show.

Pure: times come with the events. The autonomous pane shows autonomous turns, and the thinking of
all agents; the conversation pane the followed conversation; the tools pane every tool call in full.
`ConsoleModel` makes entries for them out of the events of the API.
"""

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final, Literal, cast

from rich.text import Text

from gateway.commands.definition import CommandDefinition, format_arg
from gateway.commands.table import build_table
from gateway.core.api_models import (
    ApiEvent,
    ConversationDetail,
    ConversationMessage,
    ConversationSummary,
    DeliveryRecord,
    DmnEvent,
    GatewayStatus,
    LogEvent,
    LostEvent,
    NotificationRecord,
    PostRecord,
    ReloadedEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
    TurnSummary,
)
from gateway.core.control_messages import DmnStatus
from gateway.core.format import format_duration, format_usd
from gateway.core.frozen import frozen
from gateway.core.metrics import ChannelStats
from gateway.plugins import find_plugins
from gateway.plugins.console.safe_text import one_line, safe_lines
from gateway.runtime.dmn_admin import format_dmn_status
from gateway.store.format import TURN_CAUSE_TEXTS, TURN_OUTCOME_TEXTS

LocalCommandName = Literal["quit", "clear", "follow"]
LOCAL_COMMANDS: Final[dict[LocalCommandName, str]] = {
    "quit": "leave the console",
    "clear": "empty the pane above",
    "follow": "show another conversation: its name, `own`, or `all`",
}
"""Commands of the console itself."""
MAX_MESSAGE_CHARS: Final = 16_000
"""Longest text that the API accepts, in characters."""


def parse_input(typed: str) -> tuple[LocalCommandName | None, str]:
    """Parse the input: a command of the console and its arguments, or None and a text for the
    gateway.
    """
    name, _, args = typed.strip().partition(" ")
    match name, args.strip():
        case ("/quit", "") | ("/clear", ""):
            return cast("LocalCommandName", name[1:]), ""
        case "/follow", wanted:
            return "follow", wanted
    return None, typed.strip()


PaneName = Literal["autonomous", "conversation", "tools"]
OPERATOR_CONVERSATION: Final = "console/operator"
"""The operator's own direct conversation."""
ALL_CONVERSATIONS: Final = "*"
"""Follow every conversation."""
_MESSAGE_KINDS: Final = frozenset({"", "direct", "mention", "room", "post", "command", "message"})
_NORMAL_OUTCOMES: Final = frozenset({"replied", "silent", "yielded"})
_GROWING_CHARS: Final[dict[PaneName, int]] = {"autonomous": 100, "conversation": 240, "tools": 0}
"""Characters that are shown of the end of a text that is still being written."""

TIME: Final = "dim"
HEAD: Final = "bold"
THEY: Final = "bold cyan"
WE: Final = "bold magenta"
GOOD: Final = "green"
BAD: Final = "bold red"
NOTE: Final = "italic"
THINKING: Final = "italic dim"


@frozen
class PaneEntry:
    """Something that a pane shows from now on."""

    pane: PaneName
    text: Text
    is_thinking: bool = False
    """True if it can be hidden."""


@dataclass(slots=True, kw_only=True)
class ConsoleActiveTurn:
    """A running turn."""

    agent: str
    conversation: str
    since: datetime | None
    autonomous: bool
    thinking: str = ""
    """Thinking that is not an entry yet."""
    written: str = ""
    """Text of the answer so far."""


@frozen
class ConsoleActiveCall:
    """A running tool call."""

    turn: str
    name: str
    conversation: str
    since: datetime | None


def format_clock(at: datetime | None, zone: tzinfo | None) -> str:
    """Return the time of day in the time zone, with a space behind it. Empty: not known."""
    return at.astimezone(zone).strftime("%H:%M:%S ") if at is not None else ""


def render_lines(
    time: str, head: Sequence[tuple[str, str]], text: str = "", style: str = ""
) -> Text:
    """Return styled pieces on one line, and the text on lines of its own."""
    shown = Text()
    for piece, look in ((piece, look) for piece, look in head if piece):
        shown.append("  " if shown else "").append(one_line(piece, 100), look)
    for line in safe_lines(text.strip("\n")) if text.strip() else ():
        shown.append("\n  " if shown else "  ").append(line, style)
    return Text.assemble((time, TIME)).append_text(shown)


def render_message(
    time: str, who: str, text: str, *, ours: bool, place: str = "", kind: str = ""
) -> Text:
    """Render a message. `place`: conversation to show; `kind`: kind of notification."""
    shown = Text.assemble((time, TIME), (f"{one_line(place, 40)} " if place else "", TIME))
    shown.append(one_line(who, 40) or "?", WE if ours else THEY)
    if kind not in _MESSAGE_KINDS:
        shown.append(f" ({one_line(kind, 20)})", TIME)
    first, *rest = safe_lines(text.strip("\n"))
    shown.append(f"  {first}")
    for line in rest:
        shown.append(f"\n    {line}")
    return shown


def render_remark(time: str, what: str, style: str = NOTE) -> Text:
    """Render a remark; later lines are indented."""
    return Text.assemble((time, TIME), ("\n  ".join(safe_lines(what)), style))


def message_text(one: NotificationRecord | ConversationMessage) -> str:
    """Return the text of a message; a command as it is typed."""
    return f"/{one.text}" if one.kind == "command" else one.text


def describe_turn_end(turn: TurnSummary, seconds: float | None) -> str:
    """Describe how a turn ended, without a full stop."""
    parts = [TURN_OUTCOME_TEXTS.get(turn.outcome, turn.outcome or "ended")]
    if seconds is not None:
        parts.append(format_duration(seconds))
    prompt_tokens = turn.input_tokens + turn.read_tokens + turn.written_tokens
    if prompt_tokens:
        parts.append(
            f"{format_tokens(prompt_tokens)} in ({turn.read_tokens / prompt_tokens * 100:.0f} % "
            "read)"
        )
    if turn.output_tokens:
        parts.append(f"{format_tokens(turn.output_tokens)} out")
    if turn.cost_usd:
        parts.append(format_usd(turn.cost_usd))
    return ", ".join(parts)


def describe_reload(read: ReloadedEvent) -> str:
    """Describe a reload of the configuration."""
    parts = [f"{len(read.problems)} problems: {'; '.join(read.problems)}" if read.problems else ""]
    parts.append(f"now in force: {', '.join(read.taken)}" if read.taken else "")
    parts.append(f"after a restart: {', '.join(read.later)}" if read.later else "")
    return f"configuration read again; {'; '.join(filter(None, parts)) or 'nothing changed'}"


def format_arguments(arguments: str) -> str:
    """Return the arguments of a tool call, one on a line; further lines of a text are indented."""
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return arguments
    written = {
        name: one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        for name, one in found.items()
    }
    return "\n".join(
        f"{one_line(name, 40)}: {one}".replace("\n", "\n  ") for name, one in written.items()
    )


def format_tokens(number: int) -> str:
    """Format a number of tokens with about three digits."""
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return (
                f"{number / size:.1f}{unit}"
                if number < 100 * size
                else f"{number / size:.0f}{unit}"
            )
    return str(number)


class ConsoleModel:
    """State of what is shown. New entries are in `entries` until they are taken."""

    def __init__(self, *, zone: tzinfo | None = None, follows: str = OPERATOR_CONVERSATION) -> None:
        """`zone`: time zone of shown times. None: that of the system."""
        self.entries: list[PaneEntry] = []
        self.followed = follows
        self.turns: dict[str, ConsoleActiveTurn] = {}
        self.tool_calls: dict[str, ConsoleActiveCall] = {}
        self.dmn_states: dict[str, DmnStatus] = {}
        self.status: GatewayStatus | None = None
        self.conversations: tuple[ConversationSummary, ...] = ()
        """Known conversations, the most recently active first."""
        self.commands: Mapping[str, CommandDefinition] = {}
        """Commands of the gateway, by name. Empty: not known yet."""
        self._titles: dict[str, str] = {}
        self._zone = zone
        self._agent_names: dict[str, str] = {}  # agent by conversation
        self._ended_turns: deque[str] = deque(maxlen=200)
        self._missing_turns: set[str] = set()
        """Turns that the last status no longer listed, and whose end event has not come."""
        self._history_seq = 0  # the conversation pane was filled from the log up to this position

    def use_plugins(self, names: Collection[str]) -> None:
        """Offer the commands of a gateway that has these plugins, as far as they are known here."""
        used = tuple(one for one in find_plugins().classes if one.name in names)
        self.commands = {row.name: row for row in build_table(used).rows}

    def find_completions(self, typed: str) -> list[str]:
        """Return possible completions of the last word of a command; empty: no command, or nothing
        to complete.
        """
        if not typed.startswith("/") or "\n" in typed:
            return []
        *before, word = typed[1:].split(" ")
        before = [one for one in before if one]
        found = self._list_candidates(before)
        return [one for one in found if one.startswith(word) and one != word]

    def format_usage(self, typed: str) -> str:
        """Return the usage and summary of the command in the input. Empty: not a command."""
        name, *words = typed.removeprefix("/").split(" ")
        row = self.commands.get(name)
        if not typed.startswith("/") or row is None:
            return LOCAL_COMMANDS.get(name, "") if typed.startswith("/") else ""  # type: ignore[call-overload]  # any text may be asked for
        sub = row.find_sub(words[0]) if words else None
        args = " ".join(map(format_arg, sub.args if sub else row.args))
        return (
            " ".join(filter(None, (f"/{row.name}", sub.name if sub else "", args)))
            + f": {(sub or row).summary}"
        )

    def _list_candidates(self, before: Sequence[str]) -> Iterable[str]:
        if not before:
            return sorted({*LOCAL_COMMANDS, *self.commands})
        if before == ["follow"]:
            return ["all", "own", *(one.conversation for one in self.conversations)]
        row = self.commands.get(before[0])
        if row is None:
            return []
        if before == ["help"]:
            return sorted(self.commands)
        sub = row.find_sub(before[1]) if len(before) > 1 else None
        if len(before) == 1 and row.subs:
            return [one.name for one in row.subs]
        args = sub.args if sub is not None else row.args
        place = len(before) - (2 if sub is not None else 1)
        return args[place].choices if place < len(args) else []

    def apply_event(self, event: ApiEvent) -> None:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
        """Apply an event."""
        self.learn_titles([event])
        time = format_clock(getattr(event, "at", None), self._zone)
        match event:
            case NotificationRecord():
                if self._is_new_here(event):
                    place = self._place_title(event.conversation)
                    text, kind = message_text(event), event.kind
                    self._add(
                        "conversation",
                        render_message(time, event.who, text, ours=False, place=place, kind=kind),
                    )
            case PostRecord():
                self._add_post(event, time)
            case DeliveryRecord():
                if event.outcome != "sent" and self._is_followed(event.conversation):
                    self.add_remark(
                        f"not delivered ({event.outcome}): {event.reason}", bad=True, at=event.at
                    )
            case TurnSummary():
                self._apply_turn(event, time)
            case ThinkingEvent():
                if event.turn in self._ended_turns:
                    self._add_thinking(event.agent, event.conversation, event.delta, time)
                else:
                    self._ensure_turn(event).thinking += event.delta
            case TextEvent():
                self._append_text(event, time)
            case ToolEvent():
                self._apply_tool(event, time)
            case DmnEvent():
                self._update_dmn(event, event.at)
            case ChannelStats():
                reason = f": {event.reason}" if event.reason else ""
                self.add_gateway_note(
                    f"channel {event.channel} is {event.state}{reason}", at=event.since
                )
            case ReloadedEvent():
                self.add_gateway_note(describe_reload(event), bad=bool(event.problems), at=event.at)
            case LogEvent():
                words = f"{event.level} {event.logger}: {event.message}"
                self.add_gateway_note(words, bad=event.level != "warning", at=event.at)
            case LostEvent():
                words = f"{event.count} events are missing here: they came too fast"
                self.add_gateway_note(words, bad=True, at=event.at)

    def growing(self, pane: PaneName) -> Text:
        """Return the end of what is being thought and written, a paragraph for each turn; empty:
        nothing is.
        """
        shown, size = Text(), _GROWING_CHARS[pane]
        for turn in self.turns.values():
            parts = [
                ("thinks", turn.thinking, THINKING),
                ("writes", turn.written if turn.autonomous else "", ""),
            ]
            if pane == "conversation":
                parts = [
                    (
                        "is writing ...",
                        turn.written if self._is_followed(turn.conversation) else "",
                        NOTE,
                    )
                ]
            for what, text, style in parts:
                if text:
                    end = " ".join(safe_lines(text[-size:]))
                    shown.append("\n" if shown else "").append(one_line(turn.agent, 40), WE)
                    shown.append(f"  {what} ", TIME).append(
                        "…" if size < len(text) else "", TIME
                    ).append(end, style)
        return shown

    def learn_titles(self, models: Iterable[object]) -> None:
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
        named = [
            one
            for one, title in self._titles.items()
            if title.casefold() == wanted.strip().casefold()
        ]
        return named[0] if len(named) == 1 else wanted

    def add_remark(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """Add a remark to the conversation pane."""
        self._add(
            "conversation", render_remark(format_clock(at, self._zone), what, BAD if bad else NOTE)
        )

    def add_gateway_note(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """Add a remark about the gateway to the autonomous pane."""
        self._add(
            "autonomous", render_remark(format_clock(at, self._zone), what, BAD if bad else NOTE)
        )

    def handle_connected(self, status: GatewayStatus) -> None:
        """Handle a new connection: turns that the status does not list have ended meanwhile."""
        for turn in self.turns.keys() - {one.turn for one in status.activity}:
            self._end_turn(turn)
        self.tool_calls = {
            call: one for call, one in self.tool_calls.items() if one.turn in self.turns
        }
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
                ConsoleActiveTurn(
                    agent=one.agent,
                    conversation=one.conversation,
                    since=one.at,
                    autonomous=one.autonomous,
                ),
            )

    def follow(self, conversation: str, past: ConversationDetail | None) -> None:
        """Follow another conversation. `past`: its newest messages; None: the newest message of
        each conversation.
        """
        self.followed, self._history_seq = conversation, 0
        self.entries = [one for one in self.entries if one.pane != "conversation"]
        if past is None:
            for place in reversed(self.conversations):
                if place.last_text:
                    who, time = (
                        place.last_who or place.agent or "agent",
                        format_clock(place.last_at, self._zone),
                    )
                    ours, title = not place.last_who, self.title(place.conversation)
                    self._add(
                        "conversation",
                        render_message(time, who, place.last_text, ours=ours, place=title),
                    )
            return
        if past.agent:
            self._agent_names[conversation] = past.agent
        for one in past.messages:
            self._history_seq = max(self._history_seq, one.seq)
            who, time = one.who or self._agent_name(conversation), format_clock(one.at, self._zone)
            self._add(
                "conversation",
                render_message(time, who, message_text(one), ours=one.ours, kind=one.kind),
            )

    def find_call_to_kill(self) -> ConsoleActiveCall | None:
        """Return the tool call that `kill` applies to: the newest, preferably in the followed
        conversation.
        """
        calls = sorted(
            self.tool_calls.values(), key=lambda call: self._is_followed(call.conversation)
        )
        return calls[-1] if calls else None

    def find_turn_to_stop(self) -> ConsoleActiveTurn | None:
        """Return the turn that `stop` applies to: preferably in the followed conversation, then an
        autonomous one.
        """
        turns = sorted(
            self.turns.values(),
            key=lambda turn: (self._is_followed(turn.conversation), turn.autonomous),
        )
        return turns[-1] if turns else None

    def needs_confirmation(self, turn: ConsoleActiveTurn) -> bool:
        """Return whether stopping the turn affects people in a conversation that is not
        followed.
        """
        return not turn.autonomous and not self._is_followed(turn.conversation)

    def _add(self, pane: PaneName, text: Text, *, is_thinking: bool = False) -> None:
        self.entries.append(PaneEntry(pane=pane, text=text, is_thinking=is_thinking))

    def _agent_name(self, conversation: str) -> str:
        return self._agent_names.get(conversation) or (
            next(iter(self.dmn_states)) if len(self.dmn_states) == 1 else "agent"
        )

    def _place_title(self, conversation: str | None) -> str:
        return (
            self.title(conversation) if conversation and self.followed == ALL_CONVERSATIONS else ""
        )

    def _is_followed(self, conversation: str | None) -> bool:
        return bool(conversation) and self.followed in (ALL_CONVERSATIONS, conversation)

    def _is_new_here(self, event: NotificationRecord | PostRecord) -> bool:
        return self._is_followed(event.conversation) and not 0 < event.seq <= self._history_seq

    def _add_post(self, event: PostRecord, time: str) -> None:
        for turn in self.turns.values():
            posted, written = "".join(event.text.split()), "".join(turn.written.split())
            if turn.conversation == event.conversation and written and posted.startswith(written):
                turn.written = ""
        if self._is_new_here(event):
            who, place = self._agent_name(event.conversation), self._place_title(event.conversation)
            self._add("conversation", render_message(time, who, event.text, ours=True, place=place))

    def _apply_turn(self, event: TurnSummary, time: str) -> None:
        self._agent_names[event.conversation] = event.agent
        if event.state == "started":
            self.turns[event.turn] = ConsoleActiveTurn(
                agent=event.agent,
                conversation=event.conversation,
                since=event.at,
                autonomous=event.autonomous,
            )
            if event.autonomous:
                why = TURN_CAUSE_TEXTS.get(event.cause, event.cause)
                self._add_heading(
                    time, f"{event.agent} starts by itself: {why}", event.conversation
                )
            return
        before = self.turns.get(event.turn)
        since = before.since if before is not None else None
        self._end_turn(event.turn, time)
        if event.autonomous:
            seconds = (event.at - since).total_seconds() if since is not None else None
            self.add_gateway_note(
                f"{event.agent} is done: {describe_turn_end(event, seconds)}", at=event.at
            )
        elif event.outcome not in _NORMAL_OUTCOMES and self._is_followed(event.conversation):
            self.add_remark(
                f"{event.agent} {event.outcome or 'ended'}: nothing more comes",
                bad=True,
                at=event.at,
            )

    def _end_turn(self, key: str, time: str = "") -> None:
        self._finish(key, time)
        self._ended_turns.append(key)
        if self.turns.pop(key, None) is not None:
            self.tool_calls = {
                call: one for call, one in self.tool_calls.items() if one.turn != key
            }

    def _finish(self, key: str, time: str) -> None:
        """Make entries of what a turn thought, and wrote by itself."""
        turn = self.turns.get(key)
        if turn is None:
            return
        if turn.thinking:
            self._add_thinking(turn.agent, turn.conversation, turn.thinking, time)
            turn.thinking = ""
        if turn.written and turn.autonomous:
            self._add_heading(time, f"{turn.agent} writes", turn.conversation, turn.written)
            turn.written = ""

    def _add_heading(self, time: str, what: str, conversation: str, text: str = "") -> None:
        self._add(
            "autonomous", render_lines(time, [(what, HEAD), (self.title(conversation), TIME)], text)
        )

    def _add_thinking(self, agent: str, conversation: str, text: str, time: str) -> None:
        head = [(f"{agent} thinks, in {self.title(conversation)}", THINKING)]
        self._add("autonomous", render_lines(time, head, text, THINKING), is_thinking=True)

    def _append_text(self, event: TextEvent, time: str) -> None:
        if (
            event.turn in self._ended_turns
        ):  # the log reported the end before the last text was flushed
            if event.autonomous:
                self._add("autonomous", render_lines("", [], event.delta))
            return
        turn = self._ensure_turn(event)
        if turn.thinking:
            self._add_thinking(turn.agent, turn.conversation, turn.thinking, time)
            turn.thinking = ""
        turn.written = event.delta if event.begins else turn.written + event.delta

    def _ensure_turn(self, event: TextEvent | ThinkingEvent) -> ConsoleActiveTurn:
        """Return the turn of this text; its start event may be missing."""
        started = ConsoleActiveTurn(
            agent=event.agent,
            conversation=event.conversation,
            since=event.at,
            autonomous=event.autonomous,
        )
        turn = self.turns.setdefault(event.turn, started)
        turn.autonomous = event.autonomous  # the status does not tell
        return turn

    def _apply_tool(self, event: ToolEvent, time: str) -> None:
        self._finish(event.turn, time)
        if event.state == "started":
            self.tool_calls[event.call] = ConsoleActiveCall(
                turn=event.turn, name=event.name, conversation=event.conversation, since=event.at
            )
            head = [(f"▶ {event.name}", THEY), (self.title(event.conversation), TIME)]
            self._add("tools", render_lines(time, head, format_arguments(event.arguments)))
            return
        before = self.tool_calls.pop(event.call, None)
        since = before.since if before is not None else None
        took = format_duration((event.at - since).total_seconds()) if since is not None else ""
        head = [
            (f"✗ {event.name}", BAD) if event.error else (f"✓ {event.name}", GOOD),
            (took, TIME),
        ]
        self._add("tools", render_lines(time, head, event.result, BAD if event.error else ""))

    def _update_dmn(self, mind: DmnStatus, at: datetime) -> None:
        before = self.dmn_states.get(mind.agent)
        self.dmn_states[mind.agent] = mind
        if before is None or (before.mode, before.quiet, before.held) != (
            mind.mode,
            mind.quiet,
            mind.held,
        ):
            held = f"; it starts nothing by itself: {'; '.join(mind.held)}" if mind.held else ""
            self.add_gateway_note(f"{format_dmn_status(mind, at)[0]}{held}", at=at)


def render_status(console: ConsoleModel, connection: str, now: datetime) -> tuple[str, str]:
    """Render the two status rows, which begin with the state of the connection."""
    minds = [
        f"{one_line(mind.agent, 20)} {one_line(mind.mode, 20)}{' quiet' if mind.quiet else ''}"
        for mind in console.dmn_states.values()
    ]
    first = [one_line(connection, 100), *minds, *_list_activity(console, now)]
    return " │ ".join(first), " │ ".join(_list_usage(console))


def _list_activity(console: ConsoleModel, now: datetime) -> list[str]:
    busy = []
    for key, turn in console.turns.items():
        call = next((one for one in reversed(console.tool_calls.values()) if one.turn == key), None)
        since = call.since if call is not None else turn.since
        took = f" {format_duration((now - since).total_seconds())}" if since is not None else ""
        what = one_line(call.name, 30) if call is not None else "thinks"
        busy.append(f"{what}{took} {one_line(console.title(turn.conversation), 40)}")
    return busy or ["idle"]


def _list_usage(console: ConsoleModel) -> list[str]:
    status = console.status
    if status is None:
        return ["nothing is known yet"]
    today = status.today
    prompt_tokens = today.input_tokens + today.read_tokens + today.written_tokens
    read = f" {today.read_share * 100:.0f} % read" if today.read_share is not None else ""
    used = f"today {format_tokens(prompt_tokens)} in{read} {format_tokens(today.output_tokens)} out"
    turns = [
        f"autonomous turns {one.turns_today} of {one.daily_turns}"
        for one in console.dmn_states.values()
        if one.daily_turns
    ]
    parts = [
        f"{used} {format_usd(today.cost_usd)}",
        f"model {one_line(status.model, 60) or '-'}",
        *turns,
    ]
    return [*([] if status.ready else ["not ready"]), *parts]
