"""What Discord tells arrives as notifications, each once, and who only looks like somebody is
nobody."""

from typing import Any

import pytest

from channels.discord import wire
from gateway.access.policy import decide
from gateway.commands import parser
from gateway.core.events import (
    Command,
    Message,
    MessageDeleted,
    MessageEdited,
    ReactionChanged,
    RoomId,
)
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_world import FORUM
from tests.channels.discord.channel_kit import NAME, Running, place, running
from tests.channels.discord.test_wire import ANN as OWNER
from tests.channels.discord.test_wire import GUILD, NOW, ROLE, ROOM, at, directory
from tests.channels.discord.test_wire import message as said
from tests.channels.discord.test_wire import said as payload
from tests.kits.commands import TABLE
from tests.kits.policies import PlayedPolicy


async def test_edits_deletions_and_reactions_arrive(api: DiscordApi, run: Running) -> None:
    said = api.says(api.room, api.ann, "hello")
    api.edits(api.room, said, "hello you")
    edit = await run.one(MessageEdited)
    assert (edit.message, edit.text, edit.sender.id, edit.at) == (
        said,
        "hello you",
        api.ann,
        place(api.room),
    )
    api.reacts(api.room, said, api.ben, "👍")
    api.reacts(api.room, said, api.ben, "👍", added=False)
    await run.one(ReactionChanged, 2)
    assert [(r.reaction, r.added, r.sender.id) for r in run.all(ReactionChanged)] == [
        ("👍", True, api.ben),
        ("👍", False, api.ben),
    ]
    assert len({reacted.id for reacted in run.all(ReactionChanged)}) == 2
    api.deletes(api.room, said)
    assert (await run.one(MessageDeleted)).message == said


async def test_threads_and_forum_posts_are_conversations_of_their_channel(
    api: DiscordApi, run: Running
) -> None:
    forum = api.world.add_channel("questions", kind=FORUM)
    thread = api.threads(api.room, api.ann, "aside", "here")
    post = api.threads(forum, api.ann, "how?", "so")
    await run.message(2)
    assert [message.at for message in run.messages] == [place(api.room, thread), place(forum, post)]


async def test_a_thread_nobody_told_us_of_is_asked_for(api: DiscordApi, run: Running) -> None:
    thread = api.world.add_thread(api.room, "old", api.ann)["id"]
    api.says(thread, api.ann, "still here?")
    assert (await run.message()).at == place(api.room, thread)
    assert run.channel.space(RoomId(api.room)) == api.guild


async def test_a_guild_opens_all_its_rooms_and_no_other(api: DiscordApi) -> None:
    elsewhere = api.world.add_channel("far", guild=api.world.add_guild("away"))
    async with running(api, rooms=[api.guild]) as run:
        await run.up()
        thread = api.threads(api.room, api.ann, "aside", "one")
        api.says(elsewhere, api.ann, "two")
        api.says(api.other, api.ann, "three")
        await run.message(3)
        policy = PlayedPolicy(
            dm_policy="disabled",
            roles={},
            open_rooms={NAME: frozenset({RoomId(api.guild)})},
            spaces=lambda at: run.channel.space(at.room),
        )
        heard = {message.text: decide(policy, message).allowed for message in run.messages}
        assert heard == {"one": True, "two": False, "three": True}
        assert run.messages[0].at == place(api.room, thread)


async def test_attachments_stickers_and_polls_are_told(api: DiscordApi, run: Running) -> None:
    poll = {
        "question": {"text": "Tea?"},
        "answers": [{"poll_media": {"text": "yes"}}, {"poll_media": {"text": "no"}}],
    }
    api.says(api.room, api.ann, "look", files=[("cat.png", b"png", "image/png")])
    api.says(api.room, api.ann, "", sticker_items=[{"id": "1", "name": "wave"}], poll=poll)
    shown, other = await run.message(1), await run.message(2)
    (file,) = shown.attachments
    assert (file.form, file.name, file.content_type, file.size_bytes) == (
        "image",
        "cat.png",
        "image/png",
        3,
    )
    assert other.text == "[sticker]\n[poll: Tea? - yes / no]"
    data = await run.channel.download(shown.at, file, limit_bytes=10)
    assert data == b"png"


async def test_a_position_is_kept_only_with_what_it_covers(api: DiscordApi) -> None:
    async with running(api) as run:
        await run.up()
        api.says(api.room, api.ann, "one")
        await run.message()
    assert run.cursor is not None
    api.says(api.room, api.ann, "two")
    api.says(api.other, api.ben, "three")
    async with running(api, cursor=run.cursor) as again:
        await again.message(3)
        assert sorted(again.texts) == [
            "one",
            "three",
            "two",
        ]  # the margin repeats one: the store knows it
        calls = [call for call in api.calls if call.line.startswith("GET /channels/")]
        assert len(calls) == 2
    async with running(api, cursor="not ours") as fresh:
        await fresh.up()
        api.says(api.room, api.ann, "four")
        await fresh.message()
        assert fresh.texts == ["four"]


AUTHOR = {"id": OWNER, "username": "ann", "global_name": "Ann"}
NUMBER = at()


def reacted(**more: Any) -> ReactionChanged:
    base = {
        "user_id": OWNER,
        "channel_id": ROOM,
        "guild_id": GUILD,
        "message_id": "7",
        "emoji": {"name": "👍"},
    }
    found = wire.parse_reaction(base | more, directory(), NOW, "n", added=True)
    assert found is not None
    return found


def slash(**more: Any) -> Command | None:
    base = {
        "id": NUMBER,
        "type": 2,
        "token": "t",
        "application_id": "11",
        "channel_id": ROOM,
        "guild_id": GUILD,
        "data": {"type": 1, "name": "status"},
        "member": {"user": AUTHOR, "roles": [ROLE]},
    }
    return wire.parse_command(
        {key: value for key, value in (base | more).items() if value is not None}, directory()
    )


def test_roles_are_those_of_the_member_that_the_event_tells() -> None:
    member = {"roles": [ROLE, "51", 52, "no", None]}
    ranks = ("role:50", "role:51", "role:52")
    assert said(member=member).sender.ranks == ranks
    assert reacted(member=member | {"user": AUTHOR}).sender.ranks == ranks
    edited = payload("x", member=member, edited_timestamp=NOW.isoformat())
    told = wire.parse_edit(edited, directory(), NOW)
    assert told is not None
    assert told.sender.ranks == ranks


@pytest.mark.parametrize(
    "member", [None, {}, {"roles": None}, {"roles": "50"}, {"roles": [{"id": "50"}]}]
)
def test_who_is_told_of_without_roles_has_none(member: object) -> None:
    assert said(member=member).sender.ranks == ()
    assert said(author=AUTHOR | {"roles": [ROLE], "member": {"roles": [ROLE]}}).sender.ranks == ()
    assert reacted(member=member).sender.ranks == ()


def test_a_slash_command_is_of_whoever_gave_it_and_the_same_when_it_is_replayed() -> None:
    once, again = slash(), slash(token="another")
    assert once is not None
    assert again is not None
    assert once.id == again.id
    assert (once.sender.id, once.sender.verified, once.sender.ranks) == (OWNER, True, ("role:50",))
    other = slash(id=str(int(NUMBER) + 1))
    assert other is not None
    assert other.id != once.id


def test_a_chat_between_others_is_not_a_direct_one() -> None:
    direct = [
        slash(guild_id=None, user=AUTHOR, member=None, context=context) for context in (None, 1, 2)
    ]
    assert [told.direct if told else None for told in direct] == [True, True, False]


def test_a_webhook_is_itself_whatever_it_is_called() -> None:
    member = {"roles": [ROLE]}
    for author in (AUTHOR | {"id": "99"}, AUTHOR):  # even if it could take somebody's id
        sender = said(webhook_id="99", author=author, member=member).sender
        assert (sender.id, sender.name, sender.verified, sender.is_bot) == (
            "webhook:99",
            "Ann",
            False,
            True,
        )
        assert sender.ranks == ()
    # what an application makes is a webhook like all; its answers to commands carry its own id
    assert said(webhook_id="99", application_id="98").sender.id == "webhook:99"
    answer = said(
        webhook_id="98", application_id="98", author={"id": "98", "username": "Ann"}
    ).sender
    assert (answer.id, answer.is_bot) == ("98", True)


def test_a_display_name_makes_nobody() -> None:
    eve = said(
        author={"id": "21", "username": "ann", "global_name": "Ann"}, member={"nick": "Ann"}
    ).sender
    assert (eve.name, eve.id) == ("Ann", "21")


@pytest.mark.parametrize(
    "message",
    [
        said("!status", webhook_id="99"),
        said("!status", author=AUTHOR | {"bot": True}),
        said(
            "",
            message_snapshots=[{"message": {"content": "!status"}}],
            message_reference={"type": 1},
        ),
        said(
            "", author=AUTHOR | {"bot": True}, embeds=[{"type": "rich", "description": "!status"}]
        ),
        said("", poll={"question": {"text": "!status"}, "answers": []}),
    ],
)
def test_what_somebody_else_wrote_is_no_command(message: Message) -> None:
    assert parser.parse_command(message, "!", TABLE.people) is None


def test_an_embed_is_only_read_of_whoever_can_make_one() -> None:
    embeds = [{"type": "rich", "description": "!status"}]
    assert wire.parse_message(payload("", embeds=embeds), directory()) is None


@pytest.mark.parametrize(
    "more",
    [
        {"type": 1},
        {"type": 5},
        {"data": {"type": 2, "name": "status"}},
        {"member": {"roles": [ROLE]}},
        {"member": {"user": {"id": "x"}}},
        {"channel_id": None},
    ],
)
def test_what_is_no_slash_command_of_somebody_is_none(more: dict[str, Any]) -> None:
    assert slash(**more) is None
