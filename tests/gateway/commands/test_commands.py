"""Commands through the whole gateway: console, store, outbox. The model never sees them."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.models.scripted import Script, ScriptRule
from channels.base import PostPart, Unreachable
from gateway.commands import dispatcher
from gateway.commands.context import CommandCall, CommandContext
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    Command,
    EventId,
    Message,
    MessageId,
    Notification,
    Post,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.facts import AuditRecord, Judgement, PostQueued
from gateway.core.redaction import Redactor
from gateway.plugins.trace import explain_event
from gateway.store import Store
from gateway.store.effects import CommandEffect, done
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import CONSOLE, Gateway, Screen, running
from reverie.testing.waiting import until
from tests.gateway.commands.commands_kit import ECHO, IRC, Desk, command, counter, somebody
from tests.gateway.commands.commands_kit import LOBBY as AUDIT_LOBBY
from tests.kits.commands import TABLE
from tests.kits.store import account, spent

ROLES = {
    "dm": "open",
    "roles": {
        "owner": ["console:olga"],
        "admin": ["console:root"],
        "member": ["console:mia"],
        "blocked": ["console:mal"],
    },
}
LOBBY = Address(channel=CONSOLE, room=RoomId("lobby"))


async def emit(console: ConsoleChannel, *events: Notification) -> None:
    """Emit as a platform does."""
    await console._up.wait()
    assert console._emit is not None
    await console._emit(events)


def native(
    name: str, sender: str, *, number: int = 1, direct: bool = False, bot: bool = False
) -> Command:
    return Command(
        id=EventId(f"n{number}"),
        at=Address(channel=CONSOLE, room=RoomId(sender if direct else "lobby")),
        sender=Sender(id=SenderId(sender), name=sender, verified=True, is_bot=bot),
        name=name,
        args="",
        sent=datetime.now(UTC),
        origin="native",
        direct=direct,
    )


def text(words: str, number: int, *, sender: str = "ann", kind: str = "mention") -> Message:
    return Message(
        id=MessageId(f"m{number}"),
        at=LOBBY,
        sender=Sender(id=SenderId(sender), name=sender, verified=True),
        text=words,
        sent=datetime.now(UTC),
        kind="mention" if kind == "mention" else "room",
    )


async def fates(gateway: Gateway) -> list[tuple[str, str]]:
    """Return the fates of the commands, oldest first."""
    async with await Store.open_readonly(gateway.path) as reader:
        found = [
            await reader.find_judgement(entry.seq)
            for entry in await reader.entries(kinds=["command"])
        ]
    return [(one.fate, one.rule) for one in found if isinstance(one, Judgement)]


@pytest.mark.parametrize(
    ("language", "state", "mode"), [("en", "up since", "resting"), ("de", "verbunden seit", "Ruhe")]
)
async def test_a_command_is_answered_without_the_model(
    tmp_path: Path, language: str, state: str, mode: str
) -> None:
    agents = [{"id": "reverie", "bindings": [{"language": language}]}]
    async with running(tmp_path, Script(), access=ROLES, agents=agents) as gateway:
        asked = await gateway.console.receive_message("!status", sender="ann", room="lobby")
        await gateway.screen.until(1)
        (part,) = gateway.screen.parts
        assert (part.to, part.reply_to) == (LOBBY, asked.id)
        assert "scripted" in part.body
        assert f"console: {state}" in part.body
        assert mode in part.body
        await gateway.ask("reverie: !version", sender="ann", room="lobby")
        assert gateway.screen.parts[1].body.startswith("Reverie ")
        assert not gateway.scripted.requests
        await gateway.ask("reverie: hello", sender="ann", room="lobby")
        (request,) = gateway.scripted.requests
        assert "status" not in str(request.conversation)
    assert await fates(gateway) == [("noted", "command status"), ("noted", "command version")]


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path, Script(), access=ROLES) as made:
        yield made


async def test_what_acts_is_not_carried_out_hours_later_and_that_is_said(gateway: Gateway) -> None:
    late, now = timedelta(hours=3), datetime.now(UTC)
    await emit(
        gateway.console,
        replace(native("restart", "root", number=1, direct=True), sent=now - late),
        replace(
            native("dmn", "root", number=2, direct=True),
            args="off",
            sent=now - timedelta(seconds=61),
        ),
        replace(text("!block ann", 3, sender="root"), sent=now - late),
        replace(native("version", "root", number=4, direct=True), sent=now - late),
        replace(
            native("dmn", "root", number=5, direct=True),
            args="status",
            sent=now - timedelta(seconds=50),
        ),
    )
    await gateway.screen.until(5)
    bodies = [part.body for part in gateway.screen.parts]
    refused = [body for body in bodies if body.startswith("Your `")]
    assert sorted(body.split("`")[1][1:] for body in refused) == ["block", "dmn", "restart"]
    assert all(
        "so I did not run it. Send it again if you still want it." in body for body in refused
    )
    assert [body for body in bodies if body.startswith("Reverie ")], "what only tells is told"


async def test_start_with_what_a_link_hands_over_greets(gateway: Gateway) -> None:
    start = native("start", "ann", direct=True)
    await emit(gateway.console, start, replace(start, id=EventId("linked"), args="ref_12345"))
    await gateway.screen.until(2)
    plain, linked = (part.body for part in gateway.screen.parts)
    assert plain == linked
    assert "Just write to me here" in linked


async def test_where_the_model_runs_is_told_to_nobody(gateway: Gateway) -> None:
    gateway.scripted.label = "big-model at 10.0.0.7:8000"
    for number, name in enumerate(("status", "about")):
        await emit(gateway.console, native(name, "root", number=number))
        await gateway.screen.until(number + 1)
    told = [part.body for part in gateway.screen.parts]
    assert all("big-model" in one and "10.0.0.7" not in one for one in told)


@pytest.mark.parametrize(
    ("name", "sender", "more", "answer"),
    [
        ("version", "ann", {}, "Reverie "),
        ("version", "ann", {"direct": True}, "Reverie "),
        ("nobody_knows", "ann", {}, "I do not know this button."),
        ("nobody_knows", "ann", {"direct": True}, "I do not know this button."),
        ("why", "ann", {}, "This command needs the role admin or above."),
        ("why", "mia", {"direct": True}, "This command needs the role admin or above."),
        ("version", "mal", {}, "I am not allowed to answer you here."),
        ("version", "b0t", {"bot": True}, "I am not allowed to answer you here."),
    ],
)
async def test_each_tap_is_answered_to_who_tapped_alone(
    tmp_path: Path, name: str, sender: str, more: dict[str, bool], answer: str
) -> None:
    """It is the same command as a written one: who may not write it may not give it by a tap,
    whatever its data."""
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        tap = replace(native(name, sender, **more), origin="button")
        await emit(gateway.console, tap, tap)
        await gateway.screen.until(1)
    (fact,) = await gateway.facts("post")
    assert isinstance(fact, PostQueued)
    assert fact.post.text.startswith(answer)
    assert (fact.post.reply_to, fact.post.private, fact.post.to) == (
        MessageId(tap.id),
        True,
        tap.at,
    )
    assert fact.post.style == "message"


async def test_of_many_taps_each_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ROLES, commands={"per_minute": 2}) as gateway:
        taps = [
            replace(native("version", "ann", number=number), origin="button")
            for number in range(1, 4)
        ]
        await emit(gateway.console, *taps)
        await gateway.screen.until(3)
        assert "too much at once" in gateway.screen.parts[2].body


async def test_each_command_that_waits_for_an_answer_gets_one(tmp_path: Path) -> None:
    """Whoever chose it from a menu of Discord is shown that it is thinking until it is answered."""
    screen = Screen()
    menu = ConsoleChannel(CONSOLE, screen.show)
    menu.capabilities = replace(menu.capabilities, defers_commands=True)
    async with running(
        tmp_path,
        Script(),
        channels={CONSOLE: menu},
        access=ROLES,
        commands={"per_minute": 1},
    ):
        given = [("nobody_knows", 1), ("version", 2), ("version", 3)]
        await emit(menu, *(native(name, "ann", number=number) for name, number in given))
        await screen.until(3)
        assert [part.body.split(".")[0] for part in screen.parts][::2] == [
            "I do not know that command",
            "That was too much at once",
        ]


async def test_a_repeated_command_is_answered_once(tmp_path: Path) -> None:
    """Also if it would be parsed differently the second time, and if it comes in another batch."""
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        once, other = text("!version", 1), text("!version", 2)
        await emit(gateway.console, once, once)
        await emit(gateway.console, once, other)
        await emit(gateway.console, native("version", "ann"), native("version", "ann"))
        changed = text(
            "reverie: what is this?", 1
        )  # as an edit, or another version's way of reading, might have it
        await emit(gateway.console, changed)
        await gateway.screen.until(3)
        await gateway.ask("!whoami", sender="ann")
        assert not gateway.scripted.requests
    assert len(await gateway.facts("command")) == 4
    queued = [fact.post for fact in await gateway.facts("post") if isinstance(fact, PostQueued)]
    assert len({post.key for post in queued}) == len(queued) == 4
    assert len(await gateway.facts("delivery")) == 4


REFUSED = [
    (native("version", "mal"), ("refused", "access.roles.blocked")),
    (native("why", "ann"), ("refused", "command why is for admin and above")),
    (native("why", "mia"), ("refused", "command why is for admin and above")),
    (native("version", "b0t", bot=True), ("refused", "bots are not answered")),
    (native("version", "mia", bot=True), ("refused", "bots give no commands")),
    (native("button", "ann"), ("noted", "no such command")),
    (native("rewind", "ann"), ("refused", "command rewind is for admin and above")),
    (native("new", "mia"), ("refused", "command new is for admin and above")),
    (native("retry", "mal", direct=True), ("refused", "access.roles.blocked")),
]


async def test_who_may_not_is_told_alone_what_it_takes_and_no_stranger_is(gateway: Gateway) -> None:
    events = [replace(event, id=EventId(f"r{number}")) for number, (event, _) in enumerate(REFUSED)]
    await emit(gateway.console, *events)
    await gateway.ask("!version", sender="ann")
    assert (await fates(gateway))[:-1] == [expected for _, expected in REFUSED]
    posts = [fact.post for fact in await gateway.facts("post") if isinstance(fact, PostQueued)]
    told = [post.text for post in posts if post.private and "Reverie" not in post.text]
    assert told == ["This command needs the role admin or above."] * 2, (
        "ann and mia, once a minute each"
    )


async def test_help_lists_what_this_person_may_use(tmp_path: Path) -> None:
    async with running(
        tmp_path, Script(), access=ROLES, commands={"prefix": "%", "contact": "ann@x"}
    ) as gateway:
        guest, admin = await gateway.ask("%help"), await gateway.ask("%help", sender="root")
        unknown, about = await gateway.ask("%stauts"), await gateway.ask("%about")
        who = await gateway.ask("%whoami")
    assert "`%status`" in guest
    assert "`%why" not in guest
    assert "`%why`" in admin
    assert "Did you mean `%status`?" in unknown
    assert "I am a bot, not a person" in about
    assert "My operator: ann@x" in about
    assert who == "You are `console:ann`, which the platform confirms. Your role: guest."
    assert gateway.screen.parts[0].private
    assert not gateway.screen.parts[3].private


async def test_only_owners_and_admins_read_which_key_of_the_configuration_gives_them_their_role(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        for number, who in enumerate(("gus", "mia", "root", "olga"), start=1):
            await emit(gateway.console, native("whoami", who, number=number))
            await gateway.screen.until(number)
        said = [part.body for part in gateway.screen.parts]
    assert [text.partition("Your role: ")[2] for text in said] == [
        "guest.",
        "member.",
        "admin (access.roles.admin).",
        "owner (access.roles.owner).",
    ]


async def test_whose_direct_chat_it_is_may_change_what_is_seen_of_it(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        for number, (name, sender) in enumerate(
            [("new", "ann"), ("retry", "mia"), ("rewind", "ann")], start=1
        ):
            await emit(gateway.console, native(name, sender, number=number, direct=True))
            await gateway.screen.until(number)
        await emit(gateway.console, native("rewind", "root", number=4))
        await gateway.screen.until(4)
    assert all(part.body.startswith("I see no ") for part in gateway.screen.parts)
    assert {fate for fate, _ in await fates(gateway)} == {"noted"}


async def test_the_question_whether_it_is_a_person_is_answered_with_the_truth(
    gateway: Gateway,
) -> None:
    await gateway.ask("reverie: are you a bot?", sender="ann", room="lobby")
    await emit(gateway.console, native("start", "ann", direct=True))
    await gateway.screen.until(2)
    assert all("I am a bot" in part.body for part in gateway.screen.parts)
    assert not gateway.scripted.requests


async def test_where_nothing_is_listened_to_no_text_is_a_command(tmp_path: Path) -> None:
    deaf = [
        {
            "id": "reverie",
            "bindings": [{"match": {"room": "lobby"}, "listen": "off"}, {"match": {"room": "*"}}],
        }
    ]
    async with running(tmp_path, Script(), access=ROLES, agents=deaf) as gateway:
        await gateway.console.receive_message("!version", sender="ann", room="lobby")
        await gateway.ask("!version", sender="ann")
    assert len(await gateway.facts("command")) == 1


async def test_who_sends_too_many_commands_is_told_so_once(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ROLES, commands={"per_minute": 2}) as gateway:
        await emit(gateway.console, *(text("!version", number) for number in range(5)))
        await gateway.console.receive_message("!version", sender="bob", room="lobby")
        await gateway.screen.until(4)
    told = [one.body for one in gateway.screen.parts if "too much at once" in one.body]
    assert len(gateway.screen.parts) == 4
    assert len(told) == 1
    rules = [rule for _, rule in await fates(gateway)]
    assert rules == ["command version"] * 2 + ["commands.per_minute"] * 3 + ["command version"]


async def test_a_handler_that_breaks_is_answered_and_breaks_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
        raise KeyError("a bug")

    async def slow(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
        raise TimeoutError

    async def endless(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
        await asyncio.Event().wait()
        raise AssertionError

    for name, handler in (("version", broken), ("status", slow), ("about", endless)):
        monkeypatch.setitem(TABLE.people, name, replace(TABLE.people[name], handler=handler))
    monkeypatch.setattr(dispatcher, "ANSWER_TIMEOUT_S", 0.05)
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        said = [
            text("!version", 1),
            text("!status", 2),
            text("!about", 3),
            text("reverie: hello", 4),
        ]
        await emit(gateway.console, *said)
        await gateway.screen.until(4)
        assert len(gateway.scripted.requests) == 1
    replies = [
        part.body
        for part in gateway.screen.parts
        if "An error in my program stopped this command" in part.body
    ]
    assert len(replies) == 3
    (reference,) = re.findall(r"command version broke \(reference ([0-9a-f]{8})\)", caplog.text)
    assert reference not in replies[0], "a guest has no use for it"


async def test_why_alone_tells_the_last_answer_here_in_one_sentence(gateway: Gateway) -> None:
    (nothing,) = await _answers(gateway, ("!why", "olga", None))
    assert nothing == "I have answered nobody here lately."
    await gateway.console.receive_message("hello", sender="olga")
    await gateway.screen.until(2)
    await gateway.took(1)
    (said,) = await _answers(gateway, ("!why", "olga", None))
    assert re.fullmatch(
        r"At .* UTC I answered `olga`, with 1 request to .*\. `!why \d+` "
        r"says more\.",
        said,
    )


async def test_seen_tells_when_somebody_last_wrote_here(gateway: Gateway) -> None:
    await gateway.ask("hello", sender="olga")
    asked = ("!seen @OLGA", "olga", None), ("!seen bob", "olga", None)
    olga, bob = await _answers(gateway, *asked)
    assert await _answers(gateway, ("!seen @user-olga", "olga", None)) == [olga]
    assert re.fullmatch(r"`olga` last wrote here at .* UTC, \d+ s ago\.", olga)
    assert bob == "I have not seen `bob` write here lately."


@pytest.mark.parametrize(
    ("short", "whole"),
    [("!pause", "!dmn pause"), ("!quiet 8h", "!dmn quiet 8h"), ("!reminders", "!intentions list")],
)
async def test_words_that_people_try_stand_for_the_command(
    short: str, whole: str, tmp_path: Path
) -> None:
    said = list[list[str]]()
    for place, typed in (("a", short), ("b", whole)):
        (tmp_path / place).mkdir()
        async with running(tmp_path / place, Script(), access=ROLES) as gateway:
            said.append(await _answers(gateway, (typed, "olga", None)))
    assert said[0][0][:20] == said[1][0][:20]


async def test_why_tells_what_became_of_a_message_and_of_a_command(gateway: Gateway) -> None:
    await gateway.ask("a `secret`", sender="ann")
    async with await Store.open_readonly(gateway.path) as reader:
        (said,) = await reader.entries(kinds=["direct"])
        (here,) = await _answers(gateway, (f"!why {said.seq}", "olga", None))
        assert here.startswith("```\n")
        assert "a 'secret'" in here
        assert "due for a turn: a direct is urgent" in here
        await until(lambda: gateway.facts("delivery"))
        first, *_ = await reader.entries(kinds=["command"])
        told = await explain_event(reader, first.seq) or []
    assert told[2] == "a command, never shown to the model: command why"
    assert "the answer (entry " in told[3]


async def _spend(path: Path) -> None:
    """Dated tomorrow: counts as spent from today on, whenever midnight comes."""
    later = datetime.now(UTC) + timedelta(days=1)
    elsewhere = Address(channel=CONSOLE, room=RoomId("cellar"))
    thread = Address(channel=CONSOLE, room=RoomId("lobby"), thread=ThreadId("7"))
    async with await Store.open(path, ManualClock()) as store:
        await store.append(
            [
                spent(LOBBY.conversation, account(read=75, plain=25, cost=1.0), at=later),
                spent(
                    LOBBY.conversation,
                    account(plain=100, cost=2.0, missed="identity, `text`: byte 7"),
                    at=later,
                ),
                spent(LOBBY.conversation, account(read=100, cost=4.0), at=later),
                spent(thread.conversation, account(read=100, cost=8.0), at=later),
                spent(elsewhere.conversation, account(plain=100, cost=16.0), at=later),
                spent(
                    elsewhere.conversation,
                    account(plain=100, cost=32.0),
                    at=later - timedelta(days=11),
                ),
            ]
        )


async def _answers(gateway: Gateway, *asked: tuple[str, str, str | None]) -> list[str]:
    return [await gateway.ask(words, sender=who, room=room) for words, who, room in asked]


async def test_what_is_spent_is_told_of_here_to_members_and_of_everywhere_to_admins_alone(
    tmp_path: Path,
) -> None:
    await _spend(tmp_path / "reverie.db")
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        member, admin, alone, unnamed, whole = await _answers(
            gateway,
            ("!usage", "mia", "lobby"),
            ("!usage", "root", "lobby"),
            ("!usage", "mia", None),
            ("!usage", "root", None),
            ("!usage", "olga", None),
        )
        assert all(part.private for part in gateway.screen.parts)
        assert not gateway.scripted.requests
    room = (
        "- Here today: 4 requests: 400 input tokens (68.8 % from the cache), 28 output tokens, "
        "$15.00."
    )
    assert member == room
    assert admin == f"{room}\n- Ask me in a direct chat to see all rooms."
    assert alone == "- Here today: no requests to a model."
    assert unnamed.splitlines() == whole.splitlines()[:3]  # nobody knows that these are open to all
    assert whole.splitlines() == [
        "- Here today: no requests to a model.",
        (
            "- Everywhere today: 5 requests: 500 input tokens (55.0 % from the cache), 35 output "
            "tokens, $31.00."
        ),
        (
            "- Everywhere in 30 days: 6 requests: 600 input tokens (45.8 % from the cache), 42 output "
            "tokens, $63.00."
        ),
        (
            "- `console/cellar` today: 1 request: 100 input tokens (0.0 % from the cache), 7 output "
            "tokens, $16.00"
        ),
        f"- `console/lobby` today: {room.removeprefix('- Here today: ').removesuffix('.')}",
    ]


async def test_the_cache_of_a_conversation_is_told_with_its_last_miss(tmp_path: Path) -> None:
    await _spend(tmp_path / "reverie.db")
    async with running(
        tmp_path, Script(), access=ROLES, rooms=("lobby", "cellar", "attic")
    ) as gateway:
        lobby, cellar, attic = await _answers(
            gateway,
            ("!cache", "root", "lobby"),
            ("!cache", "root", "cellar"),
            ("!cache", "root", "attic"),
        )
        assert all(part.private for part in gateway.screen.parts)
        await emit(gateway.console, native("cache", "mia"), native("usage", "ann", number=2))
    assert (await fates(gateway))[-2:] == [
        ("refused", "command cache is for admin and above"),
        ("refused", "command usage is for member and above"),
    ]
    sums, miss = lobby.splitlines()
    assert sums == (
        "- Here today: 3 requests: 300 input tokens (58.3 % from the cache), 21 output tokens, "
        "$7.00."
    )
    assert miss.startswith("- Last cache miss (")
    assert miss.endswith(" UTC, entry 2, m): `identity, 'text': byte 7`")
    assert cellar.endswith("\n- No cache miss in the last 2 requests.")
    assert attic == "- Here today: no requests to a model."


class Paged(ConsoleChannel):
    def page_count(self, post: Post) -> int:
        return -(-len(post.text) // 40)

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text[(post.page - 1) * 40 : post.page * 40],)


async def _talk(paged: Paged, lines: Sequence[str], screen: Screen) -> None:
    for line in lines:
        before = len(screen.parts)
        await paged.receive_message(line, sender="ann", room="lobby")
        await screen.until(before + 1)


@contextlib.asynccontextmanager
async def pages(
    tmp_path: Path, script: Script, make: type[Paged] = Paged, **more: Any
) -> AsyncIterator[tuple[Paged, Screen, Gateway]]:
    """A channel of that kind, what it shows, and the gateway."""
    screen = Screen()
    paged = make(CONSOLE, screen.show)
    async with running(
        tmp_path, script, channels={CONSOLE: paged}, access=ROLES, **more
    ) as gateway:
        yield paged, screen, gateway


async def test_more_shows_the_next_page_and_is_a_plain_word_when_there_is_none(
    tmp_path: Path,
) -> None:
    script = Script(rules=(ScriptRule(match="long", reply="a" * 40 + "b" * 40 + "ccc"),))
    async with pages(tmp_path, script) as (paged, screen, gateway):
        await _talk(paged, ["reverie: a long one", "reverie: more", "!more", "!more"], screen)
        assert [part.body for part in screen.parts] == [
            "a" * 40,
            "b" * 40,
            "ccc",
            "There is nothing more to show.",
        ]
        assert len(gateway.scripted.requests) == 1
        await _talk(paged, ["reverie: more"], screen)  # of what is wanted, the model must find out
        assert len(gateway.scripted.requests) == 2
        await paged.receive_message("more", sender="ann", room="lobby")  # not to the bot
        await paged.receive_message("!whoami", sender="ann", room="lobby")
        await screen.until(6)


@pytest.mark.parametrize(("word", "sender"), [("more", "ann"), ("More, please!", "bea")])
async def test_more_said_to_nobody_brings_the_page_behind_the_last_thing_that_was_said(
    tmp_path: Path, word: str, sender: str
) -> None:
    rules = (
        ScriptRule(match="long", reply="a" * 40 + "b" * 40 + "ccc"),
        ScriptRule(match="tea", reply="Yes."),
    )
    async with pages(tmp_path, Script(rules=rules)) as (paged, screen, gateway):
        await _talk(paged, ["reverie: a long one"], screen)
        for count in (2, 3):
            await paged.receive_message(word, sender=sender, room="lobby")
            await screen.until(count)
        assert [part.body for part in screen.parts] == ["a" * 40, "b" * 40, "ccc"]
        await paged.receive_message(word, sender=sender, room="lobby")  # there is no more
        await _talk(paged, ["reverie: a long one", "reverie: tea?"], screen)
        await paged.receive_message(
            word, sender=sender, room="lobby"
        )  # something else was said since
        await _talk(paged, ["!whoami"], screen)
        assert len(screen.parts) == 6
        assert len(gateway.scripted.requests) == 3


@pytest.mark.parametrize("more", ["more", "reverie: more", "!more"])
async def test_more_brings_the_page_of_the_answer_to_whoever_says_it_else_of_the_newest(
    tmp_path: Path, more: str
) -> None:
    letters = {"apples": "a", "bread": "b", "tea": "t"}
    rules = [
        ScriptRule(match=f"{word}$", reply=one * 40 + one.upper()) for word, one in letters.items()
    ]
    async with pages(tmp_path, Script(rules=tuple(rules))) as (paged, screen, gateway):

        async def say(line: str, sender: str) -> str:
            before = len(screen.parts)
            await paged.receive_message(line, sender=sender, room="lobby")
            await screen.until(before + 1)
            return screen.parts[-1].body

        assert await say("reverie: apples", "ann") == "a" * 40
        assert await say("reverie: bread", "bea") == "b" * 40
        assert await say("!whoami", "mia")
        assert [await say(more, "ann"), await say(more, "bea")] == ["A", "B"]
        assert await say("reverie: tea", "ann") == "t" * 40
        assert await say(more, "gus") == "T", "it was nobody else's, so the newest"
        assert await say("reverie: tea", "bea") == "t" * 40
        assert await say(more, "bea") == "T", (
            "the pages of an equal answer that came before are not its own"
        )
        assert len(gateway.scripted.requests) == 4


async def test_more_said_to_nobody_means_nothing_a_while_after_the_page(tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    script = Script(rules=(ScriptRule(match="long", reply="a" * 40 + "b" * 40 + "ccc"),))
    async with pages(tmp_path, script, clock=clock) as (paged, screen, _):
        await _talk(paged, ["reverie: a long one"], screen)
        clock.advance(299)
        await _talk(paged, ["more"], screen)
        clock.advance(301)
        await paged.receive_message("more", sender="ann", room="lobby")
        await _talk(paged, ["reverie: more"], screen)
        assert [part.body for part in screen.parts] == ["a" * 40, "b" * 40, "ccc"]


async def test_a_bare_more_is_a_plain_word_once_something_else_was_said(tmp_path: Path) -> None:
    script = Script(
        rules=(
            ScriptRule(match="long", reply="a" * 40 + "b"),
            ScriptRule(match="", reply="More or less sugar?"),
        )
    )
    async with pages(tmp_path, script) as (paged, screen, gateway):
        await _talk(paged, ["reverie: a long one", "reverie: tea?", "reverie: more"], screen)
        assert len(gateway.scripted.requests) == 3
        await _talk(paged, ["!more"], screen)
        assert screen.parts[-1].body == "b"


class Nicked(ConsoleChannel):
    """Has another nick than the configured one, as after a collision."""

    def nicks(self, at: Address) -> tuple[str, ...]:  # noqa: ARG002 - the same everywhere
        return "reverie_", "reverie"


@pytest.mark.parametrize(("addressing", "answered"), [("anywhere", 2), ("start", 1)])
async def test_where_the_nick_must_begin_the_line_it_does_not_count_elsewhere(
    tmp_path: Path, addressing: str, answered: int
) -> None:
    screen = Screen()
    nicked = Nicked(CONSOLE, screen.show)
    agents = [{"id": "reverie", "bindings": [{"addressing": addressing}]}]
    async with running(
        tmp_path, Script(), channels={CONSOLE: nicked}, access=ROLES, agents=agents
    ) as gateway:
        await nicked.receive_message("you can ask @reverie about it", sender="ann", room="lobby")
        if answered == 2:
            await screen.until(1)
        await nicked.receive_message("@reverie, hello", sender="ann", room="lobby")
        await screen.until(answered)
        assert len(gateway.scripted.requests) == answered


class Torn(Paged):
    """Cannot count its pages."""

    def page_count(self, post: Post) -> int:  # noqa: ARG002 - it breaks before it looks
        raise RuntimeError("bug")


async def test_a_word_that_cannot_be_judged_is_a_plain_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    screen = Screen()
    torn = Torn(CONSOLE, screen.show)
    async with running(tmp_path, Script(), channels={CONSOLE: torn}, access=ROLES) as gateway:
        await _talk(torn, ["reverie: hello", "reverie: more"], screen)
        assert len(gateway.scripted.requests) == 2
    assert "RuntimeError: bug" in caplog.text


async def test_where_no_command_can_be_given_none_is_offered(tmp_path: Path) -> None:
    async with running(tmp_path, Script(), access=ROLES, commands={"prefix": ""}) as gateway:
        await gateway.ask("are you a bot?", sender="root")
        assert "help" not in gateway.screen.parts[0].body


async def test_private_answers_are_not_paged_for_others(tmp_path: Path) -> None:
    async with pages(tmp_path, Script()) as (paged, screen, _):
        await paged.receive_message("!channels", sender="root", room="lobby")
        await screen.until(1)
        await paged.receive_message("!more", sender="ann", room="lobby")
        await screen.until(2)
        assert screen.parts[1].body == "There is nothing more to show."
        await paged.receive_message("!more", sender="root", room="lobby")
        await screen.until(3)
        assert screen.parts[2].body not in ("There is nothing more to show.", screen.parts[0].body)
        assert screen.parts[2].private


class Whispering(Paged):
    def direct_room(self, sender: Sender) -> RoomId:
        return RoomId(sender.name)


async def test_what_is_told_aside_is_paged_there(tmp_path: Path) -> None:
    async with pages(tmp_path, Script(), Whispering) as (paged, screen, _):
        for count, room in enumerate(["lobby", None], start=1):
            await paged.receive_message("!channels" if room else "!more", sender="root", room=room)
            await screen.until(count)
        assert [part.to.room for part in screen.parts] == ["root", "root"]
        assert screen.parts[1].body not in ("There is nothing more to show.", screen.parts[0].body)


class Lined(Whispering):
    """Shows five lines on a page, each a message."""

    def page_count(self, post: Post) -> int:
        return -(-len(post.text.split("\n")) // 5)

    def split(self, post: Post) -> tuple[str, ...]:
        return tuple(post.text.split("\n")[(post.page - 1) * 5 : post.page * 5])


@pytest.mark.parametrize(
    ("name", "args", "to"),
    [
        ("whoami", "", "ann"),
        ("whoami", "too much", "ann"),
        ("about", "", "#lobby"),
        ("intentions", "list", "ann"),
        ("intentions", "", "ann"),
        ("intentions", "drop x", "#lobby"),
    ],
)
async def test_what_changes_the_room_is_said_there_and_all_else_to_whoever_asked(
    name: str, args: str, to: str, tmp_path: Path
) -> None:
    async with counter(tmp_path, channels={IRC: Lined(IRC, lambda _: None)}) as it:
        post = (await it.judge(command(name, args, who="ann"))).post
        assert post is not None
        here = to == "#lobby"
        assert (post.to.room, post.style) == (to, "message" if here else "notice")
        assert post.reply_to == (MessageId("c1") if here else None)
        assert not post.private, "in no pages: a guest may not ask for the next one alone"
        alone = (await it.judge(command(name, args, who="ann", direct=True))).post
        assert alone is not None
        assert (alone.to.room, alone.style) == ("ann", "message")


async def test_pages_and_repeats_of_an_answer_stay_in_its_room(tmp_path: Path) -> None:
    script = Script(
        rules=(ScriptRule(match="long", reply="\n".join(f"line {number}" for number in range(10))),)
    )
    async with pages(tmp_path, script, Lined) as (lined, screen, _):
        await lined.receive_message("reverie: a long one", sender="ann", room="lobby")
        await screen.until(5)
        await lined.receive_message("!more", sender="ann", room="lobby")
        await screen.until(10)
        assert {part.to.room for part in screen.parts} == {"lobby"}


async def test_an_answer_that_was_not_sent_is_sent_by_the_next_process(tmp_path: Path) -> None:
    """It is durable with its command."""
    tried = asyncio.Event()

    def away(_part: PostPart) -> None:
        tried.set()
        raise Unreachable("the wire is cut")

    cut = ConsoleChannel(CONSOLE, away)
    async with running(tmp_path, Script(), channels={CONSOLE: cut}, access=ROLES):
        await cut.receive_message("!version", sender="ann")
        await tried.wait()
    async with running(tmp_path, Script(), access=ROLES) as gateway:
        await gateway.screen.until(1)
    assert gateway.screen.parts[0].body.startswith("Reverie ")


# Audit records of administrators, and of people who tried


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Desk]:
    async with counter(tmp_path) as made:
        yield made


async def test_an_act_is_written_down_with_who_why_where_and_what_came_of_it(it: Desk) -> None:
    (fact,) = await it.audited(command("role", "set  irc.x:account:ann member here", "olga"))
    assert fact == AuditRecord(
        what="role",
        by="irc.x:account:olga",
        name="olga",
        evidence="account olga, vouched for by the platform; in writing",
        role="owner",
        rule="access.roles.owner",
        at=AUDIT_LOBBY,
        args="set irc.x:account:ann member here",
        ok=True,
        result="role/set: who=irc.x:account:ann, role=member, where=here",
    )


async def test_what_did_not_work_and_what_was_wrong_is_written_down_as_that(it: Desk) -> None:
    (refused,) = await it.audited(command("deny", "k7qd"))
    assert (refused.ok, refused.result, refused.args) == (False, "That is not so.", "k7qd")
    (wrong,) = await it.audited(command("dmn", "wakeup"))
    assert (wrong.ok, wrong.args) == (False, "wakeup")
    assert wrong.result.startswith("There is no `dmn wakeup`.")


async def test_what_administers_nothing_is_not_written_down(it: Desk) -> None:
    for name in ("status", "help", "version", "usage", "nonsense"):
        assert await it.audited(command(name, direct=True)) == []
    assert await it.audited(command("usage", who="ann")) == []


async def test_refusals_are_written_down_once_a_minute_and_person(it: Desk) -> None:
    for who in ("ann", "mia", "mal", "rick"):
        facts = [fact for _ in range(5) for fact in await it.audited(command("dmn", "off", who))]
        trusted = who == "rick"  # an admin of this room alone
        assert len(facts) == (5 if trusted else 1)
        assert {fact.ok for fact in facts} == {False}
        assert (
            facts[0].result
            == {
                "ann": "refused: command dmn is for admin and above",
                "mia": "refused: command dmn is for admin and above",
                "mal": "refused: access.roles.blocked",
                "rick": "refused: command dmn is for admin and above in all places",
            }[who]
        )
    it.clock.advance(61)
    assert len(await it.audited(command("dmn", "off", "ann"))) == 1


async def test_bots_and_people_whom_nobody_vouches_for_are_written_down_as_that(it: Desk) -> None:
    bot = replace(command("dmn", "off"), sender=somebody("root", is_bot=True), origin="native")
    (fact,) = [fact for _ in range(5) for fact in await it.audited(bot)]
    assert (
        fact.evidence
        == "account root, vouched for by the platform; a bot; by the platform's own command"
    )
    assert fact.result == "refused: bots give no commands"
    spoof = replace(
        command("dmn", "off"), sender=Sender(id=SenderId("mask:a!b@c"), name="root\n" + "x" * 100)
    )
    (fact,) = await it.audited(spoof)
    assert fact.evidence == "id mask:a!b@c, which nobody vouches for; in writing"
    assert fact.name == "root " + "x" * 58 + "…"
    assert (fact.by, fact.role) == ("irc.x:mask:a!b@c", "guest")


@pytest.mark.parametrize(
    "args", ["approve ABCD-EFGH", "approve abcd efgh", "aprove ABCDEFGH", "ABCDEFGH", "approve"]
)
@pytest.mark.parametrize(("name", "who"), [("pair", "root"), ("room", "root"), ("pair", "ann")])
async def test_codes_are_written_down_nowhere(
    name: str, who: str, args: str, tmp_path: Path
) -> None:
    async def silent(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
        return done("Done.")

    async with counter(tmp_path, answers={**ECHO, name: silent}) as it:
        (fact,) = await it.audited(command(name, args, who))
        assert not re.search("(?i)abcd|efgh", fact.args)


async def test_secrets_are_left_out_of_answers_and_of_the_audit(tmp_path: Path) -> None:
    async def telling(ask: CommandCall, _world: CommandContext) -> CommandEffect:
        return done(f"It is hunter2.\n{ask.arguments}")

    answers = {**ECHO, "say": telling, "version": telling}
    async with counter(tmp_path, answers=answers, redactor=Redactor(["hunter2"])) as it:
        (fact,) = await it.audited(command("say", "#a hunter2"))
        assert (fact.args, fact.result) == ("#a [redacted]", "It is [redacted].")
        assert "hunter2" not in await it.ask("say", "#a hunter2")
        assert "hunter2" not in await it.ask("version")


async def test_long_answers_and_arguments_are_cut(tmp_path: Path) -> None:
    async def telling(_ask: CommandCall, _world: CommandContext) -> CommandEffect:
        return done("\n\n" + "y" * 500 + "\nsecond")

    async with counter(tmp_path, answers={**ECHO, "say": telling}) as it:
        (fact,) = await it.audited(command("say", "#a " + "x" * 500))
        assert (len(fact.args), len(fact.result)) == (200, 200)
        assert fact.result == "y" * 199 + "…"


async def test_answers_have_the_language_of_a_persons_client_alone_with_them(
    tmp_path: Path,
) -> None:
    room = replace(text("!version now", 1), language="es-AR")
    alone = replace(
        room, id=MessageId("m2"), kind="direct", at=Address(channel=CONSOLE, room=RoomId("ann"))
    )
    async with running(tmp_path) as gateway:
        await emit(gateway.console, room, alone)
        await gateway.screen.until(2)
        bodies = {part.to.room: part.body for part in gateway.screen.parts}
        assert bodies[RoomId("ann")].startswith("`now` sobra.")
        assert bodies[RoomId("lobby")].startswith("`now` is one word too many.")


async def test_answers_and_apologies_have_the_language_of_the_room(tmp_path: Path) -> None:
    binding = {"match": {"channel": CONSOLE, "room": "*"}, "listen": "mention", "language": "de-AT"}
    agents = [{"id": "reverie", "bindings": [binding]}]
    silent = Script(rules=(ScriptRule(match=".*", reply=""),))
    async with running(tmp_path, silent, agents=agents) as gateway:
        await emit(gateway.console, replace(text("!version now", 1), language="es"))
        await gateway.screen.until(1)
        assert gateway.screen.parts[0].body.startswith(
            "`now` ist ein Wort zu viel. Schreib `!version`"
        )
        await emit(gateway.console, text("reverie: hello", 2))
        await gateway.screen.until(2)
        assert gateway.screen.parts[1].body.startswith(
            "Mein Modell hat darauf keine Antwort gegeben."
        )


async def test_an_admin_of_one_room_chooses_its_model_and_no_other(tmp_path: Path) -> None:
    async with counter(tmp_path) as it:
        fates = {
            args: (await it.judge(command("model", args, who="rick"))).judgement.fate
            for args in ("here x", "list", "switch x", "reset")
        }
    refused = {"switch x": "refused", "reset": "refused"}
    assert fates == {"here x": "noted", "list": "noted", **refused}
