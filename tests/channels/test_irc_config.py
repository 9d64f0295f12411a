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
