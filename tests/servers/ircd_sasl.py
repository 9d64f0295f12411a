"""The server's side of SASL, for the scripted IRC server."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Generator, Mapping

CHUNK = 400
Exchange = Generator[bytes, bytes, str | None]
"""Yields challenges, is sent answers, returns the account or None."""


def plain(accounts: Mapping[str, str]) -> Exchange:
    answer = yield b""
    identity, account, password = answer.decode().split("\0")
    return account if account and identity in {"", account} and accounts.get(account) == password else None


def external(certified: str | None) -> Exchange:
    """`certified` is the account of the client certificate."""
    answer = yield b""
    return certified if answer.decode() in {"", certified} else None


def scram(accounts: Mapping[str, str], proof_of_ours: str = "true") -> Exchange:
    """RFC 5802, from the server's side, whose own proof is "true", "false", "none", or an "error" to say no."""
    first = (yield b"").decode().removeprefix("n,,")
    fields = dict(field.split("=", 1) for field in first.split(","))
    account, salt = fields["n"].replace("=2C", ",").replace("=3D", "="), b"salt"
    challenge = f"r={fields['r']}server,s={base64.b64encode(salt).decode()},i=4096"
    final = (yield challenge.encode()).decode()
    bare, _, proof = final.rpartition(",p=")
    salted = hashlib.pbkdf2_hmac("sha256", accounts.get(account, "no such account").encode(), salt, 4096)
    whole = f"{first},{challenge},{bare}".encode()
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    signature = hmac.digest(stored, whole, "sha256")
    key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    if hashlib.sha256(key).digest() != stored:
        if proof_of_ours == "error":
            yield b"e=invalid-proof"
        return None
    if proof_of_ours == "error":
        yield b"e=other-error"  # and lets us in without a proof
    if proof_of_ours in {"none", "error"}:
        return account
    mine = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), whole, "sha256")
    yield b"v=" + base64.b64encode(b"x" * 32 if proof_of_ours == "false" else mine)
    return account


class Login:
    """One exchange over AUTHENTICATE; `say` sends a line, `done` is told the account or None."""

    def __init__(self, exchange: Exchange, say: Callable[[str], None], done: Callable[[str | None], None]) -> None:
        self._exchange, self._say, self._done = exchange, say, done
        self._received = ""
        self._challenge(next(exchange))

    def _challenge(self, challenge: bytes) -> None:
        encoded = base64.b64encode(challenge).decode()
        for start in range(0, len(encoded) or 1, CHUNK):
            self._say(f"AUTHENTICATE {encoded[start : start + CHUNK] or '+'}")

    def feed(self, chunk: str) -> None:
        assert len(chunk) <= CHUNK
        self._received += "" if chunk == "+" else chunk
        if len(chunk) == CHUNK:
            return
        answer, self._received = base64.b64decode(self._received), ""
        try:
            self._challenge(self._exchange.send(answer))
        except StopIteration as finished:
            self._done(finished.value)
