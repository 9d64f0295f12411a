"""Connecting to addresses that were judged, and to no others. Imported when first needed: httpcore is large."""

from collections.abc import Iterable, Sequence

from httpcore import AnyIOBackend, AsyncNetworkBackend, AsyncNetworkStream, ConnectError, ConnectTimeout
from httpcore._backends.base import SOCKET_OPTION


class PinnedNetworkBackend(AsyncNetworkBackend):
    """Whatever host httpcore names, the connection goes to one of these: a name is never looked up again."""

    def __init__(self, found: Sequence[str], most_s: float) -> None:
        """`most_s`: for each."""
        self._addresses = found
        self._timeout_s = most_s
        self._backend = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - it is what was looked up
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore calls it so
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Raises ConnectError, ConnectTimeout: none of them takes it."""
        most_s = self._timeout_s if timeout is None else min(self._timeout_s, timeout)
        last: ConnectError | ConnectTimeout = ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._backend.connect_tcp(address, port, most_s, local_address, socket_options)
            except (ConnectError, ConnectTimeout) as error:
                last = error
        raise last
