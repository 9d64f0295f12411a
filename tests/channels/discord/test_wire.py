"""Payloads to notifications, positions and pace: all of it without a socket."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yarl

from channels.discord import inflow, wire
from channels.discord.config import DiscordConfig
from channels.discord.directory import (
    DiscordDirectory,
    DiscordPlace,
    mentioned_handles,
    resolve_references,
)
from channels.discord.ids import parse_id, snowflake_at, snowflake_time
from channels.discord.inflow import DiscordProgress
from gateway.core.events import MAX_QUOTED_CHARS, Message, MessageEdited, PlaceNames
from tests.channels.discord.channel_kit import NAME, place

ME, ANN, ROOM, GUILD, ROLE = "10", "20", "30", "40", "50"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(ago_s: float = 0.0, number: int = 0) -> str:
    return str(snowflake_at(NOW - timedelta(seconds=ago_s)) + number)


def directory() -> DiscordDirectory:
    made = DiscordDirectory(NAME)
    made.apply_event("READY", {"user": {"id": ME}})
    roles = [{"id": ROLE, "name": "reverie", "tags": {"bot_id": ME}}, {"id": "51", "name": "all"}]
    made.apply_event(
        "GUILD_CREATE",
        {"id": GUILD, "channels": [{"id": ROOM, "type": 0, "name": "general"}], "roles": roles},
    )
    return made


def said(content: str = "hello", **more: Any) -> dict[str, Any]:
    author = {"id": ANN, "username": "ann", "global_name": "Ann"}
    return {
        "id": at(),
        "channel_id": ROOM,
        "guild_id": GUILD,
        "type": 0,
        "author": author,
        "content": content,
    } | more


def message(content: str = "hello", **more: Any) -> Message:
    found = wire.parse_message(said(content, **more), directory())
    assert found is not None
    return found


def test_what_a_reply_is_about_comes_with_it_as_the_log_may_not_have_it() -> None:
    bob, cat = (
        {"id": "61", "username": "bob"},
        {"id": "7", "filename": "cat.png", "content_type": "image/png"},
    )
    replied = said("x" * 4_000, id="30", author=bob, attachments=[cat])
    reference = {
        "message_reference": {"message_id": "30", "channel_id": ROOM},
        "referenced_message": replied,
    }
    quoted = message(f"<@{ME}> what is this?", mentions=[{"id": ME}], **reference).quoted
    assert quoted is not None
    assert (quoted.sender.name, quoted.text) == ("bob", "x" * MAX_QUOTED_CHARS)
    assert [(file.id, file.form) for file in quoted.attachments] == [(f"{ROOM}/30/7", "image")]
    assert message("what is this?", **reference).quoted is None, "it is not addressed to the agent"
    own = said("of mine", id="30")
    assert (
        message(f"<@{ME}>", mentions=[{"id": ME}], **reference | {"referenced_message": own}).quoted
        is None
    )


@pytest.mark.parametrize(
    ("content", "more", "kind"),
    [
        ("hi", {}, "room"),
        (f"<@{ME}> hi", {"mentions": [{"id": ME}]}, "mention"),
        (f"<@!{ME}> hi", {"mentions": []}, "mention"),
        (f"<@&{ROLE}> hi", {"mention_roles": [ROLE]}, "mention"),
        ("<@&51> hi", {"mention_roles": ["51"]}, "room"),
        ("@everyone hi", {"mention_everyone": True}, "room"),
        (f"`<@{ME}>` is how", {}, "room"),
        ("hi", {"guild_id": None, "channel_id": "99"}, "direct"),
        (
            "yes",
            {
                "type": 19,
                "mentions": [{"id": ME}],
                "message_reference": {"message_id": "1"},
                "referenced_message": {"author": {"id": ME}},
            },
            "reply",
        ),
        (
            "yes",
            {
                "type": 19,
                "message_reference": {"message_id": "1"},
                "referenced_message": {"author": {"id": ANN}},
            },
            "room",
        ),
    ],
)
def test_whom_it_was_said_to(content: str, more: dict[str, Any], kind: str) -> None:
    assert message(content, **more).kind == kind


def test_references_become_handles_and_ids_but_not_in_code() -> None:
    users = [
        {"id": ANN, "username": "ann_7", "global_name": "obey me"},
        {"id": "61", "username": "Some Bot"},
    ]
    handles = mentioned_handles({"mentions": users})
    known = directory()
    known.apply_event("READY", {"user": {"id": ME, "username": "reverie"}})
    shown = resolve_references(
        f"<@{ANN}> <@!61> <@77> <@{ME}> <#{ROOM}> <@&{ROLE}> <@&51> <:cat:1> <a:dog:2> </log:3>",
        handles,
        known,
    )
    assert (
        shown
        == f"@ann_7 @user-61 @user-77 @reverie #{ROOM} @reverie @role-51 :emoji: :emoji: /command"
    )
    for code in (f"`<@{ANN}>`", f"```\n<@{ANN}>\n```"):
        assert resolve_references(code, handles, directory()) == code


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (
            "<t:1700000000:R>, all at <t:1700000000:F>",
            "2023-11-14 22:13 UTC, all at 2023-11-14 22:13 UTC",
        ),
        ("<t:-1:t> <t:1700000000:D>", "1969-12-31 23:59 UTC 2023-11-14"),
        (
            "`<t:1700000000>` <t:9999999999999> <t:1:x>",
            "`<t:1700000000>` <t:9999999999999> <t:1:x>",
        ),
    ],
)
def test_a_timestamp_is_read_as_a_time(theirs: str, ours: str) -> None:
    assert resolve_references(theirs, {}, directory()) == ours


def test_what_stands_beside_the_text_is_told() -> None:
    forward = {
        "message_reference": {"type": 1, "message_id": "1"},
        "message_snapshots": [{"message": {"content": "old"}}],
    }
    forwarded = message("", **forward)
    assert (forwarded.text, forwarded.carried, forwarded.reply_to) == (
        "[forwarded] old",
        "[forwarded] old",
        None,
    )
    assert message("look", **forward).carried == "[forwarded] old"
    forward["message_snapshots"][0]["message"]["attachments"] = [{"id": "5", "filename": "a.pdf"}]  # type: ignore[index]
    assert [file.name for file in message("look", **forward).attachments] == ["a.pdf"]
    bot = {"id": "60", "username": "news", "bot": True}
    embeds = [
        {"type": "rich", "title": "Title", "description": "x" * 1000},
        {"type": "link", "title": "no"},
    ]
    assert message("", author=bot, embeds=embeds).carried.startswith("Title - xxx")
    shown = message("", author=bot, embeds=embeds).text
    assert shown.startswith("Title - xxx")
    assert len(shown) < 700
    container = {
        "type": 17,
        "components": [{"type": 9, "components": [{"type": 10, "content": "hm"}]}],
    }
    assert message("", author=bot, components=[container]).carried == "hm"
    forward["message_snapshots"][0]["message"] = {  # type: ignore[index]
        "embeds": embeds[:1],
        "components": [container],
        "sticker_items": [{"id": "7", "name": "wave"}],
    }
    lines = message("", **forward).carried.split("\n")
    assert (lines[:2], lines[2][:11], lines[3]) == (
        ["[forwarded]", "[sticker]"],
        "Title - xxx",
        "hm",
    )
    see = message("see", embeds=embeds)
    assert (see.text, see.carried) == ("see", "")  # people's embeds are previews of their links


@pytest.mark.parametrize(
    "more",
    [
        {"type": 7},
        {"type": 6},
        {"type": 8},
        {"type": 18},
        {"type": 24},
        {"author": {"id": ME}},
        {"author": {}},
        {"content": "  \n"},
        {"id": "no"},
        {"channel_id": None},
        {"type": 46},
    ],
)
def test_what_nobody_said_is_quiet(more: dict[str, Any]) -> None:
    assert wire.parse_message(said(**more), directory()) is None


def test_what_a_thread_was_made_of_is_told_in_it_and_addresses_nobody() -> None:
    first = said(f"<@{ME}> look", id=at(60), attachments=[{"id": "7", "filename": "cat.png"}])
    first.pop("guild_id")
    starter: dict[str, Any] = {
        "content": "",
        "type": 21,
        "channel_id": "77",
        "author": {"id": "21", "username": "ben"},
    }
    known = directory()
    known.add_channel({"id": "77", "type": 11, "name": "cats", "parent_id": ROOM}, GUILD)
    found = wire.parse_message(
        said(**starter, message_reference={"message_id": at(60)}, referenced_message=first), known
    )
    assert found is not None
    assert (found.sender.name, found.kind, found.reply_to, found.at.thread) == (
        "Ann",
        "room",
        None,
        "77",
    )
    assert found.text.endswith("look")
    assert found.attachments[0].id == f"{ROOM}/{at(60)}/7"
    assert wire.parse_message(said(**starter), known) is None


def test_places_have_the_names_that_discord_tells() -> None:
    known = directory()
    known.apply_event("READY", {"user": {"id": ME, "username": "reverie"}})
    room = {"id": ROOM, "type": 0, "name": "help", "topic": "Questions only"}
    members = [{"nick": "Revi", "user": {"id": ME}}]
    known.apply_event(
        "GUILD_CREATE", {"id": GUILD, "name": "Rust Users", "channels": [room], "members": members}
    )
    known.apply_event(
        "THREAD_CREATE",
        {"id": "77", "type": 11, "name": "borrowck", "parent_id": ROOM, "guild_id": GUILD},
    )
    me = "@reverie"  # whoever may manage nicks there chooses them
    assert known.place_names(known.address(ROOM)) == PlaceNames(
        room="#help", server="Rust Users", topic="Questions only", me=me
    )
    assert known.place_names(known.address("77")) == PlaceNames(
        room="#help", server="Rust Users", thread="borrowck", topic="Questions only", me=me
    )
    known.apply_event("GUILD_UPDATE", {"id": GUILD, "name": "Rustaceans"})
    known.apply_event("CHANNEL_UPDATE", room | {"name": "chat", "topic": None, "guild_id": GUILD})
    assert known.place_names(known.address(ROOM)) == PlaceNames(
        room="#chat", server="Rustaceans", topic="", me=me
    )
    assert known.place_names(place("99")) is None


def test_only_a_fresh_edit_is_one() -> None:
    def edit(when: datetime | None) -> MessageEdited | None:
        stamp = when.isoformat() if when else None
        return wire.parse_edit(said(edited_timestamp=stamp), directory(), NOW)

    first, again = edit(NOW), edit(NOW)
    assert first is not None
    assert first == again  # a preview that comes later repeats it: the store knows the id
    assert edit(None) is None
    assert edit(NOW - timedelta(hours=1)) is None  # a pin of what was edited long ago


@pytest.mark.parametrize(
    ("place", "direct"), [({}, False), ({"guild_id": None}, False), ({"channel_id": "31"}, True)]
)
def test_what_happens_outside_a_guild_is_direct(place: dict[str, Any], direct: bool) -> None:
    about = {"guild_id": None} | place if direct else place
    edit = wire.parse_edit(said(edited_timestamp=NOW.isoformat()) | about, directory(), NOW)
    put = (
        {"user_id": ANN, "message_id": at(), "emoji": {"name": "x"}}
        | {"channel_id": ROOM, "guild_id": GUILD}
        | about
    )
    reaction = wire.parse_reaction(put, directory(), NOW, "n", added=True)
    assert edit is not None
    assert reaction is not None
    assert (edit.direct, reaction.direct) == (direct, direct)


def test_only_what_is_known_to_be_in_no_guild_or_not_known_is_direct() -> None:
    known = directory()
    known.add_channel({"id": "31", "type": 0}, "")  # a room, in a guild that nobody told us
    known.add_channel({"id": "32", "type": 1}, "")
    assert [known.is_direct(channel) for channel in ("31", "32", "33")] == [False, True, True]
    found = [
        wire.parse_message(said(channel_id=channel, guild_id=None), known)
        for channel in ("31", "32")
    ]
    assert [message.kind for message in found if message] == ["room", "direct"]


def test_times_come_from_ids() -> None:
    assert message().sent == NOW
    assert snowflake_time(str(snowflake_at(NOW))) == NOW
    assert [
        parse_id(value)
        for value in (5, "5", "005", True, -1, "", "x", "1" * 30, 1 << 64, "٥", None)
    ] == [
        *("5", "5", "5"),
        *[""] * 8,
    ]


def test_threads_belong_to_their_channel_until_they_are_gone() -> None:
    known = directory()
    known.apply_event(
        "THREAD_CREATE",
        {"id": "31", "type": 11, "parent_id": ROOM, "guild_id": GUILD, "name": "aside"},
    )
    assert known.address("31") == place(ROOM, "31")
    known.apply_event("GUILD_DELETE", {"id": GUILD, "unavailable": True})
    assert known.guild_of("31") == GUILD  # an outage: it comes back
    known.apply_event("GUILD_DELETE", {"id": GUILD})
    assert (known.guild_of("31"), known.address("31"), known.is_own_role(ROLE)) == (
        "",
        place("31"),
        False,
    )


def _place(number: str, last: str, *, parent: str = "", talks: bool = True) -> DiscordPlace:
    return DiscordPlace(
        id=number,
        guild=GUILD,
        name="",
        parent=parent,
        kind=0 if talks else 15,
        last_message=last,
    )


def test_only_open_places_with_news_are_asked() -> None:
    places = [_place("1", "99"), _place("2", "100"), _place("3", "101"), _place("4", "")]
    places += [_place("6", "200", parent="3"), _place("7", "200", talks=False)]
    assert [p.id for p in inflow.plan_history(places, 100, {"*"})] == ["3", "4", "6"]
    assert [p.id for p in inflow.plan_history(places, 100, {"3"})] == ["3", "6"]
    assert [p.id for p in inflow.plan_history(places, 100, {GUILD})] == ["3", "4", "6"]
    assert [p.id for p in inflow.plan_history(places, 100, {"1"})] == [
        "1"
    ]  # opened by itself: what is told of it may be stale
    assert inflow.plan_history(places, 100, set()) == []


def test_a_position_waits_for_the_gaps_before_it() -> None:
    old = DiscordProgress(None, 3600)
    old.begin_session([GUILD], NOW - timedelta(minutes=10))
    assert not old.has_gap(GUILD)  # nothing is known from before: nothing is missed
    old.record_message(at(300), NOW)
    new = DiscordProgress(old.to_cursor(), 3600)
    new.record_message(at(10), NOW)  # nobody knows what is missing before it
    assert DiscordProgress(new.to_cursor(), 3600).history_after(NOW) == int(at(360))
    new.begin_session([GUILD], NOW)
    new.record_message(at(0), NOW)
    assert DiscordProgress(new.to_cursor(), 3600).history_after(NOW) == int(at(360))
    assert new.has_gap(GUILD)
    new.close_gap(GUILD)
    assert DiscordProgress(new.to_cursor(), 3600).history_after(NOW) == int(at(60))
    new.open_gap(GUILD)
    new.record_message(at(0, 7), NOW)
    assert json.loads(new.to_cursor())["mark"] == int(at(0))


def test_a_gap_is_looked_at_no_further_back_than_the_age() -> None:
    old = DiscordProgress(None, 3600)
    old.begin_session([], NOW - timedelta(days=2))
    new = DiscordProgress(old.to_cursor(), 3600)
    assert new.history_after(NOW) == int(at(3600))
    assert new.exceeds_history_age(NOW)
    never = DiscordProgress(old.to_cursor(), 0)
    never.begin_session([GUILD], NOW)
    assert not never.has_gap(GUILD)


def test_direct_chats_are_remembered_the_latest_ones() -> None:
    progress = DiscordProgress(None, 3600)
    progress.begin_session([], NOW)
    for number in range(1, 300):
        progress.record_direct(str(10**18 + number))
    kept = DiscordProgress(progress.to_cursor(), 3600).direct_chats
    assert list(kept)[-1] == str(10**18 + 299)
    assert len(kept) == inflow.MAX_DIRECTS
    assert len(progress.to_cursor()) < 5000


@pytest.mark.parametrize("cursor", ["", "x", "[]", "7", '{"mark":[]}', '{"mark":"x"}', "[" * 9999])
def test_a_position_that_is_none_of_ours_is_none(cursor: str) -> None:
    assert DiscordProgress(cursor, 3600).history_after(NOW) == int(at(3600))


def test_a_room_is_an_id() -> None:
    base = {"platform": "discord", "token": "t"}
    assert DiscordConfig.model_validate(base | {"rooms": ["*", "123"]}).rooms == ("*", "123")
    with pytest.raises(ValueError, match="developer mode"):
        DiscordConfig.model_validate(base | {"rooms": ["#general"]})
    assert DiscordConfig.model_validate(base | {"history_age": "2h"}).history_age == 7200


@pytest.mark.parametrize(
    ("told", "where"),
    [
        ("wss://gateway-us-east1-b.discord.gg", "wss://gateway-us-east1-b.discord.gg"),
        ("ws://evil.example", "wss://ours.example"),
        ("https://evil.example", "wss://ours.example"),
        ("wss://user:pass@evil.example", "wss://ours.example"),
        ("wss://[", "wss://ours.example"),
        ("", "wss://ours.example"),
    ],
)
def test_only_a_sane_address_is_resumed_at(told: str, where: str) -> None:
    from channels.discord.session import _safe_resume_url  # noqa: PLC0415 - imports discord.py, which the rest of this file does not

    assert _safe_resume_url(told, yarl.URL("wss://ours.example")) == yarl.URL(where)


VIEWS, NONE_AT_ALL = str(1 << 10), "0"
_EVERYONE = {"id": "7", "name": "@everyone", "permissions": VIEWS}


def _denied(who: str, **more: str) -> dict[str, object]:
    return {"id": who, "type": 0, "allow": NONE_AT_ALL, "deny": VIEWS, **more}


def _allowed(who: str) -> dict[str, object]:
    return {"id": who, "type": 0, "allow": VIEWS, "deny": NONE_AT_ALL}


@pytest.mark.parametrize(
    ("everyone", "overwrites", "audience"),
    [
        (VIEWS, [], "space"),
        (NONE_AT_ALL, [], "room"),
        (VIEWS, [_denied("7")], "room"),
        (NONE_AT_ALL, [_allowed("7")], "space"),
        (NONE_AT_ALL, [_allowed("8")], "room"),
        (VIEWS, [_denied("8")], "room"),
        (VIEWS, [_denied("9", type="1")], "room"),
        (VIEWS, [{"id": "8", "type": 0, "allow": NONE_AT_ALL, "deny": str(1 << 11)}], "space"),
        (VIEWS, None, None),
        (None, [], None),
        ("many", [], "room"),
    ],
)
def test_who_can_read_a_channel(
    everyone: str | None, overwrites: object, audience: str | None
) -> None:
    directory, more = (
        DiscordDirectory(NAME),
        {} if overwrites is None else {"permission_overwrites": overwrites},
    )
    roles = [{"id": "8", "name": "staff", "permissions": VIEWS}]
    roles += [{**_EVERYONE, "permissions": everyone}] if everyone is not None else []
    channel = {"id": "100", "type": 0, "name": "general", **more}
    threads = [
        {"id": "101", "type": 11, "parent_id": "100"},
        {"id": "102", "type": 12, "parent_id": "100"},
    ]
    directory.apply_event(
        "GUILD_CREATE", {"id": "7", "channels": [channel], "threads": threads, "roles": roles}
    )
    assert directory.audience(directory.address("100")) == audience
    assert directory.audience(directory.address("101")) == audience, "a thread follows its channel"
    assert directory.audience(directory.address("102")) == "thread", "a private one does not"
    assert directory.audience(directory.address("103")) is None


def test_who_can_read_a_channel_follows_its_changes() -> None:
    directory = DiscordDirectory(NAME)
    channel = {"id": "100", "type": 0, "permission_overwrites": []}
    directory.apply_event("GUILD_CREATE", {"id": "7", "channels": [channel], "roles": [_EVERYONE]})
    at = directory.address("100")
    assert directory.audience(at) == "space"
    directory.apply_event(
        "CHANNEL_UPDATE", {**channel, "guild_id": "7", "permission_overwrites": [_denied("7")]}
    )
    assert directory.audience(at) == "room"
    directory.apply_event("CHANNEL_UPDATE", {**channel, "guild_id": "7"})
    assert directory.audience(at) == "space"
    directory.apply_event(
        "GUILD_ROLE_UPDATE", {"guild_id": "7", "role": {**_EVERYONE, "permissions": NONE_AT_ALL}}
    )
    assert directory.audience(at) == "room"
    directory.apply_event("GUILD_DELETE", {"id": "7"})
    assert directory.audience(at) is None
