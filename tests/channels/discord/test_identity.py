"""Who somebody is on Discord, and who only looks like it: through the reader of payloads, and on the wire."""

from typing import Any

import pytest

from channels.discord import wire
from channels.discord.directory import DiscordDirectory
from channels.discord.ids import snowflake_at
from gateway.commands import parser
from gateway.commands.table import COMMANDS_BY_NAME
from gateway.core.clock import SystemClock
from gateway.core.events import Command, Message, ReactionChanged
from tests.channels.discord.channel_kit import NAME

ME, OWNER, ROOM, GUILD, ADMINS = "10", "20", "30", "40", "50"
NOW = SystemClock().now()
NUMBER = str(snowflake_at(NOW))
AUTHOR = {"id": OWNER, "username": "ann", "global_name": "Ann"}


def directory() -> DiscordDirectory:
    made = DiscordDirectory(NAME)
    made.apply_event("READY", {"user": {"id": ME}})
    made.apply_event(
        "GUILD_CREATE", {"id": GUILD, "channels": [{"id": ROOM, "type": 0, "name": "general"}], "roles": []}
    )
    return made


def said(content: str = "!status", **more: Any) -> Message:
    base = {"id": NUMBER, "channel_id": ROOM, "guild_id": GUILD, "type": 0, "author": AUTHOR, "content": content}
    found = wire.parse_message(base | more, directory())
    assert found is not None
    return found


def reacted(**more: Any) -> ReactionChanged:
    base = {"user_id": OWNER, "channel_id": ROOM, "guild_id": GUILD, "message_id": "7", "emoji": {"name": "👍"}}
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
        "member": {"user": AUTHOR, "roles": [ADMINS]},
    }
    return wire.parse_command({key: value for key, value in (base | more).items() if value is not None}, directory())


def test_roles_are_those_of_the_member_that_the_event_tells() -> None:
    member = {"roles": [ADMINS, "51", 52, "no", None]}
    ranks = ("role:50", "role:51", "role:52")
    assert said(member=member).sender.ranks == ranks
    assert reacted(member=member | {"user": AUTHOR}).sender.ranks == ranks
    edited = {"id": NUMBER, "channel_id": ROOM, "guild_id": GUILD, "author": AUTHOR, "content": "x", "member": member}
    told = wire.parse_edit(edited | {"edited_timestamp": NOW.isoformat()}, directory(), NOW)
    assert told is not None
    assert told.sender.ranks == ranks


@pytest.mark.parametrize("member", [None, {}, {"roles": None}, {"roles": "50"}, {"roles": [{"id": "50"}]}])
def test_who_is_told_of_without_roles_has_none(member: object) -> None:
    assert said(member=member).sender.ranks == ()
    assert said(author=AUTHOR | {"roles": [ADMINS], "member": {"roles": [ADMINS]}}).sender.ranks == ()
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
    direct = [slash(guild_id=None, user=AUTHOR, member=None, context=context) for context in (None, 1, 2)]
    assert [told.direct if told else None for told in direct] == [True, True, False]


def test_a_webhook_is_itself_whatever_it_is_called() -> None:
    member = {"roles": [ADMINS]}
    for author in (AUTHOR | {"id": "99"}, AUTHOR):  # even if it could take somebody's id
        sender = said(webhook_id="99", author=author, member=member).sender
        assert (sender.id, sender.name, sender.verified, sender.is_bot) == ("webhook:99", "Ann", False, True)
        assert sender.ranks == ()
    # what an application makes is a webhook like all; its answers to commands carry its own id
    assert said(webhook_id="99", application_id="98").sender.id == "webhook:99"
    answer = said(webhook_id="98", application_id="98", author={"id": "98", "username": "Ann"}).sender
    assert (answer.id, answer.is_bot) == ("98", True)


def test_a_post_of_a_followed_channel_is_the_webhooks() -> None:
    sender = said(webhook_id="99", flags=1 << 1, message_reference={"channel_id": "77", "guild_id": "78"}).sender
    assert (sender.id, sender.verified) == ("webhook:99", False)


def test_a_display_name_makes_nobody() -> None:
    eve = said(author={"id": "21", "username": "ann", "global_name": "Ann"}, member={"nick": "Ann"}).sender
    assert (eve.name, eve.id) == ("Ann", "21")


@pytest.mark.parametrize(
    "message",
    [
        said("!status", webhook_id="99"),
        said("!status", author=AUTHOR | {"bot": True}),
        said("", message_snapshots=[{"message": {"content": "!status"}}], message_reference={"type": 1}),
        said("", author=AUTHOR | {"bot": True}, embeds=[{"type": "rich", "description": "!status"}]),
        said("", poll={"question": {"text": "!status"}, "answers": []}),
    ],
)
def test_what_somebody_else_wrote_is_no_command(message: Message) -> None:
    assert parser.parse_command(message, "!", COMMANDS_BY_NAME) is None


def test_an_embed_is_only_read_of_whoever_can_make_one() -> None:
    embeds = [{"type": "rich", "description": "!status"}]
    assert wire.parse_message(_base("", embeds=embeds), directory()) is None


def test_discord_itself_gives_no_commands() -> None:
    for kind in (6, 7, 8, 18, 24):
        assert wire.parse_message(_base("!status", type=kind), directory()) is None


def test_our_own_words_come_from_nobody() -> None:
    assert wire.parse_message(_base("!status", author={"id": ME}), directory()) is None


@pytest.mark.parametrize(
    "more",
    [
        {"type": 1},
        {"type": 5},
        {"data": {"type": 2, "name": "status"}},
        {"member": {"roles": [ADMINS]}},
        {"member": {"user": {"id": "x"}}},
        {"channel_id": None},
    ],
)
def test_what_is_no_slash_command_of_somebody_is_none(more: dict[str, Any]) -> None:
    assert slash(**more) is None


def _base(content: str, **more: Any) -> dict[str, Any]:
    base = {"id": NUMBER, "channel_id": ROOM, "guild_id": GUILD, "type": 0, "author": AUTHOR, "content": content}
    return base | more
