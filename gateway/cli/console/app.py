"""The Textual application: widgets, key bindings, orders to the gateway, help screen and style.

`ConsoleLayout` has the parts of the screen: three panes (`PaneView` draws a `Pane`), the input (`Prompt`), the status
rows and the key row. `ConsoleApp` feeds them from the event stream and sends what the operator types and orders;
results and refusals are shown in the panes.

Texts arrive as rows of styled spans and become `Segment` objects, so nothing is interpreted as markup. Colours are the
terminal's own sixteen on its own background, without blue and yellow, so that they are readable on dark and light ones;
whatever a colour says is also said by words or signs.
"""

import asyncio
import contextlib
import random
import signal
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.theme import Theme
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static, TextArea

from channels.aio import Backoff
from channels.text import clean_text
from gateway.cli.console.client import ApiUnavailable, ConsoleApiError, GatewayApiClient
from gateway.cli.console.launch import GatewayProcess
from gateway.cli.console.model import (
    ALL_CONVERSATIONS,
    LOCAL_COMMANDS,
    MAX_MESSAGE_CHARS,
    OPERATOR_CONVERSATION,
    ConsoleActiveCall,
    ConsoleActiveTurn,
    ConsoleConnection,
    ConsoleModel,
    InputHistory,
    complete_input,
    find_completions,
    format_usage,
    parse_input,
    render_status,
)
from gateway.cli.console.pane import Pane, PaneLine, StyledRow, StyledSpan, Tone, cell_width, one_line, truncate_cells
from gateway.commands.definition import COMMAND_GROUPS
from gateway.commands.table import COMMANDS
from gateway.core.api_models import ApiEvent, ConversationDetail, GatewayStatus, TurnEvent
from gateway.core.text_safety import reveal_hidden

MAX_PROMPT_ROWS: Final = 5


class Prompt(TextArea):
    """Input of one or more lines, with history and completion. Enter sends, Ctrl+J inserts a line break."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "say", show=False),
        Binding("ctrl+j,shift+enter,alt+enter", "line", show=False),
        Binding("up", "older", show=False),
        Binding("down", "newer", show=False),
    ]

    class Submitted(Message):
        """The input was sent."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, places: Callable[[], Iterable[str]]) -> None:
        """`places`: returns the known conversations."""
        super().__init__(
            id="prompt",
            compact=True,
            highlight_cursor_line=False,
            placeholder="say something, or /command; F1 tells more",
        )
        self._input_history = InputHistory()
        self._list_conversations = places

    def hint(self) -> str:
        """Return possible completions, or the usage of the command."""
        found = find_completions(self.text, self._list_conversations())
        words = "  ".join(found[:30]) if found and self.text != "/" else ""
        return words or format_usage(self.text)

    def complete(self) -> bool:
        """Complete the input for Tab; False: there is nothing to complete."""
        if not self.text.startswith("/") or self.cursor_location != self.document.end:
            return False
        found = find_completions(self.text, self._list_conversations())
        if found:
            self._set_text(complete_input(self.text, found))
        return True

    def action_say(self) -> None:
        text = self.text.strip()
        if text:
            self._input_history.add(text)
            self._set_text("")
            self.post_message(self.Submitted(text))

    def action_line(self) -> None:
        self.insert("\n")

    def action_older(self) -> None:
        """Move up in the text, then in the history."""
        if not self.cursor_at_first_line:
            self.action_cursor_up()
        elif (found := self._input_history.older(self.text)) is not None:
            self._set_text(found)

    def action_newer(self) -> None:
        """Move down in the text, then in the history."""
        if not self.cursor_at_last_line:
            self.action_cursor_down()
        elif (found := self._input_history.newer()) is not None:
            self._set_text(found)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":  # the base class would insert a line break
            event.stop()
            event.prevent_default()
            self.action_say()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        """Insert pasted text as one piece, with invisible characters made visible."""
        event.stop()
        event.prevent_default()
        self.insert(reveal_hidden(clean_text(event.text)).expandtabs(4))

    def _set_text(self, text: str) -> None:
        self.text = text
        self.move_cursor(self.document.end)


TONE_STYLES: Final[dict[Tone, Style]] = {
    "plain": Style(),
    "time": Style(dim=True),
    "who": Style(bold=True, color="cyan"),
    "ours": Style(bold=True, color="magenta"),
    "head": Style(bold=True),
    "thinking": Style(italic=True, dim=True),
    "tool": Style(bold=True, color="cyan"),
    "result": Style(),
    "good": Style(color="green"),
    "bad": Style(bold=True, color="red"),
    "note": Style(italic=True),
}
QUICK_RESIZE_LINES: Final = 1_000
"""Lines that are wrapped again within about a frame; ten thousand take some tenths of a second."""
RESIZE_DELAY_S: Final = 0.15


@lru_cache(maxsize=4_096)
def render_strip(row: StyledRow, cells: int, base: Style, over: Style | None = None) -> Strip:
    """Render a row with exactly this width."""
    segments = [Segment(text, base + TONE_STYLES[tone] + over) for tone, text in row]
    return Strip(segments).adjust_cell_length(cells, base + over if over else base)


class Rows(Widget):
    """A few fixed rows."""

    def __init__(self, rows: Sequence[StyledRow] = (), *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._rows: Sequence[StyledRow] = rows

    def show(self, rows: Sequence[StyledRow]) -> None:
        """Replace the rows."""
        if rows != self._rows:
            self._rows = rows
            self.refresh()

    def render_line(self, y: int) -> Strip:
        row = self._rows[y] if y < len(self._rows) else ()
        return render_strip(row, self.size.width, self.rich_style)


class Title(Widget):
    """Title of a pane with the number of missed lines, highlighted while the pane has the focus."""

    def __init__(self, words: str = "", *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._title_text = words
        self._missed_sign = ""
        self._focused = False

    def show(self, words: str, missed: int, *, following: bool, focused: bool) -> None:
        """Update the title."""
        sign = "" if following else (f"↓ {missed} new, End" if missed else "↓ End")
        if (words, sign, focused) != (self._title_text, self._missed_sign, self._focused):
            self._title_text, self._missed_sign, self._focused = words, sign, focused
            self.refresh()

    def render_line(self, y: int) -> Strip:  # noqa: ARG002 - there is one line only
        room = self.size.width
        sign = f" {self._missed_sign} " if self._missed_sign else ""
        words = truncate_cells(f"{'▸' if self._focused else '─'} {self._title_text} ", max(0, room - cell_width(sign)))
        line = "─" * max(0, room - cell_width(words) - cell_width(sign))
        row: StyledRow = (("head" if self._focused else "plain", words), ("time", line), ("bad", sign))
        return render_strip(row, room, self.rich_style, Style(reverse=True) if self._focused else None)


class PaneView(ScrollView, can_focus=True):
    """Widget that draws a `Pane` and keeps the scroll positions of Textual and the pane equal."""

    class Moved(Message):
        """The person scrolled."""

    def __init__(self, pane: Pane, *, id: str) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.pane = pane
        self._is_syncing = False
        self._resize_timer: Timer | None = None
        """Delays wrapping until the size is settled."""
        self._cell_style: Style | None = None
        """Base style of all cells. None: to be read again, which takes as long as drawing some rows."""

    def sync(self) -> None:
        """Update after a change of the pane."""
        size = Size(self.scrollable_content_region.width, self.pane.row_count)
        self._is_syncing = True
        try:
            if self.virtual_size != size:
                self.virtual_size = size
            if round(self.scroll_y) != self.pane.top:
                self.scroll_to(y=self.pane.top, animate=False, force=True)
        finally:
            self._is_syncing = False
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:  # noqa: ARG002 - the size is read from the widget
        """Adapt to a new size. While a window is dragged this is called at each step."""
        if self._resize_timer is not None:
            self._resize_timer.stop()
            self._resize_timer = None
        if len(self.pane.lines) < QUICK_RESIZE_LINES:
            self._resize_pane()
        else:
            self._resize_timer = self.set_timer(RESIZE_DELAY_S, self._resize_pane)

    def _resize_pane(self) -> None:
        region = self.scrollable_content_region
        if region.width:
            self.pane.resize(region.width, region.height)
            self.sync()
            self.post_message(self.Moved())

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow wheel, scroll bar and keys."""
        super().watch_scroll_y(old_value, new_value)
        if not self._is_syncing:
            self.pane.scroll_to(round(new_value))
            self.post_message(self.Moved())

    def scroll_by_key(self, how: str) -> None:
        """Scroll by a key: `up`, `down`, `pageup`, `pagedown`, `home`, `end`."""
        match how:
            case "up" | "down":
                self.pane.scroll(1 if how == "down" else -1)
            case "pageup" | "pagedown":
                self.pane.scroll_page(1 if how == "pagedown" else -1)
            case "home":
                self.pane.scroll_to_start()
            case _:
                self.pane.scroll_to_end()
        self.sync()
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        if self._cell_style is None:
            self._cell_style = self.rich_style
        return render_strip(self.pane.row(self.pane.top + y) or (), self.size.width, self._cell_style)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._cell_style = None


_KEY_LABELS: Final = (
    ("^R", "reasoning"),
    ("^K", "kill tool"),
    ("Esc", "stop turn"),
    ("Tab", "pane"),
    ("^L", "clear"),
    ("F1", "help"),
    ("^Q", "quit"),
)
KEY_ROW: Final[StyledRow] = tuple(
    span for key, what in _KEY_LABELS for span in (("tool", key), ("plain", f" {what}  "))
)


class ConsoleLayout(Vertical):
    """All widgets of the main screen."""

    def __init__(self, model: ConsoleModel) -> None:
        super().__init__(id="board")
        self._model = model
        panes = {"alone": model.autonomous_pane, "talk": model.conversation_pane, "tools": model.tools_pane}
        self._pane_views = {name: PaneView(pane, id=name) for name, pane in panes.items()}
        self._titles = {name: Title(id=f"{name}-title") for name in panes}
        self._hint, self._status = Rows(id="hint"), Rows(id="status")
        self.prompt = Prompt(lambda: [one.conversation for one in self._model.conversations])

    def compose(self) -> ComposeResult:
        with Horizontal(id="body"):
            with Vertical(id="left"):
                with Vertical(id="alone-box"):
                    yield from self._compose_pane("alone")
                with Vertical(id="talk-box"):
                    yield from self._compose_pane("talk")
                yield self._hint
                with Horizontal(id="entry"):
                    yield Static("> ", id="mark", markup=False)
                    yield self.prompt
            with Vertical(id="right"):
                yield from self._compose_pane("tools")
        yield self._status
        yield Rows([KEY_ROW], id="keys")

    def _compose_pane(self, name: str) -> ComposeResult:
        yield self._titles[name]
        yield self._pane_views[name]

    def draw_panes(self, *, thinking: bool) -> None:
        """Draw the panes. `thinking`: thinking is shown."""
        for name, view in self._pane_views.items():
            view.sync()
            words, pane = self._pane_title(name, thinking=thinking), view.pane
            self._titles[name].show(words, pane.missed_count, following=pane.is_following, focused=view.has_focus)

    def draw_status(self, connection: ConsoleConnection, now: datetime, beats: int) -> None:
        """Draw the status rows."""
        width = max(1, self._status.size.width)
        self._status.show(render_status(self._model, connection, now, width, beats))

    def active_pane(self) -> PaneView:
        """Return the pane that keys apply to: the focused one, or the conversation while typing."""
        focused = self.screen.focused
        return focused if isinstance(focused, PaneView) else self._pane_views["talk"]

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Show the hint for the input."""
        if isinstance(event.text_area, Prompt):
            words = event.text_area.hint()
            self._hint.display = bool(words)
            self._hint.show([(("note", one_line(words, 300)),)])

    def _pane_title(self, name: str, *, thinking: bool) -> str:
        follows = self._model.followed
        if name == "tools":
            return "tools"
        if name == "alone":
            return "autonomous" if thinking else "autonomous (reasoning is hidden)"
        if follows == OPERATOR_CONVERSATION:
            return "conversation"
        return (
            "all conversations"
            if follows == ALL_CONVERSATIONS
            else f"{one_line(self._model.title(follows), 60)} (what you say is not said here)"
        )


HELP_KEYS: Final = (
    ("Ctrl+R", "show or hide what agents think"),
    ("Ctrl+K", "kill the tool that runs; the turn goes on"),
    ("Esc", "stop the turn that runs; a second time where it is somebody else's conversation"),
    ("Tab, Shift+Tab", "next or previous pane; behind a / the command is completed"),
    ("PageUp, PageDown", "scroll the pane (from the input: the conversation)"),
    ("Up, Down, Home, End", "scroll the pane; End shows again what comes"),
    ("Ctrl+L", "empty the pane"),
    ("Enter, Ctrl+J", "say it; begin another line of it"),
    ("Up, Down", "in the input: what was said before"),
    ("Ctrl+C twice, Ctrl+Q", "quit; a gateway that this console runs ends with it"),
    ("F1", "this screen"),
    ("Shift+mouse", "select text, as the terminal has it"),
)


def build_help_lines(about: str) -> list[PaneLine]:
    """Build the help. `about`: description of the gateway."""
    lines = [
        _heading_line("This console"),
        _text_line((("plain", f"  {about}"),)),
        _text_line(()),
        _heading_line("Keys"),
    ]
    lines += [_entry_line(key, what) for key, what in HELP_KEYS]
    lines += [_text_line(()), _heading_line("Commands of the console")]
    lines += [_entry_line(f"/{name}", what) for name, what in LOCAL_COMMANDS.items()]
    lines += [_text_line(()), _heading_line("Commands of the gateway: said in your own conversation, answered there")]
    for group in COMMAND_GROUPS:
        lines.append(_text_line((("note", f"  {group}"),)))
        lines += [_entry_line(f"/{row.name}", row.summary) for row in COMMANDS if row.group == group]
    return lines


def _heading_line(words: str) -> PaneLine:
    return _text_line((("head", words),))


def _entry_line(left: str, right: str) -> PaneLine:
    return PaneLine((("tool", f"  {left:<22}"), ("plain", f" {right}")), 25)


def _text_line(spans: tuple[StyledSpan, ...]) -> PaneLine:
    return PaneLine(spans, 2)


class HelpScreen(ModalScreen[None]):
    """Help over the main screen, until Esc, F1 or q."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q,enter,ctrl+c", "dismiss", "Back"),
        Binding("ctrl+q", "app.quit", show=False),
        *(Binding(key, f"move('{key}')", show=False) for key in ("up", "down", "pageup", "pagedown", "home", "end")),
    ]

    def __init__(self, about: str) -> None:
        super().__init__()
        self._pane = Pane()
        self._pane.add(build_help_lines(about))
        self._pane.scroll_to_start()

    def compose(self) -> ComposeResult:
        with Vertical(id="help"):
            yield Title("help: Esc goes back", id="help-title")
            yield PaneView(self._pane, id="help-pane")

    def on_mount(self) -> None:
        self.query_one(PaneView).focus()

    def on_pane_view_moved(self) -> None:
        """Update the title after scrolling."""
        pane = self._pane
        self.query_one(Title).show("help: Esc goes back", 0, following=pane.is_following, focused=False)

    def action_move(self, how: str) -> None:
        """Scroll by a key."""
        self.query_one(PaneView).scroll_by_key(how)


THEME: Final = Theme(
    name="reverie",
    ansi=True,
    primary="ansi_cyan",
    secondary="ansi_magenta",
    warning="ansi_red",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_cyan",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        "ansi-background": "ansi_default",
        "ansi-foreground": "ansi_default",
        "border": "ansi_cyan",
        "border-blurred": "ansi_default",
        "block-cursor-foreground": "ansi_default",
        "block-cursor-background": "ansi_default",
        "block-hover-background": "ansi_default",
        "input-cursor-background": "ansi_default",
        "input-cursor-foreground": "ansi_default",
        "input-cursor-text-style": "reverse",
        "input-selection-background": "ansi_default",
        "input-selection-foreground": "ansi_default",
        "screen-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_default",
        "footer-key-foreground": "ansi_cyan",
        "footer-description-foreground": "ansi_default",
        "footer-background": "ansi_default",
        "scrollbar": "ansi_cyan",
        "scrollbar-hover": "ansi_magenta",
        "scrollbar-active": "ansi_magenta",
        "scrollbar-background": "ansi_default",
        "scrollbar-background-hover": "ansi_default",
        "scrollbar-background-active": "ansi_default",
        "scrollbar-corner-color": "ansi_default",
    },
)
"""Only the terminal's own colours, so the text is readable on every terminal."""

CSS: Final = """
Screen { layout: vertical; }
#board { height: 1fr; }
#body { height: 1fr; }
#left { width: 3fr; }
#right { width: 2fr; border-left: solid ansi_default; }
#alone-box { height: 2fr; }
#talk-box { height: 3fr; }
Title { height: 1; width: 1fr; }
PaneView { height: 1fr; overflow-y: scroll; overflow-x: hidden; scrollbar-size-vertical: 1; }
Rows { width: 1fr; }
#hint { height: 1; display: none; }
#entry { height: auto; max-height: 5; }
#mark { width: 2; height: 1; text-style: bold; }
Prompt { height: auto; max-height: 5; width: 1fr; padding: 0; scrollbar-size-vertical: 1; }
#status { height: 2; }
#keys { height: 1; }
HelpScreen { align: center middle; }
#help { width: 90%; max-width: 100; height: 90%; border: solid ansi_cyan; }
"""


DRAW_DELAY_S: Final = 0.05
"""Seconds within which events are drawn together."""
TICK_S: Final = 0.5
POLL_S: Final = 5.0
"""Seconds between two status requests; also after turns, but at most once a second."""
MAX_RECONNECT_S: Final = 10.0
"""Longest wait between two attempts to connect; short, because a person watches."""
CONFIRM_S: Final = 2.0
"""Seconds within which a key must be pressed again."""


class ConsoleApp(App[int]):
    """The application. Its return value is the exit code of the command."""

    ENABLE_COMMAND_PALETTE = False
    CSS = CSS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "thinking", show=False, priority=True),
        Binding("ctrl+k", "kill", show=False, priority=True),
        Binding("escape", "stop", show=False, priority=True),
        Binding("tab", "pane(1)", show=False, priority=True),
        Binding("shift+tab", "pane(-1)", show=False, priority=True),
        Binding("ctrl+l", "empty", show=False, priority=True),
        Binding("f1", "help", show=False, priority=True),
        Binding("ctrl+q", "quit", show=False, priority=True),
        Binding("ctrl+c", "leave_twice", show=False, priority=True),
        *(Binding(key, f"move('{key}')", show=False, priority=True) for key in ("pageup", "pagedown")),
        *(Binding(key, f"move('{key}')", show=False) for key in ("up", "down", "home", "end")),
    ]

    def __init__(self, api: GatewayApiClient, by: str, child: GatewayProcess | None = None) -> None:
        """`by`: name of the operator, for people. `child`: the gateway that this console runs and stops."""
        super().__init__(ansi_color=True)
        self.model = ConsoleModel()
        self._console_layout = ConsoleLayout(self.model)
        self._api, self._child = api, child
        self._by = by
        self._is_connected = False
        self._queued: list[str] = []
        """Texts typed before the first connection."""
        self._connection = ConsoleConnection(
            state="starting", address=api.address, is_own=child is not None, detail="connecting"
        )
        self._shows_thinking, self._draw_pending, self._is_help_open, self._is_status_stale = True, False, False, False
        self._ticks = 0
        self._confirmation = ("", 0.0)  # what must be pressed again, and until when that counts
        self.register_theme(THEME)
        self.theme = THEME.name
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield self._console_layout

    async def on_mount(self) -> None:
        """Start the timers and the connection."""
        self._console_layout.prompt.focus()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError, RuntimeError):  # in another thread signals are not ours
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 0)
        self.set_interval(TICK_S, self._tick)
        self.set_interval(POLL_S, self._poll)
        if self._child is not None:
            self._run_in_background(self._watch_gateway(self._child))
        self._run_in_background(self._listen())
        self.schedule_draw()

    async def _listen(self) -> None:
        """Show what happens, until cancelled. Reconnects with growing waits and continues behind the last position."""
        backoff, last, follows = Backoff(MAX_RECONNECT_S), "", self.model.followed
        past: ConversationDetail | None = None
        while True:
            try:
                async with self._api.open_stream(last) as batches:
                    status = await self._api.get_status()
                    is_first = past is None
                    past = past or await self._api.get_history(follows)
                    self._handle_connected(status, past if is_first else None)
                    backoff.reset()
                    async for position, events in batches:
                        last = position or last
                        self.handle_events(events)
            except ConsoleApiError as error:
                wait_s = backoff.next_delay_s(0, random.random())  # noqa: S311 - it spreads the attempts
                self._handle_disconnected(error, wait_s)
                await asyncio.sleep(wait_s)

    def _handle_connected(self, status: GatewayStatus, past: ConversationDetail | None) -> None:
        """Handle a new connection. `past`: messages of the followed conversation, at the first connection only."""
        if self._connection.state == "down":
            self.model.add_gateway_note("attached again", at=status.now)
        self._connection = replace(self._connection, state="up", detail="")
        self.model.handle_connected(status)
        if past is not None:
            self.model.follow(self.model.followed, past)
            self._run_in_background(self._send_queued())
        self._poll()
        self.schedule_draw()

    def handle_events(self, events: Sequence[ApiEvent]) -> None:
        """Show events."""
        for event in events:
            self.model.apply_event(event)
        self._is_status_stale |= any(isinstance(event, TurnEvent) and event.state != "started" for event in events)
        self.schedule_draw()

    def _handle_disconnected(self, error: ConsoleApiError, seconds: float) -> None:
        """Handle the loss of the connection, or a failed attempt; `seconds`: until the next attempt."""
        before = self._connection.state
        if before == "up":
            self.model.add_gateway_note(
                f"the connection to the gateway is gone: {error}", bad=True, at=datetime.now(UTC)
            )
        if before == "starting" and self._child is not None and isinstance(error, ApiUnavailable):
            self._connection = replace(self._connection, detail="the gateway is starting")
        elif before != "gone":
            self._connection = replace(self._connection, state="down", detail=f"{error}; again in {seconds:.0f} s")
        self.schedule_draw()

    def schedule_draw(self) -> None:
        """Draw soon, together with other changes."""
        if not self._draw_pending:
            self._draw_pending = True
            self.set_timer(DRAW_DELAY_S, self._draw_panes)

    def _draw_panes(self) -> None:
        self._draw_pending = False
        self._console_layout.draw_panes(thinking=self._shows_thinking)
        self._draw_status()

    def _draw_status(self) -> None:
        self._console_layout.draw_status(self._connection, datetime.now(UTC), self._ticks)

    def _tick(self) -> None:
        self._ticks += 1
        if self._is_status_stale and self._ticks % 2 == 0:
            self._poll(places=False)
        if not self._draw_pending:
            self._draw_status()

    def _poll(self, *, places: bool = True) -> None:
        self._is_status_stale = False
        if self._connection.state == "up":
            self._run_in_background(self._refresh_model(places=places))

    def _run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a task in the background and draw after it."""

        async def then() -> None:
            await work
            self.schedule_draw()

        self.run_worker(then())

    async def _watch_gateway(self, child: GatewayProcess) -> None:
        code = await child.wait()  # it runs until it is stopped, so an end is an error
        self._connection = replace(self._connection, state="gone", detail=f"the gateway ended with code {code}")
        self.model.add_gateway_note(
            f"the gateway ended with code {code}; its log is {child.log_path}:\n{child.read_log_tail()}", bad=True
        )
        self.schedule_draw()

    async def _send_queued(self) -> None:
        """Send what was typed before the first connection."""
        self._is_connected = True
        while self._queued:
            await self._say(self._queued.pop(0))

    async def _say(self, text: str) -> None:
        """Post a text in the operator's own conversation. If it is refused, the pane shows why."""
        self.model.conversation_pane.scroll_to_end()
        if len(text) > MAX_MESSAGE_CHARS:
            self.model.add_remark(
                f"that has {len(text)} characters, and {MAX_MESSAGE_CHARS} can be said at once", bad=True
            )
            return
        if not self._is_connected:
            self._queued.append(text)
            self.model.add_remark(f"is said when the gateway is there: {one_line(text)}")
            return
        try:
            await self._api.say(text)
        except ConsoleApiError as error:
            self.model.add_remark(f"not said: {error}", bad=True)
            return

    async def _kill(self, call: ConsoleActiveCall) -> None:
        """End a tool call; its turn goes on."""
        await self._send_order(
            "kill", call.conversation, f"killing {call.name} in {self.model.title(call.conversation)}"
        )

    async def _stop(self, turn: ConsoleActiveTurn) -> None:
        """Stop a turn."""
        await self._send_order("stop", turn.conversation, f"stopping the turn in {self.model.title(turn.conversation)}")

    async def _follow(self, wanted: str) -> None:
        """Follow another conversation: `own`, `all`, its title or its address."""
        conversation = {"": OPERATOR_CONVERSATION, "own": OPERATOR_CONVERSATION, "all": ALL_CONVERSATIONS}.get(
            wanted
        ) or self.model.find_conversation(wanted)
        try:
            past = None if conversation == ALL_CONVERSATIONS else await self._api.get_history(conversation)
            if past is None:
                self.model.conversations = (await self._api.list_conversations()).conversations
                self.model.learn_titles(self.model.conversations)
        except ConsoleApiError as error:
            self.model.add_remark(f"cannot follow {wanted}: {error}", bad=True)
            return
        self.model.follow(conversation, past)
        if past is None:
            for place in reversed(self.model.conversations):
                self.model.add_summary(place)
        elif not past.messages:
            self.model.add_remark("nothing was said here yet")

    async def _refresh_model(self, *, places: bool) -> None:
        """Fetch the status, and with `places` the conversations. Failures show up as a lost connection."""
        try:
            self.model.update_status(await self._api.get_status())
            if places:
                self.model.conversations = (await self._api.list_conversations()).conversations
                self.model.learn_titles(self.model.conversations)
        except ConsoleApiError:
            pass

    async def _send_order(self, kind: str, conversation: str, what: str) -> None:
        self.model.add_remark(what)
        try:
            answered = await self._api.send_order(kind, conversation, self._by)
        except ConsoleApiError as error:
            self.model.add_remark(f"not done: {error}", bad=True)
            return
        for line in answered.lines:
            self.model.add_remark(line, bad=not answered.ok)

    def on_pane_view_moved(self) -> None:
        self.schedule_draw()

    def on_descendant_focus(self) -> None:
        self.schedule_draw()

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        """Run a command of the console, or send the text."""
        match parse_input(event.text):
            case "quit", _:
                self.exit(0)
            case "clear", _:
                self.model.conversation_pane.clear()
            case "help", _:
                self.action_help()
            case "follow", wanted:
                self._run_in_background(self._follow(wanted))
            case _, said:
                self._run_in_background(self._say(said))
        self.schedule_draw()

    def action_thinking(self) -> None:
        """Show or hide thinking (Ctrl+R)."""
        self._shows_thinking = not self._shows_thinking
        self.model.autonomous_pane.hide("thinking", not self._shows_thinking)
        self.schedule_draw()

    def action_kill(self) -> None:
        """Kill the running tool (Ctrl+K)."""
        call = self.model.find_call_to_kill()
        if call is None:
            self.model.add_remark("no tool is running")
        else:
            self._run_in_background(self._kill(call))
        self.schedule_draw()

    def action_stop(self) -> None:
        """Stop the running turn (Esc)."""
        turn = self.model.find_turn_to_stop()
        if turn is None:
            self.model.add_remark("no turn is running")
        elif not self.model.needs_confirmation(turn) or self._is_confirmed(f"stop {turn.conversation}"):
            self._run_in_background(self._stop(turn))
        else:
            self.model.add_remark(f"Esc again stops the turn in {self.model.title(turn.conversation)}")
        self.schedule_draw()

    def action_pane(self, by: int) -> None:
        """Complete the input, or move the focus (Tab and Shift+Tab)."""
        prompt = self._console_layout.prompt
        if by > 0 and prompt.has_focus and prompt.complete():
            return
        if by > 0:
            self.screen.focus_next()
        else:
            self.screen.focus_previous()

    def action_empty(self) -> None:
        """Clear the active pane (Ctrl+L)."""
        self._console_layout.active_pane().pane.clear()
        self.schedule_draw()

    def action_move(self, how: str) -> None:
        """Scroll the active pane."""
        self._console_layout.active_pane().scroll_by_key(how)

    def action_help(self) -> None:
        """Open the help screen (F1)."""
        own = f"runs here; its log is {self._child.log_path}" if self._child else "runs without this console"
        self._is_help_open = True
        self.push_screen(HelpScreen(f"The gateway at {self._api.address} {own}."), self._help_closed)

    def _help_closed(self, _: None) -> None:
        self._is_help_open = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's names
        """Disable all actions but quitting while the help screen is open."""
        return not self._is_help_open or not hasattr(self, f"action_{action}") or action in ("quit", "leave_twice")

    def action_leave_twice(self) -> None:
        """Quit at the second press (Ctrl+C)."""
        if self._is_confirmed("leave"):
            self.exit(0)
        else:
            self.model.add_remark("Ctrl+C again quits")
        self.schedule_draw()

    def _is_confirmed(self, what: str) -> bool:
        """Return whether the same key was pressed a moment ago."""
        now = asyncio.get_running_loop().time()
        again = self._confirmation[0] == what and now < self._confirmation[1]
        self._confirmation = ("", 0.0) if again else (what, now + CONFIRM_S)
        return again
