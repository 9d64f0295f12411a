"""The Textual application: widgets, key bindings, orders to the gateway and style.

Each pane is a RichLog, with what is still being written below it. Colours are the terminal's own
sixteen on its own background, without blue and yellow, so that they are readable on dark and light
ones; whatever a colour says is also said by words or signs.
"""

import asyncio
import contextlib
import random
import signal
from collections import deque
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.suggester import Suggester
from textual.theme import Theme
from textual.widgets import Footer, HelpPanel, Input, RichLog, Static

from channels.aio import Backoff
from channels.text import clean_text
from gateway.core.api_models import ApiEvent, ConversationDetail, TurnSummary
from gateway.core.text_safety import reveal_hidden
from gateway.plugins.console.client import ConsoleApiError, GatewayApiClient
from gateway.plugins.console.model import (
    ALL_CONVERSATIONS,
    BAD,
    LOCAL_COMMANDS,
    MAX_MESSAGE_CHARS,
    OPERATOR_CONVERSATION,
    ConsoleModel,
    PaneEntry,
    PaneName,
    parse_input,
    render_status,
)
from gateway.plugins.console.safe_text import one_line

LINE_BREAK: Final = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"
"""Stands for a line break in the input, which has one line."""
MAX_HISTORY: Final = 500


HELP: Final = "\n".join(
    (
        "`/help` lists the gateway's commands. Here:\n",
        *(f"- `/{name}`: {what}" for name, what in LOCAL_COMMANDS.items()),
        "- Tab completes it",
        "- Ctrl+J begins another line",
        "- Up: what was said before",
        "- PageUp scrolls; End follows again",
        "- Esc a second time stops a turn elsewhere",
        "- Ctrl+C twice quits",
    )
)


class CommandSuggester(Suggester):
    """The first possible completion of a command."""

    def __init__(self, model: ConsoleModel) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._model = model

    async def get_suggestion(self, value: str) -> str | None:
        found = self._model.find_completions(value)
        head, space, _ = value.rpartition(" ")
        return (f"{head}{space}{found[0]}" if space else f"/{found[0]}") if found else None


class Prompt(Input):
    """The input, with history and completion."""

    HELP = HELP
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "recall(-1)", "What was said before", show=False),
        Binding("down", "recall(1)", "What was said after it", show=False),
        Binding("ctrl+j", "break", "Begin another line", show=False),
        Binding("tab", "complete", "Complete the command, or go to the next pane", show=False),
    ]

    def __init__(self, model: ConsoleModel) -> None:
        """`model`: knows the commands."""
        super().__init__(
            id="prompt",
            compact=True,
            placeholder="say something, or /command; F1 tells more",
            suggester=CommandSuggester(model),
            select_on_focus=False,
        )
        self._sent: deque[str] = deque(maxlen=MAX_HISTORY)
        self._age = 0
        """How many inputs ago the shown one was sent; 0: it was not."""
        self._draft = ""

    def take(self) -> str:
        """Return the input, with its line breaks, and empty it."""
        if self.value.strip() and (not self._sent or self._sent[-1] != self.value):
            self._sent.append(self.value)
        text, self.value, self._age, self._draft = (
            self.value.replace(LINE_BREAK, "\n").strip(),
            "",
            0,
            "",
        )
        return text

    def action_recall(self, by: int) -> None:
        """Show an earlier or later input."""
        age = min(max(0, self._age - by), len(self._sent))
        if self._age == 0:
            self._draft = self.value
        if age != self._age:
            self.value, self._age = self._sent[-age] if age else self._draft, age
            self.cursor_position = len(self.value)

    def action_break(self) -> None:
        """Begin another line."""
        self.insert_text_at_cursor(LINE_BREAK)

    def action_complete(self) -> None:
        """Accept the completion; without one, go to the next pane."""
        if self._suggestion and self.value.startswith("/"):
            self.value = f"{self._suggestion} "
            self.cursor_position = len(self.value)
        elif not self.value.startswith("/"):
            self.screen.focus_next()

    def _on_paste(self, event: events.Paste) -> None:
        """Insert pasted text as one piece, with invisible characters made visible."""
        text = reveal_hidden(clean_text(event.text)).expandtabs(4)
        self.insert_text_at_cursor(text.replace("\n", LINE_BREAK))
        event.prevent_default()
        event.stop()


MAX_LINES: Final = 10_000
"""Rows of a pane."""
REDRAWN_ENTRIES: Final = 500
"""Newest entries of a pane that are wrapped again in a new width."""


class PaneLog(RichLog):
    """Entries of one pane. Follows the end until somebody scrolls up."""

    HELP = HELP

    def __init__(self, title: str, *, id: PaneName) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id, wrap=True, min_width=1, max_lines=MAX_LINES, auto_scroll=False)
        self.entries: deque[PaneEntry] = deque(maxlen=REDRAWN_ENTRIES)
        self.pane_name, self.title = id, title
        self.shows_thinking = True
        self._follows, self._missed, self._drawn_width = True, 0, 0

    def add(self, entries: Sequence[PaneEntry]) -> None:
        """Show further entries."""
        self.entries.extend(entries)
        for entry in entries:
            if self.shows_thinking or not entry.is_thinking:
                self.write(entry.text, scroll_end=self._follows)
                self._missed += not self._follows
        self.show_title()

    def clear_entries(self) -> None:
        """Remove all entries."""
        self.entries.clear()
        self.redraw()

    def redraw(self) -> None:
        """Write the newest entries again, because the width or what is hidden has changed."""
        entries, follows, top = [*self.entries], self._follows or not self.entries, self.scroll_y
        self.clear()
        self.entries.clear()
        self._follows, self._missed = follows, 0
        self.add(entries)
        self._missed = 0
        if not follows:
            self.scroll_to(y=top, animate=False)
        self.show_title()

    def show_title(self) -> None:
        """Show the title, with the number of entries below what is visible."""
        sign = "" if self._follows else f"  ↓ {f'{self._missed} new, ' if self._missed else ''}End"
        hidden = "" if self.shows_thinking else " (reasoning is hidden)"
        self.border_title = Text(f"{self.title}{hidden}{sign}")

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        if self._drawn_width not in (0, event.size.width):
            self.redraw()
        elif self._follows:
            self.scroll_end(animate=False)
        self._drawn_width = event.size.width

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        if old_value != new_value:
            self._follows = new_value >= self.max_scroll_y
            self._missed = 0 if self._follows else self._missed
            self.show_title()


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
#panes { height: 1fr; }
#left { width: 3fr; }
#right { width: 2fr; border-left: solid ansi_default; }
.pane { height: 3fr; }
#autonomous-box { height: 2fr; }
PaneLog {
    height: 1fr; border-top: solid ansi_default; scrollbar-size-vertical: 1; overflow-x: hidden;
}
PaneLog:focus { border-top: heavy ansi_cyan; background-tint: transparent; }
.growing { height: auto; max-height: 6; display: none; }
#autonomous-box .growing { max-height: 3; }
HelpPanel { width: 50%; max-width: 60; }
HelpPanel Markdown#widget-help { max-height: 100%; height: 1fr; padding: 0; }
HelpPanel KeyPanel#keys-help { display: none; }
#hint { height: 1; display: none; text-style: italic; text-wrap: nowrap; text-overflow: ellipsis; }
#status { height: 2; border: none; text-wrap: nowrap; text-overflow: ellipsis; }
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
        Binding(
            "ctrl+r",
            "thinking",
            "reasoning",
            priority=True,
            tooltip="Show or hide what agents think",
        ),
        Binding(
            "ctrl+k",
            "kill",
            "kill tool",
            priority=True,
            tooltip="End the tool that runs; the turn goes on",
        ),
        Binding(
            "escape",
            "stop",
            "stop turn",
            priority=True,
            tooltip="In another conversation: press it twice",
        ),
        Binding("tab", "app.focus_next", "pane", show=False),
        Binding("ctrl+l", "empty", "clear", priority=True, tooltip="Empty the pane"),
        Binding("f1", "toggle_help", "help", priority=True),
        Binding("ctrl+q", "quit", "quit", priority=True),
        Binding("ctrl+c", "leave_twice", show=False, priority=True),
        Binding("pageup", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(1)", show=False),
    ]

    def __init__(self, api: GatewayApiClient, by: str) -> None:
        """`by`: name of the operator, for people."""
        super().__init__(ansi_color=True)
        self.model = ConsoleModel()
        self._panes: dict[PaneName, PaneLog] = {
            "autonomous": PaneLog("autonomous", id="autonomous"),
            "conversation": PaneLog("conversation", id="conversation"),
            "tools": PaneLog("tools", id="tools"),
        }
        self._growing: dict[PaneName, Static] = {
            name: Static(classes="growing", markup=False) for name in ("autonomous", "conversation")
        }
        self._hint, self._status = (
            Static(id="hint", markup=False),
            Static(id="status", markup=False),
        )
        self._api, self._by = api, by
        self._connection = "connecting"
        """What is the matter with the connection; empty: it is up."""
        self._draw_pending, self._is_status_stale = False, False
        self._ticks = 0
        self._confirmation = ("", 0.0)  # what must be pressed again, and until when that counts
        self.register_theme(THEME)
        self.theme = THEME.name
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        with Horizontal(id="panes"):
            with Vertical(id="left"):
                for name, growing in self._growing.items():
                    with Vertical(id=f"{name}-box", classes="pane"):
                        yield self._panes[name]
                        yield growing
                yield self._hint
                yield Prompt(self.model)
            with Vertical(id="right"):
                yield self._panes["tools"]
        yield self._status
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        """Start the timers and the connection."""
        self.query_one(Prompt).focus()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(
                ValueError, RuntimeError
            ):  # in another thread signals are not ours
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 0)
        self.set_interval(TICK_S, self._tick)
        self.set_interval(POLL_S, self._poll)
        self._run_in_background(self._listen())

    async def _listen(self) -> None:
        """Show what happens, until cancelled. Reconnects with growing waits and continues behind
        the last position.
        """
        backoff, last = Backoff(MAX_RECONNECT_S), ""
        past: ConversationDetail | None = None
        while True:
            try:
                async with self._api.open_stream(last) as batches:
                    status = await self._api.get_status()
                    plugins = await self._api.list_plugins()
                    self.model.use_plugins({one.name for one in plugins.items})
                    if past is None:
                        past = await self._api.get_history(self.model.followed)
                        self.model.follow(self.model.followed, past)
                    else:
                        self.model.add_gateway_note("attached again", at=status.now)
                    self._connection = ""
                    self.model.handle_connected(status)
                    self._poll()
                    backoff.reset()
                    self.schedule_draw()
                    async for position, received in batches:
                        last = position or last
                        self.handle_events(received)
            except ConsoleApiError as error:
                if not self._connection:
                    words = f"the connection to the gateway is gone: {error}"
                    self.model.add_gateway_note(words, bad=True, at=datetime.now(UTC))
                wait_s = backoff.next_delay_s(0, random.random())  # noqa: S311 - it spreads the attempts
                self._connection = f"{error}; again in {wait_s:.0f} s"
                self.schedule_draw()
                await asyncio.sleep(wait_s)

    def handle_events(self, received: Sequence[ApiEvent]) -> None:
        """Show events."""
        for event in received:
            self.model.apply_event(event)
        self._is_status_stale |= any(
            isinstance(event, TurnSummary) and event.state != "started" for event in received
        )
        self.schedule_draw()

    def schedule_draw(self) -> None:
        """Draw soon, together with other changes."""
        if not self._draw_pending:
            self._draw_pending = True
            self.set_timer(DRAW_DELAY_S, self._draw)

    def _draw(self) -> None:
        self._draw_pending = False
        entries, self.model.entries = self.model.entries, []
        follows = self.model.followed
        self._panes["conversation"].title = {
            OPERATOR_CONVERSATION: "conversation",
            ALL_CONVERSATIONS: "all conversations",
        }.get(follows, f"{one_line(self.model.title(follows), 60)} (what you say is not said here)")
        for name, pane in self._panes.items():
            pane.add([one for one in entries if one.pane == name])
        for name, growing in self._growing.items():
            shown = self.model.growing(name)
            growing.display = bool(shown)
            growing.update(shown)
        self._draw_status()

    def _draw_status(self) -> None:
        connection = (
            f"○ {self._connection}" if self._connection else f"● attached {self._api.address}"
        )
        rows = render_status(self.model, connection, datetime.now(UTC))
        self._status.update(
            Text("\n").join(Text(row, BAD if self._connection else "") for row in rows)
        )

    def _tick(self) -> None:
        self._ticks += 1
        if self._is_status_stale and self._ticks % 2 == 0:
            self._poll(places=False)
        self._draw_status()

    def _poll(self, *, places: bool = True) -> None:
        self._is_status_stale = False
        if not self._connection:
            self._run_in_background(self._refresh_model(places=places))

    def _run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a task in the background and draw after it."""

        async def then() -> None:
            await work
            self.schedule_draw()

        self.run_worker(then())

    async def _say(self, text: str) -> None:
        """Post a text in the operator's own conversation. If it is refused, the pane shows why."""
        self._panes["conversation"].scroll_end(animate=False)
        if len(text) > MAX_MESSAGE_CHARS:
            words = f"that has {len(text)} characters, and {MAX_MESSAGE_CHARS} can be said at once"
            self.model.add_remark(words, bad=True)
            return
        try:
            await self._api.say(text)
        except ConsoleApiError as error:
            self.model.add_remark(f"not said: {error}", bad=True)

    async def _follow(self, wanted: str) -> None:
        """Follow another conversation: `own`, `all`, its title or its address."""
        conversation = {
            "": OPERATOR_CONVERSATION,
            "own": OPERATOR_CONVERSATION,
            "all": ALL_CONVERSATIONS,
        }.get(wanted) or self.model.find_conversation(wanted)
        try:
            past = (
                None
                if conversation == ALL_CONVERSATIONS
                else await self._api.get_history(conversation)
            )
            if past is None:
                await self._list_conversations()
        except ConsoleApiError as error:
            self.model.add_remark(f"cannot follow {wanted}: {error}", bad=True)
            return
        self._panes["conversation"].clear_entries()
        self.model.follow(conversation, past)
        if past is not None and not past.messages:
            self.model.add_remark("nothing was said here yet")

    async def _list_conversations(self) -> None:
        self.model.conversations = (await self._api.list_conversations()).items
        self.model.learn_titles(self.model.conversations)

    async def _refresh_model(self, *, places: bool) -> None:
        """Fetch the status, and with `places` the conversations. Failures show up as a lost
        connection.
        """
        with contextlib.suppress(ConsoleApiError):
            self.model.update_status(await self._api.get_status())
            if places:
                await self._list_conversations()

    async def _send_order(self, kind: str, conversation: str, what: str) -> None:
        self.model.add_remark(what)
        try:
            answered = await self._api.send_order(kind, conversation, self._by)
        except ConsoleApiError as error:
            self.model.add_remark(f"not done: {error}", bad=True)
            return
        for line in answered.lines:
            self.model.add_remark(line, bad=not answered.ok)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the usage of a command."""
        usage = self.model.format_usage(event.value)
        self._hint.display = bool(usage)
        self._hint.update(one_line(usage, 300))

    def on_input_submitted(self) -> None:
        """Run a command of the console, or send the text."""
        match parse_input(self.query_one(Prompt).take()):
            case "quit", _:
                self.exit(0)
            case "clear", _:
                self._panes["conversation"].clear_entries()
            case "follow", wanted:
                self._run_in_background(self._follow(wanted))
            case _, "":
                pass
            case _, said:
                self._run_in_background(self._say(said))
        self.schedule_draw()

    def action_thinking(self) -> None:
        """Show or hide thinking."""
        pane = self._panes["autonomous"]
        pane.shows_thinking = not pane.shows_thinking
        pane.redraw()

    def action_kill(self) -> None:
        """Kill the running tool."""
        call = self.model.find_call_to_kill()
        if call is None:
            self.model.add_remark("no tool is running")
        else:
            what = f"killing {call.name} in {self.model.title(call.conversation)}"
            self._run_in_background(self._send_order("kill", call.conversation, what))
        self.schedule_draw()

    def action_stop(self) -> None:
        """Stop the running turn; the help first, where it is open."""
        turn = self.model.find_turn_to_stop()
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        elif turn is None:
            self.model.add_remark("no turn is running")
        elif not self.model.needs_confirmation(turn) or self._is_confirmed(
            f"stop {turn.conversation}"
        ):
            what = f"stopping the turn in {self.model.title(turn.conversation)}"
            self._run_in_background(self._send_order("stop", turn.conversation, what))
        else:
            self.model.add_remark(
                f"Esc again stops the turn in {self.model.title(turn.conversation)}"
            )
        self.schedule_draw()

    def action_empty(self) -> None:
        """Clear the focused pane, else the conversation."""
        self._active_pane().clear_entries()

    def action_scroll(self, by: int) -> None:
        """Scroll the conversation by a page, while somebody types."""
        pane = self._active_pane()
        (pane.scroll_page_down if by > 0 else pane.scroll_page_up)(animate=False)

    def action_toggle_help(self) -> None:
        """Show or hide the keys."""
        if self.screen.query(HelpPanel):
            self.action_hide_help_panel()
        else:
            self.action_show_help_panel()

    def action_leave_twice(self) -> None:
        """Quit at the second press."""
        if self._is_confirmed("leave"):
            self.exit(0)
        else:
            self.model.add_remark("Ctrl+C again quits")
        self.schedule_draw()

    def _active_pane(self) -> PaneLog:
        return self.focused if isinstance(self.focused, PaneLog) else self._panes["conversation"]

    def _is_confirmed(self, what: str) -> bool:
        """Return whether the same key was pressed a moment ago."""
        now = asyncio.get_running_loop().time()
        again = self._confirmation[0] == what and now < self._confirmation[1]
        self._confirmation = ("", 0.0) if again else (what, now + CONFIRM_S)
        return again
