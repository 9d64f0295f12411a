"""Where the operator types: a text of one line or more, with a history and completed commands."""

from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from channels.text import clean_text
from gateway.console import entry
from gateway.console.entry import InputHistory
from gateway.safety.marks import reveal_hidden

MAX_PROMPT_ROWS: Final = 5


class Prompt(TextArea):
    """Enter says it; Ctrl+J begins a new line in it, and what is pasted stays in one piece."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "say", show=False),
        Binding("ctrl+j,shift+enter,alt+enter", "line", show=False),
        Binding("up", "older", show=False),
        Binding("down", "newer", show=False),
    ]

    class Said(Message):
        """A line, or more, is to be said."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, places: Callable[[], Iterable[str]]) -> None:
        """`places`: the conversations that may be meant."""
        super().__init__(
            id="prompt",
            compact=True,
            highlight_cursor_line=False,
            placeholder="say something, or /command; F1 tells more",
        )
        self._input_history = InputHistory()
        self._list_conversations = places

    def hint(self) -> str:
        """What may stand here next, or what the command is for."""
        found = entry.find_completions(self.text, self._list_conversations())
        words = "  ".join(found[:30]) if found and self.text != "/" else ""
        return words or entry.format_usage(self.text)

    def complete(self) -> bool:
        """As Tab has it; False: there is nothing to complete."""
        if not self.text.startswith("/") or self.cursor_location != self.document.end:
            return False
        found = entry.find_completions(self.text, self._list_conversations())
        if found:
            self._set_text(entry.complete_input(self.text, found))
        return True

    def action_say(self) -> None:
        """Enter."""
        said = self.text.strip()
        if said:
            self._input_history.add(said)
            self._set_text("")
            self.post_message(self.Said(said))

    def action_line(self) -> None:
        """Another line of the same."""
        self.insert("\n")

    def action_older(self) -> None:
        """Up: in the text, then in the history."""
        if not self.cursor_at_first_line:
            self.action_cursor_up()
        elif (found := self._input_history.older(self.text)) is not None:
            self._set_text(found)

    def action_newer(self) -> None:
        """Down, likewise."""
        if not self.cursor_at_last_line:
            self.action_cursor_down()
        elif (found := self._input_history.newer()) is not None:
            self._set_text(found)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":  # which would begin a new line
            event.stop()
            event.prevent_default()
            self.action_say()
            return
        await super()._on_key(event)

    async def _on_paste(self, event: events.Paste) -> None:
        """In one piece, and with everything in it to be seen by whoever sends it."""
        event.stop()
        event.prevent_default()
        self.insert(reveal_hidden(clean_text(event.text)).expandtabs(4))

    def _set_text(self, said: str) -> None:
        self.text = said
        self.move_cursor(self.document.end)
