"""Notices to owners, noted instead of posted."""

from gateway.access.owners import NoticeButtons, NoticeText, OwnerNotifier
from gateway.config.models import AccessConfig
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, PostButton
from gateway.core.identity import AccessPolicy
from gateway.store import Store
from tests.kits.places import PlayedChannels, titles
from tests.kits.settings import live_settings
from tests.kits.tasks import LooseTasks


class NotedNotices(OwnerNotifier):
    """Notes each notice with its key."""

    def __init__(self, store: Store, clock: Clock) -> None:
        nobody = AccessPolicy(dm_policy="open", roles={}, open_rooms={})
        super().__init__(
            store,
            clock,
            nobody,
            live=live_settings(access=AccessConfig()),
            tasks=LooseTasks(),
            channels=PlayedChannels(),
            titles=titles(store),
        )
        self.told: list[tuple[str, str]] = []
        self.buttons: list[tuple[PostButton, ...]] = []
        """Of each."""

    def notify(
        self,
        key: str,
        text: NoticeText,
        *,
        beside: ChannelName | None = None,
        buttons: NoticeButtons = tuple,
    ) -> None:
        del beside
        self.buttons.append(buttons())
        self.told.append((key, text if isinstance(text, str) else text(None)))

    async def notify_and_wait(
        self,
        key: str,
        text: NoticeText,
        *,
        beside: ChannelName | None = None,
        buttons: NoticeButtons = tuple,
    ) -> None:
        self.notify(key, text, beside=beside, buttons=buttons)
