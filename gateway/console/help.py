"""The help screen: keys, the console's own commands, and the gateway's by what they are about."""

from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from gateway.commands.table import GROUPS, TABLE
from gateway.console.entry import OWN
from gateway.console.line import Line, Span
from gateway.console.pane import Pane
from gateway.console.view import PaneView, Title

KEYS: Final = (
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


def lines(about: str) -> list[Line]:
    """All of it. `about`: which gateway this is."""
    told = [_head("This console"), _line((("plain", f"  {about}"),)), _line(()), _head("Keys")]
    told += [_pair(key, what) for key, what in KEYS]
    told += [_line(()), _head("Commands of the console")]
    told += [_pair(f"/{name}", what) for name, what in OWN.items()]
    told += [_line(()), _head("Commands of the gateway: said in your own conversation, answered there")]
    for group in GROUPS:
        told.append(_line((("note", f"  {group}"),)))
        told += [_pair(f"/{row.name}", row.summary) for row in TABLE if row.group == group]
    return told


def _head(words: str) -> Line:
    return _line((("head", words),))


def _pair(left: str, right: str) -> Line:
    return Line((("tool", f"  {left:<22}"), ("plain", f" {right}")), 25)


def _line(spans: tuple[Span, ...]) -> Line:
    return Line(spans, 2)


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
        self._pane.add(lines(about))
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
