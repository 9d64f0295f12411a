"""Two hundred secrets, always the same ones, none of them real: of each kind that people and
programs let slip."""

import base64
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

COUNT: Final = 200

_LETTERS: Final = string.ascii_letters + string.digits
_HEX: Final = "0123456789abcdef"
_BASE64: Final = _LETTERS + "+/"


@dataclass(frozen=True, slots=True)
class Planted:
    """One secret, and a text that gives it away by its looks or by the words beside it."""

    kind: str
    secret: str
    text: str
    """One line that holds it, but for private keys."""

    def forms(self) -> set[str]:
        """What must be found nowhere."""
        return {self.secret, quote(self.secret, safe=""), json.dumps(self.secret)[1:-1]}


def planted(seed: int = 8) -> list[Planted]:
    """All of them, every kind about equally often."""
    chance = random.Random(seed)
    kinds = list(_kinds(chance))
    return [kinds[number % len(kinds)]() for number in range(COUNT)]


def passwords(count: int, seed: int = 9) -> list[str]:
    """Such as no pattern tells: for the configuration, which is known."""
    chance = random.Random(seed)
    words = (
        "correct",
        "horse",
        "battery",
        "staple",
        "zebra",
        "ümlaut",
        "Ärger",
        "tab\\le",
        'quo"te',
        "per%cent",
        "a/b",
    )
    return [
        f"{chance.choice(words)} {chance.choice(words)}&{chance.choice(words)}{number}x"
        for number in range(count)
    ]


def _kinds(chance: random.Random) -> Iterator[Callable[[], Planted]]:
    def some(length: int, letters: str = _LETTERS) -> str:
        return (
            "".join(chance.choice(letters) for _ in range(length - 2))
            + chance.choice("0123456789")
            + "a"
        )

    def told(kind: str, make: Callable[[], str], *texts: str) -> Callable[[], Planted]:
        def one() -> Planted:
            secret = make()
            return Planted(kind, secret, chance.choice(texts or _SAID).replace("@@", secret))

        return one

    for prefix, length in _PREFIXES:
        yield told(prefix, lambda prefix=prefix, length=length: prefix + some(length))  # type: ignore[misc]
    yield told(
        "aws",
        lambda: (
            "AKIA" + "".join(chance.choice(string.ascii_uppercase + "234567") for _ in range(16))
        ),
    )
    yield told("stripe", lambda: "sk_live_" + some(24))
    yield told(
        "telegram",
        lambda: "AAH" + some(32),
        "the bot is 123456789:@@ now",
        "/bot987654321:@@/getMe failed",
    )
    yield told("discord", lambda: f"MTE{some(23)}.G{some(5)}.{some(38)}")
    yield told(
        "webhook", lambda: some(68), "https://discord.com/api/webhooks/1234567890123/@@ is mine"
    )
    yield told(
        "slack hook",
        lambda: f"T0{some(9)}/B0{some(9)}/{some(24)}",
        "post to https://hooks.slack.com/services/@@",
    )
    yield told("jwt", lambda: f"eyJ{some(30)}.eyJ{some(60)}.{some(43)}")
    yield told(
        "bearer",
        lambda: some(40),
        "Authorization: Bearer @@",
        "curl -H 'authorization: bearer @@' https://x.org",
    )
    yield told(
        "basic",
        lambda: base64.b64encode(f"bob:{some(18)}".encode()).decode(),
        'headers = {"Authorization": "Basic @@"}',
    )
    yield told(
        "pem",
        lambda: "\n".join(some(64, _BASE64) for _ in range(4)),
        _pem("RSA PRIVATE KEY"),
        _pem("PRIVATE KEY"),
    )
    yield told(
        "userinfo",
        lambda: some(14),
        "postgres://app:@@@db.example.org/main",
        "see https://u:@@@example.org/a?b=c",
    )
    yield told(
        "signed",
        lambda: some(64, _HEX),
        "https://b.s3.example.org/f?X-Amz-Expires=60&X-Amz-Signature=@@&x=1",
    )
    yield told(
        "sig",
        lambda: some(44),
        "https://x.blob.example.org/c/f?sv=1&sig=@@",
        "https://x.example.org/f?token=@@#top",
    )
    yield told(
        "assigned",
        lambda: some(20),
        "DB_PASSWORD=@@",
        "export API_KEY='@@'",
        "client_secret := @@;",
        "token=@@",
    )
    yield told(
        "json", lambda: some(20), '{"user": "bob", "password": "@@", "n": 1}', '{"api_key":"@@"}'
    )
    yield told(
        "yaml", lambda: some(20), "password: @@", "access_token: '@@'", "  secret: @@  # of the app"
    )
    yield told("escaped", lambda: some(20), '{\\"auth_token\\": \\"@@\\", \\"n\\": 1}')
    yield told(
        "flag",
        lambda: some(16),
        "mysql --user bob --password @@ db",
        "app --api-key=@@ run",
        "curl -u bob:@@ x.org",
    )
    yield told(
        "identify",
        lambda: some(12),
        "/msg NickServ IDENTIFY bob @@",
        "NickServ :identify @@",
        "ns regain bob @@",
    )
    yield told("pass", lambda: some(12), "PASS :@@", "PASS @@", "OPER bob @@", "IDENTIFY bob @@")
    yield told(
        "sasl", lambda: base64.b64encode(f"\0bob\0{some(12)}".encode()).decode(), "AUTHENTICATE @@"
    )


_SAID: Final = (
    "I use @@ for that",
    "key: @@",
    "see @@, it is new",
    "(@@)",
    '"@@"',
    "is @@ still good?",
)
_PREFIXES: Final = (
    ("sk-ant-api03-", 90),
    ("sk-proj-", 80),
    ("sk-", 48),
    ("ghp_", 36),
    ("github_pat_", 70),
    ("glpat-", 20),
    ("xoxb-", 40),
    ("AIza", 35),
    ("hf_", 34),
    ("npm_", 36),
    ("pypi-AgEIcHlwaS5vcmc", 90),
    ("gsk_", 50),
    ("hvs.", 30),
)


def _pem(kind: str) -> str:
    return f"-----BEGIN {kind}-----\n@@\n-----END {kind}-----\n"
