"""One-time codes are in no formatted line of the log."""

from datetime import UTC, datetime

import pytest

from gateway.access.texts import format_code
from gateway.core.events import Address, ChannelName, Command, EventId, Post, PostKey, RoomId, Sender, SenderId
from gateway.core.facts import Fact, PostQueued, Seq
from gateway.core.redaction import Redactor
from gateway.store import LogEntry
from gateway.store.format import format_entry

NOW = datetime(2026, 3, 1, tzinfo=UTC)
AT = Address(channel=ChannelName("irc.x"), room=RoomId("#a"))
CODE = "WA7TRCGP"


def shown(fact: Fact) -> str:
    return format_entry(
        LogEntry(seq=Seq(1), at=NOW, kind=fact.kind, conversation=AT.conversation, key=None, cause=None, fact=fact),
        redactor=Redactor(),
    )


def command(name: str, args: str) -> Command:
    who = Sender(id=SenderId("1"), name="ann", verified=True)
    return Command(id=EventId("1"), at=AT, sender=who, name=name, args=args, sent=NOW, origin="text")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("pair", f"approve {CODE}"),
        ("pair", f"aprove {format_code(CODE).lower()}"),
        ("room", f"approve {format_code(CODE)}"),
        ("link", CODE.lower()),
        ("paair", f"approve {format_code(CODE)}"),
    ],
)
def test_what_is_handed_in_is_not_shown(name: str, args: str) -> None:
    told = shown(command(name, args))
    assert "***" in told
    assert CODE.lower() not in told.lower().replace("-", "")


def test_what_is_shown_to_somebody_is_shown_to_nobody_else() -> None:
    post = Post(key=PostKey("p"), to=AT, text=f"Give them this code: `{format_code(CODE)}`.")
    assert shown(PostQueued(post=post)).endswith("Give them this code: `***`.")


@pytest.mark.parametrize(("name", "args"), [("pair", "list"), ("link", ""), ("say", "#a to be or not")])
def test_the_rest_is_told(name: str, args: str) -> None:
    assert shown(command(name, args)).rstrip().endswith(f"<ann> {name} {args}".rstrip())
