"""Outages of the log: `/ready` and `reverie health` show them, owners are told, and after
`store.exit_after` the log is given up.
"""

import asyncio
import logging
from typing import Final

from channels.base import CountsDropped
from gateway.cluster.cluster import UPKEEP
from gateway.core.events import Address, ChannelName
from gateway.core.format import format_time
from gateway.core.i18n import _, ngettext
from gateway.store import StoreError, StoreOutage
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.health")

CHECK_INTERVAL_S: Final = 5.0
STORE_OUTAGE_TOLD_S: Final = 10.0
"""Seconds after which owners are told of an outage of the log while it lasts; of a shorter one
afterwards."""


STORE_FAILED_S: Final = 5.0
"""Seconds in which owners are told, before the process ends, that the log cannot be used."""


class StoreOutages:
    """Reports outages of the log of one gateway."""

    def __init__(self, gateway: GatewayHandle) -> None:
        self._gateway = gateway
        self._clock, self._notices, self._stats = gateway.clock, gateway.notices, gateway.stats
        self._outage: tuple[StoreOutage, dict[ChannelName, int]] | None = None
        """The outage, and what each channel had dropped before it. None: the log can be written."""
        self._is_told = False
        self.given_up = asyncio.Event()
        """Set once the log could not be written for `store.exit_after`."""

    async def run(self) -> None:
        """Check every few seconds, until cancelled."""
        while True:
            self.check()
            await self._clock.sleep(CHECK_INTERVAL_S)

    def on_outage(self, outage: StoreOutage | None) -> None:
        """Report that the log cannot be written, or that it can again. Meanwhile nothing is
        received or posted.
        """
        dropped = {
            name: one.dropped_count
            for name, one in self._gateway.channels.items()
            if isinstance(one, CountsDropped)
        }
        if outage is not None:
            logger.error(
                "the log cannot be written: %s; it is tried again and again", outage.reason
            )
            self._stats.report_problem(
                "store", f"the log cannot be written: {outage.reason}", outage.since
            )
            self._outage = outage, self._outage[1] if self._outage else dropped
            return
        self._stats.clear_problem("store")
        if self._outage is None:
            return
        (began, before), self._outage = self._outage, None
        losses = {
            name: count - before.get(name, 0)
            for name, count in dropped.items()
            if count > before.get(name, 0)
        }
        # Of a short one in which nothing was lost the cause is told once a day.
        cause = began.since.isoformat() if self._is_told or losses else began.reason
        self._is_told = False
        until = self._clock.now()

        def text(_to: Address | None) -> str:
            texts = [
                _(
                    "I could not write my log from {since} to {until} ({reason}). In that time I "
                    "read and answered nothing; now I work again."
                ).format(
                    since=format_time(began.since), until=format_time(until), reason=began.reason
                )
            ]
            for name, lost in losses.items():
                more = ngettext(
                    "I lost {count} message on {channel} in that time.",
                    "I lost {count} messages on {channel} in that time.",
                    lost,
                )
                texts.append(more.format(count=lost, channel=name))
            return " ".join(texts)

        if losses or self._gateway.channels.cluster.holds(UPKEEP):
            self._notices.tell(f"store:{cause}", text)

    async def tell_failed(self, error: StoreError) -> None:
        """Tell owners, past the log, that the process ends because its log cannot be used. Returns
        within 5 s.
        """
        reason = str(error)
        told = self._notices.tell(
            "store:failed",
            lambda _to: _(
                "I stop now, because my log cannot be used: {reason}. Until that is repaired I "
                "read and answer nothing."
            ).format(reason=reason),
            "unrecorded",
        )
        await asyncio.wait([told], timeout=STORE_FAILED_S)

    def check(self) -> None:
        """Look after the store's files, tell owners of an outage that lasts, and give the log up in
        time.
        """
        self._gateway.store.check_files()
        if self._outage is None:
            return
        outage = self._outage[0]
        age_s = (self._clock.now() - outage.since).total_seconds()
        if age_s >= STORE_OUTAGE_TOLD_S and not self._is_told:
            self._is_told = True
            self._notices.tell(
                "store:outage",
                lambda _to: _(
                    "I cannot write my log: {reason}. Until that works again, I read and answer "
                    "nothing. I keep trying, and tell you when it works."
                ).format(reason=outage.reason),
                "unrecorded",
            )
        limit_s = self._gateway.live.settings.store.exit_after
        if limit_s is not None and age_s >= limit_s:
            self.given_up.set()
