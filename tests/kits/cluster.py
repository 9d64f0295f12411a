"""The processes of one gateway in one Python process: a test grants and takes the leases."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from gateway.cluster.cluster import Cluster, LeaseListener, LeaseName, lease_of
from gateway.core.api_models import ProcessReport
from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.store import ServerStore, Store
from gateway.store.postgres_log import PostgresLog
from gateway.store.shared import SharedStore
from tests.kits.store import located


class ManualCluster(Cluster):
    """One process of several. All of a gateway share one list of `peers`."""

    is_shared = True

    def __init__(self, peers: list["ManualCluster"], *leases: LeaseName) -> None:
        self.peers, self.leases = peers, set(leases)
        self.number = 1 + len(peers)
        self.gone = asyncio.Event()
        self.listener: LeaseListener | None = None
        peers.append(self)

    def holds(self, lease: LeaseName) -> bool:
        return lease in self.leases

    def takes_turns_of(self, conversation: ConversationId) -> bool:
        return self.holds(lease_of(conversation))

    def describe(self) -> ProcessReport:
        return ProcessReport(processes=(), leases=())

    async def confirm(self) -> bool:
        return not self.gone.is_set()

    async def grant(self, *leases: LeaseName) -> None:
        """Let this process hold these leases, which nobody holds."""
        assert not any(one.leases & {*leases} for one in self.peers)
        self.leases |= {*leases}
        for lease in leases:
            if self.listener is not None:
                await self.listener.on_lease_acquired(lease)

    async def end(self, *leases: LeaseName) -> None:
        """Let this process give these leases back in order."""
        for lease in leases:
            self.leases.discard(lease)
            if self.listener is not None:
                await self.listener.on_lease_ending(lease)

    def kill(self) -> None:
        """Let this process be gone, as after `kill -9`."""
        self.gone.set()
        self.leases.clear()


@asynccontextmanager
async def shared_stores(path: Path, clock: Clock) -> AsyncIterator[list[Store]]:
    """The log as two processes see it: two stores in one database, or one file that stands for
    both."""
    location = located(path)
    async with AsyncExitStack() as stack:
        if not isinstance(location, ServerStore):
            yield [await stack.enter_async_context(await Store.open(location, clock))] * 2
            return
        stores = list[Store]()
        for _ in range(2):
            store = await Store.open(location, clock, patient=True, is_shared=True)
            assert isinstance(store, SharedStore)
            stores.append(await stack.enter_async_context(store))
            with closing(PostgresLog(location.url, "other")) as other:
                ((number,),) = other.fetch(
                    "INSERT INTO process (name, host, pid, version) VALUES ('p', 'h', 1, '1') "
                    "RETURNING number"
                )
            await store.join(number)
            await store.follow()
        yield stores
