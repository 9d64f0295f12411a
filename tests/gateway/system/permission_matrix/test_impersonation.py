"""Attempts to pass for the owner, each as it would come in on the wire, and what a `House` makes of
them.

A row gives events that must change nothing and be answered by nobody, though there is an owner who
could have it: the same act, done by the owner, works (`GENUINE`).
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.core.events import Notification
from gateway.core.facts import RoleAssigned
from reverie.testing.channels import story
from tests.gateway.system.permission_matrix.matrix_kit import BETWEEN_S, House, Seen, house
from tests.gateway.system.permission_matrix.people import PEOPLE, Person, Place
from tests.gateway.system.permission_matrix.platform_payloads import (
    FOREIGN,
    Discord,
    Irc,
    Json,
    Telegram,
    _tg_command,
)

Events = Sequence[Notification]
Spoof = Callable[[House], Events]

OWNER: Final = next(number for number, one in enumerate(PEOPLE) if one.name == "owner")
STRANGER: Final = 0
RANKED: Final = next(
    number for number, one in enumerate(PEOPLE) if one.name == "admin here by rank"
)
LINE: Final = f"!role set irc.net:account:{FOREIGN} member"
NICK: Final = f"p{OWNER}"
COMMAND: Final = f"role set telegram.main:{FOREIGN} member"
DC_LINE: Final = f"!role set discord.main:{FOREIGN} member"


def somebody(number: int) -> Person:
    return PEOPLE[number]


# IRC


def _irc(house: House, *lines: str, tagged: bool = True) -> Events:
    """The last of these lines is what comes in."""
    irc = Irc(house.clock, tagged=tagged)  # of its own: who left or lost an account stays so
    told: Events = ()
    for raw in lines:
        told = irc.heard(raw)
    return told


def _left(*how: str) -> tuple[str, ...]:
    """The owner goes, and somebody takes the nick: the server tells no accounts with a JOIN."""
    return (
        *how,
        f":{NICK}!evil@x.example JOIN #listed",
        f":{NICK}!evil@x.example PRIVMSG #listed :{LINE}",
    )


_FROM_OWNER: Final = f":{NICK}!u@h{OWNER}.example"
_EVERYWHERE: Final = tuple(
    f"{_FROM_OWNER} PART {room}" for room in ("#listed", "#other", "#approved", "#closed")
)

IRC: Final[dict[str, Spoof]] = {
    f"{what}{', no tags' if not tagged else ''}": (
        lambda house, lines=lines, tagged=tagged: _irc(house, *lines, tagged=tagged)  # type: ignore[misc]
    )
    for tagged in (True, False)
    for what, lines in {
        "nick taken after the owner quit": _left(f"{_FROM_OWNER} QUIT :bye"),
        "nick taken after the owner left": _left(*_EVERYWHERE),
        "nick taken after the owner was kicked": _left(
            *(
                f":c!s@s KICK {room} {NICK}"
                for room in ("#listed", "#other", "#approved", "#closed")
            )
        ),
        "nick taken after the owner took another": (
            f"{_FROM_OWNER} NICK away",
            f":eve!evil@x.example NICK {NICK}",
            f":{NICK}!evil@x.example PRIVMSG #listed :{LINE}",
        ),
        "nick taken by who came after the owner took another": _left(f"{_FROM_OWNER} NICK away"),
        "account logged out in the middle": (
            f"{_FROM_OWNER} ACCOUNT *",
            f"{_FROM_OWNER} PRIVMSG #listed :{LINE}",
        ),
        "logged out, alone with the bot": (
            f"{_FROM_OWNER} ACCOUNT *",
            f"{_FROM_OWNER} PRIVMSG reverie :{LINE}",
        ),
        "homoglyph of the nick": (
            ":р4!evil@x.example JOIN #listed * :Owner",
            f":р4!evil@x.example PRIVMSG #listed :{LINE}",
        ),
        "real name of the owner": (
            f":eve!evil@x.example JOIN #listed * :account:{NICK}",
            f":eve!evil@x.example PRIVMSG #listed :{LINE}",
        ),
        "user name that reads like an account": (
            f":eve!account:{NICK}@account:{NICK} PRIVMSG reverie :{LINE}",
        ),
        "nick that reads like an id": (f":irc.net:account:{NICK}!e@x PRIVMSG #listed :{LINE}",),
        "account tag that a client made": (
            f"@+account={NICK} :eve!evil@x.example PRIVMSG #listed :{LINE}",
        ),
        "name of the owner, alone": (f":{NICK}!evil@x.example PRIVMSG reverie :{LINE}",)
        if tagged
        else (f":{NICK}_!evil@x.example PRIVMSG reverie :{LINE}",),
        "account of almost the same name": (
            f"@account={NICK}_ :eve!evil@x.example JOIN #listed {NICK}_ :Owner",
            f"@account={NICK}_ :eve!evil@x.example PRIVMSG #listed :{LINE}",
        ),
        "relayed nick in the text": (
            ":bridge!b@h JOIN #listed * :bridge",
            f":bridge!b@h PRIVMSG #listed :<{NICK}> {LINE}",
        ),
        "behind a bridge, by the owner's name": (
            ":relay!b@h JOIN #listed relay :relay",
            ":c!s@s MODE #listed +o relay",
            f"@account=relay :relay!b@h PRIVMSG #listed :<{NICK}> {LINE}",
        ),
        "relayed, with the owner's account": (
            f"@draft/relaymsg=bridge;account={NICK} :{NICK}!u@relay PRIVMSG #listed :{LINE}",
        ),
        "relayed under its last name": (
            f"@relaymsg=bridge;account={NICK} {_FROM_OWNER} PRIVMSG #listed :{LINE}",
        ),
        "quoted behind other words": (
            f"@account={NICK} {_FROM_OWNER} PRIVMSG #listed :eve says {LINE}",
        ),
        "notice of the owner": (
            f"@account={NICK} {_FROM_OWNER} NICK_ #listed :{LINE}".replace("NICK_", "NOTICE"),
        ),
        "action of the owner": (
            f"@account={NICK} {_FROM_OWNER} PRIVMSG #listed :\x01ACTION {LINE}\x01",
        ),
        "said in our own name": (f"@account={NICK} :reverie!r@h PRIVMSG #listed :{LINE}",),
        "a bot on the owner's account": (
            f"@account={NICK};bot {_FROM_OWNER} PRIVMSG #listed :{LINE}",
        ),
        "operator without an account": (
            ":eve!evil@x.example JOIN #listed * :eve",
            ":c!s@s MODE #listed +oq eve eve",
            f":eve!evil@x.example PRIVMSG #listed :{LINE}",
        ),
    }.items()
}


def _played_back(house: House) -> Events:
    """The nick said it an hour ago, when it may have been somebody else's."""
    old = (house.clock.now() - timedelta(hours=1)).isoformat()
    return _irc(house, f"@time={old} {_FROM_OWNER} PRIVMSG #listed :{LINE}", tagged=False)


def _operator_no_more(house: House) -> Events:
    line = f"@account=p{RANKED} :p{RANKED}!u@h PRIVMSG #listed :!block irc.net:account:{FOREIGN}"
    return _irc(house, f":c!s@s MODE #listed -o p{RANKED}", line)


def _operator_elsewhere(house: House) -> Events:
    line = f"@account=p{RANKED} :p{RANKED}!u@h PRIVMSG #other :!block irc.net:account:{FOREIGN}"
    return _irc(house, line)


def _between_others(house: House) -> Events:
    """What whoever a chat belongs to may do alone is not theirs in a chat between others."""
    reader = house.readers["discord"]
    assert isinstance(reader, Discord)
    event, told = reader.event(STRANGER, somebody(STRANGER), "direct", "slash new")
    return reader.heard(event, told | {"context": 2})


def _tag_is_gone(house: House) -> Events:
    """Logged out a moment ago: the tag is gone before the server says so."""
    return _irc(house, f"{_FROM_OWNER} PRIVMSG #listed :{LINE}")


_IRC_TOO: Final[dict[str, Spoof]] = {
    "logged out, and nobody has said so": _tag_is_gone,
    "played back under the nick": _played_back,
    "operator who is none any more": _operator_no_more,
    "operator of another room": _operator_elsewhere,
}

# Telegram


def _telegram(number: int = OWNER, place: Place = "listed", **more: Any) -> Spoof:
    """A command, by default the owner's, with something that makes it another's."""

    def made(house: House) -> Events:
        reader = house.readers["telegram"]
        assert isinstance(reader, Telegram)
        update = reader.update(number, somebody(number), place, "slash role set")
        changed = {"from" if key == "from_" else key: value for key, value in more.items()}
        said: Json = {
            key: value for key, value in (update["message"] | changed).items() if value is not None
        }
        return reader.heard({"message": said})

    return made


def _telegram_edited(place: Place) -> Spoof:
    def made(house: House) -> Events:
        reader = house.readers["telegram"]
        return reader.read(OWNER, somebody(OWNER), place, "edited command")

    return made


_ANN: Final = {"id": 1000 + OWNER, "is_bot": False, "first_name": "Ann"}
_GROUP: Final = {"id": -1001, "type": "supergroup", "title": "Ann"}
_ANONYMOUS: Final = {
    "id": 1087968824,
    "is_bot": True,
    "first_name": "Group",
    "username": "GroupAnonymousBot",
}
_EVE: Final = {"id": 1000, "is_bot": False, "first_name": "Ann", "username": "owner"}
_HIDDEN: Final = {"type": "hidden_user", "date": 1, "sender_user_name": "Ann"}
_USER: Final = {"type": "user", "date": 1, "sender_user": _EVE}

TELEGRAM: Final[dict[str, Spoof]] = {
    "name of the owner": _telegram(STRANGER, from_=_EVE),
    "name of the owner, alone": _telegram(STRANGER, "direct", from_=_EVE),
    "homoglyph of the owner's name": _telegram(STRANGER, from_=_EVE | {"first_name": "Аnn"}),
    "id of an owner on another platform": _telegram(STRANGER, from_=_EVE | {"id": 5000 + OWNER}),
    "anonymous administrator": _telegram(
        from_=_ANONYMOUS, sender_chat=_GROUP, author_signature="Ann"
    ),
    "channel in whose name the owner writes": _telegram(
        from_={"id": 136817688, "is_bot": True, "first_name": "Channel"},
        sender_chat=_GROUP | {"id": -1009},
    ),
    "linked channel, forwarded by Telegram": _telegram(
        from_={"id": 777000, "is_bot": False, "first_name": "Telegram"},
        sender_chat=_GROUP | {"type": "channel"},
        is_automatic_forward=True,
    ),
    "forwarded by the owner": _telegram(forward_origin=_USER),
    "forwarded by the owner, alone": _telegram(place="direct", forward_origin=_HIDDEN),
    "forwarded, as it was told before": _telegram(forward_from=_EVE, forward_date=1),
    "forwarded from the owner": _telegram(STRANGER, forward_origin=_USER | {"sender_user": _ANN}),
    "sent by way of a bot": _telegram(
        via_bot={"id": 9, "is_bot": True, "first_name": "b", "username": "b_bot"}
    ),
    "a business's bot in the owner's name": _telegram(
        place="direct", sender_business_bot={"id": 9, "is_bot": True, "first_name": "b"}
    ),
    "a bot with the owner's name": _telegram(STRANGER, from_=_EVE | {"id": 9, "is_bot": True}),
    "for another bot": _telegram(
        text=f"/role@other_bot set telegram.main:{FOREIGN} member",
        entities=[{"type": "bot_command", "offset": 0, "length": 15}],
    ),
    "written, and not a command to Telegram": _telegram(entities=None),
    "written in bold": _telegram(entities=[{"type": "bold", "offset": 0, "length": 5}]),
    "in the owner's reply": _telegram(
        text="what is that?",
        entities=None,
        reply_to_message={"message_id": 1, "from": _EVE} | _tg_command(COMMAND),
    ),
    "in what the owner quotes": _telegram(
        text="ok", entities=None, quote={"text": f"!{COMMAND}", "position": 0}
    ),
    "under the owner's picture": _telegram(
        text=None,
        entities=None,
        caption=f"/{COMMAND}",
        caption_entities=[{"type": "bot_command", "offset": 0, "length": 5}],
    ),
    "edited in": _telegram_edited("listed"),  # alone with the bot it is the owner's command
}

# Discord


def _discord(
    event: str = "MESSAGE_CREATE", *, number: int = STRANGER, place: Place = "listed", **more: Any
) -> Spoof:
    """What somebody writes, by default a stranger, with something that makes it look like the
    owner's."""

    def made(house: House) -> Events:
        reader = house.readers["discord"]
        assert isinstance(reader, Discord)
        way = (
            "slash role set"
            if event == "INTERACTION_CREATE"
            else "edited command"
            if "UPDATE" in event
            else "text"
        )
        told = reader.event(
            number, somebody(number), place, "text role set" if way == "text" else way
        )[1]
        return reader.heard(
            event, {key: value for key, value in (told | more).items() if value is not None}
        )

    return made


_DC_OWNER: Final = {"id": str(5000 + OWNER), "username": "ann", "global_name": "Ann"}
_DC_EVE: Final = {"id": "5000", "username": "ann", "global_name": "Ann"}
_SNAPSHOTS: Final = [{"message": {"content": DC_LINE}}]
_REFERENCE: Final = {"type": 1, "channel_id": "1", "message_id": "2"}

DISCORD: Final[dict[str, Spoof]] = {
    "webhook with the owner's name": _discord(webhook_id="99", author=_DC_OWNER | {"id": "99"}),
    "webhook with the owner's id": _discord(
        webhook_id="99", author=_DC_OWNER, member={"roles": ["21", "22"]}
    ),
    "webhook of an application": _discord(webhook_id="99", application_id="98", author=_DC_OWNER),
    "post of a followed channel": _discord(
        number=OWNER,
        webhook_id="99",
        flags=2,
        message_reference={"channel_id": "77", "guild_id": "78"},
    ),
    "answer of a bot to the owner's command": _discord(
        webhook_id="98",
        application_id="98",
        author={"id": "98", "username": "Ann", "bot": True},
        interaction_metadata={"user": _DC_OWNER},
    ),
    "name of the owner": _discord(author=_DC_EVE, member={"nick": "Ann", "roles": []}),
    "homoglyph of the owner's name": _discord(author=_DC_EVE | {"global_name": "Аnn"}),
    "id of an owner on another platform": _discord(author=_DC_EVE | {"id": str(1000 + OWNER)}),
    "roles that the author claims": _discord(
        author=_DC_EVE | {"roles": ["21"], "member": {"roles": ["21"]}}
    ),
    "roles of who is mentioned": _discord(mentions=[_DC_OWNER | {"member": {"roles": ["21"]}}]),
    "a bot with the owner's name": _discord(author=_DC_EVE | {"id": "98", "bot": True}),
    "forwarded by the owner": _discord(
        number=OWNER, content="", message_reference=_REFERENCE, message_snapshots=_SNAPSHOTS
    ),
    "forwarded by the owner, alone": _discord(
        number=OWNER,
        place="direct",
        content="",
        message_reference=_REFERENCE,
        message_snapshots=_SNAPSHOTS,
    ),
    "in an embed of a bot": _discord(
        author=_DC_OWNER | {"bot": True},
        content="",
        embeds=[{"type": "rich", "description": DC_LINE}],
    ),
    "in an embed under the owner's words": _discord(
        number=OWNER, content="look", embeds=[{"type": "rich", "description": DC_LINE}]
    ),
    "in a poll of the owner": _discord(
        number=OWNER, content="", poll={"question": {"text": DC_LINE}, "answers": []}
    ),
    "said by Discord itself": _discord(number=OWNER, type=7),
    "in the owner's name, as a thread's first words": _discord(number=OWNER, type=21),
    "edited in": _discord("MESSAGE_UPDATE", number=OWNER),
    "edited in, alone": _discord("MESSAGE_UPDATE", number=OWNER, place="direct"),
    "a stranger's slash command": _discord("INTERACTION_CREATE"),
    "a slash command whose user is not its member": _discord("INTERACTION_CREATE", user=_DC_OWNER),
    "completing a slash command": _discord("INTERACTION_CREATE", number=OWNER, type=4),
    "a command in the menu of a message": _discord(
        "INTERACTION_CREATE", number=OWNER, data={"type": 3, "name": "role", "target_id": "1"}
    ),
    "in a chat between others": _between_others,
}

SPOOFS: Final[dict[str, Spoof]] = {
    f"{platform}: {name}": spoof
    for platform, table in (("irc", IRC | _IRC_TOO), ("telegram", TELEGRAM), ("discord", DISCORD))
    for name, spoof in table.items()
}


def _as_owner(platform: str, way: str, place: Place) -> Spoof:
    return lambda house: house.readers[platform].read(OWNER, somebody(OWNER), place, way)  # type: ignore[index]


GENUINE: Final[dict[str, Spoof]] = {
    f"{platform}, {way}, {place}": _as_owner(platform, f"{way} role set", place)
    for platform, way in (
        ("irc", "text"),
        ("telegram", "slash"),
        ("discord", "text"),
        ("discord", "slash"),
    )
    for place in ("listed", "closed", "direct")
}


GENUINE["irc without tags, text, listed"] = lambda house: Irc(house.clock, tagged=False).read(
    OWNER, somebody(OWNER), "listed", "text role set"
)


def came_through(seen: Seen) -> str:
    """What an attempt has reached; empty: nothing."""
    outcome = seen.outcome
    if outcome.acts:
        return f"changed a {outcome.acts}"
    return "was answered as a command" if outcome.said == "answer" else ""


async def attempted(house: House, spoof: Spoof) -> Seen:
    house.clock.advance(3_700.0)
    events = spoof(house)
    seen = await house.take(*events)
    assert (seen.outcome.fate != "nothing") == bool(events), "it was taken for a repeat"
    return seen


# Nobody passes for somebody else: through each platform's reader, the intake and the desk, beside
# an owner who may.


@pytest.mark.parametrize("dm", ["pairing", "open"])
@story
async def test_no_spoof_comes_through(tmp_path: Path, dm: str) -> None:
    async with house(tmp_path, dm) as home:  # type: ignore[arg-type]
        tried = {name: came_through(await attempted(home, spoof)) for name, spoof in SPOOFS.items()}
    through = {name: what for name, what in tried.items() if what}
    print(f"{len(tried)} spoofs, {len(through)} came through")
    assert len(tried) > 80
    assert through == {}


@pytest.mark.parametrize("name", GENUINE)
@story
async def test_the_owner_does_it_once_however_often_it_is_replayed(
    tmp_path: Path, name: str
) -> None:
    async with house(tmp_path) as home:
        home.clock.advance(BETWEEN_S)
        events = GENUINE[name](home)
        seen = await home.take(*events)
        assert came_through(seen) == "changed a role"
        given = next(fact for fact in seen.facts if isinstance(fact, RoleAssigned))
        assert given.person.endswith(f":{FOREIGN}")
        assert (await home.take(*events)).facts == []
        await home.write(RoleAssigned(person=given.person, role="", by="operator", why="role"))
        home.clock.advance(BETWEEN_S)
        assert (await home.take(*events)).facts == [], "what was taken back comes back by a replay"
    async with house(tmp_path) as home:
        assert (await home.take(*events)).facts == []


@story
async def test_an_account_is_the_same_in_any_case(tmp_path: Path) -> None:
    """Also one that is blocked."""
    async with house(tmp_path) as home:
        for name, fate in (("blocked", "refused"), ("owner", "heard")):
            number = [one.name for one in PEOPLE].index(name)
            line = f"@account=P{number} :p{number}!u@h PRIVMSG #listed :reverie: hello"
            assert (await home.take(*Irc(home.clock).heard(line))).outcome.fate == fate
