"""The Textual application: four panes and a line to type in, on what `model` decides."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Final

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from gateway.console.api import Api, ApiError, Away
from gateway.console.attach import attach
from gateway.console.board import Board
from gateway.console.child import Child
from gateway.console.desk import Desk
from gateway.console.entry import Local, meant
from gateway.console.events import Past, Seen, Status, Turn
from gateway.console.help import HelpScreen
from gateway.console.look import CSS, THEME
from gateway.console.model import Console
from gateway.console.prompt import Prompt
from gateway.console.status import Connection

SYNC_S: Final = 0.05
"""Events are drawn together that come within this time."""
BEAT_S: Final = 0.5
POLL_S: Final = 5.0
"""The gateway is asked for its sums so often, and behind turns, but not each second."""
AGAIN_S: Final = 2.0
"""In which a key must be pressed again."""


class ConsoleApp(App[int]):
    """Ends with the exit code of the command."""

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

    def __init__(self, api: Api, by: str, child: Child | None = None) -> None:
        """`by`: who gives orders, for people. `child`: the gateway that is started with this, and ended."""
        super().__init__(ansi_color=True)
        self.model = Console()
        self._board = Board(self.model)
        self._api, self._child = api, child
        self._desk = Desk(api, self.model, by)
        self._connection = Connection(state="starting", where=api.where, own=child is not None, words="connecting")
        self._thinking, self._drawing, self._helping, self._stale = True, False, False, False
        self._beats = 0
        self._pressed = ("", 0.0)  # what must be pressed again, and until when that counts
        self.register_theme(THEME)
        self.theme = THEME.name
        self.animation_level = "none"

    def compose(self) -> ComposeResult:
        yield self._board

    async def on_mount(self) -> None:
        """Begin."""
        self._board.prompt.focus()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError, RuntimeError):  # another thread's: then it is not ours to decide
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 0)
        self.set_interval(BEAT_S, self._beat)
        self.set_interval(POLL_S, self._poll)
        if self._child is not None:
            self._do(partial(self._watch, self._child))
        self._do(partial(attach, self._api, self, self.model.follows))
        self.draw_soon()

    def attached(self, status: Status, past: Past | None) -> None:
        """The connection stands."""
        if self._connection.state == "down":
            self.model.note("attached again", at=status.now)
        self._connection = replace(self._connection, state="up", words="")
        self.model.attached(status)
        if past is not None:
            self.model.follow(self.model.follows, past)
            self._do(self._desk.begin)
        self._poll()
        self.draw_soon()

    def heard(self, events: Sequence[Seen]) -> None:
        """These happened."""
        for event in events:
            self.model.apply(event)
        self._stale |= any(isinstance(event, Turn) and event.state != "started" for event in events)
        self.draw_soon()

    def away(self, error: ApiError, seconds: float) -> None:
        """The connection is gone, or does not come."""
        before = self._connection.state
        if before == "up":
            self.model.note(f"the connection to the gateway is gone: {error}", bad=True, at=datetime.now(UTC))
        if before == "starting" and self._child is not None and isinstance(error, Away):
            self._connection = replace(self._connection, words="the gateway is starting")
        elif before != "gone":
            self._connection = replace(self._connection, state="down", words=f"{error}; again in {seconds:.0f} s")
        self.draw_soon()

    def draw_soon(self) -> None:
        """Draw, with whatever else happens in the next moment."""
        if not self._drawing:
            self._drawing = True
            self.set_timer(SYNC_S, self._draw)

    def _draw(self) -> None:
        self._drawing = False
        self._board.draw(thinking=self._thinking)
        self._bottom()

    def _bottom(self) -> None:
        self._board.bottom(self._connection, datetime.now(UTC), self._beats)

    def _beat(self) -> None:
        self._beats += 1
        if self._stale and self._beats % 2 == 0:
            self._poll(places=False)
        if not self._drawing:
            self._bottom()

    def _poll(self, *, places: bool = True) -> None:
        self._stale = False
        if self._connection.state == "up":
            self._do(partial(self._desk.poll, places=places))

    def _do(self, do: Callable[[], Awaitable[object]]) -> None:
        """Carry it out beside everything else."""

        async def then() -> None:
            await do()
            self.draw_soon()

        self.run_worker(then)  # type: ignore[arg-type]  # a result that nobody takes has no type for mypy

    async def _watch(self, child: Child) -> None:
        code = await child.wait()  # it should not
        self._connection = replace(self._connection, state="gone", words=f"the gateway ended with code {code}")
        self.model.note(f"the gateway ended with code {code}; its log is {child.log}:\n{child.last_words()}", bad=True)
        self.draw_soon()

    def on_pane_view_moved(self) -> None:
        self.draw_soon()

    def on_descendant_focus(self) -> None:
        self.draw_soon()

    def on_prompt_said(self, event: Prompt.Said) -> None:
        """A line is typed."""
        match meant(event.text):
            case Local(name="quit"):
                self.exit(0)
            case Local(name="clear"):
                self.model.talk.clear()
            case Local(name="help"):
                self.action_help()
            case Local(name="follow", args=wanted):
                self._do(partial(self._desk.follow, wanted))
            case str(said):
                self._do(partial(self._desk.say, said))
        self.draw_soon()

    def action_thinking(self) -> None:
        """Ctrl+R."""
        self._thinking = not self._thinking
        self.model.alone.hide("thinking", not self._thinking)
        self.draw_soon()

    def action_kill(self) -> None:
        """Ctrl+K."""
        call = self.model.to_kill()
        if call is None:
            self.model.remark("no tool is running")
        else:
            self._do(partial(self._desk.kill, call))
        self.draw_soon()

    def action_stop(self) -> None:
        """Esc."""
        turn = self.model.to_stop()
        if turn is None:
            self.model.remark("no turn is running")
        elif not self.model.asks_twice(turn) or self._again(f"stop {turn.conversation}"):
            self._do(partial(self._desk.stop, turn))
        else:
            self.model.remark(f"Esc again stops the turn in {self.model.title(turn.conversation)}")
        self.draw_soon()

    def action_pane(self, by: int) -> None:
        """Tab and Shift+Tab."""
        prompt = self._board.prompt
        if by > 0 and prompt.has_focus and prompt.complete():
            return
        if by > 0:
            self.screen.focus_next()
        else:
            self.screen.focus_previous()

    def action_empty(self) -> None:
        """Ctrl+L."""
        self._board.meant().pane.clear()
        self.draw_soon()

    def action_move(self, how: str) -> None:
        """A key that scrolls."""
        self._board.meant().move(how)

    def action_help(self) -> None:
        """F1."""
        own = f"runs here; its log is {self._child.log}" if self._child else "runs without this console"
        self._helping = True
        self.push_screen(HelpScreen(f"The gateway at {self._api.where} {own}."), self._helped)

    def _helped(self, _: None) -> None:
        self._helping = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's names
        """Textual asks what may be done now. In front of everything else, keys are for the help alone."""
        return not self._helping or not hasattr(self, f"action_{action}") or action in ("quit", "leave_twice")

    def action_leave_twice(self) -> None:
        """Ctrl+C."""
        if self._again("leave"):
            self.exit(0)
        else:
            self.model.remark("Ctrl+C again quits")
        self.draw_soon()

    def _again(self, what: str) -> bool:
        """Whether this was asked for a moment ago, too."""
        now = asyncio.get_running_loop().time()
        again = self._pressed[0] == what and now < self._pressed[1]
        self._pressed = ("", 0.0) if again else (what, now + AGAIN_S)
        return again
