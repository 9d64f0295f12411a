"""What goes on beside a session while it lasts: coming up, watching the server, getting back what we lost."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from channels.base import Rejected, Uncertain
from channels.irc.config import IrcConfig
from channels.irc.session import IrcSession
from channels.tasks import with_timeout
from gateway.clock import Clock

logger = logging.getLogger("reverie.irc")
_CAP_TIMEOUT_S = 10.0
"""Longer than servers take to answer CAP."""
_JOIN_WAIT_S = 10.0
_JOIN_ANSWER_S = 30.0
_MOTD_WAIT_S = 5.0
_TICK_S = 10.0


async def bring_up(session: IrcSession, config: IrcConfig, clock: Clock, up: Callable[[], None]) -> None:
    """From the first line to `up`; then look after rooms and nick. Ends only by cancellation or with the session."""
    try:
        await with_timeout(clock, config.connect_timeout, _wait_for_welcome(session, clock))
    except TimeoutError:
        session.mark_lost("the server did not welcome us in time")
        return
    with contextlib.suppress(TimeoutError):  # jaraco's server and some bouncers send no MOTD
        await with_timeout(clock, _MOTD_WAIT_S, session.ready.wait())
    session.join_rooms()
    try:
        await with_timeout(clock, _JOIN_WAIT_S, session.membership.initial_joins_done.wait())
    except TimeoutError:
        logger.warning("%s: some rooms did not answer our JOIN", session.name)
    up()
    session.request_history()
    while True:
        await clock.sleep(_TICK_S)
        session.tick()


async def _wait_for_welcome(session: IrcSession, clock: Clock) -> None:
    while not session.welcomed.is_set():
        with contextlib.suppress(TimeoutError):
            await with_timeout(clock, _CAP_TIMEOUT_S, session.welcomed.wait())
            return
        session.handle_slow_login()


async def watch_silence(session: IrcSession, config: IrcConfig, clock: Clock, full: Callable[[], bool]) -> None:
    """End the session when the server has gone quiet, or answers everything but our PINGs.

    While `full`, we do not read, and nothing is known of the server.
    """
    patience_s = config.ping_interval + config.ping_timeout
    while True:
        quiet_s = clock.monotonic() - session.last_heard_s
        if full() or quiet_s < config.ping_interval:
            await clock.sleep(config.ping_interval - (0 if full() else quiet_s))
            if not full() and session.outgoing.oldest_ping_age_s() > patience_s:
                session.mark_lost("the server does not answer PING")
            if not full():
                session.outgoing.expire_labels(patience_s)
            continue
        heard_s = session.last_heard_s
        session.outgoing.queue_ping()
        await clock.sleep(config.ping_timeout)
        if session.last_heard_s == heard_s and not full():
            session.mark_lost(f"nothing heard for {patience_s:.0f} s")


async def join_room(session: IrcSession, clock: Clock, room: str) -> None:
    """Enter a room that we were asked into. Raises SendError: `Rejected` with the server's reason."""
    if not session.isupport.is_room(room) or "," in room:
        raise Rejected(f"{room!r} is not a room")
    try:
        entering = session.membership.join(room, session.isupport, clock.monotonic())
    except ValueError as error:
        raise Rejected(f"{room!r} is not a room") from error
    try:
        await with_timeout(clock, _JOIN_ANSWER_S, asyncio.wait_for(entering, None))
    except TimeoutError:
        raise Uncertain("the server did not answer our JOIN") from None


def start_helper(session: IrcSession, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Run beside the session; a mistake in it ends the session loudly instead of staying unseen."""

    def finished(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not session.lost.done():
            session.lost.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(finished)
    return task
