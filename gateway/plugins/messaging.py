"""Tools that act on platforms: messages in other places, reactions, edits, deletions, topics and
files.

A message in another place is recorded as a turn of that place, in one transaction with its post, so
that place's own view has it. From the inner conversation nothing is done in a room: it has the
room's own turn taken (`attend`). A platform action is recorded before and after it is done: one
that has begun and not ended may have been done. A file is durable before it is posted.
"""

import hashlib
import logging
import mimetypes
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import SequenceMatcher
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal
from unicodedata import category

from pydantic import Field

from channels.aio import run_to_completion
from channels.base import (
    CanDelete,
    CanEdit,
    CanReact,
    CanSetTopic,
    RateLimited,
    SendError,
    Uncertain,
)
from channels.text import fold_words
from gateway.access.policy import decide, is_room_allowed, list_open_rooms
from gateway.context.conversation import LOCK_TIMEOUT_S
from gateway.context.history import find_write_of_cut_off_turn
from gateway.context.requesters import find_newest_lines, was_asked_for
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    EventId,
    Message,
    MessageId,
    Post,
    PostFile,
    PostKey,
    Usage,
)
from gateway.core.facts import (
    OwnerTold,
    PlatformAction,
    PostQueued,
    RoomAttended,
    Seq,
    TurnId,
    TurnRecord,
    is_inner,
)
from gateway.core.i18n import current_language
from gateway.core.identity import ADMIN_ROLES, identify
from gateway.core.labels import Label
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_MEMBERS, OUT, OWN, Effect
from gateway.core.scopes import Visibility
from gateway.core.text_safety import to_single_line
from gateway.core.tool import ToolContext, run_in_thread, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext
from gateway.plugins.read_room import (
    MAX_ADDRESS_CHARS,
    MessageTarget,
    RoomReader,
    refuse_ambiguous,
)
from gateway.store import NewEntry
from gateway.store.effects import EffectFact
from gateway.stream.attention import was_ordered

logger = logging.getLogger("reverie.tools")

MAX_POST_CHARS: Final = 8_000
MAX_REASON_CHARS: Final = 300
MAX_ATTENDS_PER_HOUR: Final = 6
"""Turns of one room that the inner conversation has taken within an hour. Its people could
otherwise keep it talking, and people of other rooms make it."""
_RELAY_WORDS: Final = frozenset(
    [
        "answers",
        "asks",
        "owner",
        "said",
        "says",
        "the",
        "writes",
        "antwortet",
        "fragt",
        "sagt",
        "sagte",
        "schreibt",
        "dice",
        "escribe",
        "pregunta",
        "responde",
    ]
)
"""Words with which an answer is passed on, in the languages of the catalogs."""
_WITHOUT_SPACES: Final = "\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
"""Characters of Thai, Lao, Khmer, Japanese and Chinese, which are a word each here."""
_WORD: Final = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W{_WITHOUT_SPACES}]+")
MAX_RELAY_SIGNS: Final = 12
"""Signs of an answer beyond those of what it passes on: no message fits into their number."""
_RECENT: Final = 500
"""Newest facts that are searched: more than a week has."""
_RECENT_ATTENDS: Final = 500
"""Newest decisions that are searched for those of an hour: more than all rooms of a digest may have
in that time."""


class Messaging(Plugin):
    """Tools for other places, for all agents: `send_message`, and `attend` for the inner
    conversation.
    """

    name = "messaging"
    summary = "lets the agent speak in other places, by the tools send_message and attend"
    requires = ("read_room",)
    family = "itself"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._clock = gateway.store, gateway.clock
        self._places, self._people = gateway.places, gateway.people
        self._rooms, self._locks = context.get(RoomReader), context.locks

    async def _effect(
        self, context: ToolContext, *, address: str, text: str, **_: object
    ) -> Effect:
        to = await self.resolve_reachable(address, context)
        return await self.find_effect(to, context, text=text)

    @tool(
        "Post in another place, for your owner in a direct chat with you.",
        effect=_effect,
    )
    async def send_message(
        self,
        context: ToolContext,
        *,
        address: Annotated[str, Field(description="Title or address of the place, e.g. #ops.")],
        text: Annotated[
            str,
            Field(min_length=1, max_length=MAX_POST_CHARS),
        ],
    ) -> str:
        if not text.strip():
            raise ToolCallRefused("A message needs text.")
        to = await self.resolve_reachable(address, context)
        is_busy = self._locks.is_busy(to.conversation)
        release = None if is_busy else await self._locks.acquire(to.conversation, LOCK_TIMEOUT_S)
        if release is None:
            raise ToolCallRefused(
                "Your own turn runs there just now and sees what is pending. Leave it to that turn."
            )
        try:
            now = self._clock.now()
            entries = build_post_entries(
                to,
                text,
                agent=self._places.bindings.find(to).agent,
                within=context.turn,
                label=context.request.label,
                now=now,
                key=PostKey(new_id(now)),
            )
            await self._store.append(entries)
        finally:
            release()
        return "It is posted."

    @tool(
        "By yourself: have a room's own turn taken now. It sees that room alone, and what it "
        "writes is posted there.",
        effect=OWN,
        offer="unnamed",
    )
    async def attend(
        self,
        context: ToolContext,
        *,
        room: Annotated[str, Field(description="Title above its lines.")],
        reason: Annotated[
            str,
            Field(max_length=MAX_REASON_CHARS, description="Why, for that turn."),
        ] = "",
    ) -> str:
        """Have a room's own turn taken; on return that is durable, and a restart takes it, too.
        Raises ToolCallRefused.

        The decision passes into the room, and only where something waits anyway. The reason passes
        as a quotation if all who can read there may read all that the request holds, which may be
        made of the text of other rooms; else the newest line that waits there is named.
        """
        if not is_inner(context.at.conversation):
            raise ToolCallRefused(
                "attend works only when you are by yourself: here you are in a room's own turn."
            )
        digest, now, inner = (
            self.context.digests[context.agent],
            self._clock.now(),
            context.at.conversation,
        )
        at = self._resolve_shown(room, digest.rooms)
        if self._locks.is_busy(at.conversation):
            raise ToolCallRefused("Your own turn runs there just now and sees what is pending.")
        bound = self._places.bindings.find(at)
        is_silent = bound.speaks_up == "never" and bound.listen != "all"
        if is_silent and not was_ordered(await self._store.due_reasons(at.conversation)):
            raise ToolCallRefused(
                "You speak there only when you are asked. An owner may be told by `tell`."
            )
        recent = await self._store.newest_entries(
            _RECENT_ATTENDS, kinds=["attended"], conversation=inner
        )
        lately = [one.fact for one in recent if now - one.at < timedelta(hours=1)]
        if (
            sum(isinstance(one, RoomAttended) and one.at == at for one in lately)
            >= MAX_ATTENDS_PER_HOUR
        ):
            raise ToolCallRefused(
                f"You attended that room {MAX_ATTENDS_PER_HOUR} times within an hour, which is the "
                "limit. What waits stays there for the next turn."
            )
        reason, readers = to_single_line(reason, MAX_REASON_CHARS), context.request.label.readers
        may_know = (await self._find_audience(at, context)).can_read(readers)
        alarm = Alarm(
            id=EventId(f"attend:{context.turn}"),
            text=(may_know and reason) or await self._name_newest_line(at),
            sent=now,
            at=at,
            agent=context.agent,
            attended=True,
        )
        judged = self.context.internal.build_judgement(alarm)
        if judged.fate != "due":
            raise ToolCallRefused(
                f"Not now: {judged.rule}. What waits stays there for the next turn."
            )
        digest.forget(at.conversation)
        fact = RoomAttended(
            turn=context.turn,
            at=at,
            reason=reason,
            label=context.request.label,
        )
        decided = NewEntry(fact=fact, at=now, conversation=inner)
        await self.context.internal.submit(alarm, cause=decided)
        return "Its turn is taken."

    async def _name_newest_line(self, at: Address) -> str:
        """Return the line there that asks for a look, without a word of it. Empty: none does."""
        unread = await self._store.unread_entries(at.conversation, most=1)
        lines = [one.fact for one in unread.messages if isinstance(one.fact, Message)]
        return "".join(f"the line of {one.sender.name} at {one.sent:%H:%M}" for one in lines)

    def _resolve_shown(self, written: str, rooms: Collection[ConversationId]) -> Address:
        shown, titles = (
            sorted(map(Address.parse, rooms), key=lambda at: at.conversation),
            self._places.titles,
        )
        found = [at for at in titles.find_places(written, shown) if at in shown]
        if len(found) == 1:
            return found[0]
        if found:
            raise refuse_ambiguous(titles, found)
        named = ", ".join(titles.trusted_label(at.conversation) for at in shown)
        raise ToolCallRefused(
            "Nothing that you were shown is pending there. Rooms with something pending: "
            f"{named or 'none'}."
        )

    async def find_effect(self, to: Address, context: ToolContext, *, text: str = "") -> Effect:
        """Return the effect of an action in this place. `text`: a message that it posts. Raises
        StoreError.
        """
        if to == context.at:
            return OWN
        place, titles = to.conversation, self._places.titles
        audience = await self._find_audience(to, context)
        is_named = False
        for name in {to.room, titles.room_title(to) if titles.has_trusted_names(to) else to.room}:
            is_named = is_named or await was_asked_for(
                self._store, self._people, context.at.conversation, context.requesters, name
            )
        if not (is_named and audience.is_private):
            is_named = bool(text) and await self._is_relayed(
                to, text, context, audience, is_named=is_named
            )
        return Effect("tell", f"an action in {titles.trusted_label(place)}", audience, is_named)

    async def _is_relayed(
        self, to: Address, text: str, context: ToolContext, audience: Visibility, *, is_named: bool
    ) -> bool:
        """Return whether the asker names the place, or answers what was told of it, and the text
        passes on their own words.
        """
        said, answered = await self._find_answered(context)
        told = [one for one in answered if one.about == to]
        shown = [one.text for one in told if audience.can_read(one.label.readers)]
        names = [one.name for one in context.requesters]
        return (is_named or bool(told)) and is_relayed(text, said, shown, names)

    async def _find_answered(self, context: ToolContext) -> tuple[str, Sequence[OwnerTold]]:
        """Return the newest line there of those who ask, without what they pass on; and what they
        were told and answer with it: by a reply, or right behind it. Raises StoreError.
        """
        chat = context.at.conversation
        lines = await find_newest_lines(self._store, chat, context.requesters)
        if not lines:
            return "", []
        seq, message = lines[-1]
        if message.reply_to is not None:
            post = await self._store.find_own_post(chat, message.reply_to)
            key = post.key if post is not None else None
        else:
            ended = await self._store.newest_entries(
                1, before=seq, kinds=["turn_ended"], conversation=chat
            )
            record = ended[0].fact if ended else None
            key = PostKey(record.turn) if isinstance(record, TurnRecord) else None
        told = [one.fact for one in await self._store.newest_entries(_RECENT, kinds=["told"])]
        text = message.text.replace(message.carried, " ") if message.carried else message.text
        return text, [
            one
            for one in told
            if isinstance(one, OwnerTold) and key is not None and one.post == key
        ]

    async def _find_audience(self, at: Address, context: ToolContext) -> Visibility:
        """Return what those may read who read there, of what the request holds."""
        here = await self._places.visibility(at.conversation)
        return await self._places.with_memberships(here, context.request.label.readers)

    async def resolve_reachable(self, address: str, context: ToolContext) -> Address:
        """Return another place where the agent may act from here. Raises ToolCallRefused."""
        if is_inner(context.at.conversation):
            raise ToolCallRefused(
                "From here you can do nothing in a room. Use `attend` to start its own turn."
            )
        if not context.visibility.sees_everything:
            raise ToolCallRefused(
                "Only an owner, in a direct chat with you, may have you speak in another place. "
                "Answer here instead; `tell` lets an owner know."
            )
        _said, answered = await self._find_answered(context)
        told = [one.about for one in answered if one.about is not None]
        to = await self._resolve_place(address, context.agent, told)
        if to == context.at:
            raise ToolCallRefused("You are in that place now: your answer is posted there.")
        if to not in told and not self._rooms.is_bound(to, context.agent):
            raise ToolCallRefused("You are not in that place.")
        if to not in told and not await self._may_speak(to):
            raise ToolCallRefused("You may not speak there without being asked.")
        return to

    async def _resolve_place(self, written: str, agent: str, told: Collection[Address]) -> Address:
        """Return the one place with this address or displayed title. Raises ToolCallRefused.

        `told`: places that the asker answers to.
        """
        titles = self._places.titles
        named = [at for at in list_open_rooms(self._people) if self._rooms.is_bound(at, agent)]
        found = titles.find_places(written, [*told, *named])
        if len(found) != 1:
            found = [
                at
                for at in found
                if at in told or (self._rooms.is_bound(at, agent) and await self._may_speak(at))
            ]
        found = [at for at in found if at in told] or found
        if not found:
            raise ToolCallRefused("You are in no such place: write its title or its address.")
        if len(found) > 1:
            raise refuse_ambiguous(titles, found)
        return found[0]

    async def _may_speak(self, to: Address) -> bool:
        if await self._places.is_direct(to.conversation):
            newest = await self._places.newest_message(to.conversation)
            return (
                newest is not None
                and identify(self._people, to, newest.sender).role in ADMIN_ROLES
                and decide(self._people, newest).allowed
            )
        return is_room_allowed(self._people, to)


MAX_CAPTION_CHARS: Final = 1_000
"""Limit of the text with a file. Telegram allows 1,024
(https://core.telegram.org/bots/api#senddocument)."""

MAX_TOPIC_CHARS: Final = 400

_Message = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_ADDRESS_CHARS,
        description="`last`: what you answer; `mine`: your last post; or a handle, e.g. m12.",
    ),
]
_OwnMessage = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_ADDRESS_CHARS,
        description="`mine`: your last post here. Or a handle.",
    ),
]


def _if_some(ability: type) -> Callable[["MessageActions"], str | None]:
    """Return the note of a tool that only a channel with this protocol can carry out."""
    return lambda actions: actions.note_for(ability)


class MessageActions(Plugin):
    """What an agent does to messages and rooms besides posting, and files that it posts."""

    name = "actions"
    summary = "reacts, edits and deletes own posts, sets topics, sends files"
    requires = ("read_room", "messaging")
    family = "rooms"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._store, self._clock = gateway.store, gateway.clock
        self._channels, self._places = gateway.channels, gateway.places
        self._rooms, self._messaging = context.get(RoomReader), context.get(Messaging)

    def note_for(self, ability: type) -> str | None:
        """Return None if no channel has this protocol, as `Tool.note`."""
        return "" if any(isinstance(one, ability) for one in self._channels.values()) else None

    async def _effect(self, context: ToolContext, *, message: str, **_: object) -> Effect:
        found = await self._find_reachable(message, context)
        return await self._messaging.find_effect(found.at, context)

    @tool(
        "Put a reaction on a message here.",
        effect=_effect,
        note=_if_some(CanReact),
        offer="described",
    )
    async def react(
        self,
        context: ToolContext,
        *,
        message: _Message,
        reaction: Annotated[str, Field(min_length=1, max_length=64, description="An emoji.")],
        remove: Annotated[bool, Field(description="Take it off.")] = False,
    ) -> str:
        reaction, add = to_single_line(reaction), not remove
        if not reaction:
            raise ToolCallRefused("A reaction is an emoji.")
        found = await self._find_reachable(message, context)
        channel: object = self._channels.get(found.at.channel)
        if not isinstance(channel, CanReact):
            raise ToolCallRefused(
                f"{self._platform_name(found.at)} has no reactions: answer in words."
            )
        target = _require_ids(found)[0]
        fact = _build_action("react" if add else "unreact", found.at, target, reaction, context)
        await self._perform(fact, lambda: channel.react(found.at, target, reaction, add=add))
        return "The reaction is set." if add else "The reaction is removed."

    @tool(
        "Edit your last post, or another one of yours.",
        ALLOW_MEMBERS,
        effect=_effect,
        note=_if_some(CanEdit),
    )
    async def edit_own(
        self,
        context: ToolContext,
        *,
        message: _OwnMessage,
        text: Annotated[
            str,
            Field(min_length=1, max_length=MAX_POST_CHARS, description="All of the new text."),
        ],
    ) -> str:
        if not text.strip():
            raise ToolCallRefused("A message needs text. To delete one, use delete_own.")
        found = await self._find_own(message, context)
        channel: object = self._channels.get(found.at.channel)
        if not isinstance(channel, CanEdit):
            raise ToolCallRefused(
                f"{self._platform_name(found.at)} has no edits: post a correction."
            )
        target, *more = _require_ids(found)
        if more:
            raise ToolCallRefused(
                f"That answer was posted in {len(more) + 1} pieces, which cannot be edited as one: "
                "post a correction."
            )
        fact = _build_action("edit", found.at, target, text, context)
        await self._perform(fact, lambda: channel.edit(found.at, target, text))
        return "The post is edited. This conversation still shows you the old text."

    @tool(
        "Delete your last post, or another one of yours.",
        ALLOW_MEMBERS,
        effect=_effect,
        note=_if_some(CanDelete),
    )
    async def delete_own(self, context: ToolContext, *, message: _OwnMessage) -> str:
        """Delete a message of this agent, all parts of it. Raises ToolCallRefused."""
        found = await self._find_own(message, context)
        channel: object = self._channels.get(found.at.channel)
        if not isinstance(channel, CanDelete):
            raise ToolCallRefused(
                f"{self._platform_name(found.at)} has no deletion: the post stays."
            )
        for target in reversed(
            _require_ids(found)
        ):  # last part first: if that breaks off, the beginning is left
            fact = _build_action("delete", found.at, target, "", context)
            await self._perform(fact, partial(channel.delete, found.at, target))
        return "The post is deleted. This conversation still shows it to you."

    @tool("Change the topic of this room.", ALLOW_ADMINS, effect=OUT, note=_if_some(CanSetTopic))
    async def set_topic(
        self,
        context: ToolContext,
        *,
        topic: Annotated[str, Field(max_length=MAX_TOPIC_CHARS)],
    ) -> str:
        at, topic = context.at, to_single_line(topic, MAX_TOPIC_CHARS)
        if is_inner(at.conversation) or await self._places.is_direct(at.conversation) is not False:
            raise ToolCallRefused(
                "Only rooms have a topic, and you can change only that of the room that you are in."
            )
        channel: object = self._channels.get(at.channel)
        if not isinstance(channel, CanSetTopic):
            raise ToolCallRefused(f"{self._platform_name(at)} has no topic that you could change.")
        fact = _build_action("topic", at, None, topic, context)
        await self._perform(fact, lambda: channel.set_topic(at, topic))
        return "The topic is changed."

    @tool("Post one of your files here.", ALLOW_MEMBERS, effect=OWN)
    async def send_file(
        self,
        context: ToolContext,
        *,
        path: Annotated[str, Field(min_length=1)],
        text: Annotated[
            str,
            Field(max_length=MAX_CAPTION_CHARS, description="To post with it."),
        ] = "",
    ) -> str:
        """Post a file. Raises ToolCallRefused and StoreError. When cancelled, the log says whether
        it was posted.
        """
        max_bytes = self._max_file_bytes(context.at)
        area, parts = (await self.context.files.view(context, path)).find_file(path)
        data = await run_in_thread(lambda _: area.root.read(parts))
        if not data:
            raise ToolCallRefused("That file is empty: there is nothing to send.")
        if len(data) > max_bytes:
            raise ToolCallRefused(
                f"That file has {len(data):,} bytes; {max_bytes:,} is the most that can be sent "
                "here."
            )
        name = to_single_line(PurePosixPath(path).name.replace("\\", "_"), 100) or "file"
        file = PostFile(
            name=name,
            content_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
        )
        text = text if text.strip() else name
        if await self._was_posted_before(file, text, context):
            return "It was posted before you were interrupted: it is not posted again."
        # Not cancelled with the turn: what is durable must also be sent now.
        await run_to_completion(self._queue(file, data, text, context))
        return "It is posted."

    def _max_file_bytes(self, at: Address) -> int:
        if is_inner(at.conversation):
            raise ToolCallRefused(
                "You are by yourself here: a file is posted in the conversation that asks for it."
            )
        channel = self._channels.get(at.channel)
        if channel is None or channel.capabilities.max_file_bytes <= 0:
            raise ToolCallRefused("No files can be sent here: say in words what is in it.")
        return channel.capabilities.max_file_bytes

    async def _was_posted_before(self, file: PostFile, text: str, context: ToolContext) -> bool:
        acted = await find_write_of_cut_off_turn(
            self._store,
            context.at.conversation,
            context.turn,
            "acted",
            lambda one: isinstance(one.fact, PlatformAction) and one.fact.text == file.name,
        )
        caused = [] if acted is None else await self._store.caused_by(acted.seq)
        posts = [one.fact.post for one in caused if isinstance(one.fact, PostQueued)]
        return any((one.file, one.text) == (file, text) for one in posts)

    async def _queue(self, file: PostFile, data: bytes, text: str, context: ToolContext) -> None:
        now, place = self._clock.now(), context.at.conversation
        post = Post(key=PostKey(new_id(now)), to=context.at, text=text, file=file)
        fact = _build_action("file", context.at, None, file.name, context)
        acted = NewEntry(fact=replace(fact, state="done"), at=now, conversation=place)
        queued = NewEntry(
            fact=PostQueued(post=post),
            at=now,
            conversation=place,
            key=f"post:{post.key}",
            cause=acted,
        )
        try:
            async with self.context.outgoing.store_file(data):
                await self._store.append([acted, queued])
        except OSError as error:
            raise ToolCallRefused(
                "The file could not be prepared for sending: "
                f"{error.strerror or type(error).__name__}."
            ) from None

    def _platform_name(self, at: Address) -> str:
        channel = self._channels.get(at.channel)
        return channel.capabilities.platform if channel is not None else "This platform"

    async def _find_reachable(self, message: str, context: ToolContext) -> MessageTarget:
        found = await self._rooms.find_message(message, context)
        if found.at != context.at:
            await self._messaging.resolve_reachable(found.at.conversation, context)
        return found

    async def _find_own(self, message: str, context: ToolContext) -> MessageTarget:
        found = await self._find_reachable(message, context)
        if found.agent not in ("", context.agent):
            raise ToolCallRefused("That is somebody else's message: only your own can be changed.")
        return found

    async def _perform(self, fact: PlatformAction, does: Callable[[], Awaitable[None]]) -> None:
        """Perform an action between two facts. Raises ToolCallRefused.

        When cancelled in between, it may have been done: the log has its begin only.
        """
        if not self._channels.holds(fact.at.channel):
            raise ToolCallRefused(
                "That room is held by another process of the gateway: it can be done only there."
            )
        await self._record(fact)
        try:
            await does()
        except Uncertain as error:
            raise ToolCallRefused(
                f"It may or may not have been done: {_clean_reason(error)}."
            ) from None
        except SendError as error:
            await self._record(replace(fact, state="failed", reason=_clean_reason(error)))
            later = (
                f" Try again in {error.retry_after_s:.0f} s."
                if isinstance(error, RateLimited)
                else ""
            )
            raise ToolCallRefused(f"It was not done: {_clean_reason(error)}.{later}") from None
        await self._record(replace(fact, state="done"))
        logger.info("%s: %s in %s", fact.turn, fact.what, fact.at.conversation)

    async def _record(self, fact: PlatformAction) -> None:
        await self.context.append(EffectFact(fact, fact.at.conversation))


def _build_action(
    what: Literal["react", "unreact", "edit", "delete", "topic", "file"],
    at: Address,
    message: MessageId | None,
    text: str,
    context: ToolContext,
) -> PlatformAction:
    return PlatformAction(
        turn=context.turn,
        agent=context.agent,
        what=what,
        at=at,
        message=message,
        text=text,
        state="begun",
    )


def _require_ids(message: MessageTarget) -> tuple[MessageId, ...]:
    if not message.ids:
        raise ToolCallRefused("The platform gave no id for that message, so it cannot be changed.")
    return message.ids


def _clean_reason(error: SendError) -> str:
    return to_single_line(error.reason[: 2 * MAX_REASON_CHARS], MAX_REASON_CHARS).rstrip(".")


def words_of(text: str) -> set[str]:
    """Return the words of a text, without case and punctuation."""
    return {*fold_words(text).split()} or {text}


def is_relayed(text: str, said: str, told: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether a text passes on what somebody said, and tells no more than its readers know.

    Its words are those of what was said, in their order; added are at most one passage of what was
    told, each of the names and of `_RELAY_WORDS` once, and a few punctuation marks. What was told
    may have been written by those who get the answer, so a model that obeys it could otherwise have
    anything of the asker's chat sent to them, spelled in words or signs that they offer. Pure.
    """
    signs = Counter(re.sub(r"\w+[ \n]?", "", text)) - Counter("".join((said, *names)))
    is_plain = all(one.isspace() or category(one).startswith("P") for one in signs)
    words, mine = _WORD.findall(text.casefold()), _WORD.findall(said.casefold())
    frame = _RELAY_WORDS.union(*map(words_of, names))
    for passage in ("", *told):
        theirs = _WORD.findall(passage.casefold())
        known = SequenceMatcher(None, words, theirs, autojunk=False).find_longest_match()
        rest = words[: known.a] + words[known.a + known.size :]
        steps = SequenceMatcher(None, mine, rest, autojunk=False).get_opcodes()
        added = [one for tag, _, _, at, end in steps if tag != "equal" for one in rest[at:end]]
        if frame.issuperset(added) and len(added) == len({*added}):
            return is_plain and signs.total() <= MAX_RELAY_SIGNS
    return False


def build_post_entries(
    to: Address,
    text: str,
    *,
    agent: str,
    within: TurnId,
    label: Label,
    now: datetime,
    key: PostKey,
) -> tuple[NewEntry, NewEntry]:
    """Return the entries that post a text as a turn of another place, so that its own view has it.

    `within`: the turn that posts it. `key`: of the post, and id of the turn there. `label`: of the
    text.
    """
    turn = TurnId(key)
    record = NewEntry(
        fact=TurnRecord(
            turn=turn,
            covers=(),
            omitted=0,
            heard="",
            upto=Seq(0),
            outcome="replied",
            text=text,
            reason="",
            model="",
            usage=Usage(),
            requests=0,
            autonomous=True,
            agent=agent,
            cause="digest",
            within=within,
            label=label,
        ),
        at=now,
        conversation=to.conversation,
        key=f"turn:{turn}",
    )
    post = Post(key=key, to=to, text=text, language=current_language())
    queued = NewEntry(
        fact=PostQueued(post=post),
        at=now,
        conversation=to.conversation,
        key=f"post:{key}",
        cause=record,
    )
    return record, queued
