"""A channel with every ability of the contract, which has no platform."""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from channels import base
from channels.base import (
    Announce,
    Capabilities,
    Emit,
    Part,
    RoomMembers,
    no_announcement,
    no_before_send,
    provisional_id,
)
from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MessageId,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.fields import ConfigSection


class FarChannel:
    """A channel with every ability, which tells what it was asked for."""

    def __init__(self, name: ChannelName = ChannelName("irc.test")) -> None:  # noqa: B008 - a str
        self.name = name
        self.done: list[tuple[object, ...]] = []
        self.error: Exception | None = None
        self.block = asyncio.Event()
        self.block.set()
        self.blocked = asyncio.Event()
        self.is_cancelled = False
        self.answers: dict[str, Any] = {}

    capabilities = Capabilities(platform="Far", formatting="None.")
    typing_interval_s, preview_interval_s, nick, dropped_count = 3.0, 1.5, "rev", 0

    async def run(self, emit: Emit) -> None:  # noqa: ARG002 - the contract
        raise AssertionError("no test runs it")

    async def send(self, part: Part, before_send: base.BeforeSend = no_before_send) -> Receipt:  # noqa: ARG002 - the contract
        raise AssertionError("no test sends")

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text,)

    async def _act(self, *what: object) -> Any:
        self.done.append(what)
        self.blocked.set()
        try:
            await self.block.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if self.error is not None:
            raise self.error
        return self.answers.get(str(what[0]))

    async def typing(self, at: Address, *, active: bool) -> None:
        await self._act("typing", at, active)

    async def preview(
        self,
        at: Address,
        text: str,
        preview_id: MessageId | None,
        *,
        reply_to: MessageId | None = None,
        announce: Announce = no_announcement,
    ) -> MessageId | None:
        await announce(provisional_id("hint"))
        return MessageId(f"{await self._act('preview', at, text, preview_id, reply_to)}")

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        await self._act("delete_preview", at, preview_id)

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        return bytes(await self._act("download", at, attachment, limit_bytes))

    def page_count(self, _post: Post) -> int:
        return 1

    def line_count(self, _post: Post) -> int:
        return 1

    def space(self, room: RoomId) -> RoomId | None:
        self.done.append(("space", room))
        return self.answers.get("space")

    def audience(self, at: Address) -> base.Audience | None:
        self.done.append(("audience", at))
        return self.answers.get("audience")

    async def membership(self, at: Address, person: SenderId) -> base.Membership | None:
        found: base.Membership | None = await self._act("membership", at, person)
        return found

    def place_names(self, _at: Address) -> PlaceNames | None:
        return None

    def is_joined(self, room: RoomId) -> bool | None:
        self.done.append(("is_joined", room))
        return self.answers.get("is_joined")

    async def wait_for_recipient(self, at: Address) -> None:  # noqa: ARG002 - the contract
        raise AssertionError("only the outbox of the holder waits")

    async def wait_for_rights(self, at: Address) -> None:  # noqa: ARG002 - the contract
        raise AssertionError("only the outbox of the holder waits")

    async def open_direct(self, person: Sender) -> RoomId:
        found: RoomId = await self._act("open_direct", person)
        return found

    def direct_room(self, sender: Sender) -> RoomId:
        return RoomId(f"dm:{sender.id}")

    def position(self, _at: Address) -> str:
        return ""

    def learn(self, at: Address, message: MessageId | None, sent: Any, *, own: bool) -> None:
        """Learn nothing."""

    def set_completer(self, suggest: base.CommandCompleter) -> None:
        """Suggest nothing."""

    async def set_command_menus(self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]) -> None:
        await self._act("set_command_menus", to)

    async def leave(self, at: Address) -> None:
        await self._act("leave", at)

    async def join(self, at: Address) -> None:
        await self._act("join", at)

    def apply_config(self, _config: ConfigSection) -> bool:
        return False

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        await self._act("react", at, message, reaction, add)

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        await self._act("edit", at, message, text)

    def join_refusal(self, _room: RoomId) -> str:
        return ""

    async def delete(self, at: Address, message: MessageId) -> None:
        await self._act("delete", at, message)

    async def set_topic(self, at: Address, topic: str) -> None:
        await self._act("set_topic", at, topic)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        found = await self._act("list_members", at, most)
        assert isinstance(found, RoomMembers)
        return found
