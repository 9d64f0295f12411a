"""What a turn was told as new, told again from the log: by the code that told it, with the log as it was then."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from agent.brief import NOTHING_NEW
from agent.prompt import render_prompt_lines
from gateway.events import ConversationId, Message
from gateway.hearing import ConversationReader
from gateway.media import DescribedAttachment
from gateway.records import Seq, TurnRecord, is_inner
from gateway.replay import describe_text_difference
from gateway.standing import ANY_ROOM, AccessPolicy, Role
from gateway.store import LogEntry, StoreReader, UnreadEntries

_OMITTED_LINE: Final = re.compile(r"\A\(\d+ earlier lines are not shown\)\n?")


class InputComparison(NamedTuple):
    """What came of it. Both empty: it reads the same."""

    skipped: str = ""
    """Why it cannot be compared, in words."""
    difference: str = ""
    """The same."""


async def compare_input(reader: StoreReader, place: ConversationId, seq: Seq, ended: TurnRecord) -> InputComparison:
    """Tell the messages that this turn covers, and compare. Roles are those with which they were judged."""
    if reason := _skip_reason(place, ended):
        return InputComparison(skipped=reason)
    covered = [one for cover in ended.covers if (one := await reader.entry(cover)) is not None]
    if len(covered) < len(ended.covers):
        return InputComparison(skipped="not all that it covers is there")
    if any(isinstance(one.fact, Message) and one.fact.attachments for one in covered):
        return InputComparison(skipped="something came with attachments, which are kept for a while only")
    told = ""
    for before in dict.fromkeys((seq, Seq(ended.upto + 1))):  # what was edited while it ran may have been heard or not
        known = _ReaderBefore(reader, before)
        for plain in (False, True):
            told = await _render_input(known, covered, ended, plain=plain)
            if told == ended.heard:
                return InputComparison()
            if _OMITTED_LINE.sub("", told) == _OMITTED_LINE.sub("", ended.heard):
                return InputComparison(
                    skipped="only the number of lines that it left out differs, in which deleted ones count"
                )
    return InputComparison(difference=describe_text_difference(ended.heard, told))


def _skip_reason(place: ConversationId, ended: TurnRecord) -> str:
    if is_inner(place):
        return "a digest of many places"
    if ended.within is not None:
        return "told in a digest, and answered out of the inner conversation"
    if not ended.covers or ended.heard in ("", NOTHING_NEW):
        return "nothing new was told"
    if any(step.heard for step in ended.steps):
        return "more arrived in its middle"
    return ""


async def _render_input(known: "_ReaderBefore", covered: Sequence[LogEntry], ended: TurnRecord, *, plain: bool) -> str:
    roles = dict[str, Role]()
    for one in covered:
        judged = await known.find_judgement(one.seq)
        if isinstance(one.fact, Message) and judged is not None:
            roles[f"{one.fact.at.channel}:{one.fact.sender.id}"] = _KNOWN_ROLES.get(judged.role, "guest")
    channels = {one.fact.at.channel for one in covered if isinstance(one.fact, Message)}
    policy = AccessPolicy(
        dm_policy="open", roles=roles, open_rooms={channel: frozenset({ANY_ROOM}) for channel in channels}
    )
    hearing = ConversationReader(known, policy, _NoMedia())
    unread = UnreadEntries(messages=tuple(covered), omitted=ended.omitted, upto=ended.upto, has_changes=True)
    lines = await hearing.render(await hearing.read_current(unread), sees=False)
    return render_prompt_lines([one.line for one in lines], omitted=ended.omitted, plain=plain)


class _ReaderBefore(StoreReader):
    """The log as it was before this position, as far as a turn asks for it."""

    def __init__(self, reader: StoreReader, before: Seq) -> None:
        super().__init__(reader.path, reader._reading)  # noqa: SLF001 - the same questions over the same connection
        self._before = before

    async def message_changes(self, conversation: ConversationId, *, after: int, newest: int) -> list[LogEntry]:
        kinds = ("edited", "deleted")
        return await self.newest_entries(
            newest, after=after, before=self._before, kinds=kinds, conversation=conversation
        )

    async def entry_by_key(self, key: str) -> LogEntry | None:
        found = await super().entry_by_key(key)
        if found is None or found.seq >= self._before:
            return None
        if isinstance(found.fact, Message):  # whoever was refused is quoted to nobody
            judged = await self.find_judgement(found.seq)
            return None if judged is not None and judged.fate == "refused" else found
        return found


class _NoMedia:
    """No attachments: what has some is not compared."""

    async def describe_attachments(
        self, messages: Sequence[tuple[Seq, Message]], *, sees: bool
    ) -> dict[Seq, tuple[DescribedAttachment, ...]]:
        raise AssertionError(f"{len(messages)} messages, {sees}")


_KNOWN_ROLES: Final[dict[str, Role]] = {role: role for role in ("owner", "admin", "member", "guest", "blocked")}
