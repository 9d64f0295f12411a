"""What handles name: pieces of the log, each to be told only where it may be.

They are positions in the log, short because they are told with each summary:

- `e<seq>`: an `Evidence`.
- `t<seq>.<n>`: what the n-th call of the turn brought whose record stands there, counted from 1 over all its steps.
- `m<seq>`: a message, as it reads now, or what the agent said.
- `v<a>-<b>`: the turns of the conversation where it is asked that ended at a <= seq < b, and in front of them what
  stood in front of the first of them in the view.

Nobody learns of one that may not be told to them whether it exists.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Protocol

from agent.journal import to_single_line
from agent.stubs import result_source
from agent.tools.schema import ToolCallRefused
from gateway.events import ConversationId, EvidenceRef, Message, MessageDeleted, MessageEdited
from gateway.records import Evidence, Seq, TurnRecord, ViewFolded
from gateway.scopes import Visibility
from gateway.store import StoreReader
from gateway.transcript import render_turn_transcript

MAX_TURNS: Final = 2_000
"""Of one handle."""
UNKNOWN_HANDLE: Final = (
    "There is nothing with that handle that may be told here. A handle is one of those that stand where something "
    "was told in part, e.g. e12, t12.3 or v12-34; what was said can also be found with recall."
)
_HANDLE: Final = re.compile(r"([temv])([0-9]{1,18})(?:([.-])([0-9]{1,18}))?")
"""No more digits than a position in the log can have."""
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_PAGE: Final = 200
_FOLDS_PAGE: Final = 20


class HandleScopes(Protocol):
    """Who knows who can read what is said: `gateway.places.PrivacyCache`."""

    async def scope(self, conversation: ConversationId, seq: Seq | None = None) -> str:
        """Who may be told of what stands there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleContent:
    """What a handle names."""

    source: EvidenceRef
    text: str
    """All of it, exactly. Untrusted."""


class HandleResolver:
    """Opens them."""

    def __init__(self, reader: StoreReader, places: HandleScopes) -> None:
        self._reader = reader
        self._places = places

    async def find(self, handle: str, sight: Visibility, place: ConversationId) -> HandleContent:
        """What this names, asked with this sight in this place.

        Raises Refused, with what would do, if it names nothing that may be told there; and StoreError.
        """
        match = _HANDLE.fullmatch(handle.strip(_QUOTES).lower())
        opened = await self._resolve(match, sight, place) if match is not None else None
        if opened is None:
            raise ToolCallRefused(UNKNOWN_HANDLE)
        return opened

    async def _resolve(self, handle: re.Match[str], sight: Visibility, place: ConversationId) -> HandleContent | None:
        kind, first, mark, second = handle.groups()
        if kind == "v" and mark == "-" and second is not None:
            return await self._render_turns(Seq(int(first)), Seq(int(second)), sight, place)
        if (mark == ".") != (kind == "t") or mark == "-":
            return None
        entry = await self._reader.entry(int(first))
        if entry is None or entry.conversation is None:
            return None
        if entry.conversation != place and not sight.can_see(await self._places.scope(entry.conversation, entry.seq)):
            return None
        match entry.fact:
            case Evidence(what=what, origin=origin, text=text) if kind == "e":
                return build_handle_content(f"e{entry.seq}", what, origin, text)
            case TurnRecord() as turn if kind == "t" and second is not None:
                return await self._find_result(entry.seq, turn, int(second), sight, entry.conversation)
            case TurnRecord(text=text) if kind == "m" and text:
                return build_handle_content(
                    f"m{entry.seq}", "message", to_single_line(f"you, {entry.conversation}"), text
                )
            case Message() as message if kind == "m":
                return await self._find_message(entry.seq, message, entry.conversation)
        return None

    async def _find_result(
        self, seq: Seq, turn: TurnRecord, number: int, sight: Visibility, place: ConversationId
    ) -> HandleContent | None:
        calls = [called for step in turn.steps for called in step.calls]
        if not 0 < number <= len(calls) or calls[number - 1].ended:
            return None
        called = calls[number - 1]
        if called.source is not None:  # only a part of it stands there
            return await self.find(called.source.handle, sight, place)
        return HandleContent(source=result_source(seq, number, called), text=called.result)

    async def _find_message(self, seq: Seq, said: Message, place: ConversationId) -> HandleContent | None:
        """With its newest words. None: it is gone, or was never to be told."""
        judged = await self._reader.find_judgement(seq)
        if judged is None or judged.fate not in ("due", "context"):
            return None
        newest = await self._reader.latest_message_change(said, seq)
        if newest is not None and isinstance(newest.fact, MessageDeleted):
            return None
        text = newest.fact.text if newest is not None and isinstance(newest.fact, MessageEdited) else said.text
        return build_handle_content(f"m{seq}", "message", to_single_line(f"{said.sender.name}, {place}"), text)

    async def _render_turns(
        self, first: Seq, end: Seq, sight: Visibility, place: ConversationId
    ) -> HandleContent | None:
        if not first < end or not sight.can_see(await self._places.scope(place)):
            return None
        more = await self._reader.seq_after_turns(place, first, end, count=MAX_TURNS)
        if more is not None:
            raise ToolCallRefused(
                f"v{first}-{end} has more than {MAX_TURNS:,} turns, the most that one handle opens. "
                f"The first {MAX_TURNS:,} of them are v{first}-{more}, and the others are v{more}-{end}."
            )
        pieces, behind = list[str](), first
        while page := await self._reader.turns_between(place, behind, end, most=_PAGE):
            pieces += [
                render_turn_transcript(one.seq, one.at, one.fact) for one in page if isinstance(one.fact, TurnRecord)
            ]
            behind = Seq(page[-1].seq + 1)
        if not any(pieces):
            return None
        head = await self._find_head(place, first)
        text = "".join([f"{head}\n\n" if head else "", *pieces])
        return build_handle_content(f"v{first}-{end}", "turns", place, text)

    async def _find_head(self, place: ConversationId, first: Seq) -> str:
        """What stood in front of the turn that ended at `first`, or was the first behind that."""
        before: int | None = None
        while page := await self._reader.newest_entries(
            _FOLDS_PAGE, before=before, kinds=["folded"], conversation=place
        ):
            for one in reversed(page):
                if isinstance(one.fact, ViewFolded) and one.fact.start <= first:
                    return one.fact.head
            before = page[0].seq
        return ""


def build_handle_content(handle: str, kind: str, origin: str, text: str) -> HandleContent:
    """This text, under this handle."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return HandleContent(
        source=EvidenceRef(handle=handle, kind=kind, origin=origin, chars=len(text), sha256=digest), text=text
    )
