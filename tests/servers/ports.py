"""Ports for servers that must be told theirs before they start."""

import contextlib
import random
import socket

_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A loopback port that nobody listens on, and that no outgoing connection is given before the server has it.

    Those come from above (https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html, ip_local_port_range).
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("a hundred ports were taken")
