"""Each byte of a line that a model reads has a label: over payloads of all platforms with texts of
several authors.

What the owner wrote is Greek here, and what anybody else chose is Cyrillic: names, nicks, titles,
labels, quotations. So each letter tells its author, whatever became of the payload. All others are
the gateway's own words, and handles.
"""

import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.prompt import render_line
from channels.discord import wire as discord_wire
from channels.discord.directory import DiscordDirectory
from channels.irc.inbound import IrcLineContext, to_notifications
from channels.irc.state import IrcState
from channels.irc.wire import parse_line
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.wire import parse_update, parse_updates
from gateway.context.conversation import ConversationReader
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    DeliveryReport,
    EventId,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    PostKey,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import Judgement, dedup_key
from gateway.core.identity import AccessPolicy
from gateway.core.labels import rank_integrity
from gateway.store import NewEntry, Store
from gateway.stream.media import MediaStore
from tests.kits.examples import examples
from tests.kits.handle import handle_of
from tests.kits.settings import live_settings

Json = dict[str, Any]
NOW: Final = datetime(2026, 3, 1, 9, tzinfo=UTC)
OWNER, MAL, ME = 1001, 2002, 42
SPOKEN: Final = int(datetime(2026, 2, 1, tzinfo=UTC).timestamp())
POLICY: Final = AccessPolicy(
    dm_policy="open",
    roles={
        f"discord.test:{OWNER}": "owner",
        f"telegram.test:{OWNER}": "owner",
        "irc.test:account:omega": "owner",
    },
    open_rooms={
        ChannelName(f"{one}.test"): frozenset({RoomId("*")})
        for one in ("irc", "telegram", "discord")
    },
)
own = st.text("αβγδε ωλ", min_size=1, max_size=12).filter(str.strip)
others = st.text("жшщыдл ", min_size=1, max_size=12).filter(str.strip)
word = st.text("жшщыдл", min_size=2, max_size=12)
handle = st.one_of(st.just("mal.lory_7"), others)
"""Not all are what the platform allows people."""
maybe = st.none() | others


def is_of_others(text: str) -> bool:
    return any("\u0400" <= char <= "\u04ff" for char in text)


def is_own(text: str) -> bool:
    return any("\u0370" <= char <= "\u03ff" for char in text)


async def lines_of(events: Sequence[Notification]) -> list[tuple[str, str]]:
    """What a model reads of these events, and the integrity of each line."""
    with tempfile.TemporaryDirectory() as folder:
        async with await Store.open(Path(folder) / "s.db", ManualClock(NOW)) as store:
            media = MediaStore(live_settings(), Path(folder) / "media", {}, ManualClock(NOW))
            reader = ConversationReader(handle_of(store, ManualClock(NOW), people=POLICY), media)
            place = next(at.conversation for one in events if (at := one.at) is not None)
            for event in events:
                entry = NewEntry(fact=event, at=NOW, conversation=place, key=dedup_key(event))
                judged = Judgement(type="t", urgency=3, fate="due", rule="", role="guest")
                await store.append(
                    [entry, NewEntry(fact=judged, at=NOW, conversation=place, cause=entry)]
                )
            unread = await store.unread_entries(place, most=50)
            found = await reader.render(await reader.read_current(unread), sees=True)
            return [(render_line(one.line), one.label.integrity) for one in found]


def check(*events: Notification) -> list[tuple[str, str]]:
    found = asyncio.run(lines_of(events))
    for line, integrity in found:
        assert not is_of_others(line) or rank_integrity(integrity) <= rank_integrity("guest"), (
            line,
            integrity,
        )
    return found


def check_said(events: Sequence[Notification], text: str) -> None:
    """Whoever speaks is heard: the line has their own words."""
    messages = [one for one in events if isinstance(one, Message)]
    if not messages:
        return
    found = check(*messages)
    assert all(piece in " ".join(line for line, _ in found) for piece in text.split())


# Discord


def discord_user(number: int, **more: Any) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(
        {"id": st.just(str(number)), "username": handle, "global_name": maybe, **more}
    )


owner_on_discord = st.fixed_dictionaries(
    {
        "id": st.just(str(OWNER)),
        "username": st.just("omega"),
        "global_name": st.none() | own,
        "primary_guild": st.fixed_dictionaries({"tag": others}),
    }
)
file_on_discord = st.fixed_dictionaries(
    {
        "id": st.just("77"),
        "filename": others,
        "content_type": st.sampled_from(["image/png", "text/plain"]),
        "size": st.just(3),
        "description": others,
    }
)
markup = st.one_of(
    own,
    st.just(f"<@{MAL}>"),
    st.just(f"<@!{MAL}>"),
    st.just("<@3003>"),
    st.just(f"<@{ME}>"),
    st.just("<@&50>"),
    st.just("<@&51>"),
    st.just("<#30>"),
    st.just("<#31>"),
    st.just("<t:1700000000:R>"),
    word.map(lambda name: f"<:{name}:9>"),
    word.map(lambda name: f"<a:{name}:9>"),
    word.map(lambda name: f"</{name}:9>"),
)
stickers = st.lists(
    st.fixed_dictionaries({"id": st.just("5"), "name": others, "format_type": st.just(1)}),
    max_size=2,
)
forwarded_on_discord = st.fixed_dictionaries(
    {
        "message": st.fixed_dictionaries(
            {"content": others, "mentions": st.lists(discord_user(MAL), max_size=1)},
            optional={
                "attachments": st.lists(file_on_discord, max_size=1),
                "sticker_items": stickers,
            },
        )
    }
)
replied_on_discord = st.fixed_dictionaries(
    {
        "id": st.just("1"),
        "channel_id": st.just("30"),
        "type": st.just(0),
        "author": discord_user(MAL),
        "content": st.one_of(others, st.just("")),
        "attachments": st.lists(
            file_on_discord.map(
                lambda one: one | {"content_type": "audio/ogg", "duration_secs": 1}
            ),
            max_size=1,
        ),
        "flags": st.sampled_from([0, 1 << 13]),
    }
)


@st.composite
def discord_messages(draw: st.DrawFn) -> tuple[Json, str]:
    """A message of the owner's, and what they wrote themselves."""
    parts = draw(st.lists(markup, max_size=5))
    number = str((SPOKEN * 1000 - 1420070400000) << 22)
    said: Json = {
        "id": number,
        "channel_id": "30",
        "guild_id": "40",
        "type": 0,
        "content": " ".join(parts),
    }
    said["author"] = draw(owner_on_discord)
    said["member"] = {"nick": draw(maybe), "roles": ["51"]}
    member: st.SearchStrategy[Json] = st.fixed_dictionaries({"nick": maybe, "roles": st.just([])})
    said["mentions"] = draw(st.lists(discord_user(MAL, member=member), max_size=1))
    said |= draw(
        st.fixed_dictionaries(
            {},
            optional={
                "sticker_items": stickers,
                "embeds": st.lists(
                    st.fixed_dictionaries(
                        {"type": st.just("link"), "title": others, "description": others}
                    ),
                    max_size=1,
                ),
                "attachments": st.lists(file_on_discord, max_size=1),
                "application": st.fixed_dictionaries({"name": others}),
                "thread": st.fixed_dictionaries({"id": st.just("88"), "name": others}),
                "interaction_metadata": st.fixed_dictionaries({"name": others}),
                "poll": own.map(lambda text: {"question": {"text": text}, "answers": []}),
            },
        )
    )
    if draw(st.booleans()):
        said["message_snapshots"] = [draw(forwarded_on_discord)]
        said["message_reference"] = {"type": 1, "message_id": "1", "channel_id": "31"}
    elif draw(st.booleans()):
        said |= {"type": 19, "message_reference": {"message_id": "1", "channel_id": "30"}}
        said["referenced_message"] = draw(replied_on_discord)
    return said, " ".join(one for one in parts if is_own(one))


def known_on_discord() -> DiscordDirectory:
    known = DiscordDirectory(ChannelName("discord.test"))
    known.apply_event("READY", {"user": {"id": str(ME), "username": "reverie"}})
    rooms = [
        {"id": number, "type": 0, "name": "жук-шум", "topic": "жук"} for number in ("30", "31")
    ]
    roles = [
        {"id": "50", "name": "reverie", "tags": {"bot_id": str(ME)}},
        {"id": "51", "name": "жук шум"},
    ]
    members = [{"nick": "жук шум", "user": {"id": str(ME)}}]
    known.apply_event(
        "GUILD_CREATE",
        {"id": "40", "name": "дом", "channels": rooms, "roles": roles, "members": members},
    )
    return known


@settings(max_examples=examples(200), deadline=None)
@given(discord_messages())
def test_a_line_from_discord_has_the_label_of_all_who_wrote_it(made: tuple[Json, str]) -> None:
    payload, text = made
    known = known_on_discord()
    events = discord_wire.parse_event("MESSAGE_CREATE", payload, known, NOW, "n")
    check_said(events, text)
    edited = payload | {"edited_timestamp": NOW.isoformat()}
    for first, edit in zip(
        events, discord_wire.parse_event("MESSAGE_UPDATE", edited, known, NOW, "n"), strict=False
    ):
        assert isinstance(first, Message)
        assert isinstance(edit, MessageEdited)
        assert (edit.text, edit.carried, edit.sender.name) == (
            first.text,
            first.carried,
            first.sender.name,
        )
    for event in events:
        assert isinstance(event, Message)
        assert not is_of_others(event.sender.name)
    me = known.place_names(known.address("30"))
    assert me is not None
    assert not is_of_others(me.me or "")


@given(word, maybe)
def test_a_reaction_on_discord_names_no_emoji_that_others_made(name: str, nick: str | None) -> None:
    member = {"nick": nick, "user": {"id": str(OWNER), "username": "omega", "global_name": None}}
    payload = {
        "channel_id": "30",
        "guild_id": "40",
        "user_id": str(OWNER),
        "message_id": "1",
        "member": member,
    }
    for number in ("9", None):
        made = payload | {"emoji": {"id": number, "name": name if number else "🔥"}}
        (event,) = discord_wire.parse_event(
            "MESSAGE_REACTION_ADD", made, known_on_discord(), NOW, "n"
        )
        assert isinstance(event, ReactionChanged)
        assert (event.reaction, event.sender.name) == (":9:" if number else "🔥", "omega")


# Telegram

TELEGRAM: Final = TelegramUpdateContext(
    channel=ChannelName("telegram.test"), own_id=ME, username="ReverieBot"
)
mal_on_telegram = st.fixed_dictionaries(
    {"id": st.just(MAL), "is_bot": st.booleans(), "first_name": others, "last_name": others},
    optional={"username": st.one_of(st.just("mallory"), others)},
)
where = st.fixed_dictionaries({"latitude": st.just(1.5), "longitude": st.just(2.5)})
option = st.fixed_dictionaries(
    {"text": own, "voter_count": st.just(0), "persistent_id": st.just("a")}
)
added = st.fixed_dictionaries(
    {
        "text": others,
        "voter_count": st.just(0),
        "persistent_id": st.just("b"),
        "added_by_user": mal_on_telegram,
    }
)
task = st.fixed_dictionaries({"id": st.just(1), "text": others})


def poll(options: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    fixed = {
        "id": "1",
        "total_voter_count": 0,
        "is_closed": False,
        "is_anonymous": True,
        "type": "regular",
    }
    more = {"allows_multiple_answers": False, "allows_revoting": False, "members_only": False}
    made = st.fixed_dictionaries(
        {"question": own, "options": st.lists(options, min_size=1, max_size=3)}
    )
    return made.map(lambda one: fixed | more | one)


file = st.fixed_dictionaries({"file_id": st.just("f"), "file_unique_id": st.just("u")})
sticker = st.fixed_dictionaries(
    {"file_id": st.just("f"), "file_unique_id": st.just("u"), "type": st.just("regular")},
    optional={"emoji": st.one_of(st.just("😀"), word), "set_name": others},
).map(lambda one: {"width": 9, "height": 9, "is_animated": False, "is_video": False} | one)
carriers: Final[dict[str, st.SearchStrategy[Any]]] = {
    "venue": st.fixed_dictionaries({"location": where, "title": others, "address": others}),
    "location": where,
    "contact": st.fixed_dictionaries(
        {"phone_number": others, "first_name": others, "last_name": others}
    ),
    "game": st.fixed_dictionaries({"title": others, "description": others, "photo": st.just([])}),
    "sticker": sticker,
    "dice": st.fixed_dictionaries({"emoji": st.one_of(st.just("🎲"), word), "value": st.just(3)}),
    "poll": poll(st.one_of(option, added)),
    "checklist": st.fixed_dictionaries(
        {
            "title": own,
            "tasks": st.lists(task, min_size=1, max_size=2),
            "others_can_add_tasks": st.just(True),
        }
    ),
    "users_shared": st.lists(
        st.fixed_dictionaries(
            {"user_id": st.just(MAL), "first_name": others},
            optional={"username": st.one_of(st.just("mallory"), others)},
        ),
        min_size=1,
        max_size=2,
    ).map(lambda users: {"request_id": 1, "users": users}),
    "chat_shared": others.map(lambda title: {"request_id": 1, "chat_id": -5, "title": title}),
    "web_app_data": st.fixed_dictionaries({"data": others, "button_text": others}),
    "giveaway_winners": st.lists(mal_on_telegram, min_size=1, max_size=2).map(
        lambda people: {
            "chat": {"id": -5, "type": "channel", "title": "жук"},
            "giveaway_message_id": 1,
            "winners_selection_date": SPOKEN,
            "winner_count": 1,
            "winners": people,
        }
    ),
    "document": file.flatmap(lambda one: others.map(lambda name: one | {"file_name": name})),
    "story": st.just({"id": 1, "chat": {"id": -5, "type": "channel", "title": "жук"}}),
    "video_chat_participants_invited": st.lists(mal_on_telegram, min_size=1, max_size=2).map(
        lambda users: {"users": users}
    ),
    "proximity_alert_triggered": st.tuples(mal_on_telegram, mal_on_telegram).map(
        lambda both: {"traveler": both[0], "watcher": both[1], "distance": 5}
    ),
    "chat_owner_changed": mal_on_telegram.map(lambda user: {"new_owner": user}),
    "poll_option_deleted": others.map(
        lambda text: {"option_persistent_id": "a", "option_text": text}
    ),
    "checklist_tasks_done": task.map(
        lambda one: {
            "marked_as_done_task_ids": [1],
            "checklist_message": {
                "message_id": 3,
                "date": SPOKEN,
                "chat": {"id": -100, "type": "supergroup", "title": "жук"},
                "checklist": {"title": "жук", "tasks": [one]},
            },
        }
    ),
    "rich_message": mal_on_telegram.map(
        lambda user: {
            "blocks": [
                {
                    "type": "paragraph",
                    "text": [
                        {"type": "text_mention", "text": user["first_name"], "user": user},
                        {
                            "type": "custom_emoji",
                            "custom_emoji_id": "9",
                            "alternative_text": user["first_name"],
                        },
                    ],
                }
            ]
        }
    ),
}


@st.composite
def telegram_messages(draw: st.DrawFn) -> tuple[Json, str]:
    """A message of the owner's, and what they wrote themselves."""
    said: Json = {
        "message_id": 7,
        "date": SPOKEN,
        "chat": {"id": -100, "type": "supergroup", "title": "жук шум"},
    }
    said["from"] = {
        "id": OWNER,
        "is_bot": False,
        "first_name": draw(own),
        "last_name": draw(own),
        "username": "omega",
    }
    said["author_signature"] = draw(others)
    text, entities, mine = "", list[Json](), ""
    for piece in draw(st.lists(st.one_of(own, others, st.just("😀")), max_size=4)):
        start = len(text.encode("utf-16-le")) // 2
        size = len(piece.encode("utf-16-le")) // 2
        if is_of_others(piece):
            entities.append(
                {
                    "type": "text_mention",
                    "offset": start,
                    "length": size,
                    "user": draw(mal_on_telegram),
                }
            )
        text += piece
        mine += f" {piece}" if is_own(piece) else ""
    size = len(text.encode("utf-16-le")) // 2
    for kind in draw(
        st.lists(
            st.sampled_from(["bold", "italic", "blockquote", "code", "pre", "spoiler"]), max_size=3
        )
    ):
        start = draw(st.integers(0, max(0, size - 1)))
        entities.append(
            {"type": kind, "offset": start, "length": draw(st.integers(1, max(1, size - start)))}
        )
    if text.strip():
        said |= {"text": text, "entities": entities}
    for kind in draw(st.lists(st.sampled_from(sorted(carriers)), max_size=1)):
        said[kind] = draw(carriers[kind])
    more = draw(st.sampled_from(["", "", "forward", "via", "quote", "external", "reply"]))
    user = draw(mal_on_telegram)
    hidden = {"type": "hidden_user", "date": SPOKEN, "sender_user_name": draw(others)}
    replied = {"message_id": 3, "date": SPOKEN, "chat": said["chat"], "from": user}
    said |= {
        "": {},
        "forward": {"forward_origin": {"type": "user", "date": SPOKEN, "sender_user": user}},
        "via": {"via_bot": user | {"is_bot": True}},
        "quote": {
            "quote": {"text": draw(others), "position": 0},
            "reply_to_message": replied | {"text": "жук"},
        },
        "external": {"external_reply": {"origin": hidden, "contact": draw(carriers["contact"])}},
        "reply": {
            "reply_to_message": replied
            | draw(
                st.one_of(
                    others.map(lambda found: {"text": found}),
                    st.just({"voice": {"file_id": "v", "file_unique_id": "v", "duration": 1}}),
                )
            )
        },
    }[more]
    return said, "" if any(one["type"] != "text_mention" for one in entities) else mine


@settings(max_examples=examples(200), deadline=None)
@given(telegram_messages())
def test_a_line_from_telegram_has_the_label_of_all_who_wrote_it(made: tuple[Json, str]) -> None:
    payload, text = made
    both = [
        {"update_id": 5, "message": payload},
        {"update_id": 6, "edited_message": payload | {"edit_date": SPOKEN}},
    ]
    first, edit = (parse_update(one, TELEGRAM, NOW) for one in parse_updates(both))
    check_said(first, text)
    for one, other in zip(first, edit, strict=False):
        assert isinstance(other, MessageEdited)
        if isinstance(one, Message) and not one.history:
            assert (other.text, other.carried) == (one.text, one.carried)


@pytest.mark.parametrize("kind", sorted(carriers))
@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_whatever_telegram_passes_on_beside_a_text_is_not_its_senders(
    kind: str, data: st.DataObject
) -> None:
    said = {
        "message_id": 7,
        "date": SPOKEN,
        "chat": {"id": OWNER, "type": "private", "first_name": "ω"},
    }
    said |= {
        "from": {"id": OWNER, "is_bot": False, "first_name": "ω"},
        kind: data.draw(carriers[kind]),
    }
    (update,) = parse_updates([{"update_id": 5, "message": said}])
    (event,) = parse_update(update, TELEGRAM, NOW)
    check(event)


# IRC


@settings(max_examples=examples(), deadline=None)
@given(
    own,
    others,
    word,
    st.sampled_from(["{}", "\x01ACTION {}\x01", "\x02{}\x0304\x0f", "reverie: {}"]),
)
def test_a_line_from_irc_has_the_label_of_all_who_wrote_it(
    text: str, topic: str, nick: str, form: str
) -> None:
    state = IrcState("reverie")
    state.caps.add("account-tag")
    context = IrcLineContext(ChannelName("irc.test"), state)
    tags = f"@account=omega;+draft/display-name={nick};+{nick}={nick}"
    lines = [
        f"{tags} :omega!{nick}@{nick} PRIVMSG #room :{form.format(text)}",
        (
            f"@draft/relaymsg=omega;account=omega :{nick}/bridge!relay@bridge PRIVMSG #room :reverie: "
            f"{topic}"
        ),
        f"@account=omega :omega!o@h SETNAME :{topic}",
        f":{nick}!m@h TOPIC #room :{topic}",
        f":irc.test 332 reverie #room :{topic}",
    ]
    found, numbers = list[Notification](), itertools.count()
    for line in lines:
        parsed = parse_line(line)
        assert parsed is not None
        told = state.apply(parsed, 0.0)
        assert told is not None
        found += to_notifications(told, context, NOW, lambda: f"x{next(numbers)}")
    check(*found)
    first = found[0]
    assert isinstance(first, Message)
    ((line, integrity),) = check(first)
    assert integrity == "owner"
    assert all(piece in line for piece in text.split())


@given(others)
def test_what_a_platform_gives_as_its_reason_is_nobodys_word_here(words: str) -> None:
    at = Address(channel=ChannelName("irc.test"), room=RoomId("#room"))
    down = ConnectionChanged(
        id=EventId("l"), channel=at.channel, up=False, reason=f"Killed ({words})", sent=NOW
    )
    failed = DeliveryReport(
        id=EventId("p"), at=at, post=PostKey("p"), state="failed", reason=words, sent=NOW
    )
    own_line = Message(
        id=MessageId("s"),
        at=at,
        sender=Sender(id=SenderId("mask:x"), name="ω"),
        text="α",
        sent=NOW,
        kind="room",
    )
    check(own_line, down, failed)
