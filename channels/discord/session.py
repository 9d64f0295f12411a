"""One run of a Discord account, from login to stop: its socket, heartbeats, the budget of new
sessions, and the state that is kept between runs.

Sockets and sessions are discord.py's; the loop around them is ours. The library's own reconnects at
once after an invalid session or a close, which repeated ones make a storm; one payload that it
cannot read ends it; it goes on reading while `emit` blocks; and its address of the gateway belongs
to the whole process. See decision 53.
"""

import asyncio
import contextlib
import json
import logging
import math
import threading
import zlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import NoReturn

import aiohttp
import yarl
from discord import ConnectionClosed, DiscordException, LoginFailure
from discord.gateway import DiscordWebSocket, KeepAliveHandler, ReconnectWebSocket

from channels.aio import Backoff, cancel_and_wait, with_timeout
from channels.base import CommandSpec, Denied, Emit, SendError
from channels.discord.config import DiscordConfig
from channels.discord.directory import DiscordDirectory
from channels.discord.ids import get_snowflake
from channels.discord.inflow import (
    DiscordEventPipeline,
    DiscordInbox,
    DiscordProgress,
    RawGatewayEvent,
    ResumableSession,
)
from channels.discord.interactions import InteractionResponder
from channels.discord.outgoing import DiscordOutgoing
from channels.discord.rest import DiscordClient, DiscordRestClient, describe_failure
from channels.text import get_int, get_number, get_object, get_str
from gateway.core.clock import Clock, new_id
from gateway.core.events import ChannelName, ConnectionChanged, EventId

logger = logging.getLogger("reverie.discord")
CONNECT_TIMEOUT_S = 60.0
"""Longest time from the first packet to a session."""
_IDENTIFY_INTERVAL_S = 5.25
"""https://discord.com/developers/docs/events/gateway#rate-limiting: five seconds between two
IDENTIFY; Discord counts at arrival, and the later request may be the faster one."""
_RESERVE = 10
"""New sessions of a day that are left to the operator, who may restart the gateway: after the last
one, Discord resets the token."""
_GOODBYE_S = 0.3
_OPENING: ContextVar[tuple[DiscordClient, list["GatewaySocket"]]] = ContextVar("opening")


class _NotForLibrary(Exception):
    """An event is handed on, and the library is not to read it."""


class GatewaySocket(DiscordWebSocket):
    """Connection that is known from its first moment: `from_client` leaves it open if the greeting
    fails.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(socket, loop=loop)
        self.client, opened = _OPENING.get()
        self.is_greeted = False
        self.is_resuming = False
        """The server has greeted us, and we have asked for the session."""
        self.ready: tuple[object, int] | None = None
        """READY and its number: the session's first event, which `_connect_once` hands on."""
        self.acknowledged = 0
        """Heartbeats that the server has acknowledged; the library sends one at once."""
        opened.append(self)

    async def resume(self) -> None:
        self.is_resuming = True
        await super().resume()

    async def close(self, code: int = 4000) -> None:
        """Close without waiting long for the other side. 1000 ends the session, 4000 leaves it
        resumable.

        The library's heartbeat thread has ended then, unless it is the one that closes: it would
        call a closed loop.
        """
        threads = (one for one in threading.enumerate() if isinstance(one, KeepAliveHandler))
        heartbeat = next((one for one in threads if one.ws is self), None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await super().close(code)
        if heartbeat is not None:
            await asyncio.to_thread(heartbeat.join, 0.5)

    async def read_replay(self) -> None:
        """Read all that the server has sent after RESUME: it acknowledges a heartbeat after that.

        RESUMED need not be the last of it: one of an earlier connection may stand among what is
        replayed.
        """
        await self.send_as_json({"op": self.HEARTBEAT, "d": self.sequence})
        while self.acknowledged < 2:  # noqa: PLR2004 - the library's, and this one
            await self.poll_event()

    def log_receive(self, text: object, /) -> None:
        """Hand on an event; the library calls it with each payload, before reading that itself.

        Raises `_NotForLibrary` for all but READY and RESUMED, and ValueError for what would harm
        the connection.
        """
        payload = json.loads(str(text))
        op, seq = get_int(payload, "op"), get_int(payload, "s")
        if not isinstance(payload, dict) or op is None or (op == self.HELLO and self.is_greeted):
            # The library takes `true` for 1, and answers each such heartbeat: more than Discord
            # accepts in a minute.
            raise ValueError("no payload, or a second greeting")
        self.is_greeted = self.is_greeted or op == self.HELLO
        self.acknowledged += op == self.HEARTBEAT_ACK
        if op != self.DISPATCH:
            return
        event = get_str(payload, "t")
        if event == "READY":
            self.ready = payload.get("d"), seq or 0
        else:
            self.client.on_event(event, payload.get("d"), seq or 0)
        if event not in {"READY", "RESUMED"}:
            self.sequence = seq if seq is not None and seq > 0 else self.sequence
            raise _NotForLibrary

    async def poll_event(self) -> None:
        """Read one frame. What cannot be read costs only itself."""
        try:
            await super().poll_event()
        except _NotForLibrary:
            pass
        except zlib.error:  # the rest of the stream is unreadable
            logger.warning("shard %s: the compressed stream is broken", self.shard_id)
            raise ReconnectWebSocket(self.shard_id) from None
        except (ReconnectWebSocket, ConnectionClosed, OSError, aiohttp.ClientError):
            raise
        except Exception as error:  # noqa: BLE001 - the library reads untrusted data, and may fail in any way
            logger.warning(
                "shard %s: a payload cannot be read: %s", self.shard_id, type(error).__name__
            )


def _safe_resume_url(resume_url: str, ours: yarl.URL) -> yarl.URL:
    """Return the address to resume at: Discord's, if it is a WebSocket address no less protected
    than ours.
    """
    try:
        url = yarl.URL(resume_url)
    except ValueError:
        return ours
    if (
        not url.host
        or url.user
        or url.scheme not in {"ws", "wss"}
        or (ours.scheme == "wss" and url.scheme == "ws")
    ):
        return ours
    return url


async def open_socket(
    client: DiscordClient, gateway: str, session: ResumableSession | None
) -> GatewaySocket:
    """Open a connection, identify or resume, and wait for READY or RESUMED.

    Raises errors of discord.py and aiohttp. The caller closes what `_OPENING` has.
    """
    client.greeted_event.clear()
    socket = await GatewaySocket.from_client(
        client,
        initial=True,  # the library would sleep; `_wait_to_identify` has waited
        gateway=_safe_resume_url(session.gateway, yarl.URL(gateway))
        if session
        else yarl.URL(gateway),
        shard_id=client.shard_id,
        session=session.id if session else None,
        sequence=session.seq if session else None,
        resume=session is not None,
    )
    while not client.greeted_event.is_set():
        await socket.poll_event()
        await asyncio.sleep(0)  # `on_connect` runs
    return socket


_PORTAL = "https://discord.com/developers/applications"
_BAD_TOKEN = 4004
_FATAL_CLOSE_CODES = {
    _BAD_TOKEN: (
        f"Discord refuses the token: copy it again from {_PORTAL} (your application, Bot, "
        "Reset Token)"
    ),
    4010: "Discord refuses this shard: look at `shard`",
    4011: "the bot is in too many guilds for one connection: give each `shard` a channel",
    4012: (
        "Discord no longer speaks this version of the gateway: a newer version of this program "
        "is needed"
    ),
    4013: "Discord does not know the intents that we ask for",
    4014: f"Discord does not let this bot read messages: at {_PORTAL}, open your application, then "
    "Bot, "
    "and switch on MESSAGE CONTENT INTENT",
}
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#gateway-gateway-close-event-codes.
"""
_NOT_RESUMABLE = frozenset({4007, 4009})
"""From that page: close codes after which resuming must not be tried again."""
_MAX_RESUMES = 3
"""Consecutive connections that failed to resume a session before it is abandoned."""


class DiscordAccountState:
    """State of an account that outlives a run."""

    def __init__(
        self,
        clock: Clock,
        directory: DiscordDirectory,
        commands: Sequence[CommandSpec],
        cursor: str | None,
    ) -> None:
        self.api = DiscordRestClient()
        self.interactions = InteractionResponder(self.api, clock, directory, commands)
        """Commands may be answered for a quarter of an hour, across connections."""
        self.inbox = DiscordInbox()
        """With the events that were not emitted when a run ended."""
        self.identified_s = -math.inf
        """Monotonic time of the latest request for a new session."""
        self.cursor = cursor
        """Position up to which all events are certainly durable. None: no session has begun."""


class DiscordSession:
    """One run of the channel: its login, its connections, and what is new with each run."""

    def __init__(
        self,
        name: ChannelName,
        config: DiscordConfig,
        clock: Clock,
        *,
        random: Callable[[], float],
        directory: DiscordDirectory,
        state: DiscordAccountState,
    ) -> None:
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._directory, self._state = directory, state
        self.api, self.interactions, self._inbox = state.api, state.interactions, state.inbox
        self._progress = DiscordProgress(state.cursor, config.history_age)
        self.pipeline = DiscordEventPipeline(
            clock,
            rooms=frozenset(config.rooms),
            directory=directory,
            progress=self._progress,
            state=state,
        )
        self.outgoing = DiscordOutgoing(
            clock, directory, self.api, self.interactions, link_previews=config.link_previews
        )
        self._previous = self._progress.session
        """Session of an earlier process. None: there was none, or it has been tried."""
        self._is_replaying = False
        """True while that one is resumed for its direct messages."""
        self._up_s: float | None = None
        """Time when the connection came up. None: it is down."""
        self.up: bool | None = None
        """Last reported state of the link. None: none was reported."""

    async def run(self, emit: Emit) -> None:
        """Log in, connect and emit. Ends only by cancellation, by `Denied`, or by an error of
        `emit`.
        """
        try:
            await self._inbox.run_producer_consumer(self._stay_connected(), self.pipeline.run(emit))
        finally:
            self._inbox.filter_pending(lambda item: isinstance(item, RawGatewayEvent))

    async def _stay_connected(self) -> None:
        backoff = Backoff()
        while True:
            try:
                reason = await self._run_logged_in()
            except Denied as denied:
                self._report_link(False, denied.reason)
                raise
            self._report_link(False, reason)
            delay_s = backoff.next_delay_s(0.0, self._random())
            logger.warning("%s: %s; next attempt in %.1f s", self._name, reason, delay_s)
            await self._clock.sleep(delay_s)

    async def _run_logged_in(self) -> str:
        """Log in and stay connected; return why the login failed. Raises `Denied`."""
        try:
            client = DiscordClient(self._config, self._handle_raw_event)
        except ValueError as error:  # of the environment's proxy
            raise Denied(str(error)) from None
        registering: asyncio.Task[None] | None = None
        try:
            try:
                own_id = await client.log_in(self._config.token.get_secret_value().strip())
            except LoginFailure:
                raise Denied(
                    "Discord refuses the token: copy it again from the developer portal"
                ) from None
            except (
                DiscordException,
                aiohttp.ClientError,
                OSError,
                ValueError,
                KeyError,
                TypeError,
            ) as error:
                return f"cannot log in to Discord: {describe_failure(error)}"
            self._directory.own_id = own_id or self._directory.own_id
            self.api.client = client
            application = str(client.application_id)
            registering = asyncio.create_task(self.interactions.register_commands(application))
            await self._reconnect(client)
        finally:
            self.api.client = None
            await cancel_and_wait(*([registering] if registering else []))
            await self.interactions.close()
            await client.close()

    async def _reconnect(self, client: DiscordClient) -> NoReturn:
        """Connect and stay connected. Ends only by cancellation or `Denied`."""
        session: ResumableSession | None = None
        backoff = Backoff()
        while True:
            if session is None:
                await self._wait_to_identify()
            before = session
            session, reason = await self._connect_once(client, session)
            up_s = 0.0 if self._up_s is None else self._clock.monotonic() - self._up_s
            if before is not None and session is None:
                up_s = math.inf  # opcode 9, after which Discord expects us within 1 to 5 s
            self._up_s = None
            self._report_link(False, reason)
            delay_s = backoff.reconnect_delay_s(up_s, self._random())
            logger.warning("%s; next attempt in %.1f s", reason, delay_s)
            await self._clock.sleep(delay_s)

    async def _wait_to_identify(self) -> None:
        """Wait until Discord takes a new session. Raises `Denied`."""
        while True:
            try:
                answer = await self.api.call("GET", "/gateway/bot", again=False)
            except Denied:
                raise
            except SendError as error:
                logger.warning("Discord does not tell the session budget: %s", error.reason)
                break
            limit = get_object(answer, "session_start_limit")
            remaining = get_int(limit, "remaining")
            if remaining is None or remaining > _RESERVE:
                break
            wait_s = max(60.0, (get_number(limit, "reset_after") or 0.0) / 1000)
            logger.warning("the budget of new sessions is used up; the next one in %.0f s", wait_s)
            await self._clock.sleep(wait_s)
        next_s = self._state.identified_s + _IDENTIFY_INTERVAL_S
        if (wait_s := next_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(wait_s)

    async def _take_missed_directs(self, client: DiscordClient) -> None:
        """Resume the session before a new one, to receive the direct messages that were not durable
        when it ended.

        Discord lists no direct chats, so their histories cannot be asked for. All else needs a new
        session: what guilds there are is told to new ones alone. The new one must be ready, so that
        no message falls between the two, and it must not be stored before these messages are.
        Raises errors of discord.py and aiohttp if this is to be tried again with another new
        session.
        """
        if (previous := self._previous) is None:
            self._report_lost_directs()
            return
        opened: list[GatewaySocket] = []
        _OPENING.set((client, opened))
        self._is_replaying = True
        try:
            await with_timeout(self._clock, CONNECT_TIMEOUT_S, self._replay(client, previous))
        except (ReconnectWebSocket, DiscordException, OSError, aiohttp.ClientError) as error:
            is_gone = isinstance(error, ReconnectWebSocket) and not error.resume
            is_gone = is_gone or any(one.socket.close_code in _NOT_RESUMABLE for one in opened)
            tries = previous.refused_count + 1
            if not is_gone and tries < _MAX_RESUMES:
                # The address for resuming may be dead.
                self._previous = replace(
                    previous, refused_count=tries, gateway=self._config.gateway_url
                )
                raise
            self._report_lost_directs()
        finally:
            self._is_replaying = False
            for socket in opened:
                await socket.close(4000)
        self._previous = None

    def _report_lost_directs(self) -> None:
        if self._progress.lose_directs():
            logger.warning(
                "Discord does not give back the session before this one; what was written "
                "meanwhile in direct chats that are new to me is read when its author writes again"
            )

    async def _replay(self, client: DiscordClient, session: ResumableSession) -> None:
        socket = await open_socket(client, self._config.gateway_url, session)
        await socket.read_replay()

    async def _connect_once(
        self, client: DiscordClient, session: ResumableSession | None
    ) -> tuple[ResumableSession | None, str]:
        """Run one connection; return the session to resume, and why it ended."""
        socket: GatewaySocket | None = None
        opened: list[GatewaySocket] = []
        _OPENING.set((client, opened))
        code = 4000 if session else 1000  # cancelled before it is up: end a new session
        try:
            greeting = open_socket(client, self._config.gateway_url, session)
            try:
                greeted = await with_timeout(self._clock, CONNECT_TIMEOUT_S, greeting)
            finally:
                if session is None:
                    self._state.identified_s = self._clock.monotonic()
            if session is None:
                await self._take_missed_directs(client)
            socket = greeted
            if socket.ready is not None:
                client.on_event("READY", *socket.ready)
            self._up_s = self._clock.monotonic()
            self._report_link(True, "connected to Discord")
            code = 4000  # the next process may receive what this one misses
            while True:
                if self._inbox.is_full:
                    await self._inbox.wait_for_room()
                await socket.poll_event()
        except (ReconnectWebSocket, DiscordException, OSError, aiohttp.ClientError) as error:
            code = 4000
            return self._explain_end(error, socket, session, opened)
        finally:
            # Not `socket`: a cancellation may come before it is assigned.
            for opened_socket in opened:
                await opened_socket.close(code)

    def _explain_end(
        self,
        error: Exception,
        socket: GatewaySocket | None,
        session: ResumableSession | None,
        opened: Sequence[GatewaySocket],
    ) -> tuple[ResumableSession | None, str]:
        """Return the session to resume, and why the connection ended. Raises `Denied`."""
        close_code = error.code if isinstance(error, ConnectionClosed) else None
        if isinstance(error, LoginFailure) or close_code in _FATAL_CLOSE_CODES:
            raise Denied(_FATAL_CLOSE_CODES[close_code or _BAD_TOKEN]) from None
        resumable = self._resumable_session(socket, session, opened)
        if isinstance(error, ReconnectWebSocket):
            if not error.resume:
                return None, "Discord has ended the session"
            code = next((one.socket.close_code for one in opened), None)
            return (
                resumable,
                f"the connection has ended ({code})" if code else "the connection has ended",
            )
        if close_code is not None:
            return resumable, f"Discord has closed the connection ({close_code})"
        if socket is not None:
            return resumable, f"the connection is lost: {describe_failure(error)}"
        if resumable is not None:  # the address for resuming may be dead
            resumable = replace(resumable, gateway=self._config.gateway_url)
        return resumable, f"cannot connect to Discord: {describe_failure(error)}"

    def _resumable_session(
        self,
        socket: GatewaySocket | None,
        session: ResumableSession | None,
        opened: Sequence[GatewaySocket],
    ) -> ResumableSession | None:
        """Return the session to resume after a connection, or None for a new one.

        That is the session of `socket` if it became ready, else `session` if Discord may still
        resume it.
        """
        if socket is not None:
            number, seq = socket.session_id, socket.sequence
            if not number or not isinstance(seq, int):
                return None
            return ResumableSession(id=number, seq=seq, gateway=str(socket.gateway))
        if session is None:
            return None
        if not any(
            opened_socket.is_resuming for opened_socket in opened
        ):  # the address for resuming may be dead
            return replace(session, gateway=self._config.gateway_url)
        if any(opened_socket.socket.close_code in _NOT_RESUMABLE for opened_socket in opened):
            return None
        seq = max(opened_socket.sequence or 0 for opened_socket in opened)
        if seq > session.seq:  # interrupted during the replay
            return replace(session, seq=seq, refused_count=0)
        return (
            replace(session, refused_count=session.refused_count + 1)
            if session.refused_count + 1 < _MAX_RESUMES
            else None
        )

    def _handle_raw_event(self, event: str, data: object, seq: int) -> None:
        """Queue an event of the gateway. Never waits, never raises."""
        if self._is_replaying:
            # The rest of what was missed is in the histories.
            if not event.startswith("MESSAGE_") or get_snowflake(data, "guild_id"):
                return
        elif event == "INTERACTION_CREATE":
            data = self.interactions.handle_interaction(data)
        self._inbox.put(RawGatewayEvent(event, data, seq))

    def _report_link(self, up: bool, reason: str) -> None:
        """Emit the state of the link, if it has changed."""
        if self.up is not up:
            self.up = up
            now = self._clock.now()
            self._inbox.put(
                ConnectionChanged(
                    id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now
                )
            )
