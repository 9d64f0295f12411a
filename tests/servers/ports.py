"""Free ports for servers that must be told theirs before they start; closing a server without
losing a socket."""

import asyncio
import contextlib
import random
import socket

_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A loopback port that nobody listens on, and that no outgoing connection is given before the
    server has it.

    Those come from above (https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html,
    ip_local_port_range).
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("a hundred ports were taken")


async def stop_listening(server: asyncio.Server) -> None:
    """Accept nothing more, and return when whatever was accepted has reached its handler; then
    close the port.

    Python 3.11 leaks a connection whose acceptance is under way when `Server.close` is called:
    `_attach` fails, and nobody closes the socket.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(
        5
    ):  # rounds that asyncio takes from an accepted socket to the handler's first step
        await asyncio.sleep(0)
    server.close()
