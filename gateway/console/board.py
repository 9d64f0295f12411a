"""What stands on the screen: three panes, a line to type in, two rows of status, a row of keys."""

from datetime import datetime
from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widgets import Static, TextArea

from gateway.console import status
from gateway.console.line import StyledRow
from gateway.console.model import ALL_CONVERSATIONS, OPERATOR_CONVERSATION, ConsoleModel
from gateway.console.prompt import Prompt
from gateway.console.status import ConsoleConnection
from gateway.console.text import one_line
from gateway.console.view import PaneView, Rows, Title

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
    """All of it."""

    def __init__(self, model: ConsoleModel) -> None:
        super().__init__(id="board")
        self._model = model
        panes = {"alone": model.autonomous_pane, "talk": model.conversation_pane, "tools": model.tools_pane}
        self._pane_views = {name: PaneView(pane, id=name) for name, pane in panes.items()}
        self._titles = {name: Title(id=f"{name}-title") for name in panes}
        self._hint, self._status = Rows(id="hint"), Rows(id="status")
        self.prompt = Prompt(lambda: [one.conversation for one in self._model.conversations])

    def compose(self) -> ComposeResult:
        """Textual asks for its parts."""
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
        """Show what the panes have. `thinking`: it is shown."""
        for name, view in self._pane_views.items():
            view.sync()
            words, pane = self._pane_title(name, thinking=thinking), view.pane
            self._titles[name].show(words, pane.missed_count, following=pane.is_following, focused=view.has_focus)

    def draw_status(self, connection: ConsoleConnection, now: datetime, beats: int) -> None:
        """Show how everything stands."""
        width = max(1, self._status.size.width)
        self._status.show(status.render_status(self._model, connection, now, width, beats))

    def active_pane(self) -> PaneView:
        """The pane that keys are for: while somebody types, the conversation."""
        focused = self.screen.focused
        return focused if isinstance(focused, PaneView) else self._pane_views["talk"]

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        """Somebody types."""
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
