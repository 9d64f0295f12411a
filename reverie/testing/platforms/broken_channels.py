"""Broken channels: each lies in one way, and the suite must find it out.

A twin stands before a real adapter and passes everything on but one thing.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

from channels.base import (
    BeforeSend,
    Capabilities,
    Channel,
    CommandCompleter,
    CommandCompletion,
    Denied,
    Emit,
    PostPart,
    RateLimited,
    Rejected,
    RoomMembers,
    SendError,
    Uncertain,
    Unreachable,
    no_before_send,
)
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    EventId,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    ReactionChanged,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)


class Twin:
    """Passes everything on."""

    def __init__(self, real: Channel) -> None:
        self._real = real
        self._emit: Emit | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def name(self) -> ChannelName:
        return self._real.name

    @property
    def capabilities(self) -> Capabilities:
        return self._real.capabilities

    async def run(self, emit: Emit) -> None:
        self._emit = emit
        await self._real.run(self.emitted)

    async def emitted(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        assert self._emit is not None
        changed = [after for event in batch if (after := self.change(event)) is not None]
        await self._emit(changed, cursor=cursor)

    def change(self, event: Notification) -> Notification | None:
        return event

    def split(self, post: Post) -> tuple[str, ...]:
        return self._real.split(post)

    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        return await self._real.send(part, going)


def telling(name: str, told: Callable[[Message], Message]) -> type[Twin]:
    """A twin that tells messages differently."""

    def change(_: Twin, event: Notification) -> Notification | None:
        return told(event) if isinstance(event, Message) else event

    return type(name, (Twin,), {"change": change})


def _without_kind(message: Message, kind: str) -> Message:
    return replace(message, kind="room") if message.kind == kind else message


OneIdForAll = telling("OneIdForAll", lambda one: replace(one, id=MessageId("1")))
NamesAreNobodys = telling(
    "NamesAreNobodys", lambda one: replace(one, sender=replace(one.sender, id=SenderId("somebody")))
)
OneRoomForAll = telling(
    "OneRoomForAll", lambda one: replace(one, at=replace(one.at, room=RoomId("room")))
)
DeafToMentions = telling("DeafToMentions", lambda one: _without_kind(one, "mention"))
TellsPrivateAsPublic = telling("TellsPrivateAsPublic", lambda one: _without_kind(one, "direct"))
LocalTime = telling(
    "LocalTime",
    lambda one: replace(one, sent=one.sent.astimezone(timezone(timedelta(hours=2)))),
)
NoTimeZone = telling("NoTimeZone", lambda one: replace(one, sent=one.sent.replace(tzinfo=None)))
DropsFormatting = telling(
    "DropsFormatting", lambda one: replace(one, text=one.text.replace("*", ""))
)
OnlyAscii = telling(
    "OnlyAscii", lambda one: replace(one, text=one.text.encode("ascii", "replace").decode())
)


class DropsOrder(Twin):
    _held: Message | None = None

    async def emitted(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        for event in batch:
            if isinstance(event, Message) and self._held is None:
                self._held = event
                continue
            await super().emitted([event], cursor=cursor)
            if self._held is not None:
                held, self._held = self._held, None
                await super().emitted([held], cursor=cursor)


class EchoesItself(Twin):
    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        receipt = await super().send(part, going)
        assert self._emit is not None
        now = datetime.now(UTC)
        me = Sender(id=SenderId("me"), name="reverie")
        await self._emit(
            [
                Message(
                    id=MessageId(new_id(now)),
                    at=part.to,
                    sender=me,
                    text="echo",
                    sent=now,
                    kind="room",
                )
            ]
        )
        return receipt


class SendsTwice(Twin):
    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        await super().send(part, going)
        return await super().send(replace(part, key=f"{part.key}'"))


class LosesTheEnd(Twin):
    def split(self, post: Post) -> tuple[str, ...]:
        bodies = super().split(post)
        return bodies[:-1] or bodies


class TurnsPartsRound(Twin):
    def split(self, post: Post) -> tuple[str, ...]:
        return tuple(reversed(super().split(post)))


class BlankBodies(Twin):
    def split(self, post: Post) -> tuple[str, ...]:
        return (*super().split(post), " ")


class NeverGoes(Twin):
    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        del going
        return await super().send(part)


def swallowing(name: str, swallowed: type[Exception]) -> type[Twin]:
    """A twin that takes an error of `send` for a success."""

    async def send(twin: Twin, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        try:
            return await Twin.send(twin, part, going)
        except swallowed:
            return Receipt()

    return type(name, (Twin,), {"send": send})


SwallowsRateLimits = swallowing("SwallowsRateLimits", RateLimited)
SwallowsRefusals = swallowing("SwallowsRefusals", Rejected)
TakesCutForSent = swallowing("TakesCutForSent", Uncertain)
TakesDownForSent = swallowing("TakesDownForSent", Unreachable)
TakesBlankText = swallowing("TakesBlankText", ValueError)


class TakesCutForUnsent(Twin):
    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        try:
            return await super().send(part, going)
        except Uncertain as error:
            raise Unreachable(error.reason) from error


class HangsOnDenied(Twin):
    async def run(self, emit: Emit) -> None:
        try:
            await super().run(emit)
        except Denied:
            await asyncio.Event().wait()


class SlowToEnd(Twin):
    async def run(self, emit: Emit) -> None:
        try:
            await super().run(emit)
        finally:
            await asyncio.sleep(1.5)


class LeavesATask(Twin):
    async def run(self, emit: Emit) -> None:
        self._left = asyncio.create_task(asyncio.Event().wait())
        await super().run(emit)


class TellsNoLoss(Twin):
    def change(self, event: Notification) -> Notification | None:
        return None if isinstance(event, ConnectionChanged) and not event.up else event


class DropsWhenBlocked(Twin):
    _busy = False
    _later: "asyncio.Task[None] | None" = None

    async def run(self, emit: Emit) -> None:
        try:
            await super().run(emit)
        finally:
            if self._later is not None:
                self._later.cancel()

    async def emitted(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        if self._busy:
            return
        self._busy = True
        self._later = asyncio.create_task(self._pass_on(batch, cursor))
        await asyncio.sleep(0)

    async def _pass_on(self, batch: Sequence[Notification], cursor: str | None) -> None:
        with contextlib.suppress(Exception):
            await super().emitted(batch, cursor=cursor)
        self._busy = False


class ForgetsTheCursor(Twin):
    async def emitted(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        del cursor
        await super().emitted(batch)


class LiesAboutReplies(Twin):
    @property
    def capabilities(self) -> Capabilities:
        able = super().capabilities
        return replace(able, replies=not able.replies)


class SaysNothingOfItself(Twin):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, formatting="")


class LeavesReactions(Twin):
    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        if add:
            await self._real.react(at, message, reaction, add=True)  # type: ignore[attr-defined] # it can, or has no twin


class TellsOwnReactions(Twin):
    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        await self._real.react(at, message, reaction, add=add)  # type: ignore[attr-defined] # the same
        assert self._emit is not None
        now = datetime.now(UTC)
        me = Sender(id=SenderId("me"), name="reverie")
        told = ReactionChanged(
            id=EventId(new_id(now)),
            at=at,
            sender=me,
            message=message,
            reaction="x",
            added=add,
            sent=now,
        )
        await self._emit([told])


class EditsBySaying(Twin):
    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        del message
        for body in self.split(Post(key=PostKey("e"), to=at, text=text)):
            await self.send(PostPart(key="e#0", to=at, body=body))


class SwallowsRefusedEdits(Twin):
    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        with contextlib.suppress(Rejected):
            await self._real.edit(at, message, text)  # type: ignore[attr-defined] # the same


class SwallowsRefusedDeletions(Twin):
    async def delete(self, at: Address, message: MessageId) -> None:
        with contextlib.suppress(Rejected):
            await self._real.delete(at, message)  # type: ignore[attr-defined] # the same


class CutsTopics(Twin):
    async def set_topic(self, at: Address, topic: str) -> None:
        await self._real.set_topic(at, topic[:30])  # type: ignore[attr-defined] # the same


class ListsOthers(Twin):
    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        told: RoomMembers = await self._real.list_members(at, most=most)  # type: ignore[attr-defined] # the same
        return replace(
            told, members=tuple(replace(one, id=SenderId(one.name)) for one in told.members)
        )


class RenamesFiles(Twin):
    async def send(self, part: PostPart, going: BeforeSend = no_before_send) -> Receipt:
        file = replace(part.file, name="etc_passwd") if part.file else None
        return await super().send(replace(part, file=file), going)


class SwallowsTheLostLink(Twin):
    async def set_topic(self, at: Address, topic: str) -> None:
        with contextlib.suppress(Unreachable):
            await self._real.set_topic(at, topic)  # type: ignore[attr-defined] # the same


class RunsOnce(Twin):
    _ran = False

    async def run(self, emit: Emit) -> None:
        if self._ran:
            await asyncio.Event().wait()
        self._ran = True
        await super().run(emit)


class ForgetsWhatWasCut(Twin):
    def __init__(self, real: Channel) -> None:
        super().__init__(real)
        self._told: set[str] = set()

    def change(self, event: Notification) -> Notification | None:
        new = not isinstance(event, Message) or event.id not in self._told
        self._told |= {event.id} if isinstance(event, Message) else set()
        return event if new else None


class LeavesTheWrongRoom(Twin):
    async def leave(self, at: Address) -> None:
        with contextlib.suppress(SendError):
            await self._real.leave(replace(at, room=RoomId(f"{at.room}0"), thread=None))  # type: ignore[attr-defined] # the same


Offered = Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]


def mishearing(name: str, changed: Callable[[CommandCompletion], CommandCompletion]) -> type[Twin]:
    """A twin that asks for suggestions for something else than what is typed."""

    def set_completer(twin: Twin, suggest: CommandCompleter) -> None:
        twin._real.set_completer(lambda typed: suggest(changed(typed)))  # type: ignore[attr-defined] # it can, or has no twin

    return type(name, (Twin,), {"set_completer": set_completer})


ForgetsWhatIsBegun = mishearing("ForgetsWhatIsBegun", lambda typed: replace(typed, prefix=""))
TakesTypistsForAnother = mishearing(
    "TakesTypistsForAnother",
    lambda typed: replace(typed, sender=replace(typed.sender, id=SenderId("somebody"))),
)


class GivesUpAfterTrouble(Twin):
    """The trouble of one goes on to all that come behind it."""

    def set_completer(self, suggest: CommandCompleter) -> None:
        broken = False

        async def asked(typed: CommandCompletion) -> Sequence[str]:
            nonlocal broken
            if broken:
                return []
            try:
                return await suggest(typed)
            except LookupError:
                broken = True
                raise

        self._real.set_completer(asked)  # type: ignore[attr-defined] # the same


class NeverTakesBack(Twin):
    _offered: Offered = ()

    async def set_command_menus(self, to: Offered) -> None:
        self._offered = [*to, *self._offered]
        await self._real.set_command_menus(self._offered)  # type: ignore[attr-defined] # the same


class ConfidesToAnother(Twin):
    async def open_direct(self, person: Sender) -> RoomId:
        del person
        return RoomId("bob!bob@test.host")


class WhispersToWhoeverHasTheNick(Twin):
    def direct_room(self, sender: Sender) -> RoomId:
        return RoomId(sender.name)


class ForgetsAccounts(Twin):
    def direct_room(self, sender: Sender) -> RoomId:
        return RoomId(f"{sender.name}!{sender.name}@test.host")


TWINS: Mapping[type[Twin], str] = {
    OneIdForAll: "a_repeat_has_the_same_id",
    NamesAreNobodys: "senders_keep_their_ids",
    OneRoomForAll: "text_room_and_sender_arrive",
    DeafToMentions: "a_mention_is_told_from_talk",
    TellsPrivateAsPublic: "a_direct_message_is_direct",
    LocalTime: "times_are_aware_and_utc",
    NoTimeZone: "everything_can_be_written_as_json",
    DropsFormatting: "formatting_comes_out_as_markdown",
    OnlyAscii: "odd_text_arrives_as_it_was",
    DropsOrder: "order_within_a_room_holds",
    EchoesItself: "own_messages_never_come_in",
    SendsTwice: "said_once_with_a_receipt",
    LosesTheEnd: "a_long_text_is_split_and_nothing_is_lost",
    TurnsPartsRound: "code_stays_code",
    BlankBodies: "no_body_is_blank",
    NeverGoes: "going_is_awaited_once_and_first",
    SwallowsRateLimits: "a_rate_limit_says_how_long",
    SwallowsRefusals: "a_refusal_is_rejected_and_nothing_else_is",
    TakesCutForSent: "a_cut_mid_send_is_uncertain",
    TakesCutForUnsent: "a_cut_mid_send_is_uncertain",
    TakesDownForSent: "without_a_link_nothing_was_sent",
    TakesBlankText: "blank_text_is_an_error_before_any_io",
    HangsOnDenied: "refused_credentials_are_denied",
    SlowToEnd: "cancel_ends_it_within_a_second",
    LeavesATask: "no_task_is_left",
    TellsNoLoss: "a_cut_is_told_and_mended",
    DropsWhenBlocked: "a_blocked_emit_loses_nothing",
    ForgetsTheCursor: "a_restart_goes_on_from_the_cursor",
    LiesAboutReplies: "a_reply_is_honoured_or_dropped_as_declared",
    SaysNothingOfItself: "it_is_what_it_says",
    LeavesReactions: "it_reacts",
    TellsOwnReactions: "it_reacts",
    EditsBySaying: "it_edits",
    SwallowsRefusedEdits: "it_edits",
    SwallowsRefusedDeletions: "it_deletes",
    CutsTopics: "it_set_topics",
    ListsOthers: "it_lists",
    RenamesFiles: "it_sends_files",
    RunsOnce: "ended_it_can_run_again",
    ForgetsWhatWasCut: "what_was_not_taken_comes_in_the_next_run",
    LeavesTheWrongRoom: "it_leaves",
    SwallowsTheLostLink: "it_acts_only_while_it_is_connected",
    ForgetsWhatIsBegun: "it_completes",
    TakesTypistsForAnother: "it_completes",
    GivesUpAfterTrouble: "it_completes",
    NeverTakesBack: "it_offers",
    WhispersToWhoeverHasTheNick: "it_whispers",
    ForgetsAccounts: "it_whispers",
    ConfidesToAnother: "it_confides",
}
"""Each with the check that finds it out."""
