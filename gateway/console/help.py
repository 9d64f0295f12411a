"""The help screen: keys, the console's own commands, and the gateway's by what they are about."""

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from gateway.commands.table import COMMAND_GROUPS, COMMANDS
from gateway.console.entry import LOCAL_COMMANDS
from gateway.console.line import PaneLine, StyledSpan
from gateway.console.pane import Pane
from gateway.console.view import PaneView, Title

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
    """All of it. `about`: which gateway this is."""
    told = [
        _heading_line("This console"),
        _text_line((("plain", f"  {about}"),)),
        _text_line(()),
        _heading_line("Keys"),
    ]
    told += [_entry_line(key, what) for key, what in HELP_KEYS]
    told += [_text_line(()), _heading_line("Commands of the console")]
    told += [_entry_line(f"/{name}", what) for name, what in LOCAL_COMMANDS.items()]
    told += [_text_line(()), _heading_line("Commands of the gateway: said in your own conversation, answered there")]
    for group in COMMAND_GROUPS:
        told.append(_text_line((("note", f"  {group}"),)))
        told += [_entry_line(f"/{row.name}", row.summary) for row in COMMANDS if row.group == group]
    return told


def _heading_line(words: str) -> PaneLine:
    return _text_line((("head", words),))


def _entry_line(left: str, right: str) -> PaneLine:
    return PaneLine((("tool", f"  {left:<22}"), ("plain", f" {right}")), 25)


def _text_line(spans: tuple[StyledSpan, ...]) -> PaneLine:
    return PaneLine(spans, 2)


class HelpScreen(ModalScreen[None]):
    """Over everything, until Esc, F1 or q."""

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
        """Textual asks for its parts."""
        with Vertical(id="help"):
            yield Title("help: Esc goes back", id="help-title")
            yield PaneView(self._pane, id="help-pane")

    def on_mount(self) -> None:
        """It is there."""
        self.query_one(PaneView).focus()

    def on_pane_view_moved(self) -> None:
        """Somebody scrolled."""
        pane = self._pane
        self.query_one(Title).show("help: Esc goes back", 0, following=pane.is_following, focused=False)

    def action_move(self, how: str) -> None:
        """A key that scrolls."""
        self.query_one(PaneView).scroll_by_key(how)
