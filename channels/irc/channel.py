"""IRC channel: the connection loop, actions in rooms, and posts cut into parts and sent.

Pages and parts are cut for the current connection, or for the longest possible names while there is
none.
"""

import asyncio
import logging
import random as _random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Final

from channels.aio import Backoff, cancel_and_wait, with_timeout
from channels.base import (
    MEMBERSHIP_TIMEOUT_S,
    Audience,
    BeforeSend,
    Capabilities,
    ChannelConfig,
    Denied,
    Emit,
    MayNotPost,
    Membership,
    PostPart,
    Rejected,
    RoomMembers,
    Uncertain,
    Unreachable,
    no_before_send,
)
from channels.irc.config import IrcConfig, create_ssl_context
from channels.irc.history import IrcNotificationQueue, LastingState
from channels.irc.outgoing import MAX_IN_FLIGHT
from channels.irc.render import (
    FORMATTING,
    max_body_bytes,
    paginate,
    split_line,
    strip_formatting,
)
from channels.irc.session import CONNECT_TIMEOUT_S, IrcSession
from channels.irc.state import (
    ACCOUNT_PREFIX,
    CLOSED_MODES,
    build_sender_id,
    current_nick,
    direct_chat,
    direct_chat_of,
    is_room_name,
    message_target,
    resolve_target,
)
from channels.irc.wire import (
    format_line,
    is_bouncer_nick,
    is_posting_refused,
)
from channels.text import single_line
from gateway.core.clock import Clock, new_id
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    EventId,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.i18n import use_language
from gateway.core.identity import BRIDGE_PREFIX, name_to_address
from gateway.core.text_safety import break_nicks, name_in_front

logger = logging.getLogger("reverie.irc")
_SEPARATORS: Final = frozenset(", \r\n\0")
"""Characters that no nick or room has (RFC 2812, section 1.3)."""
_NOT_IN_ROOM: Final = ("(403)", "(442)")
"""Ends of reasons that mean that the room does not exist, or that we are not in it."""


class IrcChannel:
    """One account on one IRC network; a `channels.base.Channel`."""

    def __init__(
        self,
        name: ChannelName,
        config: IrcConfig,
        clock: Clock,
        *,
        cursor: str | None = None,
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.name, self._config, self._clock, self._random = name, config, clock, random
        self.capabilities = Capabilities(
            platform="IRC",
            formatting=FORMATTING,
            login_command="/msg NickServ IDENTIFY",
            sender_ids=IrcConfig.sender_ids,
            sender_id_example=IrcConfig.sender_id_example,
            max_in_flight=MAX_IN_FLIGHT,
        )
        self._inbox = IrcNotificationQueue()
        self._lasting = LastingState(cursor)
        self._session: IrcSession | None = None
        """Set while parts can be sent."""
        self._up: bool | None = None
        self._up_s = 0.0

    def split(self, post: Post) -> tuple[str, ...]:
        pages, state = self._paginate(post), self._session and self._session.state
        page = pages[min(post.page, len(pages)) - 1]
        if "c" in (self._room_modes(post.to) or ()):
            page = tuple(filter(str.strip, map(strip_formatting, page)))
        nicks = state and state.rooms.get(state.isupport.fold(post.to.room))
        if not state or not nicks:
            return page
        # No mass mention. What breaks it makes lines longer.
        said = "\n".join(page)
        unbroken = break_nicks(said, nicks, state.isupport.fold)
        if unbroken == said:
            return page
        limit = self._limit(post.to)
        return tuple(piece for line in unbroken.split("\n") for piece in split_line(line, limit))

    def page_count(self, post: Post) -> int:
        return len(self._paginate(post))

    def _paginate(self, post: Post) -> tuple[tuple[str, ...], ...]:
        # A person who is asked to approve something must see all of it.
        page_lines = 0 if post.style == "notice" and not post.private else self._config.page_lines
        text, more = post.text, f"{self._nick}: more"  # works with any command prefix
        if not is_room_name(post.to.room):
            # Clients show a notice where the person is, not in a chat with us.
            more = f"/msg {self._nick} more" if post.style == "notice" else "more"
        elif post.reply_to is None:  # e.g. a reminder: clients highlight lines with their nick
            text = name_in_front(text, [*map(self._current_name, post.notify)])
        with use_language(post.language):
            return paginate(text, self._limit(post.to), page_lines, more)

    def _current_name(self, person: Sender) -> str:
        """Return the name by which to address somebody, whose nick may have changed since."""
        if self._session is None or person.id.startswith(BRIDGE_PREFIX):
            return name_to_address(person)
        owner, now_s = person.id.rpartition("!")[2], self._clock.monotonic()
        return resolve_target(self._session.state, RoomId(f"{person.name}!{owner}"), now_s)[0]

    def _room_modes(self, at: Address) -> set[str] | None:
        state = self._session and self._session.state
        return state.room_modes.get(state.isupport.fold(at.room)) if state else None

    def _limit(self, at: Address) -> int:
        return max_body_bytes(self._config.nick, (at.thread or "") + message_target(at.room))

    def sends_at_once(self, at: Address) -> bool:
        session = self._session
        return session is not None and is_room_name(at.room) and session.outgoing.is_free()

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        session, target = self._require_target(part.to)
        is_notice = part.style == "notice" and "T" not in (self._room_modes(part.to) or ())
        command, chat = "NOTICE" if is_notice else "PRIVMSG", direct_chat_of(part.to.room)
        raw = format_line(command, target, trailing=part.body)
        folded = session.state.isupport.fold(target)

        async def before_line() -> None:
            # Some rooms could be written to from outside: whoever threw us out wants silence.
            if why := self.join_refusal(part.to.room):
                raise MayNotPost(why)
            await before_send()

        try:
            return await session.outgoing.send(raw, folded, before_line, chat=chat)
        except Rejected as refused:
            if not is_posting_refused(refused.reason):
                raise
            remedy = "" if chat else ": let it in, give it voice (+v), or lift its ban"
            raise MayNotPost(f"{refused.reason}{remedy}") from refused

    def place_names(self, at: Address) -> PlaceNames | None:
        if self._session is None:
            return None
        state = self._session.state
        server = state.isupport.network_name or None
        if is_room_name(at.room):
            return _room_names(at.room, at.thread, server, state.nick)
        return PlaceNames(person=current_nick(state, at.room), server=server, me=state.nick)

    def _require_target(self, at: Address) -> tuple[IrcSession, str]:
        """Return the session, and the current target for a place, which can be written as a
        parameter. Raises SendError.
        """
        session = self._session
        if session is None:
            raise Unreachable(f"{self.name} is not connected")
        state = session.state
        target = f"{at.thread}{at.room}" if at.thread else current_nick(state, at.room)
        if at.thread and state.isupport.room_of(target) != at.room:
            # The whole room would receive it.
            raise Rejected(f"this server does not let anybody write to {target}")
        if state.is_bouncer and is_bouncer_nick(target):
            raise Rejected(f"{target} is the bouncer itself, and would take it for a command")
        if target.startswith(("$", ":")) or not _SEPARATORS.isdisjoint(target):
            raise Rejected(
                f"nothing can be said to {single_line(target, len(target))!r}: it is not one room "
                "or person"
            )
        return session, target

    async def wait_for_recipient(self, at: Address) -> None:
        if self._session is not None:
            await self._session.wait_for_person(direct_chat_of(at.room) or at.room)

    async def wait_for_rights(self, at: Address) -> None:
        await self._lasting.rights.wait(at.room.lower())

    async def open_direct(self, person: Sender) -> RoomId:
        if (room := self.direct_room(person)) is None:
            raise Rejected(
                f"{person.name} is behind a bridge, so nothing can be said to them alone"
            )
        return room

    @property
    def _nick(self) -> str:
        return self._config.nick if self._session is None else self._session.state.nick

    def nicks(self, at: Address) -> tuple[str, ...]:
        return (self._nick,) if self._session is None else self._session.context.called(at.room)

    def direct_room(self, sender: Sender) -> RoomId | None:
        return None if sender.id.startswith(BRIDGE_PREFIX) else direct_chat(sender)

    async def join(self, at: Address) -> None:
        session = self._require_room(at)
        try:
            await with_timeout(session.clock, 30.0, session.membership.join(at.room))
        except TimeoutError:
            raise Uncertain("the server did not answer our JOIN") from None

    async def leave(self, at: Address) -> None:
        session = self._require_room(at)
        session.membership.begin_leave(at.room)
        try:
            await self._send_command("PART", replace(at, thread=None))
        except Rejected as error:
            if not error.reason.endswith(_NOT_IN_ROOM):
                raise
        finally:
            session.membership.end_leave(at.room)

    def _require_room(self, at: Address) -> IrcSession:
        session = self._require_target(at)[0]
        if not session.state.isupport.is_room(at.room):
            raise Rejected(f"{at.room!r} is not a room")
        return session

    def is_joined(self, room: RoomId) -> bool | None:
        return self._session.membership.is_in_room(room) if self._session else None

    def join_refusal(self, room: RoomId) -> str:
        return self._session.membership.join_refusal(room) if self._session else ""

    def account_problem(self) -> str:
        return self._session.membership.nick_problem() if self._session else ""

    def audience(self, at: Address) -> Audience | None:
        if at.thread is not None:
            return "thread"
        modes = self._room_modes(at)
        return None if modes is None else "everybody" if modes.isdisjoint(CLOSED_MODES) else "room"

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        account = person.removeprefix(ACCOUNT_PREFIX) if person.startswith(ACCOUNT_PREFIX) else ""
        if self._session is None or not account or at.thread is not None:
            return None
        state = self._session.state
        nicks = state.rooms.get(state.isupport.fold(at.room), {})
        return None if nicks.keys().isdisjoint(state.nicks_of(account)) else "reads_all"

    async def is_logged_in(self, person: Sender) -> bool:
        session = self._session
        if session is None or not person.id.startswith(ACCOUNT_PREFIX):
            return True
        chat = RoomId(f"{person.name}!{person.id}")
        try:
            return await with_timeout(
                self._clock, MEMBERSHIP_TIMEOUT_S, session.confirm_person(chat)
            )
        except TimeoutError:
            return resolve_target(session.state, chat, self._clock.monotonic())[1] == "known"

    async def set_topic(self, at: Address, topic: str) -> None:
        """Set the topic. Servers cut a topic that is too long, so it is refused here."""
        session, room = self._require_target(at)
        new, max_bytes = single_line(topic, len(topic)), self._limit(at)
        isupport = session.state.isupport
        if not isupport.is_room(room):
            raise Rejected("only rooms have topics")
        max_bytes = min(max_bytes, isupport.topic_bytes or max_bytes)
        if (size := len(new.encode())) > max_bytes:
            raise Rejected(f"a topic may have {max_bytes} bytes there, and this one has {size}")
        await self._send_command("TOPIC", at, new)

    async def _send_command(self, command: str, at: Address, trailing: str | None = None) -> None:
        """Send one line; return once the server has certainly accepted it. Raises SendError."""
        session, target = self._require_target(at)
        raw, folded = (
            format_line(command, target, trailing=trailing),
            session.state.isupport.fold(target),
        )
        await session.outgoing.send(raw, folded, lone_command=command)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        session, target = self._require_target(replace(at, thread=None))
        state, folded = session.state, session.state.isupport.fold(target)
        if not state.isupport.is_room(target):
            account = at.room.partition(f"!{ACCOUNT_PREFIX}")[2] or state.account_of(folded)
            return RoomMembers(members=(_member_sender(at.room, target, account),), total=2)
        if folded not in state.rooms:
            raise Rejected(f"we are not in {target}")
        nicks = state.rooms[folded].keys()
        people = map(state.people.__getitem__, sorted(nicks - {state.me})[: max(0, most)])
        found = [
            _member_sender(one.mask, one.mask.partition("!")[0], one.account) for one in people
        ]
        note = (
            ""
            if all(member.account for member in found)
            else "Who is logged in to services is known only as far as the server has told us."
        )
        return RoomMembers(members=tuple(found), total=len(nicks), note=note)

    def apply_config(self, config: ChannelConfig) -> bool:
        mine = self._config
        if self._session is None or not isinstance(config, IrcConfig):
            return False
        if config.model_copy(update={"rooms": mine.rooms, "keys": mine.keys}) != mine:
            return False
        self._config = config
        self._session.apply_config(config)
        return True

    def take_over(self, before: "IrcChannel") -> None:
        """Continue where `before` ended, if on the same network, including its events not emitted
        yet.

        Call it before `run`.
        """
        config, old_config = self._config, before._config  # noqa: SLF001 - same class
        if (config.host, config.port) == (old_config.host, old_config.port):
            self._lasting = before._lasting  # noqa: SLF001 - same class
            # A room that is configured anew may be joined again.
            for room in set(config.rooms) - set(old_config.rooms):
                self._lasting.barred_rooms.pop(room.lower(), None)
            for item in before._inbox.filter_pending(lambda _: True):  # noqa: SLF001 - same class
                self._inbox.put(item)

    async def run(self, emit: Emit) -> None:
        self._up = None
        # An old connection state is no news.
        self._inbox.filter_pending(lambda item: not isinstance(item[0], ConnectionChanged))
        resume_task = asyncio.create_task(self._inbox.resume_when_stuck(self._clock))
        try:
            await self._inbox.run_producer_consumer(self._stay_connected(), self._inbox.run(emit))
        finally:
            await cancel_and_wait(resume_task)

    @property
    def dropped_count(self) -> int:
        return self._inbox.dropped_count

    async def _stay_connected(self) -> None:
        create_ssl_context(self._config.tls)  # raises Denied for unusable files
        backoff = Backoff()
        while True:
            try:
                reason = await self._connect_once()
            except Denied as denied:
                self._report_link(up=False, reason=denied.reason)
                raise
            up_s = self._clock.monotonic() - self._up_s if self._up else 0.0
            self._report_link(up=False, reason=reason)
            delay_s = backoff.reconnect_delay_s(up_s, self._random())
            logger.warning("%s: %s; next attempt in %.1f s", self.name, reason, delay_s)
            await self._clock.sleep(delay_s)

    def _report_link(self, *, up: bool, reason: str) -> None:
        if self._up is not up:
            self._up = up
            now, self._up_s = self._clock.now(), self._clock.monotonic()
            self._inbox.put_notification(
                ConnectionChanged(
                    id=EventId(new_id(now)), channel=self.name, up=up, reason=reason, sent=now
                )
            )

    async def _connect_once(self) -> str:
        """Run one connection; return why it ended. Raises Denied."""
        context, host, port = (
            create_ssl_context(self._config.tls),
            self._config.host,
            self._config.port,
        )
        session = IrcSession(
            self.name,
            self._config,
            self._clock,
            self._inbox,
            lasting=self._lasting,
        )
        helpers: list[asyncio.Task[None]] = []
        try:
            # Stored before it is open, so that a cancellation at any time closes it.
            self._inbox.connection = connection = session.connection
            try:
                await with_timeout(
                    self._clock, CONNECT_TIMEOUT_S, connection.open(self._config, port, context)
                )
            except OSError as error:  # TLS errors and timeouts are OSErrors
                silent = "timeout" if isinstance(error, TimeoutError) else "the server hung up"
                return f"cannot connect to {host}:{port}: {str(error) or silent}"
            if self._inbox.is_full:
                self._inbox.set_paused(True)
            coroutines = (session.outgoing.run(), session.watch_silence(), self._serve(session))
            helpers = [session.start_helper(work) for work in coroutines]
            return await asyncio.shield(session.lost)
        finally:
            await self._tear_down(session, helpers)

    async def _serve(self, session: IrcSession) -> None:
        if await session.bring_up():
            self._session = session
            self._report_link(
                up=True, reason=f"connected to {self._config.host} as {session.state.nick}"
            )
            await session.work_periodically()

    async def _tear_down(self, session: IrcSession, helpers: list[asyncio.Task[None]]) -> None:
        self._session = None
        if session.lost.done():
            session.lost.exception()  # retrieved, also after cancellation
        session.outgoing.close(
            "the connection is lost" if session.lost.done() else "the gateway is stopping"
        )
        session.flush()
        try:
            await cancel_and_wait(*helpers)
        finally:
            self._inbox.connection = None
            await session.connection.close_gracefully("goodbye")


@lru_cache(maxsize=1_000)
def _room_names(room: RoomId, thread: str | None, server: str | None, me: str) -> PlaceNames:
    """Return the names of a room: the same object for each of its lines."""
    rank = f"those of rank {thread} alone" if thread else None
    return PlaceNames(room=room, thread=rank, server=server, me=me)


def _member_sender(mask: str, nick: str, account: str | None) -> Sender:
    return Sender(
        id=build_sender_id(mask, account),
        name=nick,
        account=account or None,
        verified=bool(account),
    )
