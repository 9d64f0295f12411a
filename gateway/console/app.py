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

from gateway.console.api import ApiUnavailable, ConsoleApiError, GatewayApiClient
from gateway.console.attach import listen_with_reconnect
from gateway.console.board import ConsoleLayout
from gateway.console.child import GatewayProcess
from gateway.console.desk import ConsoleActions
from gateway.console.entry import LocalCommand, parse_input
from gateway.console.events import ConsoleApiModel, ConsoleHistory, ConsoleStatus, ConsoleTurnEvent
from gateway.console.help import HelpScreen
from gateway.console.look import CSS, THEME
from gateway.console.model import ConsoleModel
from gateway.console.prompt import Prompt
from gateway.console.status import ConsoleConnection

DRAW_DELAY_S: Final = 0.05
"""Events are drawn together that come within this time."""
TICK_S: Final = 0.5
POLL_S: Final = 5.0
"""The gateway is asked for its sums so often, and behind turns, but not each second."""
CONFIRM_S: Final = 2.0
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

    def __init__(self, api: GatewayApiClient, by: str, child: GatewayProcess | None = None) -> None:
        """`by`: who gives orders, for people. `child`: the gateway that is started with this, and ended."""
        super().__init__(ansi_color=True)
        self.model = ConsoleModel()
        self._console_layout = ConsoleLayout(self.model)
        self._api, self._child = api, child
        self._console_actions = ConsoleActions(api, self.model, by)
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
        """Begin."""
        self._console_layout.prompt.focus()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(ValueError, RuntimeError):  # another thread's: then it is not ours to decide
                asyncio.get_running_loop().add_signal_handler(number, self.exit, 0)
        self.set_interval(TICK_S, self._tick)
        self.set_interval(POLL_S, self._poll)
        if self._child is not None:
            self._run_in_background(partial(self._watch_gateway, self._child))
        self._run_in_background(partial(listen_with_reconnect, self._api, self, self.model.followed))
        self.schedule_draw()

    def handle_connected(self, status: ConsoleStatus, past: ConsoleHistory | None) -> None:
        """The connection stands."""
        if self._connection.state == "down":
            self.model.add_gateway_note("attached again", at=status.now)
        self._connection = replace(self._connection, state="up", detail="")
        self.model.handle_connected(status)
        if past is not None:
            self.model.follow(self.model.followed, past)
            self._run_in_background(self._console_actions.send_queued)
        self._poll()
        self.schedule_draw()

    def handle_events(self, events: Sequence[ConsoleApiModel]) -> None:
        """These happened."""
        for event in events:
            self.model.apply_event(event)
        self._is_status_stale |= any(
            isinstance(event, ConsoleTurnEvent) and event.state != "started" for event in events
        )
        self.schedule_draw()

    def handle_disconnected(self, error: ConsoleApiError, seconds: float) -> None:
        """The connection is gone, or does not come."""
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
        """Draw, with whatever else happens in the next moment."""
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
            self._run_in_background(partial(self._console_actions.refresh_model, places=places))

    def _run_in_background(self, do: Callable[[], Awaitable[object]]) -> None:
        """Carry it out beside everything else."""

        async def then() -> None:
            await do()
            self.schedule_draw()

        self.run_worker(then)  # type: ignore[arg-type]  # a result that nobody takes has no type for mypy

    async def _watch_gateway(self, child: GatewayProcess) -> None:
        code = await child.wait()  # it should not
        self._connection = replace(self._connection, state="gone", detail=f"the gateway ended with code {code}")
        self.model.add_gateway_note(
            f"the gateway ended with code {code}; its log is {child.log_path}:\n{child.read_log_tail()}", bad=True
        )
        self.schedule_draw()

    def on_pane_view_moved(self) -> None:
        self.schedule_draw()

    def on_descendant_focus(self) -> None:
        self.schedule_draw()

    def on_prompt_said(self, event: Prompt.Said) -> None:
        """A line is typed."""
        match parse_input(event.text):
            case LocalCommand(name="quit"):
                self.exit(0)
            case LocalCommand(name="clear"):
                self.model.conversation_pane.clear()
            case LocalCommand(name="help"):
                self.action_help()
            case LocalCommand(name="follow", args=wanted):
                self._run_in_background(partial(self._console_actions.follow, wanted))
            case str(said):
                self._run_in_background(partial(self._console_actions.say, said))
        self.schedule_draw()

    def action_thinking(self) -> None:
        """Ctrl+R."""
        self._shows_thinking = not self._shows_thinking
        self.model.autonomous_pane.hide("thinking", not self._shows_thinking)
        self.schedule_draw()

    def action_kill(self) -> None:
        """Ctrl+K."""
        call = self.model.find_call_to_kill()
        if call is None:
            self.model.add_remark("no tool is running")
        else:
            self._run_in_background(partial(self._console_actions.kill, call))
        self.schedule_draw()

    def action_stop(self) -> None:
        """Esc."""
        turn = self.model.find_turn_to_stop()
        if turn is None:
            self.model.add_remark("no turn is running")
        elif not self.model.needs_confirmation(turn) or self._is_confirmed(f"stop {turn.conversation}"):
            self._run_in_background(partial(self._console_actions.stop, turn))
        else:
            self.model.add_remark(f"Esc again stops the turn in {self.model.title(turn.conversation)}")
        self.schedule_draw()

    def action_pane(self, by: int) -> None:
        """Tab and Shift+Tab."""
        prompt = self._console_layout.prompt
        if by > 0 and prompt.has_focus and prompt.complete():
            return
        if by > 0:
            self.screen.focus_next()
        else:
            self.screen.focus_previous()

    def action_empty(self) -> None:
        """Ctrl+L."""
        self._console_layout.active_pane().pane.clear()
        self.schedule_draw()

    def action_move(self, how: str) -> None:
        """A key that scrolls."""
        self._console_layout.active_pane().scroll_by_key(how)

    def action_help(self) -> None:
        """F1."""
        own = f"runs here; its log is {self._child.log_path}" if self._child else "runs without this console"
        self._is_help_open = True
        self.push_screen(HelpScreen(f"The gateway at {self._api.address} {own}."), self._help_closed)

    def _help_closed(self, _: None) -> None:
        self._is_help_open = False

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's names
        """Textual asks what may be done now. In front of everything else, keys are for the help alone."""
        return not self._is_help_open or not hasattr(self, f"action_{action}") or action in ("quit", "leave_twice")

    def action_leave_twice(self) -> None:
        """Ctrl+C."""
        if self._is_confirmed("leave"):
            self.exit(0)
        else:
            self.model.add_remark("Ctrl+C again quits")
        self.schedule_draw()

    def _is_confirmed(self, what: str) -> bool:
        """Whether this was asked for a moment ago, too."""
        now = asyncio.get_running_loop().time()
        again = self._confirmation[0] == what and now < self._confirmation[1]
        self._confirmation = ("", 0.0) if again else (what, now + CONFIRM_S)
        return again
