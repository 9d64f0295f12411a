"""TLS contexts and certificates."""

import hashlib
import ssl
from pathlib import Path

from channels.base import Denied
from channels.irc.config import TlsConfig


def check_fingerprint(config: bool | TlsConfig, certificate: bytes | None) -> None:
    """Raise ssl.SSLCertVerificationError if fingerprints are configured and `certificate` (DER) has
    none of them.
    """
    accepted = config.fingerprints if isinstance(config, TlsConfig) else ()
    shown = hashlib.sha256(certificate or b"").hexdigest()
    if accepted and shown not in accepted:
        message = f"it has the fingerprint {shown}, which is not in tls.fingerprints"
        error = ssl.SSLCertVerificationError(f"certificate verify failed: {message}")
        error.verify_code, error.verify_message = 0, message
        raise error


def create_ssl_context(config: bool | TlsConfig) -> ssl.SSLContext | None:
    """Return the context, None without TLS. Reads the configured files; raises Denied if one is
    unusable.

    With `tls.fingerprints` the context accepts any certificate: call `check_fingerprint` before
    anything is sent.
    """
    if config is False:
        return None
    tls = config if isinstance(config, TlsConfig) else TlsConfig()
    for path in filter(None, (tls.ca_file, tls.cert_file)):
        if Path(path).exists() and not Path(path).is_file():  # opening a pipe could block for ever
            raise Denied(f"cannot use the TLS files of the configuration: {path} is no plain file")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file)
    except OSError as error:
        raise Denied(f"cannot use the TLS files of the configuration: {error}") from error
    if tls.fingerprints or not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
