"""What owners should know although nobody asked: told here, and posted by a plugin
(`gateway.plugins.owners`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, PostButton
from gateway.core.frozen import frozen
from gateway.core.i18n import use_language
from gateway.core.ratelimit import LruDict

logger = logging.getLogger("reverie.notices")

NoticeText = Callable[[Address | None], str]
"""Makes the text for the place of the post and in its language: Markdown, not blank. The place is
None for the process's own log, which is English."""
NoticeState = Literal["once", "begins", "ends", "decided", "unrecorded"]


@frozen
class Notice:
    """Something that owners should know."""

    key: str
    """Its kind, a colon, and what it is about: told once a UTC day for each key."""
    text: NoticeText
    state: NoticeState
    """begins: something is wrong until its end is told; told each time it is seen. ends: no trouble
    whose key begins with this one is there any more. decided: what the notice of this key asked
    about, in the last days; the text says how. unrecorded: the log cannot be written, so it is sent
    at once, and nothing of it is recorded."""
    beside: ChannelName | None
    """A channel that does not work: another one is used if an owner is known there."""
    buttons: Callable[[], tuple[PostButton, ...]]
    """Makes the buttons below, in the language of the post; shown where the channel can."""


class Notices:
    """Logs notices, and hands them to whoever listens, one after the other."""

    def __init__(self, tasks: asyncio.TaskGroup, clock: Clock) -> None:
        self._tasks, self._clock = tasks, clock
        self._logged = LruDict[str, None]()
        """Keys of the texts that the process has logged, with their days."""
        self.listeners = list[Callable[[Notice], Awaitable[None]]]()

    def tell(
        self,
        key: str,
        text: NoticeText,
        state: NoticeState = "once",
        *,
        beside: ChannelName | None = None,
        buttons: Callable[[], tuple[PostButton, ...]] = tuple,
    ) -> asyncio.Task[None]:
        """Tell owners something, see `Notice`. Returns at once; the task ends once it was told, or
        could not be.
        """
        day_key = f"{self._clock.now().date()}:{key}"
        if state in {"once", "begins"} and day_key not in self._logged:
            self._logged.put(day_key, None)
            with use_language(None):
                logger.warning("for owners: %s", text(None))
        notice = Notice(key=key, text=text, state=state, beside=beside, buttons=buttons)
        return self._tasks.create_task(self._hand_on(notice))

    async def _hand_on(self, notice: Notice) -> None:
        for listener in self.listeners:
            await listener(notice)
