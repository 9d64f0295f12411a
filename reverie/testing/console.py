"""Channel inside the process, whose people the test plays."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from channels.base import BeforeSend, PostPart, Rejected, Unreachable, no_before_send
from channels.console import LocalChannel
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)


class ConsoleChannel(LocalChannel):
    """A `channels.base.Channel` with rooms and files."""

    def __init__(
        self,
        name: ChannelName,
        show: Callable[[PostPart], None],
        *,
        nick: str = "reverie",
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Call `show` with each part as it is sent; its errors come out of `send`."""
        super().__init__(name, show, now=now)
        self._nick_pattern = re.compile(rf"(?<!\w){re.escape(nick)}(?!\w)", re.IGNORECASE)
        self._files: dict[str, bytes] = {}
        self._left_rooms: set[RoomId] = set()
        """Rooms that the bot left: nothing is received from them, and nothing is sent to them."""

    async def receive_message(
        self,
        text: str,
        *,
        sender: str = "you",
        room: str | None = None,
        reply_to: MessageId | None = None,
        attachments: tuple[Attachment, ...] = (),
        bot: bool = False,
    ) -> Message:
        """Emit a message in a room or (None) a direct chat; return once it is durable, if the bot
        is there.

        Waits until `run` is up. The sender's id is the name given here, and counts as verified.
        """
        await self._up.wait()
        message = Message(
            id=MessageId(new_id(self._now())),
            at=Address(channel=self.name, room=RoomId(room or sender)),
            sender=Sender(id=SenderId(sender), name=sender, verified=True, is_bot=bot),
            text=text,
            sent=self._now(),
            kind=self._message_kind(text, room),
            reply_to=reply_to,
            attachments=attachments,
        )
        if message.at.room not in self._left_rooms:
            await self.receive_events(message)
        return message

    async def receive_edit(self, message: Message, text: str, *, sender: str | None = None) -> None:
        """Emit an edit by the author of the message, or by `sender`; return once it is durable."""
        author = (
            message.sender
            if sender is None
            else Sender(id=SenderId(sender), name=sender, verified=True)
        )
        await self.receive_events(
            MessageEdited(
                id=self._new_event_id(),
                at=message.at,
                sender=author,
                message=message.id,
                text=text,
                sent=self._now(),
                direct=message.kind == "direct",
            )
        )

    async def receive_delete(self, message: Message) -> None:
        """Emit the deletion of a message; return once it is durable."""
        await self.receive_events(
            MessageDeleted(
                id=self._new_event_id(), at=message.at, message=message.id, sent=self._now()
            )
        )

    async def receive_topic(self, text: str, *, room: str, sender: str = "you") -> None:
        """Emit a change of the room's topic; return once it is durable."""
        author = Sender(id=SenderId(sender), name=sender, verified=True)
        at = Address(channel=self.name, room=RoomId(room))
        event = MembershipChanged(
            id=self._new_event_id(),
            at=at,
            sender=author,
            change="topic",
            sent=self._now(),
            text=text,
        )
        await self.receive_events(event)

    def add_attachment(
        self,
        data: bytes,
        form: Literal["image", "audio", "video", "file"],
        *,
        name: str | None = None,
        content_type: str | None = None,
        duration_s: float | None = None,
    ) -> Attachment:
        """Return an attachment for `receive_message`, with the properties that a sender would
        declare.
        """
        attachment = Attachment(
            id=new_id(self._now()),
            form=form,
            name=name,
            content_type=content_type,
            size_bytes=len(data),
            duration_s=duration_s,
        )
        self._files[attachment.id] = data
        return attachment

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:  # noqa: ARG002 - one keyboard
        data = self._files.get(attachment.id)
        if data is None:
            raise Rejected("there is no such file")
        if len(data) > limit_bytes:
            raise Rejected(f"more than {limit_bytes} bytes")
        return data

    def _message_kind(self, text: str, room: str | None) -> Literal["direct", "mention", "room"]:
        if room is None:
            return "direct"
        return "mention" if self._nick_pattern.search(text) else "room"

    async def join(self, at: Address) -> None:
        self._require_open()
        self._left_rooms.discard(at.room)

    async def leave(self, at: Address) -> None:
        self._require_open()
        self._left_rooms.add(at.room)

    def is_joined(self, room: RoomId) -> bool | None:
        return room not in self._left_rooms if self._up.is_set() else None

    def _require_open(self) -> None:
        if not self._is_open:
            raise Unreachable("the console is not open")

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if self._is_open and part.body.strip() and part.to.room in self._left_rooms:
            raise Rejected("that room was left")
        return await super().send(part, before_send)
