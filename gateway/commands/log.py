"""`log tail`: the newest entries of the log, as far as whoever asks may see them."""

from collections.abc import Mapping
from typing import Final, get_args

from gateway.commands.sight import Homes, hidden
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.events import Address, ConversationId
from gateway.records import Fact, Limited, Noted
from gateway.redaction import Redact
from gateway.scopes import PUBLIC
from gateway.store import Reader, Stored
from gateway.store.lines import line

DEFAULT: Final = 10
MOST: Final = 100
CHARS: Final = 300
"""Of one entry."""
ASIDE: Final = frozenset({"dmn", "cursor"})
"""States that are saved, which tell no more than what led to them, but name every place."""
_KINDS: Final = sorted({tag for fact in get_args(Fact) for tag in get_args(fact.__annotations__["kind"])} - ASIDE)


class LogCommands:
    """`log tail`."""

    def __init__(self, reader: Reader, redact: Redact, places: Homes) -> None:
        """`redact` is given what an entry says before it is shortened."""
        self._reader, self._redact, self._places = reader, redact, places

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By the names of the table."""
        return {"log tail": self.tail}

    async def tail(self, ask: Ask, _world: World) -> Answer:
        """The newest entries, oldest first. Of private places of others an admin sees no more than that there are."""
        wanted = ask.arguments.get("n", str(DEFAULT))
        if not wanted.isascii() or not wanted.isdigit() or not 1 <= int(wanted[:9]) <= MOST:
            return Answer(text=f"How many: a number from 1 to {MOST}.", ok=False)
        found = await self._reader.newest_entries(int(wanted), kinds=_KINDS)
        unseen = await hidden(ask, self._places, [place for entry in found for place in about(entry)])
        shown = [self._format_entry(entry) for entry in found if not unseen.intersection(about(entry))]
        text = "\n".join(shown).replace("`", "'")
        beyond = len(found) - len(shown)
        lines = [f"```\n{text}\n```"] if shown else []
        if beyond:
            lines.append(f"{beyond} more of private conversations, which owners see.")
        return Answer(text="\n".join(lines) or "Nothing has happened yet.")

    def _format_entry(self, entry: Stored) -> str:
        told = line(entry, self._redact).strip()
        return told if len(told) <= CHARS else f"{told[: CHARS - 1]}…"


def about(entry: Stored) -> list[ConversationId]:
    """The places that an entry tells of."""
    places = [entry.conversation] if entry.conversation is not None else []
    if isinstance(entry.fact, Noted) and entry.fact.scope != PUBLIC:
        places.append(ConversationId(entry.fact.scope))
    if isinstance(entry.fact, Limited) and entry.fact.whose == "room":
        places.append(ConversationId(entry.fact.subject))
    at: object = getattr(entry.fact, "at", None)
    return [*places, at.conversation] if isinstance(at, Address) else places
