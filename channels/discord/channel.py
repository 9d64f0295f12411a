"""The Discord channel: what the gateway sees of it. What happens behind it is `life.py`."""

import asyncio
import contextlib
import logging
import random as _random
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from channels.base import (
    Capabilities,
    CommandSpec,
    Emit,
    Going,
    Part,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    unrecorded,
)
from channels.discord.config import DiscordConfig
from channels.discord.directory import Directory
from channels.discord.errors import Refused
from channels.discord.gaps import Progress
from channels.discord.ids import as_id, nonce, snowflake
from channels.discord.render import bodies
from gateway.clock import Clock
from gateway.events import Address, Attachment, ChannelName, MessageId, Post, Receipt, RoomId
from gateway.ids import new_id

if TYPE_CHECKING:
    from channels.discord.life import Life

_LOG = logging.getLogger("reverie.discord")
_FORMATTING = (
    "Discord shows Markdown: **bold**, *italic*, ~~strike~~, `code`, fenced code with a language, headings to ###, "
    "lists, > quotes, ||spoilers|| and [links](https://example.org) work; tables become code blocks, pictures become "
    "links. Mentions ping nobody. A message holds 2,000 characters; longer ones are split."
)
_RESEND_S = 120.0
"""https://discord.com/developers/docs/resources/message#create-message: an enforced nonce is unique `in the past
few minutes`; two are the fewest that one may call so."""
_SUPPRESS_EMBEDS, _SILENT = 1 << 2, 1 << 12
_SHOWN_TRIES = 3
_MESSAGES = "/channels/{channel_id}/messages"


class DiscordChannel:
    """One bot account on Discord; a `channels.base.Channel`. Made with `preview: all`, use `PreviewingChannel`."""

    typing_every_s = 8.0
    """Discord shows it for ten seconds."""

    def __init__(
        self,
        name: ChannelName,
        config: DiscordConfig,
        clock: Clock,
        *,
        cursor: str | None = None,
        commands: Sequence[CommandSpec] = (),
        random: Callable[[], float] = _random.random,
    ) -> None:
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._commands = tuple(commands)
        self._directory = Directory(name)
        self._progress = Progress(cursor, config.history_age)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Channel -> its turn: requests on several connections would overtake each other."""
        self._life: Life | None = None
        """Set while `run` runs."""

    @property
    def name(self) -> ChannelName:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(platform="Discord", formatting=_FORMATTING, replies=True, resend_s=_RESEND_S)

    def space(self, room: RoomId) -> RoomId | None:
        """The guild that a room is in; None: none, or not known (then it is opened by its own id only)."""
        guild = self._directory.guild(room)
        return RoomId(guild) if guild else None

    async def run(self, emit: Emit) -> None:
        self._life = self.life()
        try:
            await self._life.run(emit)
        finally:
            self._life = None

    def life(self) -> "Life":
        """Everything that lives as long as `run`."""
        # Here and not above: importing discord.py takes 0.2 s and 18 MB, and check-config does not need it.
        from channels.discord.life import Life  # noqa: PLC0415

        return Life(
            self._name,
            self._config,
            self._clock,
            random=self._random,
            commands=self._commands,
            directory=self._directory,
            progress=self._progress,
        )

    def split(self, post: Post) -> tuple[str, ...]:
        return bodies(post.text) or ("\u2026",)  # only empty fences: there is nothing to show, and that is shown

    async def send(self, part: Part, going: Going = unrecorded) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        life, channel = self._running(), _channel(part.to)
        flags = (0 if self._config.link_previews else _SUPPRESS_EMBEDS) | (_SILENT if part.style == "notice" else 0)
        content: dict[str, object] = {"content": part.body, "allowed_mentions": {"parse": []}}
        turn = self._turns.setdefault(channel, asyncio.Lock())
        async with turn:  # asyncio locks are fair: who came first goes first
            return await self._send(life, part, content, flags, _once(going))

    async def _send(self, life: "Life", part: Part, content: dict[str, object], flags: int, going: Going) -> Receipt:
        if part.private or (part.reply_to is not None and not as_id(part.reply_to)):
            # An answer to a command takes only this flag.
            answered = await life.answers.send(part, content | {"flags": flags & _SUPPRESS_EMBEDS}, going)
            if answered is not None:
                return answered
        content |= {"flags": flags, "nonce": nonce(part.key), "enforce_nonce": True}
        if part.reply_to is not None and (replied := as_id(part.reply_to)):
            reply = {"message_id": replied, "fail_if_not_exists": False}
            try:
                return await self._post(life, part.to, content | {"message_reference": reply}, going)
            except Refused as refused:
                if refused.status != HTTPStatus.BAD_REQUEST:
                    raise
                # E.g. 160002: not without the right to read the history. The words matter more.
                _LOG.info("said without the reply: %s", refused.reason)
        return await self._post(life, part.to, content, going)

    async def _post(
        self, life: "Life", to: Address, content: dict[str, object], going: Going | None = None, *, again: bool = True
    ) -> Receipt:
        where = _channel(to)
        return _receipt(
            await life.api.call("POST", _MESSAGES, json=content, going=going, again=again, channel_id=where)
        )

    async def typing(self, at: Address, *, active: bool) -> None:
        life = self._life
        if not active or life is None or not self._config.typing:
            return  # it ends by itself, or with the message
        with contextlib.suppress(SendError):
            await life.api.call("POST", "/channels/{channel_id}/typing", again=False, channel_id=_channel(at))

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        from channels.discord.files import fetch  # noqa: PLC0415 - with the library, as above

        del at  # the id says where it was
        return await fetch(
            self._running().api, self._config.api_url, attachment.id, limit_bytes, self._config.request_timeout
        )

    def _running(self) -> "Life":
        if self._life is None:
            raise Unreachable(f"{self._name} is not connected")
        return self._life


class PreviewingChannel(DiscordChannel):
    """A `DiscordChannel` that shows an answer while it grows, in a message that is edited."""

    preview_every_s = 1.5
    """Five edits in five seconds are allowed per channel; others may be at work there."""

    async def preview(self, at: Address, text: str, shown: MessageId | None) -> MessageId | None:
        life = self._running()
        first = next(iter(bodies(text)), "")
        if not first:
            return shown
        content: dict[str, object] = {"content": first, "allowed_mentions": {"parse": []}}
        content["flags"] = 0 if self._config.link_previews else _SUPPRESS_EMBEDS
        if shown is not None:
            path = _MESSAGES + "/{message_id}"
            await life.api.call("PATCH", path, json=content, channel_id=_channel(at), message_id=_known(shown))
            return shown
        # Nobody is to be called for something unfinished. What may stand there is to be taken away, so we need its id.
        key = nonce(new_id(self._clock.now()))
        content |= {"flags": _SUPPRESS_EMBEDS | _SILENT, "nonce": key, "enforce_nonce": True}
        for _ in range(_SHOWN_TRIES - 1):
            with contextlib.suppress(Uncertain):
                return next(iter((await self._post(life, at, content, again=False)).ids), None)
        return next(iter((await self._post(life, at, content, again=False)).ids), None)

    async def unpreview(self, at: Address, shown: MessageId) -> None:
        life, path = self._running(), _MESSAGES + "/{message_id}"
        life.inflow.gone.add(shown)
        try:
            await life.api.call("DELETE", path, channel_id=_channel(at), message_id=_known(shown))
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise


def make(
    name: ChannelName,
    config: DiscordConfig,
    clock: Clock,
    *,
    cursor: str | None = None,
    commands: Sequence[CommandSpec] = (),
) -> DiscordChannel:
    """The channel that this configuration asks for: abilities are told by the class."""
    kind = DiscordChannel if config.preview == "off" else PreviewingChannel
    return kind(name, config, clock, cursor=cursor, commands=commands)


def _channel(to: Address) -> str:
    """The Discord channel behind an address: a thread is one of its own."""
    found = as_id(to.thread or to.room)
    if not found:
        raise Rejected(f"{to.thread or to.room!r} is not a channel of Discord")
    return found


def _known(shown: MessageId) -> str:
    found = as_id(shown)
    if not found:
        raise Rejected(f"{shown!r} is not a message of Discord")
    return found


def _receipt(answer: object) -> Receipt:
    found = snowflake(answer, "id")
    return Receipt(ids=(MessageId(found),) if found else ())


def _once(going: Going) -> Going:
    """The same, awaited the first time only: an answer that cannot be given becomes a message."""
    gone = asyncio.Event()

    async def first() -> None:
        if not gone.is_set():
            gone.set()
            await going()

    return first
