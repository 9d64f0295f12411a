"""SASL mechanisms as conversations: challenge in, answer out. Pure.

https://ircv3.net/specs/extensions/sasl-3.1; PLAIN is RFC 4616, EXTERNAL RFC 4422 appendix A,
SCRAM-SHA-256 RFC 5802 and RFC 7677.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Protocol

_CHUNK_CHARS = 400
_MAX_ITERATIONS = 1_000_000
"""A server must not make us count for minutes; RFC 7677 asks for 4096 or more."""
_MAX_CHALLENGE_CHARS = 65_536


class SaslError(Exception):
    """The other side broke the mechanism's rules or is not who it says."""


class SaslMechanism(Protocol):
    """One login."""

    name: str

    def respond(self, challenge: bytes) -> bytes:
        """What to answer; the first challenge is empty. Raises Failed."""


class PlainMechanism:
    """Account and password, in the clear inside TLS.

    The account is the authorization identity, too, as https://ircv3.net/specs/extensions/sasl-3.1 shows it.
    """

    name = "PLAIN"

    def __init__(self, account: str, password: str) -> None:
        self._account, self._password = account, password

    def respond(self, challenge: bytes) -> bytes:  # noqa: ARG002 - PLAIN says the same to everything
        return f"{self._account}\0{self._account}\0{self._password}".encode()


class ExternalMechanism:
    """The TLS client certificate says it all."""

    name = "EXTERNAL"

    def __init__(self, account: str) -> None:
        self._account = account

    def respond(self, challenge: bytes) -> bytes:  # noqa: ARG002 - EXTERNAL says the same to everything
        return self._account.encode()


class ScramSha256Mechanism:
    """Proves the password without telling it, and checks that the server knows it too."""

    name = "SCRAM-SHA-256"

    def __init__(self, account: str, password: str, nonce: str) -> None:
        self._password = password.encode()
        self._nonce = nonce
        name = account.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={nonce}"
        self._signature = b""
        self._step = 0
        self.is_server_verified = False
        """The server proved that it knows the password, too."""

    def respond(self, challenge: bytes) -> bytes:
        self._step += 1
        if self._step == 1:
            return f"n,,{self._first}".encode()
        if self._step == 2:  # noqa: PLR2004 - RFC 5802 section 5 counts the same
            return self._client_final(challenge)
        # An error of section 7 is no proof. What it means for us, the numeric behind it says.
        return b"" if challenge.startswith(b"e=") else self._verify_server(challenge)

    def _client_final(self, challenge: bytes) -> bytes:
        try:
            fields = dict(part.split("=", 1) for part in challenge.decode().split(","))
            nonce, salt, count = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
        except (ValueError, KeyError) as error:
            raise SaslError("the server's SCRAM challenge is malformed") from error
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SaslError("the server's SCRAM nonce does not continue ours")
        if not 1 <= count <= _MAX_ITERATIONS:
            raise SaslError("the server's SCRAM iteration count is unreasonable")
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, count)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={nonce}"
        whole = f"{self._first},{challenge.decode()},{final}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), whole, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), whole, "sha256")
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify_server(self, challenge: bytes) -> bytes:
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(challenge.split(b",", maxsplit=1)[0], expected):
            raise SaslError("the server does not know the password (SCRAM signature differs)")
        self.is_server_verified = True
        return b""


class SaslExchange:
    """One mechanism over AUTHENTICATE's base64 in chunks of 400."""

    def __init__(self, mechanism: SaslMechanism) -> None:
        self.mechanism = mechanism
        self._received = ""

    def feed(self, chunk: str) -> list[str]:
        """One parameter of AUTHENTICATE in; the parameters to answer out (none: more is to come). Raises Failed."""
        self._received += "" if chunk == "+" else chunk
        if len(self._received) > _MAX_CHALLENGE_CHARS:
            raise SaslError("the server's challenge never ends")
        if len(chunk) == _CHUNK_CHARS:
            return []
        encoded, self._received = self._received, ""
        try:
            challenge = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SaslError("the server's challenge is not base64") from error
        return encode_chunks(self.mechanism.respond(challenge))


def encode_chunks(payload: bytes) -> list[str]:
    """`payload` as AUTHENTICATE parameters; a last chunk of exactly 400, and nothing at all, end with `+`."""
    encoded = base64.b64encode(payload).decode()
    cut = [encoded[start : start + _CHUNK_CHARS] for start in range(0, len(encoded), _CHUNK_CHARS)]
    return cut if cut and len(cut[-1]) < _CHUNK_CHARS else [*cut, "+"]
