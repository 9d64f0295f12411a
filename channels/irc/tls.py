"""What the operator wrote about TLS, as Python's TLS wants it."""

import ssl
from pathlib import Path

from channels.base import Denied
from channels.irc.config import TlsConfig


def connect_error_text(error: OSError) -> str:
    """Why a connection did not come about, for people."""
    return str(error) or ("timeout" if isinstance(error, TimeoutError) else "the server hung up")


def create_ssl_context(config: bool | TlsConfig) -> ssl.SSLContext | None:
    """None: no TLS. Reads the configured files; raises Denied if one cannot be used."""
    if config is False:
        return None
    tls = config if isinstance(config, TlsConfig) else TlsConfig()
    for path in filter(None, (tls.ca_file, tls.cert_file)):
        if Path(path).exists() and not Path(path).is_file():  # a pipe would keep us waiting, perhaps for ever
            raise Denied(f"cannot use the TLS files of the configuration: {path} is no plain file")
    try:
        made = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            made.load_cert_chain(tls.cert_file)
    except OSError as error:
        raise Denied(f"cannot use the TLS files of the configuration: {error}") from error
    if not tls.verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made
