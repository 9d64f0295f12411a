"""The fake Bot API refuses what Telegram refuses, in its words."""

import asyncio
from typing import Any

import pytest

from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_http import Json
from reverie.testing.servers.bot_api_methods import Flood
from reverie.testing.servers.bot_api_world import ApiError, Chat


def call(api: BotApi, method: str, **asked: Any) -> Any:
    return asyncio.run(api.methods.call(method, asked, {}))


def entity(kind: str, offset: int, length: int, **more: str) -> Json:
    return {"type": kind, "offset": offset, "length": length, **more}


def begun() -> tuple[BotApi, int]:
    """A server, and a private chat that may be written to."""
    api = BotApi()
    ann = api.person("Ann")
    api.private_says(ann, "hi")
    return api, ann.id


REFUSED: list[tuple[str, str, list[Json]]] = [
    ("message text is empty", "", []),
    ("message text is empty", " \n", []),
    ("message is too long", "x" * 4097, []),
    ("message is too long", "😀" * 2049, []),
    ("UTF-8", "\ud83d", []),
    ("incorrect offset", "abc", [entity("bold", -1, 2)]),
    ("incorrect offset", "abc", [entity("bold", 0, 0)]),
    ("after the end of the text", "abc", [entity("bold", 1, 3)]),
    ("ends in the middle", "😀", [entity("bold", 0, 1)]),
    ("begins in the middle", "😀b", [entity("bold", 1, 2)]),
    ("unsupported type", "abc", [entity("strong", 0, 1)]),
    ("url", "abc", [entity("text_link", 0, 1)]),
    ("overlaps", "abcdef", [entity("bold", 0, 3), entity("italic", 2, 3)]),
    ("can't be nested", "abcdef", [entity("bold", 0, 3), entity("code", 0, 3)]),
    ("can't be nested", "abcdef", [entity("pre", 0, 5), entity("bold", 1, 2)]),
    ("can't be nested", "abcdef", [entity("blockquote", 0, 5), entity("blockquote", 1, 2)]),
    ("at most 100", "a" * 101, [entity("bold", at, 1) for at in range(101)]),
]


@pytest.mark.parametrize(("words", "text", "entities"), REFUSED)
def test_texts_that_are_refused(words: str, text: str, entities: list[Json]) -> None:
    api, chat = begun()
    with pytest.raises(ApiError, match=words) as told:
        call(api, "sendMessage", chat_id=chat, text=text, entities=entities)
    assert told.value.code == 400


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("x" * 4096, []),
        ("😀" * 2048, [entity("bold", 4094, 2)]),
        ("abcdef", [entity("blockquote", 0, 6), entity("pre", 0, 6)]),
        (
            "abcdef",
            [
                entity("bold", 0, 6),
                entity("italic", 0, 6),
                entity("text_link", 1, 2, url="https://example.org"),
            ],
        ),
    ],
)
def test_texts_that_are_taken(text: str, entities: list[Json]) -> None:
    api, chat = begun()
    call(api, "sendMessage", chat_id=chat, text=text, entities=entities)
    assert api.said(chat) == [text]


def test_places_where_a_bot_may_not_write() -> None:
    api, chat = begun()
    stranger, forum = api.person("Ben"), api.group("news", forum=True)
    topic = api.topic(forum, "today")
    for where, words in (
        ({"chat_id": stranger.id}, "chat not found"),
        ({"chat_id": "@nobody"}, "chat not found"),
        ({"chat_id": forum.id, "message_thread_id": topic + 1}, "thread not found"),
        ({"chat_id": chat, "message_thread_id": 5}, "thread not found"),
    ):
        with pytest.raises(ApiError, match=words):
            call(api, "sendMessage", text="x", **where)
    assert (
        call(api, "sendMessage", text="x", chat_id=forum.id, message_thread_id=topic)[
            "message_thread_id"
        ]
        == topic
    )
    api.blocks(api.world.people[chat])
    with pytest.raises(ApiError, match="blocked by the user") as told:
        call(api, "sendMessage", text="x", chat_id=chat)
    assert told.value.code == 403
    old = api.group("old", basic=True)
    new = api.migrates(old, stranger)
    with pytest.raises(ApiError, match="upgraded") as moved:
        call(api, "sendMessage", text="x", chat_id=old.id)
    assert moved.value.parameters == {"migrate_to_chat_id": new.id}


def test_drafts_are_for_private_chats_and_have_an_id() -> None:
    api, chat = begun()
    lounge = api.group("lounge")
    for asked in ({"chat_id": lounge.id, "draft_id": 1}, {"chat_id": chat, "draft_id": 0}):
        with pytest.raises(ApiError, match="TEXTDRAFT"):
            call(api, "sendMessageDraft", text="x", **asked)
    assert call(api, "sendMessageDraft", text="x", chat_id=chat, draft_id=3)
    assert api.said(chat) == []


def test_what_is_delivered_is_what_was_asked_for_last() -> None:
    api, chat = begun()
    person = api.world.people[chat]
    api.reacts(chat, person, 1, [], ["👍"])
    call(api, "getUpdates", allowed_updates=["message_reaction"])
    call(api, "getUpdates")  # not said: as before
    api.reacts(chat, person, 1, ["👍"], [])
    api.private_says(person, "unheard")
    call(api, "getUpdates", allowed_updates=[])  # the default again
    api.private_says(person, "heard")
    assert [list(update)[1] for update in call(api, "getUpdates")] == [
        "message",
        "message_reaction",
        "message",
    ]
    assert api.updates.refused == ["message_reaction", "message"]


def test_privacy_mode_lets_through_what_is_for_the_bot() -> None:
    api = BotApi()
    api.world.sees_all = False
    ann, lounge = api.person("Ann"), api.group("lounge")
    api.group_says(lounge, ann, "talk")
    api.mentions(lounge, ann, "you")
    api.commands(lounge, ann, "/why")
    said = call(api, "sendMessage", chat_id=lounge.id, text="yes?")["message_id"]
    api.group_says(lounge, ann, "no", reply_to=said)
    assert [update["message"]["text"] for update in call(api, "getUpdates")] == [
        "@reverie_bot you",
        "/why",
        "no",
    ]


async def test_a_second_poller_ends_the_first_and_a_webhook_both() -> None:
    api = BotApi()
    first = asyncio.create_task(api.methods.call("getUpdates", {"timeout": 5}, {}))
    await asyncio.sleep(0)
    second = asyncio.create_task(api.methods.call("getUpdates", {"timeout": 5}, {}))
    with pytest.raises(ApiError, match="terminated by other getUpdates"):
        await first
    await api.methods.call("setWebhook", {"url": "https://example.org/x"}, {})
    with pytest.raises(ApiError):
        await second
    with pytest.raises(ApiError, match="webhook is active") as told:
        await api.methods.call("getUpdates", {}, {})
    assert told.value.code == 409


def test_flood_limits_count_by_chat_group_and_overall() -> None:
    flood = Flood(group_per_min=2, chat_burst=3, overall_per_s=4)
    private, group, other = (
        Chat(1, "private", "a"),
        Chat(-1, "supergroup", "g"),
        Chat(2, "private", "b"),
    )
    for chat in (private, group, group):
        flood.spend(chat)
    with pytest.raises(ApiError) as told:
        flood.spend(group)
    assert told.value.parameters["retry_after"] > 50
    flood.spend(other)
    with pytest.raises(ApiError):
        flood.spend(private)  # four in a second
    assert dict(flood.hits) == {-1: 1, 1: 1}
