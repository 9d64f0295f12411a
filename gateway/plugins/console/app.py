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
from textual.widgets import Footer, Input, RichLog, Static

from channels.aio import Backoff
from channels.text import clean_text
from gateway.core.api_models import (
    ApiEvent,
    CommandEntry,
    ConversationDetail,
    ConversationSummary,
    GatewayStatus,
    Page,
    SayReceipt,
    TurnSummary,
)
from gateway.core.control_messages import ControlResponse
from gateway.core.text_safety import reveal_hidden
from gateway.plugins.console.client import ConsoleApiError, GatewayApiClient
from gateway.plugins.console.model import (
    ALL_CONVERSATIONS,
    BAD,
    LOCAL_COMMANDS,
    MAX_MESSAGE_CHARS,
    OPERATOR_CONVERSATION,
    ConsoleModel,
    PaneName,
    one_line,
    parse_input,
    render_status,
)

LINE_BREAK: Final = "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"


HELP: Final = "\n".join(
    (
        "/help lists the gateway's commands. Here:",
        *(f"/{name}: {what}" for name, what in LOCAL_COMMANDS.items()),
        "Tab completes a command, or goes to the next pane",
        "Ctrl+J begins another line",
        "Up: what was said before",
        "PageUp scrolls; End follows again",
        "Esc stops the turn in the conversation that is shown, else what an agent does by itself",
        "Ctrl+K ends the tool that runs there; the turn goes on",
        "Ctrl+R shows or hides what agents think from now on",
        "Ctrl+L empties the pane",
        "Ctrl+Q quits",
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

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "recall(-1)", "What was said before", show=False),
        Binding("down", "recall(1)", "What was said after it", show=False),
        Binding("ctrl+j", "break", "Begin another line", show=False),
        Binding("tab", "complete", "Complete the command, or go to the next pane", show=False),
    ]

    def __init__(self, model: ConsoleModel) -> None:
        super().__init__(
            id="prompt",
            compact=True,
            placeholder="say something, or /command; F1 tells more",
            suggester=CommandSuggester(model),
            select_on_focus=False,
        )
        self._sent: deque[str] = deque(maxlen=500)
        self._age = 0
        """How many inputs ago the shown one was sent; 0: it was not."""
        self._draft = ""

    def take(self) -> str:
        """Return the input, with its line breaks, and empty it."""
        if self.value.strip() and (not self._sent or self._sent[-1] != self.value):
            self._sent.append(self.value)
        text = self.value.replace(LINE_BREAK, "\n").strip()
        self.value, self._age, self._draft = "", 0, ""
        return text

    def action_recall(self, by: int) -> None:
        age = min(max(0, self._age - by), len(self._sent))
        if self._age == 0:
            self._draft = self.value
        if age != self._age:
            self.value, self._age = self._sent[-age] if age else self._draft, age
            self.cursor_position = len(self.value)

    def action_break(self) -> None:
        self.insert_text_at_cursor(LINE_BREAK)

    def action_complete(self) -> None:
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
REDRAWN_ENTRIES: Final = 500
"""Newest entries of a pane that are wrapped again in a new width."""


class PaneLog(RichLog):
    """Entries of one pane. Follows the end until somebody scrolls up."""

    def __init__(self, name: PaneName) -> None:
        super().__init__(id=name, wrap=True, min_width=1, max_lines=MAX_LINES, auto_scroll=False)
        self.entries: deque[Text] = deque(maxlen=REDRAWN_ENTRIES)
        self.pane_name, self.title = name, str(name)
        self._follows, self._drawn_width = True, 0

    def add(self, entries: Sequence[Text]) -> None:
        self.entries.extend(entries)
        for entry in entries:
            self.write(entry, scroll_end=self._follows)
        self.show_title()

    def clear_entries(self) -> None:
        self.entries.clear()
        self.clear()
        self._follows = True
        self.show_title()

    def show_title(self) -> None:
        """Show the title, and how to see the end if that is not visible."""
        self.border_title = Text(f"{self.title}{'' if self._follows else '  ↓ End'}")

    def on_resize(self, event: events.Resize) -> None:
        """Wrap the newest entries in the new width."""
        super().on_resize(event)
        if self._drawn_width not in (0, event.size.width):
            entries, follows, top = [*self.entries], self._follows, self.scroll_y
            self.clear_entries()
            self._follows = follows
            self.add(entries)
            if not follows:
                self.scroll_to(y=top, animate=False)
        elif self._follows:
            self.scroll_end(animate=False)
        self._drawn_width = event.size.width

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Follow again at the end."""
        super().watch_scroll_y(old_value, new_value)
        if old_value != new_value:
            self._follows = new_value >= self.max_scroll_y
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
#hint { height: 1; display: none; text-style: italic; text-wrap: nowrap; text-overflow: ellipsis; }
#status { height: 2; border: none; text-wrap: nowrap; text-overflow: ellipsis; }
"""

DRAW_DELAY_S: Final = 0.05
"""Seconds within which events are drawn together."""
POLL_TICKS: Final = 5
"""Ticks between two status requests; after a turn, one is made at the next tick."""
MAX_RECONNECT_S: Final = 10.0
"""Longest wait between two attempts to connect; short, because a person watches."""


class ConsoleApp(App[int]):
    """The application. Its return value is the exit code of the command."""

    ENABLE_COMMAND_PALETTE = False
    CSS = CSS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+r", "thinking", "reasoning", priority=True),
        Binding("ctrl+k", "kill", "kill tool", priority=True),
        Binding("escape", "stop", "stop turn", priority=True),
        Binding("tab", "app.focus_next", "pane", show=False),
        Binding("ctrl+l", "empty", "clear", priority=True),
        Binding("f1", "help", "help", priority=True),
        Binding("ctrl+q", "quit", "quit", priority=True),
        Binding("ctrl+c", "tell_how_to_quit", show=False, priority=True),
        Binding("pageup", "scroll(-1)", show=False),
        Binding("pagedown", "scroll(1)", show=False),
    ]

    def __init__(self, api: GatewayApiClient, by: str) -> None:
        """`by`: name of the operator, for people."""
        super().__init__(ansi_color=True)
        self.model = ConsoleModel()
        names: tuple[PaneName, ...] = ("autonomous", "conversation", "tools")
        self._panes = {name: PaneLog(name) for name in names}
        self._growing = {name: Static(classes="growing", markup=False) for name in names[:2]}
        self._hint = Static(id="hint", markup=False)
        self._status = Static(id="status", markup=False)
        self._api, self._by = api, by
        self._connection = "connecting"
        """What is the matter with the connection; empty: it is up."""
        self._draw_pending = False
        self._ticks_to_poll = 0
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
        self.query_one(Prompt).focus()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(
                ValueError, RuntimeError
            ):  # in another thread signals are not ours
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 0)
        self.set_interval(1.0, self._tick)
        self._run_in_background(self._listen())

    async def _listen(self) -> None:
        """Show what happens, until cancelled. Reconnects with growing waits."""
        backoff, was_attached = Backoff(MAX_RECONNECT_S), False
        while True:
            try:
                async with self._api.open_stream() as batches:
                    status = await self._api.get(GatewayStatus, "/api/status")
                    commands = await self._api.get(Page[CommandEntry], "/api/commands")
                    self.model.commands = {one.name: one for one in commands.items}
                    if was_attached:
                        self.model.add_gateway_note("attached again", at=status.now)
                        await self._follow(self.model.followed)
                    else:
                        past = await self._get_history(self.model.followed)
                        self.model.follow(self.model.followed, past)
                    was_attached = True
                    self._connection, self._ticks_to_poll = "", 0
                    self.model.handle_connected(status)
                    backoff.reset()
                    self.schedule_draw()
                    async for received in batches:
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
        for event in received:
            self.model.apply_event(event)
            if isinstance(event, TurnSummary) and event.state != "started":
                self._ticks_to_poll = 0
        self.schedule_draw()

    def schedule_draw(self) -> None:
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
            pane.add([text for place, text in entries if place == name])
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
        self._ticks_to_poll -= 1
        if self._ticks_to_poll < 0 and not self._connection:
            self._ticks_to_poll = POLL_TICKS
            self._run_in_background(self._refresh_model())
        self._draw_status()

    def _run_in_background(self, work: Coroutine[Any, Any, object]) -> None:
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
            await self._api.post(SayReceipt, "/api/say", text=text)
        except ConsoleApiError as error:
            self.model.add_remark(f"not said: {error}", bad=True)

    async def _follow(self, wanted: str) -> None:
        conversation = {
            "": OPERATOR_CONVERSATION,
            "own": OPERATOR_CONVERSATION,
            "all": ALL_CONVERSATIONS,
        }.get(wanted) or self.model.find_conversation(wanted)
        past = None
        try:
            if conversation == ALL_CONVERSATIONS:
                await self._list_conversations()
            else:
                past = await self._get_history(conversation)
        except ConsoleApiError as error:
            self.model.add_remark(f"cannot follow {wanted}: {error}", bad=True)
            return
        self._panes["conversation"].clear_entries()
        self.model.follow(conversation, past)
        if past is not None and not past.messages:
            self.model.add_remark("nothing was said here yet")

    async def _get_history(self, conversation: str) -> ConversationDetail:
        return await self._api.get(
            ConversationDetail, "/api/conversation", id=conversation, limit="100"
        )

    async def _list_conversations(self) -> None:
        found = await self._api.get(Page[ConversationSummary], "/api/conversations")
        self.model.conversations = found.items
        self.model.learn_titles(found.items)

    async def _refresh_model(self) -> None:
        """Fetch the status and the conversations. Failures show up as a lost connection."""
        with contextlib.suppress(ConsoleApiError):
            self.model.update_status(await self._api.get(GatewayStatus, "/api/status"))
            await self._list_conversations()

    async def _send_order(self, command: str, conversation: str, what: str) -> None:
        self.model.add_remark(what)
        try:
            answered = await self._api.post(
                ControlResponse, "/api/orders", words=[command], place=conversation, by=self._by
            )
        except ConsoleApiError as error:
            self.model.add_remark(f"not done: {error}", bad=True)
            return
        for line in answered.lines:
            self.model.add_remark(line, bad=not answered.ok)

    def on_input_changed(self, event: Input.Changed) -> None:
        usage = self.model.format_usage(event.value)
        self._hint.display = bool(usage)
        self._hint.update(one_line(usage, 300))

    def on_input_submitted(self) -> None:
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
        self.model.shows_thinking = not self.model.shows_thinking
        state = "shown" if self.model.shows_thinking else "hidden"
        self.model.add_gateway_note(f"reasoning is {state} from now on")
        self.schedule_draw()

    def action_kill(self) -> None:
        turn = self.model.find_turn(has_call=True)
        if turn is None:
            self.model.add_remark("no tool is running")
        else:
            name, _ = [*turn.calls.values()][-1]
            what = f"killing {name} in {self.model.title(turn.conversation)}"
            self._run_in_background(self._send_order("kill", turn.conversation, what))
        self.schedule_draw()

    def action_stop(self) -> None:
        turn = self.model.find_turn()
        if turn is None:
            self.model.add_remark("no turn is running here; to stop one elsewhere, /follow it")
        else:
            what = f"stopping the turn in {self.model.title(turn.conversation)}"
            self._run_in_background(self._send_order("stop", turn.conversation, what))
        self.schedule_draw()

    def action_empty(self) -> None:
        self._active_pane().clear_entries()

    def action_scroll(self, by: int) -> None:
        """Scroll the conversation by a page, while somebody types."""
        pane = self._active_pane()
        (pane.scroll_page_down if by > 0 else pane.scroll_page_up)(animate=False)

    def action_help(self) -> None:
        self.model.add_remark(HELP)
        self.schedule_draw()

    def action_tell_how_to_quit(self) -> None:
        self.model.add_remark("Ctrl+Q quits")
        self.schedule_draw()

    def _active_pane(self) -> PaneLog:
        return self.focused if isinstance(self.focused, PaneLog) else self._panes["conversation"]
