"""What a turn was told as new, told again from the log: by the code that told it, with the log as it was then."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.brief import NOTHING_NEW
from agent.prompt import hear
from gateway.access import ANY_ROOM, Policy, Role
from gateway.events import ConversationId, Message
from gateway.hearing import Hearing
from gateway.media import Attached
from gateway.records import Seq, TurnEnded, is_inner
from gateway.replay import unlike
from gateway.store import Reader, Stored, Unread

_OMITTED: Final = re.compile(r"\A\(\d+ earlier lines are not shown\)\n?")


class Reheard(NamedTuple):
    """What came of it. Both empty: it reads the same."""

    skipped: str = ""
    """Why it cannot be compared, in words."""
    difference: str = ""
    """The same."""


async def reheard(reader: Reader, place: ConversationId, seq: Seq, ended: TurnEnded) -> Reheard:
    """Tell the messages that this turn covers, and compare. Roles are those with which they were judged."""
    if reason := _apart(place, ended):
        return Reheard(skipped=reason)
    covered = [one for cover in ended.covers if (one := await reader.entry(cover)) is not None]
    if len(covered) < len(ended.covers):
        return Reheard(skipped="not all that it covers is there")
    if any(isinstance(one.fact, Message) and one.fact.attachments for one in covered):
        return Reheard(skipped="something came with attachments, which are kept for a while only")
    told = ""
    for before in dict.fromkeys((seq, Seq(ended.upto + 1))):  # what was edited while it ran may have been heard or not
        known = _Then(reader, before)
        for plain in (False, True):
            told = await _told(known, covered, ended, plain=plain)
            if told == ended.heard:
                return Reheard()
            if _OMITTED.sub("", told) == _OMITTED.sub("", ended.heard):
                return Reheard(skipped="only the number of lines that it left out differs, in which deleted ones count")
    return Reheard(difference=unlike(ended.heard, told))


def _apart(place: ConversationId, ended: TurnEnded) -> str:
    if is_inner(place):
        return "a digest of many places"
    if ended.within is not None:
        return "told in a digest, and answered out of the inner conversation"
    if not ended.covers or ended.heard in ("", NOTHING_NEW):
        return "nothing new was told"
    if any(step.heard for step in ended.steps):
        return "more arrived in its middle"
    return ""


async def _told(known: "_Then", covered: Sequence[Stored], ended: TurnEnded, *, plain: bool) -> str:
    roles = dict[str, Role]()
    for one in covered:
        judged = await known.find_judgement(one.seq)
        if isinstance(one.fact, Message) and judged is not None:
            roles[f"{one.fact.at.channel}:{one.fact.sender.id}"] = _ROLES.get(judged.role, "guest")
    channels = {one.fact.at.channel for one in covered if isinstance(one.fact, Message)}
    policy = Policy(dm_policy="open", roles=roles, open_rooms={channel: frozenset({ANY_ROOM}) for channel in channels})
    hearing = Hearing(known, policy, _Nothing())
    unread = Unread(messages=tuple(covered), omitted=ended.omitted, upto=ended.upto, has_changes=True)
    lines = await hearing.render(await hearing.read_current(unread), sees=False)
    return hear([one.line for one in lines], omitted=ended.omitted, plain=plain)


class _Then(Reader):
    """The log as it was before this position, as far as a turn asks for it."""

    def __init__(self, reader: Reader, before: Seq) -> None:
        super().__init__(reader.path, reader._reading)  # noqa: SLF001 - the same questions over the same connection
        self._before = before

    async def message_changes(self, conversation: ConversationId, *, after: int, newest: int) -> list[Stored]:
        kinds = ("edited", "deleted")
        return await self.newest_entries(
            newest, after=after, before=self._before, kinds=kinds, conversation=conversation
        )

    async def entry_by_key(self, key: str) -> Stored | None:
        found = await super().entry_by_key(key)
        if found is None or found.seq >= self._before:
            return None
        if isinstance(found.fact, Message):  # whoever was refused is quoted to nobody
            judged = await self.find_judgement(found.seq)
            return None if judged is not None and judged.fate == "refused" else found
        return found


class _Nothing:
    """No attachments: what has some is not compared."""

    async def describe_attachments(
        self, messages: Sequence[tuple[Seq, Message]], *, sees: bool
    ) -> dict[Seq, tuple[Attached, ...]]:
        raise AssertionError(f"{len(messages)} messages, {sees}")


_ROLES: Final[dict[str, Role]] = {role: role for role in ("owner", "admin", "member", "guest", "blocked")}
