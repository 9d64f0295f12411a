"""`log tail`: the newest entries of the log, as far as whoever asks may see them."""

from collections.abc import Mapping
from typing import Final, get_args

from gateway.commands.sight import ConversationPrivacy, find_hidden
from gateway.commands.world import CommandCall, CommandContext, CommandHandler, CommandReply
from gateway.events import Address, ConversationId
from gateway.records import Fact, LimitReached, NoteWritten
from gateway.redaction import Redact
from gateway.scopes import PUBLIC
from gateway.store import LogEntry, StoreReader
from gateway.store.lines import format_entry

DEFAULT_ENTRIES: Final = 10
MAX_ENTRIES: Final = 100
MAX_ENTRY_CHARS: Final = 300
"""Of one entry."""
SAVED_STATE_KINDS: Final = frozenset({"dmn", "cursor"})
"""States that are saved, which tell no more than what led to them, but name every place."""
_LISTED_KINDS: Final = sorted(
    {tag for fact in get_args(Fact) for tag in get_args(fact.__annotations__["kind"])} - SAVED_STATE_KINDS
)


class LogCommands:
    """`log tail`."""

    def __init__(self, reader: StoreReader, redact: Redact, places: ConversationPrivacy) -> None:
        """`redact` is given what an entry says before it is shortened."""
        self._reader, self._redact, self._places = reader, redact, places

    @property
    def handlers(self) -> Mapping[str, CommandHandler]:
        """By the names of the table."""
        return {"log tail": self.tail}

    async def tail(self, ask: CommandCall, _world: CommandContext) -> CommandReply:
        """The newest entries, oldest first. Of private places of others an admin sees no more than that there are."""
        wanted = ask.arguments.get("n", str(DEFAULT_ENTRIES))
        if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= MAX_ENTRIES:
            return CommandReply(text=f"How many: a number from 1 to {MAX_ENTRIES}.", ok=False)
        found = await self._reader.newest_entries(int(wanted), kinds=_LISTED_KINDS)
        unseen = await find_hidden(ask, self._places, [place for entry in found for place in find_entry_places(entry)])
        shown = [self._format_entry(entry) for entry in found if not unseen.intersection(find_entry_places(entry))]
        text = "\n".join(shown).replace("`", "'")
        beyond = len(found) - len(shown)
        lines = [f"```\n{text}\n```"] if shown else []
        if beyond:
            lines.append(f"{beyond} more of private conversations, which owners see.")
        return CommandReply(text="\n".join(lines) or "Nothing has happened yet.")

    def _format_entry(self, entry: LogEntry) -> str:
        told = format_entry(entry, self._redact).strip()
        return told if len(told) <= MAX_ENTRY_CHARS else f"{told[: MAX_ENTRY_CHARS - 1]}…"


def find_entry_places(entry: LogEntry) -> list[ConversationId]:
    """The places that an entry tells of."""
    places = [entry.conversation] if entry.conversation is not None else []
    if isinstance(entry.fact, NoteWritten) and entry.fact.scope != PUBLIC:
        places.append(ConversationId(entry.fact.scope))
    if isinstance(entry.fact, LimitReached) and entry.fact.whose == "room":
        places.append(ConversationId(entry.fact.subject))
    at: object = getattr(entry.fact, "at", None)
    return [*places, at.conversation] if isinstance(at, Address) else places
