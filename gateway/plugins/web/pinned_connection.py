"""Connections to checked addresses only. Imported at the first use: httpcore is large."""

from collections.abc import Iterable, Sequence

from httpcore import (
    AnyIOBackend,
    AsyncNetworkBackend,
    AsyncNetworkStream,
    ConnectError,
    ConnectTimeout,
)
from httpcore._backends.base import SOCKET_OPTION


class PinnedNetworkBackend(AsyncNetworkBackend):
    """Backend that connects to the given addresses, whatever host httpcore names: no name is looked
    up again.
    """

    def __init__(self, found: Sequence[str], most_s: float) -> None:
        """`most_s`: seconds for each address."""
        self._addresses = found
        self._timeout_s = most_s
        self._backend = AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - it was looked up before
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's own name
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first address that answers. Raises ConnectError or ConnectTimeout if none
        does.
        """
        most_s = self._timeout_s if timeout is None else min(self._timeout_s, timeout)
        last: ConnectError | ConnectTimeout = ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._backend.connect_tcp(
                    address, port, most_s, local_address, socket_options
                )
            except (ConnectError, ConnectTimeout) as error:
                last = error
        raise last
