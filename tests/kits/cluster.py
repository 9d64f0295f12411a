"""The processes of one gateway in one Python process: a test grants and takes the leases."""

import asyncio
import contextvars
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from channels.aio import cancel_and_wait
from gateway.cluster.cluster import CallFailed, Cluster, Handler, LeaseListener, LeaseName, Member, ProcessRole
from gateway.core.clock import Clock
from gateway.store import ServerStore, Store
from gateway.store.postgresql import PostgresConnection
from tests.kits.store import located


class ManualCluster(Cluster):
    """One process of several. All of a gateway share one list of `peers`."""

    is_shared = True

    def __init__(self, peers: list["ManualCluster"], *leases: LeaseName, role: ProcessRole = "all") -> None:
        self.peers, self.role, self.leases = peers, role, set(leases)
        self.number = 1 + len(peers)
        self.gone = asyncio.Event()
        self.is_frozen = False
        """Nothing is answered any more, and the others do not know it yet."""
        self.is_draining = False
        self.listener: LeaseListener | None = None
        self._handlers = dict[str, Handler]()
        self._told = set[asyncio.Task[None]]()
        peers.append(self)

    @property
    def is_gone(self) -> bool:
        return self.gone.is_set()

    @property
    def members(self) -> list[Member]:
        return [
            Member(
                number=one.number,
                name=f"process {one.number}",
                role=one.role,
                started=datetime(2026, 3, 1, tzinfo=UTC),
                is_draining=one.is_draining,
                leases=frozenset(one.leases),
            )
            for one in self.peers
            if not one.is_gone
        ]

    def holds(self, lease: LeaseName) -> bool:
        return lease in self.leases and not self.is_gone

    def holder(self, lease: LeaseName) -> Member | None:
        return next((one for one in self.members if lease in one.leases), None)

    async def confirm(self) -> bool:
        if self.is_frozen:
            await self.gone.wait()
        return not self.is_gone

    def serve(self, method: str, handler: Handler) -> None:
        assert method not in self._handlers
        self._handlers[method] = handler

    async def call(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> Any:
        one = next((one for one in self.peers if one.number == to and not one.is_gone), None)
        if one is None or method not in one._handlers:
            raise CallFailed(f"there is no process {to} that carries out {method}", is_refused=True)
        sent = json.loads(json.dumps(arguments, allow_nan=False))
        work = asyncio.create_task(one._carry_out(self.number, method, sent), context=contextvars.Context())
        ends = asyncio.ensure_future(one.gone.wait())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({work, ends}, return_when=asyncio.FIRST_COMPLETED)
                if one.is_frozen:
                    await ends
                if not one.is_gone:
                    return json.loads(json.dumps(await work, allow_nan=False))
        except CallFailed:
            raise
        except Exception as error:
            raise CallFailed(str(error)) from error
        finally:
            work.cancel()
            ends.cancel()
        raise CallFailed(f"process {to} is gone")

    def tell(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> None:
        async def carry_out() -> None:
            with suppress(CallFailed):
                await self.call(to, method, arguments, timeout_s=timeout_s)

        self._told.add(task := asyncio.create_task(carry_out()))
        task.add_done_callback(self._told.discard)

    async def end_told(self) -> None:
        """End what it has told others to do."""
        await cancel_and_wait(*self._told)

    async def _carry_out(self, caller: int, method: str, arguments: Any) -> Any:
        if self.is_frozen:
            await self.gone.wait()
            raise CallFailed("it is gone")
        return await self._handlers[method](caller, arguments)

    async def grant(self, *leases: LeaseName) -> None:
        """Let this process hold these leases, which nobody holds."""
        assert not any(one.leases & {*leases} for one in self.peers if not one.is_gone)
        self.leases |= {*leases}
        for lease in leases:
            if self.listener is not None:
                await self.listener.on_lease_acquired(lease)

    async def end(self, *leases: LeaseName) -> None:
        """Let this process give these leases back in order."""
        for lease in leases:
            if self.listener is not None:
                await self.listener.on_lease_ending(lease)
        self.leases -= {*leases}

    def kill(self) -> None:
        """Let this process be gone, as after `kill -9`."""
        self.gone.set()
        self.leases.clear()


@asynccontextmanager
async def shared_stores(path: Path, clock: Clock) -> AsyncIterator[list[Store]]:
    """The log as two processes see it: two stores in one database, or one file that stands for both."""
    location = located(path)
    async with AsyncExitStack() as stack:
        if not isinstance(location, ServerStore):
            yield [await stack.enter_async_context(await Store.open(location, clock))] * 2
            return
        stores = list[Store]()
        for _ in range(2):
            stores.append(
                await stack.enter_async_context(await Store.open(location, clock, patient=True, is_shared=True))
            )
            with closing(PostgresConnection(location.url, "other")) as other:
                ((number,),) = other.execute(
                    "WITH made AS (INSERT INTO process (name, role, host, pid, version) "
                    "VALUES ('p', 'all', 'h', 1, '1') RETURNING number) SELECT number FROM made"
                )
            await stores[-1].join(number)
        yield stores
