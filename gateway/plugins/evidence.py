"""Evidence: results and turns that were shown in part, kept whole and read again by handle.

A handle is a log position with a letter, short because each summary shows some:

- `e<seq>`: an `Evidence` entry.
- `t<seq>.<n>`: result of the n-th call of the turn whose record stands there, counted from 1 over
  all its steps.
- `a<seq>.<n>`: text of the n-th attachment of the message that stands there, counted from 1 and on
  through those of the message that it replies to, if it is a document.
- `m<seq>`: a message with its present text, or a message of the agent.
- `v<a>-<b>`: turns of the conversation where it is asked that ended at a <= seq < b, preceded by
  the text that stood in front of the first of them in the view.

What a handle names is shown only where its scope allows. For a handle that is not visible the error
is the same as for one that does not exist. What has left the log is not opened any more; the answer
says so.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from agent.prompt import MAX_SOURCE_CHARS
from agent.tools import find_inner_call
from agent.view import result_source
from gateway.context.evidence import LEFT_LOG, build_evidence_ref
from gateway.core.events import ConversationId, EvidenceRef, Message
from gateway.core.facts import Evidence, Seq, TurnRecord, ViewFolded
from gateway.core.frozen import frozen
from gateway.core.labels import TRUSTED_LABEL, Label, readers_of
from gateway.core.media_types import is_document
from gateway.core.permissions import OWN
from gateway.core.scopes import Visibility
from gateway.core.text_safety import to_single_line
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import ResultExcerpt, ToolCallRefused
from gateway.plugin import Plugin, PluginContext
from gateway.plugins.media import Media
from gateway.plugins.read_room import read_message
from gateway.store import LogEntry
from gateway.store.archive import has_left
from gateway.store.queries import COLUMNS, using
from gateway.store.types import read_entries
from gateway.stream.media import AttachmentNotFetched, document_handle

MAX_EVIDENCE_CHARS: Final = 20_000
MAX_TURNS: Final = 2_000
"""Turns in one `v` handle."""
UNKNOWN_HANDLE: Final = (
    "There is nothing with that handle that may be shown here. Use a handle that stands beside a "
    "shortened text, e.g. e12, t12.3 or v12-34, or search with recall."
)
_TURNS_LEFT: Final = "[older turns have left the log, and are missing here]"
_HANDLE: Final = re.compile(r"([atemv])([0-9]{1,18})(?:([.-])([0-9]{1,18}))?")
"""At most as many digits as a log position can have."""
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_PAGE: Final = 200
_MAX_FOLDS: Final = 10_000
"""Newest folds of a place that are searched."""
_BETWEEN = (
    f"FROM log {using('log_turn')} WHERE kind = 'turn_ended' AND conversation = $1 AND seq "
    ">= $2 AND seq < $3"
)
TURNS_BETWEEN = (
    f"SELECT {COLUMNS} {_BETWEEN} AND NOT EXISTS (SELECT 1 FROM view_cut WHERE "  # noqa: S608 - the same
    "view_cut.conversation = $1 "
    "AND first <= log.seq AND last >= log.seq) ORDER BY seq LIMIT $4"
)
SEQ_AFTER_TURNS = f"SELECT seq {_BETWEEN} ORDER BY seq LIMIT 1 OFFSET $4"
"""Parameters: a conversation, the first position, the one after the last, and a number of turns."""


@frozen
class HandleContent:
    """Content of a handle."""

    source: EvidenceRef
    text: str
    """The whole text, exact and untrusted."""


class EvidenceReader(Plugin):
    """Opens handles, for all agents."""

    name = "evidence"
    summary = "opens what a turn was shown in part, by the tool fetch_evidence"
    family = "itself"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._store, self._places = context.gateway.store, context.gateway.places
        self._documents: Media | None = None
        if isinstance(documents := context.plugins.get(Media.name), Media):
            self._documents, context.media.reads_documents = documents, True

    @tool(
        "Read in full what you were shown in part.",
        effect=OWN,
        parallel=True,
        offer="described",
    )
    async def fetch_evidence(
        self,
        context: ToolContext,
        *,
        handle: Annotated[
            str,
            Field(
                min_length=1,
                max_length=200,
                description="E.g. e12 or t12.3.",
            ),
        ],
        offset: Annotated[int, Field(ge=0, description="Characters to skip.")] = 0,
        limit: Annotated[int, Field(ge=1, le=MAX_EVIDENCE_CHARS)] = 4_000,
        find: Annotated[
            str,
            Field(
                max_length=200,
                description="Begin at these words.",
            ),
        ] = "",
    ) -> ToolOutput:
        """Return a header line and the exact text: `limit` characters from `offset` on.

        `find`: words, regardless of case; the text begins with the line of their first place at or
        after `offset`. Empty: at `offset`. Raises ToolCallRefused and StoreError.
        """
        content = await self.find(handle, context.visibility, context.at.conversation)
        label = await self._label_of(content.source.handle, context)
        here = await self._places.with_memberships(context.visibility, label.readers)
        if not here.can_read(label.readers):
            raise ToolCallRefused(UNKNOWN_HANDLE)
        source = content.source
        if words := find.strip():
            found = re.compile(re.escape(words), re.IGNORECASE).search(content.text, offset)
            if found is None:
                raise ToolCallRefused(
                    f"These words do not occur in {source.handle} at or after offset {offset}."
                )
            offset = max(
                offset, content.text.rfind("\n", 0, found.start()) + 1, found.start() - limit // 2
            )
        end = min(offset + limit, source.chars)
        if offset >= source.chars > 0:
            raise ToolCallRefused(
                f"{source.handle} has {source.chars} characters: offset must be less."
            )
        more = f"; go on at offset {end}" if end < source.chars else "; that is its end"
        origin = (
            f", from {to_single_line(source.origin, MAX_SOURCE_CHARS)}" if source.origin else ""
        )
        head = (
            f"[{source.handle}: {to_single_line(source.kind)}{origin}; characters {offset} to "
            f"{end} of {source.chars}{more}; sha256 {source.sha256[:12]}]\n"
        )
        return ToolOutput(
            text=head + content.text[offset:end],
            kind=source.kind,
            origin=source.origin,
            excerpt=ResultExcerpt(source=source, offset=offset - len(head)),
            is_untrusted=True,
            label=label,
        )

    async def _label_of(self, handle: str, context: ToolContext) -> Label:
        """Return the label: of a tool's result that of its turn. Anything else may be anybody's
        words of its place.
        """
        if handle.startswith("v"):
            return Label("outside", readers_of(await self._places.scope(context.at.conversation)))
        entry = await self._store.entry(int(handle[1:].partition(".")[0]))
        assert entry is not None
        assert entry.conversation is not None
        readers, fact = (
            readers_of(await self._places.scope(entry.conversation, entry.seq)),
            entry.fact,
        )
        if isinstance(fact, Evidence):
            if fact.turn == context.turn:  # the turn's own requests hold a part of it already
                return TRUSTED_LABEL
            ended = await self._store.entry_by_key(f"turn:{fact.turn}")
            fact = ended.fact if ended is not None else fact
        if isinstance(fact, TurnRecord) and not handle.startswith("m"):
            return fact.label | Label(readers=readers)
        return Label("outside", readers)

    async def find(
        self, handle: str, visibility: Visibility, place: ConversationId
    ) -> HandleContent:
        """Return the content of a handle, as far as `visibility` and `place` allow.

        Raises ToolCallRefused, with a hint for the model, if it names nothing visible there; and
        StoreError.
        """
        match = _HANDLE.fullmatch(handle.strip(_QUOTES).lower())
        content = await self._resolve(match, visibility, place) if match is not None else None
        if content is None:
            raise ToolCallRefused(UNKNOWN_HANDLE)
        return content

    async def _resolve(
        self, handle: re.Match[str], visibility: Visibility, place: ConversationId
    ) -> HandleContent | None:
        kind, first, separator, second = handle.groups()
        if kind == "v" and separator == "-" and second is not None:
            return await self._render_turns(Seq(int(first)), Seq(int(second)), visibility, place)
        if (separator == ".") != (kind in "at") or separator == "-":
            return None
        entry = await self._find_entry(Seq(int(first)), visibility, place)
        if entry is None or entry.conversation is None:
            return None
        match entry.fact:
            case Evidence(what=what, origin=origin, text=text) if kind == "e":
                return build_handle_content(f"e{entry.seq}", what, origin, text)
            case TurnRecord() as turn if kind == "t" and second is not None:
                return await self._find_result(
                    entry.seq, turn, int(second), visibility, entry.conversation
                )
            case TurnRecord() as turn if kind == "m" and (text := turn.text or turn.note):
                return build_handle_content(
                    f"m{entry.seq}", "message", to_single_line(f"you, {entry.conversation}"), text
                )
            case Message() as message if kind == "a" and second is not None:
                return await self._read_document(
                    entry.seq, message, int(second), entry.conversation
                )
            case Message() as message if kind == "m":
                return await self._find_message(entry.seq, message, entry.conversation)
        return None

    async def _find_entry(
        self, seq: Seq, visibility: Visibility, place: ConversationId
    ) -> LogEntry | None:
        """Return an entry of a conversation that may be told. Raises ToolCallRefused for one that
        left the log.
        """
        entry = await self._store.entry(seq)
        if entry is None and await has_left(self._store, seq):
            raise ToolCallRefused(LEFT_LOG)
        if entry is None or entry.conversation in (None, place):
            return entry
        scope = await self._places.scope(entry.conversation, seq)
        visibility = await self._places.with_memberships(visibility, [scope])
        return entry if visibility.can_see(scope, seq) else None

    async def _find_result(
        self, seq: Seq, turn: TurnRecord, number: int, visibility: Visibility, place: ConversationId
    ) -> HandleContent | None:
        calls = [called for step in turn.steps for called in step.calls]
        if not 0 < number <= len(calls) or calls[number - 1].ended:
            return None
        called = calls[number - 1]
        if called.source is not None:  # the turn recorded only a part of it
            return await self.find(called.source.handle, visibility, place)
        return HandleContent(source=result_source(seq, number, called), text=called.result)

    async def _read_document(
        self, seq: Seq, message: Message, number: int, place: ConversationId
    ) -> HandleContent | None:
        """Return the text of a document. None: there is none, or its message may not be told."""
        if (
            not 0 < number <= len(message.shown_attachments)
            or await read_message(self._store, seq, message) is None
        ):
            return None
        attachment = message.shown_attachments[number - 1]
        if self._documents is None or not is_document(attachment):
            raise ToolCallRefused("This attachment is no document that can be read as text.")
        try:
            found = await self._documents.read_document(message, number - 1)
        except AttachmentNotFetched as error:
            raise ToolCallRefused(f"This document cannot be read: {error}.") from None
        origin = to_single_line(
            f"{attachment.name or 'a file'} from {message.sender.name}, {place}"
        )
        text = (
            f"{found.text}\n(There is more of it than is read of one document.)"
            if found.cut
            else found.text
        )
        return build_handle_content(document_handle(seq, number - 1), "document", origin, text)

    async def _find_message(
        self, seq: Seq, message: Message, place: ConversationId
    ) -> HandleContent | None:
        """Return a message with its newest text. None: it was deleted, or was not for the agent."""
        if (current := await read_message(self._store, seq, message)) is None:
            return None
        origin = to_single_line(f"{message.sender.name}, {place}")
        return build_handle_content(f"m{seq}", "message", origin, current.text)

    async def _render_turns(
        self, first: Seq, end: Seq, visibility: Visibility, place: ConversationId
    ) -> HandleContent | None:
        if not first < end or not visibility.can_see(await self._places.scope(place)):
            return None
        if rows := await self._store.rows(SEQ_AFTER_TURNS, place, first, end, MAX_TURNS):
            more = rows[0][0]
            raise ToolCallRefused(
                f"v{first}-{end} has more than {MAX_TURNS:,} turns, the most that one handle "
                f"opens. The first {MAX_TURNS:,} of them are v{first}-{more}, and the others are "
                f"v{more}-{end}."
            )
        pieces, start = list[str](), first
        while page := read_entries(await self._store.rows(TURNS_BETWEEN, place, start, end, _PAGE)):
            pieces += [
                render_turn_transcript(one.seq, one.at, one.fact)
                for one in page
                if isinstance(one.fact, TurnRecord)
            ]
            start = Seq(page[-1].seq + 1)
        left = await has_left(self._store, first)
        if not any(pieces):
            if left:
                raise ToolCallRefused(LEFT_LOG)
            return None
        head = await self._find_head(place, first)
        text = "".join(
            [f"{head}\n\n" if head else "", f"{_TURNS_LEFT}\n\n" if left else "", *pieces]
        )
        return build_handle_content(f"v{first}-{end}", "turns", place, text)

    async def _find_head(self, place: ConversationId, first: Seq) -> str:
        folds = self._store.iter_newest(_MAX_FOLDS, page=20, kinds=["folded"], conversation=place)
        async for one in folds:
            if isinstance(one.fact, ViewFolded) and one.fact.start <= first:
                return one.fact.head
        return ""


def build_handle_content(handle: str, kind: str, origin: str, text: str) -> HandleContent:
    """Return the content of a text under a handle."""
    return HandleContent(source=build_evidence_ref(handle, kind, origin, text), text=text)


def render_turn_transcript(seq: Seq, at: datetime, turn: TurnRecord) -> str:
    """Return a turn as text, word for word: its input, its tool calls with handles of their
    results, its reply.

    Ends with an empty line. Empty for a turn without input and without steps.
    """
    lines = [line for line in _transcript_lines(seq, turn) if line]
    return "\n".join([f"== {at:%Y-%m-%d %H:%M} UTC ==", *lines, "", ""]) if lines else ""


def _transcript_lines(seq: Seq, turn: TurnRecord) -> Iterator[str]:
    yield turn.heard
    number = 0
    for step in turn.steps:
        yield f"[you, meanwhile] {step.text}" if step.text else ""
        for called in step.calls:
            number += 1
            inner = find_inner_call(called)
            call_text = f"[you called {inner.name} {inner.arguments}"
            source = result_source(seq, number, called)
            yield (
                f"{call_text}]"
                if called.ended
                else f"{call_text} -> {source.handle}, {source.chars} characters]"
            )
        yield step.heard
    if turn.text and turn.outcome != "failed":
        yield f"[you] {turn.text}"
    elif turn.outcome == "interrupted":
        yield "[you were interrupted]"
    elif turn.heard:
        yield "[you said nothing]"
