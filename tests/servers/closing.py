"""Closing a server without losing a socket."""

import asyncio


async def stop_listening(server: asyncio.Server) -> None:
    """Accept nothing more, and return when whatever was accepted has reached its handler; then close the port.

    Python 3.11 leaks a connection whose acceptance is under way when `Server.close` is called: `_attach`
    fails, and nobody closes the socket.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    for _ in range(5):  # rounds that asyncio takes from an accepted socket to the handler's first step
        await asyncio.sleep(0)
    server.close()
