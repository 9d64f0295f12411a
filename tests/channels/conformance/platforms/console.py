"""The console channel: nothing behind it but this file."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import ClassVar, Literal

from channels.base import Channel, PostPart, RateLimited, Rejected, Uncertain
from gateway.core.events import Address, ChannelName, RoomId
from reverie.testing.console import ConsoleChannel
from reverie.testing.platforms.base import Kit, Where
from reverie.testing.platforms.broken_channels import TurnsPartsRound

_NO_LINK = "there is no connection that could break"


class ConsoleKit(Kit):
    """Hands and eyes for `reverie.testing.console`."""

    harmless: ClassVar = {TurnsPartsRound: "its posts have one part"}
    lacks: ClassVar = {
        "a_repeat_has_the_same_id": "nothing is delivered twice",
        "own_messages_never_come_in": "nobody else speaks for the account",
        "unknown_events_are_dropped_quietly": "there are no events from outside",
        "formatting_comes_out_as_markdown": "it has no formatting of its own",
        "a_long_text_is_split_and_nothing_is_lost": "a terminal has no limit",
        "no_text_becomes_a_command": (
            "a terminal has no commands; what is shown is made printable where it is printed"
        ),
        "no_text_becomes_a_mass_mention": "nobody is told",
        "without_a_link_nothing_was_sent": _NO_LINK,
        "refused_credentials_are_denied": "there are no credentials",
        "a_cut_is_told_and_mended": _NO_LINK,
        "what_was_said_meanwhile_arrives": _NO_LINK,
        "a_restart_goes_on_from_the_cursor": "what is typed goes straight into the log",
        "what_was_not_taken_comes_in_the_next_run": "who types waits until it is durable",
        "a_blocked_emit_loses_nothing": "who types waits until it is durable",
        "a_broken_emit_comes_out": "it comes out where the line was typed",
        "it_types": "nobody watches",
        "it_previews": "nobody watches",
        "it_pages": "a terminal scrolls",
        "it_adapts": "it has no configuration",
        "it_reacts": "what is shown there is shown once",
        "it_edits": "the same",
        "it_deletes": "the same",
        "it_set_topics": "a terminal has no topic",
        "it_lists": "one keyboard",
        "it_sends_files": "a terminal shows text",
        "it_completes": "a line is typed before it is seen",
        "it_offers": "a terminal has no menu",
        "it_whispers": "one keyboard, and nobody else looks on",
        "it_confides": "one keyboard, and nobody else looks on",
    }

    def __init__(self) -> None:
        self.name = ChannelName("console.test")
        self.nowhere = RoomId("nowhere")
        self._shown: list[PostPart] = []
        self._fail: Exception | None = None
        self._refused = False
        self._channel: ConsoleChannel | None = None

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        yield

    def make(self, cursor: str | None = None) -> Channel:
        assert cursor is None
        self._channel = ConsoleChannel(self.name, self._show)
        return self._channel

    def address(self, where: Literal["room", "other"]) -> Address:
        return Address(channel=self.name, room=RoomId(f"#{where}"))

    def _show(self, part: PostPart) -> None:
        if self._refused and part.to == self.address("other"):
            raise Rejected("not here")
        error, self._fail = self._fail, None
        if error is not None:
            raise error
        self._shown.append(part)

    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        assert self._channel is not None
        await self._channel.receive_message(
            text, sender=by, room=None if where == "direct" else f"#{where}"
        )

    async def mention(self, text: str) -> None:
        await self.say(f"reverie: {text}")

    async def seen(self, where: Where, count: int = 1) -> list[str]:
        del count  # what was sent is shown already
        room = "alice" if where == "direct" else f"#{where}"
        return [part.body for part in self._shown if part.to.room == room]

    def replied(self, where: Where) -> bool:
        del where
        return self._shown[-1].reply_to is not None

    async def refuse(self) -> None:
        self._refused = True

    async def limit(self, seconds: float) -> None:
        self._fail = RateLimited("too fast", retry_after_s=seconds)

    async def cut_send(self) -> None:
        self._fail = Uncertain("cut")

    async def attach(self, data: bytes) -> None:
        assert self._channel is not None
        await self._channel.receive_message(
            "look", attachments=(self._channel.add_attachment(data, "file"),), room="#room"
        )

    async def invited(self) -> Address:
        assert self._channel is not None
        at = self.address("other")
        await self._channel.leave(at)
        return at

    async def joined(self, at: Address) -> None:
        assert self._channel is not None
        assert self._channel.is_joined(at.room)

    async def left(self, at: Address) -> None:
        assert self._channel is not None
        assert self._channel.is_joined(at.room) is False

    async def gone(self) -> None:
        await asyncio.sleep(0)
