"""Two things that people on IRC expect of a bot: titles of links, and `tell`.

A room learns only what was said in that room: a message is delivered where it was left. What is
kept stands in the log, so it survives a crash, and is delivered in the transaction that takes the
next message of whom it is for, so it is delivered once.
"""

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from reverie import (
    ALLOW_MEMBERS,
    OUT,
    OUTSIDE_LABEL,
    CommandCall,
    CommandEffect,
    ConfigSection,
    Decision,
    EffectFact,
    LogEntry,
    Message,
    Plugin,
    PluginContext,
    PluginFact,
    Post,
    PostKey,
    Routed,
    Table,
    ToolCallRefused,
    ToolContext,
    ToolOutput,
    WebFetcher,
    command,
    done,
    hook,
    inline_code,
    queue_post,
    refuse,
    tool,
)
from reverie_irc_extras.titles import MAX_TITLE_CHARS, find_links, read_title

logger = logging.getLogger("reverie.irc_extras")

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
MAX_WAITING_LINKS = 20
"""Links that wait for their titles; more are left out."""
MAX_TELL_CHARS = 400
MAX_TELLS = 5
"""Messages that are kept for one person in one room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(PluginFact):
    """A message that is kept for somebody."""

    id: str
    nick: str
    """As `fold_nick` returns it."""
    teller: str
    text: str
    kind: Literal["irc_extras.told"] = "irc_extras.told"

    def describe(self) -> str:
        return f"a message of {self.teller} for {self.nick} is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(PluginFact):
    """A message that was kept is posted."""

    id: str
    kind: Literal["irc_extras.delivered"] = "irc_extras.delivered"

    def describe(self) -> str:
        return "a message that was kept is delivered"


class ExtrasSettings(ConfigSection):
    """The section `irc_extras` of the configuration."""

    titles: bool = True
    """Titles of links are posted in rooms."""
    links: Annotated[int, Field(ge=1, le=5)] = 2
    """Links of one message whose titles are posted."""


def fold_nick(nick: str) -> str:
    """Return a nick in the form in which nicks are compared."""
    return nick.strip().removeprefix("@").casefold()


KEEP = """
    INSERT INTO irc_extras_tells (id, place, nick, teller, text, at)
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (id) DO NOTHING
"""
DROP = "DELETE FROM irc_extras_tells WHERE id = $1"
FIND = """
    SELECT id, teller, text, at FROM irc_extras_tells WHERE place = $1 AND nick = $2 ORDER BY at, id
"""


def _fold_tells(entry: LogEntry) -> Iterable[tuple[str, tuple[str | int, ...]]]:
    match entry.fact:
        case Told() as told if entry.conversation:
            kept = told.id, str(entry.conversation), told.nick, told.teller, told.text
            yield KEEP, (*kept, int(entry.at.timestamp()))
        case Delivered(id=number):
            yield DROP, (number,)


class IrcExtras(Plugin):
    """Titles of links, and `tell`."""

    name = "irc_extras"
    summary = "titles of links, and messages for people who are away"
    Settings = ExtrasSettings
    facts = (Told, Delivered)
    watches = (Told,)
    judged_kinds = ("room", "mention", "reply")
    tables: ClassVar = (
        Table(
            name="irc_extras_tells",
            columns=(
                "id text PRIMARY KEY, place text NOT NULL, nick text NOT NULL,"
                " teller text NOT NULL, text text NOT NULL, at bigint NOT NULL"
            ),
            kinds=frozenset({"irc_extras.told", "irc_extras.delivered"}),
            fold=_fold_tells,
        ),
    )

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._fetcher = WebFetcher(context.gateway.live)
        self._links = asyncio.Queue[tuple[Message, str]](MAX_WAITING_LINKS)
        self._waited_for = set[tuple[str, str]]()
        """Places and nicks for which something may be kept, so that most messages cost no look."""

    async def start(self) -> None:
        sql = "SELECT DISTINCT place, nick FROM irc_extras_tells"
        found = await self.context.gateway.store.rows(sql)
        self._waited_for = {(place, nick) for place, nick in found}

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        """Learn of messages that are kept, also by other processes."""
        for entry in entries:
            if isinstance(entry.fact, Told):
                self._waited_for.add((str(entry.conversation), entry.fact.nick))

    @hook
    async def judge(self, routed: Routed, so_far: Decision) -> Decision | None:
        """Deliver what is kept for the author of a message, and have titles of its links posted.

        Called only for messages in rooms that the bot may listen to.
        """
        said = routed.event
        if not isinstance(said, Message) or said.sender.is_bot:
            return None
        if self.settings.titles:
            for link in find_links(said.text, self.settings.links):
                if not self._links.full():
                    self._links.put_nowait((said, link))
        return await self._deliver(said, so_far)

    async def _deliver(self, said: Message, so_far: Decision) -> Decision | None:
        place, nick = str(said.at.conversation), fold_nick(said.sender.name)
        if (place, nick) not in self._waited_for:
            return None
        kept = await self._kept_for(place, nick)
        if not kept:
            self._waited_for.discard((place, nick))
            return None
        lines = [
            f"{teller}, {_ago(self._now() - at)} ago: {inline_code(text, MAX_TELL_CHARS)}"
            for _, teller, text, at in kept
        ]
        text = "\n".join([f"{inline_code(said.sender.name)}, for you from", *lines])
        post = Post(
            key=_key("tell", *(number for number, *_ in kept)),
            to=said.at,
            text=text,
            style="notice",
            notify=(said.sender,),
        )
        delivered = [
            EffectFact(Delivered(id=number), key=f"irc_extras.delivered:{number}")
            for number, *_ in kept
        ]
        return so_far.with_facts([*delivered, queue_post(post)])

    async def run(self) -> None:
        """Post titles, one after the other, until the gateway ends."""
        while True:
            said, link = await self._links.get()
            title = await self._find_title(link)
            if title:
                post = Post(
                    key=_key("title", str(said.at.conversation), said.id, link),
                    to=said.at,
                    text=f"Title: {inline_code(title, MAX_TITLE_CHARS)}",
                    style="notice",
                    reply_to=said.id,
                )
                await self.context.append(queue_post(post))

    async def _find_title(self, link: str) -> str:
        """Return the title of a page. Empty: it cannot be fetched, or has none."""
        try:
            page = await self._fetcher.fetch(link, HTML_TYPES.__contains__)
        except ToolCallRefused as refused:
            logger.debug("no title: %s", refused)
            return ""
        if page.status != 200 or page.media_type not in HTML_TYPES:  # noqa: PLR2004 - HTTP's own number
            return ""
        try:
            text = page.body.decode(page.charset or "utf-8", "replace")
        except LookupError:
            text = page.body.decode("utf-8", "replace")
        return await asyncio.to_thread(read_title, text)

    async def stop(self) -> None:
        self._fetcher.close()

    @tool("Return the title of a page, without the page.", ALLOW_MEMBERS, effect=OUT)
    async def link_title(self, _context: ToolContext, *, url: str) -> ToolOutput:
        """OUT: a request leaves for a server that the caller names."""
        title = await self._find_title(url)
        if not title:
            raise ToolCallRefused("That page cannot be fetched, or has no title.")
        return ToolOutput(text=title, origin=url, is_untrusted=True, label=OUTSIDE_LABEL)

    @command("tell", "Keep a message for somebody until they speak here", example="!tell bob hi")
    async def tell(
        self,
        call: CommandCall,
        nick: Annotated[str, "A nick"],
        *,
        text: Annotated[str, "The message"],
    ) -> CommandEffect:
        """Keep a message. The fact is appended with the answer, in one transaction."""
        place, folded = str(call.command.at.conversation), fold_nick(nick)
        if call.command.direct:
            return refuse("Say it in the room where they should hear it.")
        if len(text) > MAX_TELL_CHARS:
            return refuse(f"That is longer than {MAX_TELL_CHARS} characters.")
        if len(await self._kept_for(place, folded)) >= MAX_TELLS:
            return refuse(f"{MAX_TELLS} messages wait for {inline_code(nick)} already.")
        told = Told(
            id=_key("told", place, call.command.id),
            nick=folded,
            teller=inline_code(call.command.sender.name),
            text=text,
        )
        return done(f"I tell {inline_code(nick)} when they speak here.", told)

    async def _kept_for(self, place: str, nick: str) -> list[Any]:
        """Return the id, teller, text and time of what is kept for somebody, oldest first."""
        return await self.context.gateway.store.rows(FIND, place, nick)

    def _now(self) -> int:
        return int(self.context.gateway.clock.now().timestamp())


def _key(*parts: str) -> PostKey:
    """Return a key that is the same for the same parts."""
    return PostKey(hashlib.sha256("\0".join(parts).encode()).hexdigest()[:26])


def _ago(seconds: int) -> str:
    """Return a duration for people: its largest unit."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            count = seconds // length
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return "a moment"
