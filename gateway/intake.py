"""The one way in: events become durable, are judged, and what is due reaches the inbox."""

import logging
from collections.abc import Callable, Sequence

from gateway import access, attention
from gateway.attention import Listen
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import ChannelName, ConversationId, Link, Notification
from gateway.records import CursorMoved, Judged, address_of, key_of
from gateway.store import Entry, Store

logger = logging.getLogger("reverie.intake")


class Intake:
    """What channels are handed as `Emit`, one for each."""

    def __init__(
        self,
        channel: ChannelName,
        *,
        store: Store,
        clock: Clock,
        access_policy: access.Policy,
        attention_policy: attention.Policy,
        bindings: Bindings,
        arrived: Callable[[ConversationId, int], None],
        link: Callable[[ChannelName, bool], None],
    ) -> None:
        """`arrived(conversation, urgency)` and `link(channel, up)` are called after the commit."""
        self._channel = channel
        self._store = store
        self._clock = clock
        self._access = access_policy
        self._attention = attention_policy
        self._bindings = bindings
        self._arrived = arrived
        self._link = link

    async def __call__(self, batch: Sequence[Notification], *, cursor: str | None = None) -> None:
        """Make a batch durable with what is decided about it, in one transaction. See `channels.base.Emit`."""
        now = self._clock.now()
        entries: list[Entry] = []
        judged: list[tuple[Notification, Judged, Entry]] = []
        for event in batch:
            place = address_of(event)
            conversation = place.conversation if place else None
            noticed = Entry(fact=event, at=now, conversation=conversation, key=key_of(event))
            judgement = self._judge(event)
            verdict = Entry(fact=judgement, at=now, conversation=conversation, cause=noticed)
            entries += [noticed, verdict]
            judged.append((event, judgement, verdict))
        if cursor is not None:
            entries.append(Entry(fact=CursorMoved(channel=self._channel, value=cursor), at=now))
        written = dict(zip(map(id, entries), await self._store.append(entries), strict=True))
        for event, judgement, verdict in judged:
            if written[id(verdict)].fresh:
                self._announce(event, judgement)

    def _judge(self, event: Notification) -> Judged:
        place = address_of(event)
        listen: Listen = "all" if place is None else self._bindings.of(place).listen
        return attention.judge(self._attention, event, access.decide(self._access, event), listen)

    def _announce(self, event: Notification, judgement: Judged) -> None:
        if isinstance(event, Link):
            logger.info(
                "%s is %s%s", event.channel, "up" if event.up else "down", f": {event.reason}" if event.reason else ""
            )
            self._link(event.channel, event.up)
        place = address_of(event)
        if place is not None and judgement.fate == "due":
            self._arrived(place.conversation, judgement.urgency)
        elif judgement.fate == "refused":
            logger.info("refused %s: %s", judgement.type, judgement.rule)
