"""What a channel supervisor is given, played."""

from collections.abc import Callable, Sequence

from channels.base import Emit
from gateway.access.owners import NoticeButtons, NoticeText, OwnerNotifier
from gateway.core.events import Address, ChannelName, Notification
from gateway.stream.outbox import Outbox


class EmitIntake:
    """Hands each batch to the `Emit` of its channel."""

    def __init__(self, emit_of: Callable[[ChannelName], Emit]) -> None:
        self._emit_of = emit_of

    async def accept(
        self, channel: ChannelName, batch: Sequence[Notification], *, cursor: str | None = None
    ) -> None:
        await self._emit_of(channel)(batch, cursor=cursor)


class PlayedOutbox(Outbox):
    """Has nothing to deliver."""

    def __init__(self) -> None:
        """It needs no log."""

    async def pause(self, channel: ChannelName, grace_s: float) -> None:
        """Return at once."""


class ToldOwners(OwnerNotifier):
    """Keeps the texts of notices."""

    def __init__(self, told: list[str] | None = None) -> None:
        self.told = told if told is not None else list[str]()
        self._open = set[str]()

    def notify(
        self,
        key: str,
        text: NoticeText,
        *,
        beside: ChannelName | None = None,
        buttons: NoticeButtons = tuple,
    ) -> None:
        del key, beside, buttons
        to: Address | None = None
        self.told.append(text if isinstance(text, str) else text(to))

    def begin_trouble(
        self, cause: str, text: NoticeText, *, beside: ChannelName | None = None
    ) -> None:
        if cause not in self._open:
            self._open.add(cause)
            self.notify(cause, text, beside=beside)

    def end_trouble(
        self, prefix: str, text: NoticeText, *, beside: ChannelName | None = None
    ) -> None:
        ended = {cause for cause in self._open if cause.startswith(prefix)}
        self._open -= ended
        if ended:
            self.notify(prefix, text, beside=beside)
