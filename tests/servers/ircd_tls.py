"""TLS for the scripted IRC server, with certificates that are good for nothing else."""

import ssl
from pathlib import Path

LOCALHOST = Path(__file__).with_name("localhost.test-only.pem")
"""Certificate and key for localhost and 127.0.0.1; signed by itself, so it is also its own root."""
WRONG = Path(__file__).with_name("wrong.test-only.pem")
"""The same for a host that we never connect to."""


def server_context(pem: Path = LOCALHOST) -> ssl.SSLContext:
    """Shows `pem`; looks at a client certificate if there is one, and trusts only `LOCALHOST`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.load_verify_locations(LOCALHOST)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
