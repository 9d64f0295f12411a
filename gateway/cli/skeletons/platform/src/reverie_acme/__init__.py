"""Acme: a platform of Reverie.

The protocol is a toy, so that everything works before you change anything: JSON in lines over TCP.
A client says `{"token": ..., "do": "listen", "since": ...}` and gets an event in each line, or
`{"token": ..., "do": "post", "room": ..., "text": ...}` and gets one line of answer. Replace what
speaks to the server, in `AcmeChannel._request` and below; the tests say what has to hold.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, SecretStr

from reverie import PlatformFactory, Plugin
from reverie.platforms import (
    Address,
    Backoff,
    BeforeSend,
    Capabilities,
    ChannelConfig,
    ChannelName,
    Clock,
    ConnectionChanged,
    Denied,
    Emit,
    EventId,
    Json,
    Message,
    MessageId,
    Post,
    PostPart,
    RateLimited,
    Receipt,
    Rejected,
    RoomId,
    Sender,
    SenderId,
    SendError,
    Uncertain,
    Unreachable,
    clean_name,
    clean_outgoing,
    get_bool,
    get_datetime,
    get_int,
    get_number,
    get_object,
    get_str,
    new_id,
    no_before_send,
    split_markdown,
)

TEXT_LIMIT = 2_000
"""Longest text of a message, in UTF-16 units."""
LINE_LIMIT_BYTES = 1_000_000
TIMEOUT_S = 20.0
"""Longest wait for a connection, and for the answer to a request."""


class AcmeSettings(ChannelConfig):
    """A channel of this platform: `channels.NAME`."""

    account_keys: ClassVar = ("token",)

    platform: Literal["acme"]
    host: str
    port: int = Field(ge=1, le=65_535)
    token: SecretStr
    """Of the bot's account. Write it as `${ACME_TOKEN}`."""


class AcmeChannel:
    """One account. Fulfils `reverie.Channel`; see its contract for each method."""

    capabilities = Capabilities(platform="Acme", formatting="Markdown is shown.")

    def __init__(
        self,
        name: ChannelName,
        settings: AcmeSettings,
        clock: Clock,
        *,
        cursor: str | None = None,
        **_: object,
    ) -> None:
        """`cursor`: id of the newest event that is in the log. None: the channel is new."""
        self.name = name
        self._settings, self._clock, self._cursor = settings, clock, cursor
        self._sending = asyncio.Lock()
        self._is_up = False

    async def run(self, emit: Emit) -> None:
        backoff = Backoff()
        while True:
            began_s = self._clock.monotonic()
            try:
                reason = await self._listen(emit)
            except Denied as error:
                await self._tell_link(emit, up=False, reason=error.reason)
                raise
            except SendError as error:
                reason = error.reason
            finally:
                was_up, self._is_up = self._is_up, False
            if was_up:
                await self._tell_link(emit, up=False, reason=reason)
            up_s = self._clock.monotonic() - began_s if was_up else 0.0
            chance = random.random()  # noqa: S311 - it spreads reconnects, and keeps no secret
            await self._clock.sleep(backoff.reconnect_delay_s(up_s, chance))

    async def _listen(self, emit: Emit) -> str:
        """Take events until the connection ends; return why it did. Raises SendError."""
        asked = {"do": "listen", "since": self._cursor}
        async with self._request(asked) as (reader, first):
            me = get_str(first, "me")
            if self._cursor is None:
                self._cursor = str(get_int(first, "newest") or 0)
            self._is_up = True
            await self._tell_link(emit, up=True)
            while (event := await _read(reader)) is not None:
                if (message := self._read_message(event, me)) is not None:
                    # Only what is durable counts as taken, so nothing is read meanwhile.
                    await emit([message], cursor=message.id)
                    self._cursor = message.id
        return "the server closed the connection"

    def _read_message(self, event: Json, me: str) -> Message | None:
        """Return the message in an event. None: it is another event, or the bot's own message."""
        author = get_object(event, "from")
        sender, room, text = get_str(author, "id"), get_str(event, "room"), get_str(event, "text")
        number, sent = get_int(event, "id"), get_datetime(event, "sent")
        if number is None or sent is None or not (sender and room and text) or sender == me:
            return None
        is_direct, is_mention = get_bool(event, "direct"), get_bool(event, "mention")
        return Message(
            id=MessageId(str(number)),
            at=Address(channel=self.name, room=RoomId(room)),
            sender=Sender(
                id=SenderId(sender),
                name=clean_name(get_str(author, "name") or sender),
                verified=True,  # the platform vouches for the id
            ),
            text=text,
            sent=sent,
            kind="direct" if is_direct else "mention" if is_mention else "room",
        )

    async def _tell_link(self, emit: Emit, *, up: bool, reason: str = "") -> None:
        now = self._clock.now()
        told = ConnectionChanged(
            id=EventId(new_id(now)), channel=self.name, up=up, reason=reason, sent=now
        )
        await emit([told])

    def split(self, post: Post) -> tuple[str, ...]:
        return split_markdown(clean_outgoing(post.text), TEXT_LIMIT) or ("(nothing to show)",)

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        asked = {"do": "post", "room": part.to.room, "text": clean_outgoing(part.body)}
        async with self._sending:  # parts go out in the order of the calls
            if not self._is_up:
                raise Unreachable("there is no connection")
            async with self._request(asked, before_send) as (_, answer):
                return Receipt(ids=(MessageId(str(get_int(answer, "id"))),))

    @contextlib.asynccontextmanager
    async def _request(
        self, asked: Mapping[str, object], before_send: BeforeSend = no_before_send
    ) -> AsyncIterator[tuple[asyncio.StreamReader, Json]]:
        """Send a request, and yield what comes behind the first line of the answer, and that line.

        Raises SendError: `Unreachable` if the request was surely not sent, `Uncertain` if there is
        no answer.
        """
        settings = self._settings
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    settings.host, settings.port, limit=LINE_LIMIT_BYTES
                )
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"cannot connect: {error or type(error).__name__}") from None
        try:
            await before_send()
            whole = {"token": settings.token.get_secret_value(), **asked}
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    writer.write(json.dumps(whole).encode() + b"\n")
                    await writer.drain()
                    answer = await _read(reader)
            except (OSError, TimeoutError):
                answer = None
            if not answer:
                raise Uncertain("the server gave no answer")
            if refused := get_str(answer, "error"):
                reason = get_str(answer, "reason") or "no reason is given"
                if refused == "limited":
                    seconds = get_number(answer, "seconds") or 1.0
                    raise RateLimited(reason, retry_after_s=seconds)
                raise (Denied if refused == "denied" else Rejected)(reason)
            yield reader, answer
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> Json | None:
    """Return the object in the next line; empty: it cannot be read. None: the connection has
    ended.
    """
    try:
        line = await reader.readline()
        found: Any = json.loads(line) if line else None
    except OSError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {} if line else None


class AcmePlugin(Plugin):
    """Brings the platform: a channel has `platform: acme`."""

    name = "acme"
    summary = "connects to Acme"
    platforms: ClassVar = {"acme": PlatformFactory(settings=AcmeSettings, make=AcmeChannel)}
