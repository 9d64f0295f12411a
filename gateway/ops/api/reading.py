"""Where the API's questions are answered: the house, and a connection of its own to the store."""

import asyncio

from gateway.ops.api.house import ApiServices
from gateway.store.overview import OverviewReader


class ApiBackend:
    """Opens its connection when it is first asked for. Close it."""

    def __init__(self, house: ApiServices) -> None:
        self.services = house
        self._reader: OverviewReader | None = None
        self._opening = asyncio.Lock()

    async def open_reader(self) -> OverviewReader:
        """What reads the store. Raises StoreError."""
        async with self._opening:
            if self._reader is None:
                self._reader = await OverviewReader.open(self.services.store.path)
            return self._reader

    async def close(self) -> None:
        """Let go of it. More than once is as good as once."""
        async with self._opening:
            if self._reader is not None:
                reader, self._reader = self._reader, None
                await reader.close()
