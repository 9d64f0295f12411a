"""Broken channels, continued: those that lie in what they do besides speaking, and those that cannot go on.

Each is put only before adapters that have the ability.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from channels.base import BeforeSend, Channel, Emit, Part, Rejected, RoomMembers, SendError, Unreachable, no_before_send
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
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
from tests.channels.conformance.broken_channels import Twin


class ReactsToNothing(Twin):
    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        del at, message, reaction, add


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
            id=EventId(new_id(now)), at=at, sender=me, message=message, reaction="x", added=add, sent=now
        )
        await self._emit([told])


class EditsNothing(Twin):
    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        del at, message, text


class EditsBySaying(Twin):
    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        del message
        for body in self.split(Post(key=PostKey("e"), to=at, text=text)):
            await self.send(Part(key="e#0", to=at, body=body))


class SwallowsRefusedEdits(Twin):
    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        with contextlib.suppress(Rejected):
            await self._real.edit(at, message, text)  # type: ignore[attr-defined] # the same


class DeletesNothing(Twin):
    async def delete(self, at: Address, message: MessageId) -> None:
        del at, message


class SwallowsRefusedDeletions(Twin):
    async def delete(self, at: Address, message: MessageId) -> None:
        with contextlib.suppress(Rejected):
            await self._real.delete(at, message)  # type: ignore[attr-defined] # the same


class ForgetsTopics(Twin):
    async def set_topic(self, at: Address, topic: str) -> None:
        await self._real.set_topic(at, "another")  # type: ignore[attr-defined] # the same
        del topic


class CutsTopics(Twin):
    async def set_topic(self, at: Address, topic: str) -> None:
        await self._real.set_topic(at, topic[:30])  # type: ignore[attr-defined] # the same


class ListsUs(Twin):
    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        told: RoomMembers = await self._real.list_members(at, most=most)  # type: ignore[attr-defined] # the same
        return replace(told, members=(*told.members, Sender(id=SenderId("me"), name="reverie"))[:most])


class ListsAll(Twin):
    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        del most
        told: RoomMembers = await self._real.list_members(at, most=50)  # type: ignore[attr-defined] # the same
        return told


class ListsOthers(Twin):
    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        told: RoomMembers = await self._real.list_members(at, most=most)  # type: ignore[attr-defined] # the same
        return replace(told, members=tuple(replace(one, id=SenderId(one.name)) for one in told.members))


class LosesFiles(Twin):
    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
        return await super().send(replace(part, file=None), going)


class RenamesFiles(Twin):
    async def send(self, part: Part, going: BeforeSend = no_before_send) -> Receipt:
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


class LeavesNothing(Twin):
    async def leave(self, at: Address) -> None:
        del at


class LeavesTheWrongRoom(Twin):
    async def leave(self, at: Address) -> None:
        with contextlib.suppress(SendError):
            await self._real.leave(replace(at, room=RoomId(f"{at.room}0"), thread=None))  # type: ignore[attr-defined] # the same


class LeavesWithoutALink(Twin):
    async def leave(self, at: Address) -> None:
        with contextlib.suppress(Unreachable):
            await self._real.leave(at)  # type: ignore[attr-defined] # the same


ACTS: Mapping[type[Twin], str] = {
    ReactsToNothing: "it_reacts",
    LeavesReactions: "it_reacts",
    TellsOwnReactions: "it_reacts",
    EditsNothing: "it_edits",
    EditsBySaying: "it_edits",
    SwallowsRefusedEdits: "it_edits",
    DeletesNothing: "it_deletes",
    SwallowsRefusedDeletions: "it_deletes",
    ForgetsTopics: "it_set_topics",
    CutsTopics: "it_set_topics",
    ListsUs: "it_lists",
    ListsAll: "it_lists",
    ListsOthers: "it_lists",
    LosesFiles: "it_sends_files",
    RenamesFiles: "it_sends_files",
    RunsOnce: "ended_it_can_run_again",
    ForgetsWhatWasCut: "what_was_not_taken_comes_in_the_next_run",
    LeavesNothing: "it_leaves",
    LeavesTheWrongRoom: "it_leaves",
    LeavesWithoutALink: "it_leaves",
    SwallowsTheLostLink: "it_acts_only_while_it_is_connected",
}
"""Each with the check that finds it out."""
