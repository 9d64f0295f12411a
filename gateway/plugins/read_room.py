"""Tools that read rooms, `read_room` and `who`, and the lookup of messages by handle.

A handle is `m` and the message's position in the log, or `last` (the message that the turn
answers), or `mine` (the agent's newest post). Tools show only what the turn may see, and do not
reveal whether other messages or places exist.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from agent.prompt import PromptLine, render_line
from channels.base import CanListMembers, RoomMembers, SendError
from gateway.access.place_names import PlaceTitles
from gateway.context.conversation import NOBODY, ConversationReader, CurrentMessage, find_reply_to
from gateway.context.evidence import LEFT_LOG
from gateway.core.events import (
    Address,
    DeliveryReport,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Post,
    Sender,
)
from gateway.core.facts import MESSAGE_KINDS, PlatformAction, PostQueued, Seq, TurnRecord, is_inner
from gateway.core.frozen import frozen
from gateway.core.identity import ROLE_ORDER, identify
from gateway.core.labels import TRUSTED_LABEL, Label, readers_of
from gateway.core.permissions import OWN
from gateway.core.text_safety import sanitize_name, to_single_line
from gateway.core.tool import ToolContext, ToolOutput, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext
from gateway.store import LogEntry, StoreReader
from gateway.store.archive import has_left

_HANDLE: Final = re.compile(r"m?([0-9]{1,18})")
_QUOTES: Final = " \t\r\n\"'`()[]<>"
_MAX_UNREAD: Final = 50
_MAX_RECENT: Final = 20
"""Messages or posts that are searched for `last` or `mine`."""
MAX_PLACES: Final = 20


@frozen
class MessageTarget:
    """Message on which a tool can act."""

    at: Address
    ids: tuple[MessageId, ...]
    """Ids of its parts on the platform. Empty: unknown."""
    agent: str | None
    """Agent that posted it ("": recorded by a version without this field). None: it is somebody
    else's."""


@frozen
class AgentPost(MessageTarget):
    """Post of an agent as it is on the platform now: `ids` has the parts that still exist."""

    agent: str
    post: Post
    state: str
    """As `DeliveryReport.state`; empty: not delivered yet."""
    edited: bool


def refuse_ambiguous(titles: PlaceTitles, found: Sequence[Address]) -> ToolCallRefused:
    """Return the refusal of a title that several places have."""
    named = ", ".join(titles.trusted_label(at.conversation) for at in found[:MAX_PLACES])
    return ToolCallRefused(
        f"Several places are called so: {named}. Name one by the address in parentheses."
    )


UNKNOWN_PLACE: Final = (
    "There is no place with that address that may be shown here. An address is written like "
    "irc.libera/#python; left out, it is this place."
)
MAX_MESSAGES: Final = 50
MAX_ADDRESS_CHARS: Final = 500
_OtherPlace = Annotated[
    str | None,
    Field(
        max_length=MAX_ADDRESS_CHARS,
        description="Title or address of another place.",
    ),
]
BAD_BEFORE: Final = "`before` is a handle that read_room has shown, e.g. m12."
MAX_PEOPLE: Final = 50
_ANYBODY_LABEL: Final = Label("guest")
_MAX_ENTRIES: Final = 500
"""Entries that are looked at: those that may not be shown must not hide others."""


class RoomReader(Plugin):
    """`read_room` and `who` of all agents, and the lookup of messages by handle."""

    name = "read_room"
    summary = "reads what was said in a room, and who is there, by the tools read_room and who"
    family = "rooms"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._people = gateway.store, gateway.people
        self._places, self._channels = gateway.places, gateway.channels
        # An old line does not have its attachments fetched.
        self._conversation = ConversationReader(gateway, context.media, fetches=False)

    @tool(
        "Read earlier lines, here or elsewhere. Each has a handle.",
        effect=OWN,
        parallel=True,
        polls=True,
        offer="described",
    )
    async def read_room(
        self,
        context: ToolContext,
        *,
        address: _OtherPlace = None,
        before: Annotated[
            str | None,
            Field(max_length=MAX_ADDRESS_CHARS, description="Only those before this handle."),
        ] = None,
        count: Annotated[int, Field(ge=1, le=MAX_MESSAGES)] = 20,
    ) -> ToolOutput:
        at, context = await self._resolve_place(address, context)
        until = _parse_handle(before or "")
        if until is None and (before or "").strip():
            raise ToolCallRefused(BAD_BEFORE)
        lines, more, label = await self._collect_lines(at, until, count, context)
        await self._places.titles.load([at.conversation])
        place = self._places.titles.trusted_label(at.conversation)
        if lines:
            head = f"{place}, {len(lines)} messages, the newest last."
            head += f" What was said before them: before=m{lines[0][0]}" if more else ""
        else:
            head = (
                f"{place}: there are no messages that you have "
                f"seen{' before that' if before else ''}."
            )
        rendered = [f"m{seq} {line}" for seq, line in lines]
        return await self._build_output("\n".join([head, *rendered]), "messages", at, label)

    @tool(
        "List the people here or elsewhere.",
        effect=OWN,
        parallel=True,
        polls=True,
        offer="described",
    )
    async def who(self, context: ToolContext, *, address: _OtherPlace = None) -> ToolOutput:
        at, context = await self._resolve_place(address, context)
        await self._places.titles.load([at.conversation])
        note = ""
        channel: object = self._channels.get(at.channel)
        if isinstance(channel, CanListMembers):
            try:
                return await self._build_output(
                    self._render_people(at, await channel.list_members(at, most=MAX_PEOPLE)),
                    "people",
                    at,
                )
            except SendError as error:
                note = (
                    f"The list of people could not be read ({to_single_line(error.reason, 200)}). "
                )
        return await self._build_output(
            note + await self._render_recent_speakers(at, context), "people", at
        )

    async def _build_output(
        self, text: str, kind: str, at: Address, label: Label = _ANYBODY_LABEL
    ) -> ToolOutput:
        label |= Label(readers=readers_of(await self._places.scope(at.conversation)))
        return ToolOutput(
            text=text, kind=kind, origin=at.conversation, is_untrusted=True, label=label
        )

    async def _resolve_place(
        self, address: str | None, context: ToolContext
    ) -> tuple[Address, ToolContext]:
        """Return the place with this address, and the context with what its people may be shown of
        it.

        Does not reveal whether a place exists that may not be shown.
        """
        if not (address or "").strip():
            if is_inner(context.at.conversation):
                raise ToolCallRefused("You are by yourself here: name the place by its address.")
            return context.at, context
        titles, found = self._places.titles, list[Address]()
        for at in titles.find_places(address or "", [context.at]):
            scopes = [await self._places.scope(at.conversation), at.conversation]
            context = replace(
                context, visibility=await self._places.with_memberships(context.visibility, scopes)
            )
            found += [at] if await self._is_visible(at, context) else []
        if not found:
            raise ToolCallRefused(UNKNOWN_PLACE)
        if len(found) > 1:
            raise refuse_ambiguous(titles, found)
        return found[0], context

    async def _is_visible(self, at: Address, context: ToolContext) -> bool:
        if at == context.at and not is_inner(at.conversation):
            return True
        return self.is_bound(at, context.agent) and context.visibility.can_see(
            await self._places.scope(at.conversation)
        )

    def is_bound(self, at: Address, agent: str) -> bool:
        """Return whether the agent takes part in the place."""
        bound = self._places.bindings.find(at)
        return at.channel in self._channels and bound.agent == agent and bound.listen != "off"

    async def _collect_lines(
        self, at: Address, before: int | None, count: int, context: ToolContext
    ) -> tuple[list[tuple[Seq, str]], bool, Label]:
        found, looked_at, label = list[tuple[Seq, str]](), 0, TRUSTED_LABEL
        async for one in self._store.iter_newest(
            _MAX_ENTRIES,
            page=100,
            before=before,
            kinds=(*MESSAGE_KINDS, "post"),
            conversation=at.conversation,
        ):
            if len(found) == count:
                return found[::-1], True, label
            looked_at += 1
            is_visible = at == context.at or context.visibility.can_see(
                await self._places.scope(at.conversation, one.seq), one.seq
            )
            if is_visible and (line := await self._render_entry(one, context.agent)) is not None:
                found.append((one.seq, line[0]))
                label |= line[1]
        return found[::-1], looked_at == _MAX_ENTRIES, label

    async def _render_entry(self, one: LogEntry, agent: str) -> tuple[str, Label] | None:
        """Return a line and the trust label of its words. None: deleted, retracted, or not for the
        model.
        """
        if any(
            placed.is_removed for placed in await self._store.locate_entries([one.cause or one.seq])
        ):
            return None
        if isinstance(one.fact, Message):
            if (message := await read_message(self._store, one.seq, one.fact)) is None:
                return None
            current = CurrentMessage(one.seq, message, is_edited=message.text != one.fact.text)
            (rendered,) = await self._conversation.render([current], sees=False)
            return render_line(rendered.line), rendered.label
        if (post := await self._find_post(one)) is None:
            return None
        label = await self._conversation.label_of_post(post.post)
        return render_line(
            _post_line(post, one.at, agent)
        ), label | _ANYBODY_LABEL if post.edited else label

    def _render_people(self, at: Address, found: RoomMembers) -> str:
        people = sorted(
            ((identify(self._people, at, one).role, one) for one in found.members),
            key=lambda pair: -ROLE_ORDER.index(pair[0]),
        )
        total = f" of {found.total}" if found.total is not None else ""
        place = self._places.titles.trusted_label(at.conversation)
        head = f"{place}, {len(people)}{total} people. {to_single_line(found.note, 300)}".rstrip()
        return "\n".join([head, *(_format_person(role, one) for role, one in people)])

    async def _render_recent_speakers(self, at: Address, context: ToolContext) -> str:
        lately = await self._store.newest_entries(
            200, kinds=MESSAGE_KINDS, conversation=at.conversation
        )
        spoke = dict[str, tuple[Sender, datetime]]()
        for one in reversed(lately):
            scope = await self._places.scope(at.conversation, one.seq)
            if at != context.at and not context.visibility.can_see(scope, one.seq):
                continue
            judged = await self._store.find_judgement(one.seq)
            if (
                isinstance(one.fact, Message)
                and judged is not None
                and judged.fate in ("due", "context")
            ):
                spoke.setdefault(one.fact.sender.id, (one.fact.sender, one.at))
        lines = [
            (
                f"{_format_person(identify(self._people, at, sender).role, sender)}, at "
                f"{last:%Y-%m-%d %H:%M} "
                "UTC"
            )
            for sender, last in list(spoke.values())[:MAX_PEOPLE]
        ]
        place = self._places.titles.trusted_label(at.conversation)
        head = (
            f"{place}: {'who spoke there, the last first:' if lines else 'nobody spoke there yet.'}"
        )
        return "\n".join([head, *lines])

    async def find_message(self, message: str, context: ToolContext) -> MessageTarget:
        """Return the message. Raises StoreError, and ToolCallRefused if there is none that may be
        shown.
        """
        named = message.strip(_QUOTES).lower()
        if named not in ("last", "mine"):
            found = await self._find_by_handle(named, context)
        elif is_inner(context.at.conversation):
            raise ToolCallRefused(
                "You are by yourself here: name the message by its handle, as read_room shows it."
            )
        else:
            found = await (self._find_last if named == "last" else self._find_mine)(context)
        if isinstance(found, AgentPost) and not found.state:
            raise ToolCallRefused("That is not delivered yet: try again later.")
        return found

    async def _find_by_handle(self, handle: str, context: ToolContext) -> MessageTarget:
        seq = _parse_handle(handle) or 0
        entry = await self._store.entry(seq)
        found = await self._resolve(entry, context) if entry is not None else None
        if await has_left(self._store, seq):
            raise ToolCallRefused(LEFT_LOG)
        if found is None:
            raise ToolCallRefused(
                "There is no message with that handle that may be told of here. Handles like m12 "
                "stand in what read_room and recall show; `last` is what you answer, and `mine` "
                "your newest post here."
            )
        return found

    async def _resolve(self, entry: LogEntry, context: ToolContext) -> MessageTarget | None:
        place = entry.conversation
        here = place == context.at.conversation
        if place is None or not (
            here or context.visibility.can_see(await self._places.scope(place, entry.seq))
        ):
            return None
        first: LogEntry | None = entry
        if isinstance(entry.fact, MessageEdited):
            first = await self._store.entry_by_key(f"message:{place}:{entry.fact.message}")
        elif isinstance(entry.fact, TurnRecord):
            caused = await self._store.caused_by(entry.seq)
            first = next((one for one in caused if one.kind == "post"), None)
        return await self._find_target(first) if first is not None else None

    async def _find_target(self, one: LogEntry) -> MessageTarget | None:
        if not isinstance(one.fact, Message):
            return await self._find_post(one)
        if (message := await read_message(self._store, one.seq, one.fact)) is None:
            return None
        return MessageTarget(at=message.at, ids=(message.id,), agent=None)

    async def _find_last(self, context: ToolContext) -> MessageTarget:
        new = await self._store.unread_entries(context.at.conversation, most=_MAX_UNREAD)
        message = find_reply_to(await self._conversation.read_current(new))
        if message is not None:
            return MessageTarget(at=context.at, ids=(message,), agent=None)
        newest = await self._store.newest_entries(
            _MAX_RECENT, kinds=MESSAGE_KINDS, conversation=context.at.conversation
        )
        for one in reversed(newest):
            if (found := await self._find_target(one)) is not None:
                return found
        raise ToolCallRefused("Nobody has said anything here that you have seen.")

    async def _find_mine(self, context: ToolContext) -> MessageTarget:
        newest = await self._store.newest_entries(
            _MAX_RECENT, kinds=["post"], conversation=context.at.conversation
        )
        for one in reversed(newest):
            post = await self._find_post(one)
            if post is not None and post.agent in ("", context.agent) and post.state != "failed":
                return post
        raise ToolCallRefused("You have no recent post here.")

    async def _find_post(self, queued: LogEntry) -> AgentPost | None:
        """Return the post as it is now. None: no agent posted it, or all of it was deleted."""
        fact = queued.fact
        if not isinstance(fact, PostQueued) or queued.cause is None or fact.post.private:
            return None
        cause = await self._store.entry(queued.cause)
        if cause is None or not isinstance(cause.fact, TurnRecord | PlatformAction):
            return None
        place, post = fact.post.to.conversation, fact.post
        ended = await self._store.entry_by_key(f"delivery:{place}:{post.key}")
        state = (
            ended.fact.state if ended is not None and isinstance(ended.fact, DeliveryReport) else ""
        )
        ids = await self._store.message_ids(place, post.key)
        found = await self._store.newest_entries(
            1_000, after=queued.seq, kinds=["acted"], conversation=place
        )
        acts = [
            one.fact
            for one in found
            if isinstance(one.fact, PlatformAction) and one.fact.state == "done"
        ]
        left = [one for one in ids if not await self._is_deleted(one, queued, post, acts)]
        if ids and not left:
            return None
        edits = [act for act in acts if act.what == "edit" and act.message in ids]
        return AgentPost(
            at=post.to,
            post=replace(post, text=edits[-1].text) if edits else post,
            agent=cause.fact.agent,
            state=state,
            ids=tuple(left),
            edited=bool(edits),
        )

    async def _is_deleted(
        self, message: MessageId, queued: LogEntry, post: Post, acts: Sequence[PlatformAction]
    ) -> bool:
        if any(act.what == "delete" and act.message == message for act in acts):
            return True
        as_message = Message(
            id=message, at=post.to, sender=NOBODY, text="", sent=queued.at, kind="room"
        )
        newest = await self._store.latest_message_change(as_message, queued.seq)  # by somebody else
        return newest is not None and isinstance(newest.fact, MessageDeleted)


async def read_message(reader: StoreReader, seq: Seq, message: Message) -> Message | None:
    """Return a message with its newest text. None: it was deleted, or was not for the agent. Raises
    StoreError.
    """
    judged = await reader.find_judgement(seq)
    if judged is None or judged.fate not in ("due", "context"):
        return None
    newest = await reader.latest_message_change(message, seq)
    if newest is None:
        return message
    edited = newest.fact
    return replace(message, text=edited.text) if isinstance(edited, MessageEdited) else None


def _post_line(post: AgentPost, at: datetime, agent: str) -> PromptLine:
    file, states = (
        post.post.file,
        {"": "not delivered yet", "failed": "not delivered", "uncertain": "perhaps unseen"},
    )
    beside = [f"[file {sanitize_name(file.name)}]"] if file is not None else []
    beside += [f"[{states[post.state]}]"] if post.state in states else []
    return PromptLine(
        sender="you" if post.agent in ("", agent) else post.agent,
        role="agent",
        sent=at,
        text=post.post.text,
        is_addressed=True,
        is_edited=post.edited,
        attachments=tuple(beside),
    )


def _format_person(role: str, sender: Sender) -> str:
    """Return name and role, with the number by which mentions call who has no plain user name."""
    number = f", id {sender.id}" if sender.id.isdecimal() else ""
    return f"{sanitize_name(sender.name)} ({role}{', bot' if sender.is_bot else ''}{number})"


def _parse_handle(written: str) -> int | None:
    match = _HANDLE.fullmatch(written.strip(_QUOTES).lower())
    return int(match[1]) if match is not None else None
