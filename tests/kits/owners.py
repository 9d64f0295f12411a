"""Notices to owners, noted instead of posted."""

import asyncio
from collections.abc import Callable

from gateway.core.clock import ManualClock
from gateway.core.events import ChannelName, PostButton
from gateway.stream.notices import Notices, NoticeState, NoticeText
from tests.kits.tasks import LooseTasks


class NotedNotices(Notices):
    """Notes each notice with its key; of a trouble only its beginning and its end."""

    def __init__(self, texts: list[str] | None = None) -> None:
        """`texts`: where the texts are noted, too."""
        super().__init__(LooseTasks(), ManualClock())
        self.told: list[tuple[str, str]] = []
        self.texts = list[str]() if texts is None else texts
        self.buttons: list[tuple[PostButton, ...]] = []
        """Of each."""
        self.decided = list[str]()
        """Keys of those that were decided."""
        self._troubles = set[str]()

    def tell(
        self,
        key: str,
        text: NoticeText,
        state: NoticeState = "once",
        *,
        beside: ChannelName | None = None,
        buttons: Callable[[], tuple[PostButton, ...]] = tuple,
    ) -> asyncio.Task[None]:
        del beside
        ended = {one for one in self._troubles if state == "ends" and one.startswith(key)}
        is_seen = (state == "begins" and key in self._troubles) or (state == "ends" and not ended)
        self._troubles -= ended
        if state == "begins":
            self._troubles.add(key)
        if state == "decided":
            assert text(None).startswith("**")
            self.decided.append(key)
        elif not is_seen:
            self.told.append((key, text(None)))
            self.texts.append(text(None))
            self.buttons.append(buttons())
        return asyncio.create_task(asyncio.sleep(0))
