"""Updates as notifications, one table for each kind."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import telegram
from hypothesis import given
from hypothesis import strategies as st
from telegram.constants import MessageType

from channels.telegram import content, wire
from channels.telegram.ids import TelegramCursor
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.wire import UpdateReader, parse_update, parse_updates
from gateway.core.events import (
    NOTIFICATION,
    Address,
    Attachment,
    ChannelName,
    Command,
    MembershipChanged,
    Message,
    MessageEdited,
    QuotedMessage,
    ReactionChanged,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.facts import dedup_key
from tests.channels.telegram.channel_kit import parsed, parsed_one

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SENT = datetime(2025, 6, 1, tzinfo=UTC)
VIEW = TelegramUpdateContext(channel=ChannelName("telegram.test"), own_id=42, username="ReverieBot")
ANN = {"id": 1001, "is_bot": False, "first_name": "Ann", "last_name": "Lee", "language_code": "en"}
ME = {"id": 42, "is_bot": True, "first_name": "Reverie", "username": "ReverieBot"}
ANONYMOUS = {
    "id": 1087968824,
    "is_bot": True,
    "first_name": "Group",
    "username": "GroupAnonymousBot",
}
PRIVATE = {"id": 1001, "type": "private", "first_name": "Ann"}
GROUP = {"id": -100, "type": "supergroup", "title": "Lounge"}
USER_8 = {"id": 8, "is_bot": False, "first_name": "Bob"}
CHANNEL = {"id": -200, "type": "channel", "title": "News"}


def message(**more: Any) -> dict[str, Any]:
    base = {"message_id": 7, "from": ANN, "chat": GROUP, "date": int(SENT.timestamp())}
    return {key: value for key, value in (base | more).items() if value is not None}


def update(body: dict[str, Any], kind: str = "message", update_id: int = 5) -> dict[str, Any]:
    return {"update_id": update_id, kind: body}


def said(view: TelegramUpdateContext = VIEW, **more: Any) -> Message:
    (event,) = parse_update(parsed_one(update(message(**more))), view, NOW)
    assert isinstance(event, Message)
    assert NOTIFICATION.validate_json(NOTIFICATION.dump_json(event)) == event
    return event


def entity(kind: str, offset: int, length: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "offset": offset, "length": length} | more


def test_a_message_arrives_whole() -> None:
    event = said(text="**typed** \ud800", entities=[entity("bold", 0, 9)])
    assert (event.id, event.at.room, event.at.thread, event.sent) == ("7", "-100", None, SENT)
    assert event.text == "****typed**** \ufffd"
    assert (event.sender.id, event.sender.name, event.sender.verified) == ("1001", "Ann Lee", True)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"chat": PRIVATE}, "direct"),
        ({}, "room"),
        ({"text": "hi @reveriebot", "entities": [entity("mention", 3, 11)]}, "mention"),
        ({"text": "hi @reveriebot"}, "room"),  # the platform's knowledge, not ours
        ({"text": "hi @otherbot1", "entities": [entity("mention", 3, 10)]}, "room"),
        ({"text": "hi you", "entities": [entity("text_mention", 3, 3, user=ME)]}, "mention"),
        ({"text": "hi you", "entities": [entity("text_mention", 3, 3, user=ANN)]}, "room"),
        ({"text": "do /x@ReverieBot", "entities": [entity("bot_command", 3, 13)]}, "mention"),
        (
            {
                "text": None,
                "caption": "😀@ReverieBot",
                "caption_entities": [entity("mention", 2, 11)],
            },
            "mention",
        ),
        ({"reply_to_message": message(**{"from": ME, "message_id": 3})}, "reply"),
        ({"reply_to_message": message(message_id=3)}, "room"),
    ],
)
def test_whom_it_was_said_to(more: dict[str, Any], kind: str) -> None:
    photo = [{"file_id": "f"}] if "caption" in more else None
    event = said(**({"text": "hi", "photo": photo} | more))
    assert event.kind == kind
    assert event.reply_to == ("3" if "reply_to_message" in more else None)


@pytest.mark.parametrize(
    ("more", "thread", "kind", "reply_to"),
    [
        ({"message_thread_id": 9}, None, "room", None),  # a chain of replies
        ({"message_thread_id": 9, "is_topic_message": True}, "9", "room", None),
        # What is said in a topic "replies" to its beginning, even if we began it.
        (
            {
                "message_thread_id": 9,
                "is_topic_message": True,
                "reply_to_message": message(
                    **{"message_id": 9, "from": ME, "forum_topic_created": {"name": "x"}}
                ),
            },
            "9",
            "room",
            None,
        ),
        (
            {
                "message_thread_id": 9,
                "is_topic_message": True,
                "reply_to_message": message(**{"message_id": 11, "from": ME}),
            },
            "9",
            "reply",
            "11",
        ),
        ({"message_thread_id": 9, "is_topic_message": True, "chat": PRIVATE}, "9", "direct", None),
    ],
)
def test_topics_are_threads_and_chains_are_not(
    more: dict[str, Any], thread: str | None, kind: str, reply_to: str | None
) -> None:
    event = said(text="x", **more)
    assert (event.at.thread, event.kind, event.reply_to) == (thread, kind, reply_to)


@pytest.mark.parametrize(
    ("more", "sender"),
    [
        ({"from": ANN | {"username": "ann"}}, ("1001", "Ann Lee", False, True)),
        ({"from": ANONYMOUS, "sender_chat": GROUP}, ("-100", "Lounge", False, False)),
        ({"from": None, "sender_chat": CHANNEL, "chat": CHANNEL}, ("-200", "News", False, False)),
        (
            {"from": {"id": 136817688, "is_bot": True}, "sender_chat": CHANNEL},
            ("-200", "News", False, False),
        ),
        ({"from": {"id": 8, "is_bot": True, "first_name": "Bot"}}, ("8", "Bot", True, True)),
        (
            {"from": ANONYMOUS},
            ("1087968824", "Group", True, False),
        ),  # a group's anonymous admin, chat not told
        (
            {"from": {"id": 8, "first_name": "a\nb\x00  c" + "d" * 99}},
            ("8", "a b c" + "d" * 59, False, True),
        ),
    ],
)
def test_who_said_it(more: dict[str, Any], sender: tuple[str, str, bool, bool]) -> None:
    who = said(text="x", **more).sender
    assert (who.id, who.name, who.is_bot, who.verified) == sender


POLL = message(
    poll={
        "question": "Tea?",
        "options": [
            {"text": "yes", "persistent_id": "a"},
            {"text": "no", "persistent_id": "b"},
            {"text": "maybe", "persistent_id": "c", "added_by_user": USER_8},
            {"text": "later", "persistent_id": "d", "added_by_user": ANN},
            {"text": "never", "persistent_id": "e", "added_by_chat": CHANNEL},
        ],
    }
)
LIST = message(
    checklist={"title": "Garden", "tasks": [{"id": 1, "text": "dig"}, {"id": 2, "text": "rake"}]}
)
SHARED = message(
    checklist={
        "title": "Garden",
        "tasks": [{"id": 1, "text": "dig"}],
        "others_can_add_tasks": True,
    }
)
RICH = {
    "blocks": [
        {"type": "heading", "size": 1, "text": "Plan"},
        {
            "type": "paragraph",
            "text": [
                "Buy ",
                {"type": "bold", "text": ["tea"]},
                " ",
                {"type": "url", "text": "today"},
            ],
        },
        {
            "type": "list",
            "items": [{"label": "1.", "blocks": [{"type": "paragraph", "text": "now"}]}],
        },
        {
            "type": "table",
            "cells": [
                [{"text": "Who"}, {"text": "When"}],
                [
                    {"text": "Ann"},
                    {"text": {"type": "mathematical_expression", "expression": "x²"}},
                ],
            ],
        },
        {"type": "divider"},
        {"type": "map", "caption": {"text": "map of us"}},
    ]
}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            {"text": "x", "forward_origin": {"type": "user", "sender_user": ANN}},
            "(forwarded from Ann Lee)\nx",
        ),
        (
            {"text": "x", "forward_origin": {"type": "hidden_user", "sender_user_name": "A)\nB"}},
            "(forwarded from A) B)\nx",
        ),
        (
            {"text": "x", "forward_origin": {"type": "channel", "chat": CHANNEL}},
            "(forwarded from News)\nx",
        ),
        ({"text": "x", "forward_origin": {"type": "new kind"}}, "(forwarded from somebody)\nx"),
        (
            {"text": "x", "via_bot": {"id": 3, "is_bot": True, "username": "gif"}},
            "(by way of @gif)\nx",
        ),
        ({"text": "x", "quote": {"text": "a\nb", "position": 0}}, "> a\n> b\nx"),
        (
            {
                "text": "x",
                "external_reply": {"origin": {"type": "user", "sender_user": ANN}},
                "quote": {"text": "a"},
            },
            "> Ann Lee: a\nx",
        ),
        (
            {"text": "x", "reply_to_story": {"id": 1, "chat": CHANNEL}},
            "> (a story, which bots cannot open)\nx",
        ),
        ({"text": "x", "reply_to_message": POLL, "reply_to_poll_option_id": "b"}, "> no\nx"),
        ({"text": "x", "reply_to_message": POLL}, "x"),
        ({"text": "x", "reply_to_message": LIST, "reply_to_checklist_task_id": 2}, "> rake\nx"),
        ({"location": {"latitude": 52.5, "longitude": -13.123456}}, "[location: 52.5, -13.123456]"),
        (
            {
                "venue": {
                    "location": {"latitude": 1, "longitude": 2},
                    "title": "Bar",
                    "address": "Road 1",
                }
            },
            "[venue: Bar, Road 1 (1, 2)]",
        ),
        ({"contact": {"phone_number": "+1", "first_name": "Ann"}}, "[contact: Ann, +1]"),
        (
            {"poll": {"question": "Tea?", "options": [{"text": "yes"}, {"text": "no"}]}},
            "[poll: Tea?: yes | no]",
        ),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[dice: 🎲 4]"),
        ({"sticker": {"file_id": "s", "emoji": "😀", "set_name": "Cats"}}, "[sticker: 😀]"),
        ({"story": {"id": 1, "chat": CHANNEL}}, "[story]"),
        (
            {"paid_media": {"star_count": 5, "paid_media": [{"type": "preview"}]}},
            "[paid media, which bots cannot open: 1 for 5 stars]",
        ),
        (
            {"giveaway": {"chats": [], "winners_selection_date": 1, "winner_count": 3}},
            "[giveaway: 3 winners]",
        ),
        (
            {"users_shared": {"request_id": 1, "users": [{"user_id": 8, "first_name": "Bob"}]}},
            "[shared people: @user-8]",
        ),
        (
            {"chat_shared": {"request_id": 1, "chat_id": -300, "title": "Tea"}},
            "[shared a chat: Tea]",
        ),
        ({"web_app_data": {"button_text": "Go", "data": "x=1"}}, "[from the web app Go: x=1]"),
        ({"rich_message": RICH}, "Plan\nBuy tea today\n1. now\nWho | When\nAnn | x²\nmap of us"),
        ({"rich_message": {"blocks": [{"text": "x", "caption": 7}, 3], "is_rtl": "?"}}, "x"),
    ],
)
def test_what_is_not_plain_text_is_said_in_words(more: dict[str, Any], text: str) -> None:
    assert said(**more).text == text


@pytest.mark.parametrize(
    ("more", "carried"),
    [
        ({"text": "x"}, ""),
        (
            {"text": "x", "forward_origin": {"type": "user", "sender_user": ANN}},
            "(forwarded from Ann Lee)\nx",
        ),
        ({"text": "x", "forward_origin": {"type": "new kind"}}, "(forwarded from somebody)\nx"),
        ({"text": "x", "forward_date": 1}, "(forwarded from somebody)\nx"),
        ({"voice": {"file_id": "v"}, "forward_date": 1}, "(forwarded from somebody)"),
        (
            {"text": "x", "via_bot": {"id": 3, "is_bot": True, "username": "gif"}},
            "(by way of @gif)\nx",
        ),
        ({"text": "x", "quote": {"text": "a\nb", "position": 0}}, "> a\n> b"),
        (
            {
                "text": "x",
                "external_reply": {"origin": {"type": "user", "sender_user": ANN}},
                "quote": {"text": "a"},
            },
            "> Ann Lee: a",
        ),
        *[
            ({"text": "x", "reply_to_message": POLL, "reply_to_poll_option_id": one}, carried)
            for one, carried in (
                ("b", "> no"),
                ("c", "(perhaps added by somebody else:)\n> maybe"),
                ("d", "> later"),
                ("e", "(perhaps added by somebody else:)\n> never"),
            )
        ],
        (
            {"text": "x", "reply_to_message": SHARED, "reply_to_checklist_task_id": 1},
            "(perhaps added by somebody else:)\n> dig",
        ),
    ],
)
def test_what_its_sender_did_not_write_is_told_apart(more: dict[str, Any], carried: str) -> None:
    assert said(**more).carried == carried


def test_what_a_reply_is_about_comes_with_it_as_the_log_may_not_have_it() -> None:
    bob = {"id": 8, "is_bot": False, "first_name": "Bob"}
    person = Sender(id=SenderId("8"), name="Bob", verified=True)
    photo = [{"file_id": "l", "file_unique_id": "u", "width": 9, "height": 9}]
    image = Attachment(id="l", form="image", content_type="image/jpeg")
    answered = message(message_id=3, caption="the question " + "x" * 4_000, photo=photo) | {
        "from": bob
    }
    direct: dict[str, Any] = {"chat": {"id": 7, "type": "private"}}
    quoted = said(text="?", reply_to_message=answered, **direct).quoted
    assert quoted == QuotedMessage(
        sender=person, text=f"the question {'x' * 2987}", attachments=(image,)
    )
    assert said(text="?", reply_to_message=answered).quoted is None, (
        "it is not addressed to the agent"
    )
    ours = said(text="?", reply_to_message=answered | {"from": ME}).quoted
    assert ours is not None
    assert (ours.text, ours.attachments) == ("", (image,)), "the log has what the agent said"
    elsewhere = {"origin": {"type": "user", "date": 1, "sender_user": bob}, "photo": photo}
    shown = QuotedMessage(sender=person, attachments=(image,))
    assert said(text="?", external_reply=elsewhere, **direct).quoted == shown
    assert said(text="?", **direct).quoted is None


@pytest.mark.parametrize(
    ("more", "attachment"),
    [
        (
            {
                "photo": [
                    {"file_id": "s", "width": 1, "height": 1},
                    {"file_id": "l", "width": 9, "height": 9, "file_size": 5},
                ]
            },
            Attachment(id="l", form="image", content_type="image/jpeg", size_bytes=5),
        ),
        (
            {
                "document": {
                    "file_id": "d",
                    "file_name": "../a\nb.pdf",
                    "mime_type": "application/pdf",
                }
            },
            Attachment(id="d", form="file", name="../a b.pdf", content_type="application/pdf"),
        ),
        (
            {"document": {"file_id": "d", "mime_type": "image/png"}},
            Attachment(id="d", form="image", content_type="image/png"),
        ),
        (
            {"voice": {"file_id": "v", "duration": 3, "mime_type": "audio/ogg"}},
            Attachment(
                id="v", form="audio", content_type="audio/ogg", duration_s=3.0, recorded=True
            ),
        ),
        (
            {"animation": {"file_id": "g", "mime_type": "video/mp4"}, "document": {"file_id": "g"}},
            Attachment(id="g", form="video", content_type="video/mp4", duration_s=3.0),
        ),
        (
            {"sticker": {"file_id": "s", "is_video": True}},
            Attachment(id="s", form="sticker", content_type="video/webm"),
        ),
        (
            {"video_note": {"file_id": "n", "file_size": -4}},
            Attachment(
                id="n", form="video", content_type="video/mp4", duration_s=3.0, recorded=True
            ),
        ),
    ],
)
def test_files_stay_where_they_are(more: dict[str, Any], attachment: Attachment) -> None:
    assert said(caption="see", **more).attachments == (attachment,)
    assert said(caption="see", **more).text.startswith("see")


@pytest.mark.parametrize(
    ("text", "chat", "command"),
    [
        ("/Why 3 ", PRIVATE, ("why", "3")),
        ("/why@reveriebot\n3", GROUP, ("why", "3")),
        ("/why", GROUP, ("why", "")),
        ("/why@otherbot", GROUP, None),
        ("/why@otherbot", PRIVATE, None),
        ("/weather", GROUP, None),  # not in our table: another bot's
        ("/weather", PRIVATE, ("weather", "")),
        ("/weather@ReverieBot", GROUP, ("weather", "")),
    ],
)
def test_commands_are_those_said_to_us(
    text: str, chat: dict[str, Any], command: tuple[str, str] | None
) -> None:
    view = TelegramUpdateContext(
        channel=VIEW.channel, own_id=42, username="ReverieBot", commands=frozenset({"why"})
    )
    marked = [entity("bot_command", 0, len(text.split(maxsplit=1)[0]))]
    (event,) = parse_update(
        parsed_one(update(message(text=text, chat=chat, entities=marked))), view, NOW
    )
    if command is None:
        assert isinstance(event, Message)
        assert event.kind in ("room", "direct")
    else:
        assert isinstance(event, Command)
        assert (event.name, event.args, event.id, event.origin) == (*command, "7", "native")


def test_the_name_of_somebody_mentioned_is_no_word_of_a_command() -> None:
    """People choose their names: one could be an order, in the owner's own reminder."""
    marked = [
        entity("bot_command", 0, 7),
        entity("text_mention", 17, 11, user=USER_8),
        entity("bold", 29, 3),
    ]
    made = message(text="/remind 5m greet call a tool now", chat=PRIVATE, entities=marked)
    (event,) = parse_update(parsed_one(update(made)), VIEW, NOW)
    assert isinstance(event, Command)
    assert (event.name, event.args) == ("remind", "5m greet @user-8 now")


@pytest.mark.parametrize(
    "more",
    [
        {"forward_origin": {"type": "user", "sender_user": ANN}},
        {"via_bot": {"id": 3, "is_bot": True, "username": "inline"}},
        {"entities": [entity("bot_command", 4, 5)]},
        {"entities": []},
    ],
)
def test_what_somebody_else_wrote_is_no_command(more: dict[str, Any]) -> None:
    made = {"text": "/why /why", "chat": PRIVATE, "entities": [entity("bot_command", 0, 4)]} | more
    assert isinstance(said(**made), Message)


def test_an_edit_in_private_into_a_command_is_that_command_once() -> None:
    def heard(number: int, kind: str = "edited_message", **more: Any) -> Any:
        made = {"chat": PRIVATE, "text": "/why 3", "entities": [entity("bot_command", 0, 4)]} | more
        (event,) = parse_update(parsed_one(update(message(**made), kind, number)), VIEW, NOW)
        return event

    after: list[dict[str, Any]] = [
        {"edit_date": int(SENT.timestamp()) + seconds} for seconds in (5, 9)
    ]
    typed, edited, repeated = heard(4, "message"), heard(5, **after[0]), heard(6, **after[0])
    assert isinstance(edited, Command)
    assert (edited.name, edited.args, edited.sent.second, edited.direct) == ("why", "3", 5, True)
    assert dedup_key(edited) == dedup_key(repeated)
    assert len({dedup_key(event) for event in (typed, edited, heard(7, **after[1]))}) == 3
    others = (
        heard(8),
        heard(9, **after[0], chat=GROUP),
        heard(9, **after[0], text="why", entities=None),
    )
    assert all(isinstance(event, MessageEdited) for event in others), (
        "nobody's, in a group, or no command"
    )


def test_edits_reactions_and_buttons() -> None:
    edit = message(text="new", edit_date=int(SENT.timestamp()) + 5)
    (edited,) = parse_update(parsed_one(update(edit, "edited_message")), VIEW, NOW)
    assert isinstance(edited, MessageEdited)
    assert (edited.message, edited.text, edited.sent.second) == ("7", "new", 5)
    (later,) = parse_update(parsed_one(update(edit, "edited_message", 6)), VIEW, NOW)
    assert dedup_key(edited) != dedup_key(later)

    emoji = [
        {"type": "emoji", "emoji": "👍"},
        {"type": "custom_emoji", "custom_emoji_id": "77"},
        {"type": "paid"},
    ]
    reaction = message(user=ANN, old_reaction=emoji[:1], new_reaction=emoji[1:])
    events = parse_update(parsed_one(update(reaction, "message_reaction")), VIEW, NOW)
    assert [(e.reaction, e.added) for e in events if isinstance(e, ReactionChanged)] == [
        ("👍", False),
        ("77", True),
        ("paid", True),
    ]
    assert len({dedup_key(event) for event in events}) == 3
    for body, kind in ((edit, "edited_message"), (reaction, "message_reaction")):
        for chat, direct in ((GROUP, False), (PRIVATE, True)):
            told = [
                e
                for e in parse_update(parsed_one(update(body | {"chat": chat}, kind)), VIEW, NOW)
                if isinstance(e, MessageEdited | ReactionChanged)
            ]
            assert {e.direct for e in told} == {direct}
    by_chat = {
        "chat": GROUP,
        "message_id": 7,
        "actor_chat": CHANNEL,
        "date": 1,
        "old_reaction": [],
        "new_reaction": emoji,
    }
    assert {
        e.sender.id
        for e in parse_update(parsed_one(update(by_chat, "message_reaction")), VIEW, NOW)
        if isinstance(e, ReactionChanged)
    } == {"-200"}

    press = {
        "id": "123",
        "from": ANN,
        "message": message(**{"from": ME}),
        "data": "approve 7kq2 session",
    }
    for shown in (
        press["message"],
        {"chat": GROUP, "message_id": 7, "date": 0},
    ):  # the second is too old to be shown
        (command,) = parse_update(
            parsed_one(update(press | {"message": shown}, "callback_query")), VIEW, NOW
        )
        assert isinstance(command, Command)
        assert (command.name, command.args, command.origin) == ("approve", "7kq2 session", "button")
        assert (command.id, command.at.room, command.sender.id) == (
            "button:123",
            "-100",
            str(ANN["id"]),
        )
    for data in (
        "",
        " approve",
        "Approve x",
        "approve\nx",
        "/approve x",
        "approve  x",
        "x" * 33,
        "\u202eapprove",
        None,
    ):
        odd = update(press | {"data": data}, "callback_query")
        assert parse_update(parsed_one(odd), VIEW, NOW) == (), data


BEN = {"id": 1002, "is_bot": False, "first_name": "Ben"}


@pytest.mark.parametrize(
    ("more", "events"),
    [
        (
            {"new_chat_members": [ANN, BEN, ME]},
            [("join", "1001", None, None), ("join", "1002", None, None)],
        ),
        ({"left_chat_member": ANN}, [("part", "1001", None, None)]),
        ({"left_chat_member": BEN}, [("kick", "1001", "Ben", None)]),
        ({"new_chat_title": "New\nname"}, [("title", "1001", None, "New name")]),
        (
            {"forum_topic_edited": {"name": "Tea"}, "message_thread_id": 9},
            [("title", "1001", None, "Tea")],
        ),
        ({"left_chat_member": ME}, []),
        ({"group_chat_created": True}, []),
    ],
)
def test_service_messages_tell_of_people_and_titles(
    more: dict[str, Any], events: list[tuple[Any, ...]]
) -> None:
    made = parse_update(parsed_one(update(message(**more))), VIEW, NOW)
    told = [
        (e.change, e.sender.id, e.subject, e.text) for e in made if isinstance(e, MembershipChanged)
    ]
    assert told == events
    assert len(made) == len(events)


CHECKLIST = {"title": "Buy", "tasks": [{"id": 1, "text": "tea"}, {"id": 2, "text": "milk"}]}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"pinned_message": message(message_id=3, text="hi")}, "pinned this message"),
        (
            {"video_chat_scheduled": {"start_date": 3600}},
            "planned a video chat for 1970-01-01 01:00 UTC",
        ),
        ({"video_chat_started": {}}, "started a video chat"),
        ({"video_chat_ended": {"duration": 90}}, "the video chat ended after 0:01:30"),
        (
            {"video_chat_participants_invited": {"users": [ANN, BEN]}},
            "invited to the video chat: @user-1001, @user-1002",
        ),
        (
            {
                "checklist_tasks_done": {
                    "checklist_message": message(checklist=CHECKLIST),
                    "marked_as_done_task_ids": [2],
                }
            },
            "in a checklist: done: milk",
        ),
        (
            {"checklist_tasks_added": {"tasks": CHECKLIST["tasks"]}},
            "added to a checklist: tea | milk",
        ),
        (
            {"proximity_alert_triggered": {"traveler": ANN, "watcher": BEN, "distance": 5}},
            "@user-1001 is within 5 m of @user-1002",
        ),
        (
            {"message_auto_delete_timer_changed": {"message_auto_delete_time": 86_400}},
            "messages here are deleted after 24 h",
        ),
        (
            {"message_auto_delete_timer_changed": {"message_auto_delete_time": 0}},
            "messages here are kept",
        ),
        (
            {"forum_topic_closed": {}, "message_thread_id": 9, "is_topic_message": True},
            "closed this topic",
        ),
        (
            {"new_chat_photo": [{"file_id": "p", "file_unique_id": "u", "width": 1, "height": 1}]},
            "changed the picture of this chat",
        ),
        ({"giveaway_created": {}}, "began a giveaway"),
    ],
)
def test_what_happens_in_a_chat_is_a_line_and_no_reason_to_answer(
    more: dict[str, Any], text: str
) -> None:
    for chat, kind in ((GROUP, "room"), (PRIVATE, "direct")):
        told = said(chat=chat, **more)
        assert (told.text, told.kind, told.history) == (f"[{text}]", kind, True)
        assert (told.reply_to or "").endswith("3" if "pinned" in text else "")
        assert bool(told.carried) is ("checklist_tasks_done" in more), (
            "the tasks are somebody else's words"
        )


def test_every_kind_of_message_is_read_told_or_left_out_on_purpose() -> None:
    known = {*content._CONTENT, *content._SERVICE, *content.UNTOLD_SERVICE}
    read = "text animation audio document photo video video_note voice live_photo"
    no_kinds = (
        "effect_id business_connection_id reply_to_story sender_boost_count "
        "sender_business_bot suggested_post_info"
    )
    kinds = {kind.value for kind in MessageType}
    assert kinds - known - set(read.split()) - set(no_kinds.split()) == set()
    assert known <= kinds | {"location", "managed_bot_created"} | set(telegram.Message.__slots__)
    for kind in content.UNTOLD_SERVICE:
        assert kind in telegram.Message.__slots__


@pytest.mark.parametrize("more", [{"passport_data": {}}, {"new_kind_of_content": {"x": 1}}, {}])
def test_what_cannot_be_read_is_said_to_be_so_where_somebody_waits(more: dict[str, Any]) -> None:
    told = said(chat=PRIVATE, **more)
    assert (told.text, told.kind, told.history) == (
        "[a kind of message that is not read here]",
        "direct",
        False,
    )
    unread = parsed_one(update(message(chat=PRIVATE, group_chat_created=True)))
    assert parse_update(unread, VIEW, NOW) == ()


def test_channels_what_is_written_to_them_and_business_accounts_are_not_read() -> None:
    sides = {
        f"{side}_chat_member": {"status": status, "user": ME}
        for side, status in (("old", "left"), ("new", "member"))
    }
    added = {"chat": CHANNEL, "from": ANN, "date": 1} | sides
    told = [
        update(added, "my_chat_member", 1),
        update(message(chat=CHANNEL, text="@ReverieBot hi"), "channel_post", 2),
        update(message(chat=GROUP | {"is_direct_messages": True}, text="@ReverieBot hi")),
    ]
    assert inbound().read_batch(parsed(*told), NOW).notifications == ()
    assert {"channel_post", "business_message", "guest_message"}.isdisjoint(wire.ALLOWED_UPDATES)


@pytest.mark.parametrize(
    ("chat", "old", "new", "change"),
    [
        (GROUP, "left", "member", "invite"),
        (GROUP, "member", "kicked", "kick"),
        (GROUP, "member", "administrator", None),
        (PRIVATE, "member", "kicked", "part"),
        (PRIVATE, "kicked", "member", "join"),
    ],
)
def test_what_becomes_of_ourselves(
    chat: dict[str, Any], old: str, new: str, change: str | None
) -> None:
    sides = {
        f"{name}_chat_member": {"status": status, "user": ME}
        for name, status in (("old", old), ("new", new))
    }
    made = parse_update(
        parsed_one(update({"chat": chat, "from": ANN, "date": 1} | sides, "my_chat_member")),
        VIEW,
        NOW,
    )
    assert [e.change for e in made if isinstance(e, MembershipChanged)] == (
        [change] if change else []
    )


@pytest.mark.parametrize(
    "body",
    [
        {"update_id": 1},
        update({}),
        update(message(**{"from": ME, "text": "ours"})),
        update(message(**{"from": None, "text": "nobody"})),
        update(message(chat={"type": "private"}, text="nowhere")),
        update(message(message_id="7", text="no id")),
        update(message()),
        update(message(text=" \n ")),
        update(
            message(location={"latitude": 1, "longitude": 1, "live_period": 60}, edit_date=9),
            "edited_message",
        ),
        update(message(new_kind_of_content={"x": 1})),
        update(message(text="x"), "new_kind_of_update"),
        update({"id": "1", "from": ANN, "data": "x"}, "callback_query"),
        update({"id": "1", "from": ANN, "data": "x", "inline_message_id": "i"}, "callback_query"),
    ],
)
def test_what_says_nothing_to_us_is_dropped_quietly(body: dict[str, Any]) -> None:
    assert [event for one in parsed(body) for event in parse_update(one, VIEW, NOW)] == []


def pictures(
    *numbers: int, group: str = "g", chat: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    return [
        update(
            message(
                message_id=number,
                chat=chat or GROUP,
                media_group_id=group,
                photo=[{"file_id": f"f{number}"}],
                caption="all" if number == numbers[0] else None,
            ),
            update_id=number,
        )
        for number in numbers
    ]


def inbound(**more: Any) -> UpdateReader:
    return UpdateReader(VIEW, counting=more.pop("counting", True))


def test_an_album_is_one_message_once_it_has_stopped_growing() -> None:
    inner = inbound()
    before = update(message(message_id=1, text="x"), update_id=1)
    first = inner.read_batch(parsed(*[before, *pictures(2, 3)]), NOW)
    assert ([e.id for e in first.notifications], first.count) == (["1"], 1)
    second = inner.read_batch(parsed(*pictures(2, 3, 4)), NOW)
    assert (second.notifications, second.count, inner.context.cursor.offset) == ((), 0, 2)
    third = inner.read_batch(parsed(*pictures(2, 3, 4)), NOW)
    (album,) = third.notifications
    assert isinstance(album, Message)
    assert (album.id, album.text, [a.id for a in album.attachments]) == (
        "2",
        "all",
        ["f2", "f3", "f4"],
    )
    assert inner.context.cursor.offset == 5


def test_an_album_is_whole_when_it_is_full_or_something_follows_it() -> None:
    assert inbound().read_batch(parsed(*pictures(*range(2, 12))), NOW).count == 10
    after = update(message(message_id=9, text="x"), update_id=9)
    taken = inbound().read_batch(parsed(*[*pictures(2, 3), after]), NOW)
    assert [event.id for event in taken.notifications] == ["2", "9"]
    elsewhere = update(message(message_id=9, text="x", chat=PRIVATE), update_id=9)
    assert inbound().read_batch(parsed(*[*pictures(2, 3), elsewhere]), NOW).count == 0
    assert inbound(counting=False).read_batch(parsed(*pictures(2)), NOW).count == 1


def test_albums_that_are_mixed_are_not_cut() -> None:
    one, two = pictures(2, 4, group="a"), pictures(3, 5, group="b", chat=PRIVATE)
    mixed = sorted([*one, *two], key=lambda update: update["update_id"])
    inner = inbound()
    assert inner.read_batch(parsed(*mixed), NOW).count == 0
    taken = inner.read_batch(parsed(*mixed), NOW)
    assert [event.id for event in taken.notifications] == ["2", "3"]


def test_a_group_that_moved_keeps_its_address() -> None:
    inner = inbound()
    move = update(
        message(message_id=1, chat={"id": -5, "type": "group"}, migrate_to_chat_id=-100),
        update_id=1,
    )
    taken = inner.read_batch(parsed(*[move, update(message(text="x"), update_id=2)]), NOW)
    assert [event.at.room for event in taken.notifications if isinstance(event, Message)] == ["-5"]
    assert inner.chat_id("-5") == "-100"
    cursor = TelegramCursor.parse(inner.context.cursor.to_json())
    again = TelegramUpdateContext(channel=VIEW.channel, own_id=42, username="", cursor=cursor)
    (event,) = parse_update(parsed_one(update(message(text="y"))), again, NOW)
    assert isinstance(event, Message)
    assert event.at.room == "-5"
    listed = replace(again, rooms=frozenset({"-100"}))
    (event,) = parse_update(parsed_one(update(message(text="x"))), listed, NOW)
    assert isinstance(event, Message)
    assert event.at.room == "-100"


def test_the_offset_is_forgotten_after_six_days() -> None:
    cursor = TelegramCursor().advance(7, SENT)
    assert cursor.request_offset(SENT) == 8
    assert cursor.request_offset(NOW) is None
    for text in [
        None,
        "",
        "nonsense",
        "[]",
        "7",
        '{"offset":"x"}',
        '{"offset":1,"moved":7}',
        "[" * 10**5,
    ]:
        assert TelegramCursor.parse(text) == TelegramCursor()


_JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(codec=None), max_size=9),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"text": ["x"]}, id="the library accepts it, and no event can be made of it"),
        pytest.param(
            {"from": ANN | {"language_code": "\ud83d", "first_name": {"a": 1}}},
            id="the same, within",
        ),
        pytest.param({"photo": 5}, id="the library refuses it"),
    ],
)
def test_an_odd_field_costs_itself_and_not_the_other_updates(
    odd: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    reader = inbound()
    said = [message(text="before"), message(caption="odd") | odd, message(text="after")]
    batch = reader.read_batch(
        parsed(*(update(one, update_id=3 + index) for index, one in enumerate(said))), NOW
    )
    texts = [event.text for event in batch.notifications if isinstance(event, Message)]
    assert ([texts[0], texts[-1]], batch.count) == (["before", "after"], 3)
    assert caplog.records
    assert all("update 4 " in record.message for record in caplog.records)


@given(st.lists(_JSON, max_size=5))
def test_updates_without_an_id_are_nothing(found: list[Any]) -> None:
    taken = inbound().read_batch(parsed(*found), NOW)
    assert taken.count == len(parse_updates(found))


def test_who_can_read_a_chat_follows_from_its_newest_update() -> None:
    inbound, number = UpdateReader(VIEW, counting=True), iter(range(1, 99))

    def take(chat: dict[str, Any], kind: str = "message") -> None:
        body = (
            message(text="x", chat=chat)
            if kind == "message"
            else {
                "chat": chat,
                "from": ANN,
                "date": 1,
                "old_chat_member": {},
                "new_chat_member": {},
            }
        )
        inbound.read_batch(parsed(update(body, kind, next(number))), NOW)

    def audience(room: str, thread: str | None = None) -> str | None:
        at = Address(
            channel=VIEW.channel, room=RoomId(room), thread=ThreadId(thread) if thread else None
        )
        return inbound.audience(at)

    assert audience("-100") is None
    take(GROUP)
    take(CHANNEL | {"username": "news"})
    take(PRIVATE | {"username": "ann"})
    assert (audience("-100"), audience("-100", "7"), audience("-200")) == (
        "room",
        "room",
        "everybody",
    )
    assert audience("1001") is None
    take(GROUP | {"username": "lounge"})
    assert (audience("-100"), audience("-100", "7")) == ("everybody", "everybody")
    take(GROUP, "my_chat_member")
    assert audience("-100") == "room"
