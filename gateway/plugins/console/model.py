"""Contents of the console: what the panes, the status rows and the input line show.

Pure: times come with the events. The autonomous pane shows autonomous turns, and the thinking of
all agents; the conversation pane the followed conversation; the tools pane every tool call in full.
`ConsoleModel` makes entries for them out of the events of the API.

Foreign text is made safe for a grid of cells: nothing in it is invisible, or a control sequence.
Characters on whose width terminals disagree are removed: joiners and selectors of emoji, and skin
tones. An emoji family is shown as its members, so it takes the same cells everywhere
(https://www.unicode.org/reports/tr51/#Emoji_Sequences).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Final, Literal, cast

from rich.text import Text

from gateway.core.api_models import (
    ApiEvent,
    CommandEntry,
    ConversationDetail,
    ConversationSummary,
    DeliveryRecord,
    DmnEvent,
    GatewayStatus,
    LogEvent,
    LogRow,
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
from gateway.core.metrics import ChannelStats
from gateway.core.text_safety import escape_unprintable, shorten
from gateway.runtime.dmn_admin import format_dmn_status
from gateway.store.format import TURN_CAUSE_TEXTS, TURN_OUTCOME_TEXTS

MAX_LINE_CHARS: Final = 2_000
"""Longest line; longer ones continue in the next line, which bounds the cost of wrapping."""
_LINE_ENDS: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_PICTOGRAPHS: Final = "#*0-9\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_JOINING_SCRIPTS: Final = "\u0600-\u18ff"
"""Scripts in which a joiner changes how letters are written, from Arabic to Mongolian."""
_AMBIGUOUS_WIDTH: Final = re.compile(
    f"(?<=[{_PICTOGRAPHS}])[\ufe0e\ufe0f]|(?<=[{_PICTOGRAPHS}\ufe0f{_JOINING_SCRIPTS}])\u200d"
    "|(?<=[\u2600-\u27bf\U0001f000-\U0001faff])[\U0001f3fb-\U0001f3ff]"
)
"""Selectors and joiners of emoji, and skin tones behind what they modify."""
_HIDDEN: Final = re.compile(
    f"(?<![{_JOINING_SCRIPTS}])\u200c|[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200d\u3164\ufe00-\ufe0f\uffa0"
    "\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef]"
)
"""Characters that `escape_unprintable` keeps although they are invisible or have another width than
in `rich.cells`."""
_MARKS: Final = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED_MARKS: Final = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
"""More combining marks on one letter than any language has: they would cover the rows above."""


def safe_lines(text: str) -> list[str]:
    """Return the lines of any text, each safe to draw. An empty text is one empty line."""
    lines = []
    for line in _LINE_ENDS.sub("\n", text).split("\n"):
        safe = line if line.isascii() and line.isprintable() else _escape_line(line)
        lines += [safe[at : at + MAX_LINE_CHARS] for at in range(0, len(safe), MAX_LINE_CHARS)] or [
            ""
        ]
    return lines


def one_line(text: str, chars: int = MAX_LINE_CHARS) -> str:
    """Return the text as one safe line of at most `chars` characters, with `…` at the end if it was
    cut.
    """
    whole = " ".join(part for part in (" ".join(safe_lines(text[: chars * 2]))).split(" ") if part)
    return shorten(whole, chars)


def _escape_line(line: str) -> str:
    fewer = _STACKED_MARKS.sub(r"\1", _AMBIGUOUS_WIDTH.sub("", line.expandtabs(4)))
    return _HIDDEN.sub(
        lambda found: found[0].encode("unicode_escape").decode(), escape_unprintable(fewer)
    )


LocalCommandName = Literal["quit", "clear", "follow"]
LOCAL_COMMANDS: Final[dict[LocalCommandName, str]] = {
    "quit": "leave the console",
    "clear": "empty the pane above",
    "follow": "show another conversation: its name, `own`, or `all`",
}
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
ALL_CONVERSATIONS: Final = "*"
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


@dataclass(slots=True, kw_only=True)
class ConsoleActiveTurn:
    """A running turn."""

    agent: str
    conversation: str
    since: datetime
    autonomous: bool
    thinking: str = ""
    """Thinking that is not an entry yet."""
    written: str = ""
    calls: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    """Running calls of tools: name and start of each."""


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


def message_text(one: LogRow) -> str:
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

    def __init__(self, *, zone: tzinfo | None = None) -> None:
        """`zone`: time zone of shown times. None: that of the system."""
        self.entries: list[tuple[PaneName, Text]] = []
        self.followed = OPERATOR_CONVERSATION
        self.shows_thinking = True
        self.turns: dict[str, ConsoleActiveTurn] = {}
        self.dmn_states: dict[str, DmnStatus] = {}
        self.status: GatewayStatus | None = None
        self.conversations: tuple[ConversationSummary, ...] = ()
        """Known conversations, the most recently active first."""
        self.commands: Mapping[str, CommandEntry] = {}
        """Commands of the gateway, by name with subcommand. Empty: not known yet."""
        self._titles: dict[str, str] = {}
        self._zone = zone
        self._agent_names: dict[str, str] = {}  # agent by conversation
        self._missing_turns: set[str] = set()
        """Turns that the last status no longer listed, and whose end event has not come."""
        self._history_seq = 0  # the conversation pane was filled from the log up to this position

    def find_completions(self, typed: str) -> list[str]:
        """Return possible completions of the last word of a command; empty: no command, or nothing
        to complete.
        """
        if not typed.startswith("/") or "\n" in typed:
            return []
        *before, word = typed[1:].split(" ")
        if before == ["follow"]:
            found = ["all", "own", *(one.conversation for one in self.conversations)]
        else:
            place, names = len(before), [one.split() for one in (*LOCAL_COMMANDS, *self.commands)]
            found = sorted(
                {one[place] for one in names if one[:place] == before and len(one) > place}
            )
        return [one for one in found if one.startswith(word) and one != word]

    def format_usage(self, typed: str) -> str:
        """Return the usage and summary of the command in the input. Empty: not a command."""
        words = typed.removeprefix("/").split()
        for name in (" ".join(words[:2]), *words[:1]) if typed.startswith("/") else ():
            if (row := self.commands.get(name)) is not None:
                return f"/{row.usage}: {row.help}"
            if name in LOCAL_COMMANDS:
                return LOCAL_COMMANDS[name]
        return ""

    def apply_event(self, event: ApiEvent) -> None:  # noqa: C901, PLR0912 - a table of kinds reads best in one piece
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
                self._find_turn(event).thinking += event.delta
            case TextEvent():
                turn = self._find_turn(event)
                self._add_thinking(turn, time)
                turn.written = event.delta if event.begins else turn.written + event.delta
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
            thinking = turn.thinking if self.shows_thinking else ""
            written = turn.written if self._is_followed(turn.conversation) else ""
            parts = {
                "autonomous": [
                    ("thinks", thinking, THINKING),
                    ("writes", turn.written if turn.autonomous else "", ""),
                ],
                "conversation": [("is writing ...", written, NOTE)],
            }
            for what, text, style in parts.get(pane, ()):
                if text:
                    end = " ".join(safe_lines(text[-size:]))
                    shown.append("\n" if shown else "").append(one_line(turn.agent, 40), WE)
                    cut = "…" if size < len(text) else ""
                    shown.append(f"  {what} {cut}", TIME).append(end, style)
        return shown

    def learn_titles(self, models: Iterable[object]) -> None:
        """Remember the display titles in these events or answers."""
        for one in models:
            conversation, title = getattr(one, "conversation", ""), getattr(one, "title", "")
            if title and conversation:
                self._titles[conversation] = title

    def title(self, conversation: str) -> str:
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
        self._add_note("conversation", what, BAD if bad else NOTE, at)

    def add_gateway_note(self, what: str, *, bad: bool = False, at: datetime | None = None) -> None:
        """Add a remark about the gateway to the autonomous pane."""
        self._add_note("autonomous", what, BAD if bad else NOTE, at)

    def _add_note(self, pane: PaneName, what: str, style: str, at: datetime | None) -> None:
        time = format_clock(at, self._zone)
        self._add(pane, Text.assemble((time, TIME), ("\n  ".join(safe_lines(what)), style)))

    def handle_connected(self, status: GatewayStatus) -> None:
        """Handle a new connection: turns that the status does not list have ended meanwhile."""
        self._missing_turns = set(self.turns)
        self.update_status(status)
        for mind in status.agents:
            self._update_dmn(mind, status.now)

    def update_status(self, status: GatewayStatus) -> None:
        self.status = status
        self.learn_titles(status.activity)
        gone = self.turns.keys() - {one.turn for one in status.activity}
        for turn in gone & self._missing_turns:  # missing twice in a row: its end event was lost
            self._end_turn(turn, "")
        self._missing_turns = gone - self._missing_turns
        for one in status.activity:
            self._agent_names[one.conversation] = one.agent
            self._find_turn(one)

    def follow(self, conversation: str, past: ConversationDetail | None) -> None:
        """Follow another conversation. `past`: its newest messages; None: the newest message of
        each conversation.
        """
        self.followed, self._history_seq = conversation, 0
        self.entries = [one for one in self.entries if one[0] != "conversation"]
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

    def find_turn(self, *, has_call: bool = False) -> ConsoleActiveTurn | None:
        """Return the turn that the keys apply to: the newest in the followed conversation, else the
        newest that an agent takes by itself. `has_call`: it runs a tool.
        """
        turns = [
            one
            for one in self.turns.values()
            if (one.autonomous or self._is_followed(one.conversation))
            and (one.calls or not has_call)
        ]
        turns.sort(key=lambda one: self._is_followed(one.conversation))
        return turns[-1] if turns else None

    def _add(self, pane: PaneName, text: Text) -> None:
        self.entries.append((pane, text))

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
            self._find_turn(event)
            if event.autonomous:
                why = TURN_CAUSE_TEXTS.get(event.cause, event.cause)
                self._add_heading(
                    time, f"{event.agent} starts by itself: {why}", event.conversation
                )
            return
        before = self.turns.get(event.turn)
        self._end_turn(event.turn, time)
        if event.autonomous:
            seconds = (event.at - before.since).total_seconds() if before is not None else None
            self.add_gateway_note(
                f"{event.agent} is done: {describe_turn_end(event, seconds)}", at=event.at
            )
        elif event.outcome not in _NORMAL_OUTCOMES and self._is_followed(event.conversation):
            self.add_remark(
                f"{event.agent} {event.outcome or 'ended'}: nothing more comes",
                bad=True,
                at=event.at,
            )

    def _find_turn(
        self, event: TurnSummary | TextEvent | ThinkingEvent | ToolEvent
    ) -> ConsoleActiveTurn:
        """Return the turn of this event; its start event may be missing."""
        started = ConsoleActiveTurn(
            agent=event.agent,
            conversation=event.conversation,
            since=event.at,
            autonomous=not isinstance(event, ToolEvent) and event.autonomous,
        )
        return self.turns.setdefault(event.turn, started)

    def _end_turn(self, key: str, time: str) -> None:
        if (turn := self.turns.pop(key, None)) is not None:
            self._finish(turn, time)

    def _finish(self, turn: ConsoleActiveTurn, time: str) -> None:
        """Make entries of what a turn thought, and wrote by itself."""
        self._add_thinking(turn, time)
        if turn.written and turn.autonomous:
            self._add_heading(time, f"{turn.agent} writes", turn.conversation, turn.written)
            turn.written = ""

    def _add_heading(self, time: str, what: str, conversation: str, text: str = "") -> None:
        self._add(
            "autonomous", render_lines(time, [(what, HEAD), (self.title(conversation), TIME)], text)
        )

    def _add_thinking(self, turn: ConsoleActiveTurn, time: str) -> None:
        if turn.thinking and self.shows_thinking:
            head = [(f"{turn.agent} thinks, in {self.title(turn.conversation)}", THINKING)]
            self._add("autonomous", render_lines(time, head, turn.thinking, THINKING))
        turn.thinking = ""

    def _apply_tool(self, event: ToolEvent, time: str) -> None:
        turn = self._find_turn(event) if event.state == "started" else self.turns.get(event.turn)
        if turn is not None:
            self._finish(turn, time)
        if turn is not None and event.state == "started":
            turn.calls[event.call] = event.name, event.at
            head = [(f"▶ {event.name}", THEY), (self.title(event.conversation), TIME)]
            self._add("tools", render_lines(time, head, format_arguments(event.arguments)))
            return
        call = turn.calls.pop(event.call, None) if turn is not None else None
        took = format_duration((event.at - call[1]).total_seconds()) if call is not None else ""
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
    for turn in console.turns.values():
        name, since = [("thinks", turn.since), *turn.calls.values()][-1]
        took = format_duration((now - since).total_seconds())
        busy.append(f"{one_line(name, 30)} {took} {one_line(console.title(turn.conversation), 40)}")
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
