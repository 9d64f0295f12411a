import base64
from typing import Any

import pytest
from pydantic import SecretStr

from channels.irc.config import SaslConfig
from channels.irc.registration import SaslError, SaslExchange, encode_chunks

# The example of RFC 7677 section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _exchange(mechanism: Any, account: str = "", password: str = "") -> SaslExchange:
    secret = SecretStr(password) if password else None
    return SaslExchange(SaslConfig(mechanism=mechanism, account=account, password=secret), NONCE)


def test_scram_is_that_of_the_rfc() -> None:
    scram = _exchange("scram-sha-256", "user", "pencil")
    assert scram.respond(b"") == b"n,,n=user,r=" + NONCE.encode()
    assert scram.respond(SERVER_FIRST) == CLIENT_FINAL
    assert not scram.is_server_proven
    assert scram.respond(SERVER_FINAL) == b""
    assert scram.is_server_proven


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=W22Z,i=4096",
        SERVER_FIRST.replace(b"4096", b"99999999"),
        b"\xff",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=1",
    ],
)
def test_scram_refuses_a_false_server(challenge: bytes) -> None:
    scram = _exchange("scram-sha-256", "user", "pencil")
    scram.respond(b"")
    with pytest.raises(SaslError):
        scram.respond(challenge)


def test_a_scram_error_is_no_proof() -> None:
    scram = _exchange("scram-sha-256", "user", "pencil")
    scram.respond(b"")
    scram.respond(SERVER_FIRST)
    assert scram.respond(b"e=invalid-proof") == b""
    assert not scram.is_server_proven


def test_scram_refuses_a_server_that_does_not_know_the_password() -> None:
    scram = _exchange("scram-sha-256", "user", "pencil")
    scram.respond(b"")
    scram.respond(SERVER_FIRST)
    with pytest.raises(SaslError):
        scram.respond(b"v=AAAA")


def test_plain_and_external() -> None:
    assert (
        _exchange("plain", "a", "p").respond(b"") == b"a\0a\0p"
    )  # as https://ircv3.net/specs/extensions/sasl-3.1 has it
    assert _exchange("external").feed("+") == ["+"]


@pytest.mark.parametrize(("size", "lengths"), [(1, [4]), (299, [400, 1]), (300, [400, 1]), (301, [400, 4])])
def test_payloads_are_cut_at_400(size: int, lengths: list[int]) -> None:
    cut = encode_chunks(b"x" * size)
    assert [len(chunk) for chunk in cut] == lengths
    assert base64.b64decode("".join(chunk for chunk in cut if chunk != "+")) == b"x" * size


def test_challenges_are_joined() -> None:
    exchange = _exchange("scram-sha-256", "user", "pencil")
    exchange.feed("+")
    challenge = base64.b64encode(SERVER_FIRST + b",x=" + b"A" * 300).decode()
    assert exchange.feed(challenge[:400]) == []
    assert exchange.feed(challenge[400:])
    with pytest.raises(SaslError):
        exchange.feed("!!!")
    for _ in range(163):
        assert exchange.feed("A" * 400) == []
    with pytest.raises(SaslError):
        exchange.feed("A" * 400)
