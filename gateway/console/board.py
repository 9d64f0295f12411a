"""What stands on the screen: three panes, a line to type in, two rows of status, a row of keys."""

from datetime import datetime
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static, TextArea

from gateway.console import status
from gateway.console.line import Row
from gateway.console.model import EVERY, OWN, Console
from gateway.console.prompt import Prompt
from gateway.console.status import Connection
from gateway.console.text import one_line
from gateway.console.view import PaneView, Rows, Title

_KEYS: Final = (
    ("^R", "reasoning"),
    ("^K", "kill tool"),
    ("Esc", "stop turn"),
    ("Tab", "pane"),
    ("^L", "clear"),
    ("F1", "help"),
    ("^Q", "quit"),
)
KEYS: Final[Row] = tuple(span for key, what in _KEYS for span in (("tool", key), ("plain", f" {what}  ")))


class Board(Vertical):
    """All of it."""

    def __init__(self, model: Console) -> None:
        super().__init__(id="board")
        self._model = model
        panes = {"alone": model.alone, "talk": model.talk, "tools": model.tools}
        self._views = {name: PaneView(pane, id=name) for name, pane in panes.items()}
        self._titles = {name: Title(id=f"{name}-title") for name in panes}
        self._hint, self._status = Rows(id="hint"), Rows(id="status")
        self.prompt = Prompt(lambda: [one.conversation for one in self._model.places])

    def compose(self) -> ComposeResult:
        """Textual asks for its parts."""
        with Horizontal(id="body"):
            with Vertical(id="left"):
                with Vertical(id="alone-box"):
                    yield from self._pane("alone")
                with Vertical(id="talk-box"):
                    yield from self._pane("talk")
                yield self._hint
                with Horizontal(id="entry"):
                    yield Static("> ", id="mark", markup=False)
                    yield self.prompt
            with Vertical(id="right"):
                yield from self._pane("tools")
        yield self._status
        yield Rows([KEYS], id="keys")

    def _pane(self, name: str) -> ComposeResult:
        yield self._titles[name]
        yield self._views[name]

    def draw(self, *, thinking: bool) -> None:
        """Show what the panes have. `thinking`: it is shown."""
        for name, view in self._views.items():
            view.sync()
            words, pane = self._called(name, thinking=thinking), view.pane
            self._titles[name].show(words, pane.missed, following=pane.following, focused=view.has_focus)

    def bottom(self, connection: Connection, now: datetime, beats: int) -> None:
        """Show how everything stands."""
        width = max(1, self._status.size.width)
        self._status.show(status.rows(self._model, connection, now, width, beats))

    def meant(self) -> PaneView:
        """The pane that keys are for: while somebody types, the conversation."""
        focused = self.screen.focused
        return focused if isinstance(focused, PaneView) else self._views["talk"]

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Somebody types."""
        if isinstance(event.text_area, Prompt):
            words = event.text_area.hint()
            self._hint.display = bool(words)
            self._hint.show([(("note", one_line(words, 300)),)])

    def _called(self, name: str, *, thinking: bool) -> str:
        follows = self._model.follows
        if name == "tools":
            return "tools"
        if name == "alone":
            return "autonomous" if thinking else "autonomous (reasoning is hidden)"
        if follows == OWN:
            return "conversation"
        return (
            "all conversations"
            if follows == EVERY
            else f"{one_line(self._model.title(follows), 60)} (what you say is not said here)"
        )
