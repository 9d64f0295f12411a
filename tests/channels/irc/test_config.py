from typing import Any

import pytest
from pydantic import ValidationError

from channels.irc.config import IrcConfig

GOOD = {"platform": "irc", "host": "irc.libera.chat", "nick": "reverie", "contact": "alice@example.org"}


def test_the_documented_section_is_read() -> None:
    config = IrcConfig.model_validate(
        GOOD
        | {
            "port": 6697,
            "tls": {"ca_file": "x.pem", "verify": True},
            "sasl": {"mechanism": "plain", "account": "reverie", "password": "hush"},
            "rooms": ["#reverie"],
            "flood": {"burst": 4, "per_s": 1},
            "ping_interval": "2m",
        }
    )
    assert config.rooms == ("#reverie",)
    assert config.ping_interval == 120
    assert "hush" not in repr(config)


PLAIN = {"mechanism": "plain", "account": "a", "password": "p"}


@pytest.mark.parametrize(
    "fine",
    [
        {"tls": True, "sasl": PLAIN, "password": "x"},
        {"tls": {"verify": False}, "sasl": PLAIN},
        {"tls": False, "sasl": PLAIN | {"mechanism": "scram-sha-256"}},
        {"tls": False, "sasl": PLAIN, "host": "127.0.0.2"},
        {"tls": False, "password": "x", "host": "::1"},
        {"tls": False},
    ],
)
def test_passwords_go_over_tls_or_to_this_machine(fine: dict[str, Any]) -> None:
    assert IrcConfig.model_validate(GOOD | fine).host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_loopback_needs_no_contact(host: str) -> None:
    assert IrcConfig.model_validate({"host": host, "nick": "r"}).contact is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"contact": None}, "contact is missing: add who runs"),
        ({"nick": "1x"}, "not a nick"),
        ({"nick": "a b"}, "not a nick"),
        ({"rooms": ["reverie"]}, "in quotes"),
        ({"rooms": ["#a,#b"]}, "in quotes"),
        ({"rooms": ["#a\r\nQUIT"]}, "in quotes"),
        ({"sasl": {"mechanism": "plain"}}, "needs account and password"),
        ({"sasl": {"mechanism": "magic"}}, "mechanism"),
        ({"username": ":x"}, "not a user name"),
        ({"username": "a@b"}, "not a user name"),
        ({"username": "a\nQUIT"}, "not a user name"),
        ({"tls": False, "sasl": PLAIN}, r"sasl.password would be sent .* `tls: true` .* scram-sha-256"),
        ({"tls": False, "password": "x"}, r"^1 .*\n.*password would be sent to irc.libera.chat over plain text"),
        ({"tls": False, "sasl": PLAIN, "host": "127.0.0.1.example.org"}, "over plain text"),
        ({"tls": False, "sasl": PLAIN, "host": "10.0.0.1"}, "over plain text"),
        ({"port": 0}, "port"),
        ({"host": ""}, "not the name of a host"),
        ({"host": "irc..example"}, "not the name of a host"),
        ({"host": "x" * 64 + ".example"}, "not the name of a host"),
        ({"host": "irc.example\0"}, "not the name of a host"),
        ({"host": "irc.example "}, "not the name of a host"),
        ({"flood": {"burst": 0}}, "burst"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        IrcConfig.model_validate(GOOD | wrong)
