"""The command menus on Telegram: whom they show what, in which chats, and that nothing is set twice."""

from typing import Any

import pytest

from channels.base import CanSetCommandMenus, CommandSpec
from channels.telegram.actions import Role, build_menu
from gateway.commands.table import COMMAND_SPECS, COMMANDS
from gateway.core.events import Sender, SenderId
from tests.channels.telegram.channel_kit import running
from tests.kits.channels import story
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_world import Person


def somebody(person: Person | str) -> Sender:
    number = person if isinstance(person, str) else str(person.id)
    return Sender(id=SenderId(number), name="x", verified=True)


def shown(api: BotApi, scope: str) -> list[str] | None:
    rows = api.methods.commands.get(f"{scope}/")
    return None if rows is None else [row["command"] for row in rows]


def names(role: Role, *, direct: bool) -> list[str]:
    """As the gateway's own table says who may use what, without the adapter."""
    return [row.name for row in COMMANDS if row.is_allowed_for(role, direct=direct) and (direct or not row.direct_only)]


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("role", ["owner", "admin", "member", "guest"])
def test_a_menu_is_what_somebody_may_use(role: Role, direct: bool) -> None:
    rows = build_menu(COMMAND_SPECS, role, direct=direct)
    assert [row.command for row in rows] == names(role, direct=direct)
    told = {row.name: row.summary for row in COMMANDS}
    assert all(row.description == told[row.command] for row in rows)
    assert len(rows) <= 100


def test_the_menu_is_within_what_telegram_takes() -> None:
    many = [CommandSpec(name=f"c{n}", summary="x" * 300 if n else "") for n in range(120)]
    rows = build_menu(many, "guest", direct=True)
    assert len(rows) == 100
    assert {len(row.description) for row in rows} == {len("c0"), 256}


@story
async def test_everybody_sees_what_guests_may_use() -> None:
    async with BotApi() as api, running(api, commands=COMMAND_SPECS) as run:
        await run.up()
        await api.called("getUpdates")
        assert shown(api, "default") == shown(api, "all_group_chats") == names("guest", direct=False)
        assert shown(api, "all_private_chats") == names("guest", direct=True)
        assert "link" not in (shown(api, "default") or [])
        assert "new" in (shown(api, "all_private_chats") or [])


@story
async def test_who_may_more_sees_more_in_their_own_chat_and_only_as_long() -> None:
    async with BotApi() as api, running(api, commands=COMMAND_SPECS) as run:
        await run.up()
        assert isinstance(run.channel, CanSetCommandMenus)
        ann, ben = api.person("Ann"), api.person("Ben")
        for person in (ann, ben):
            api.private_says(person, "hi")
        offered: Any = [(somebody(ann), "owner"), (somebody(ben), "member"), (somebody("77"), "admin")]
        await run.channel.set_command_menus([*offered, (somebody("account:x"), "admin"), (somebody(ben), "member")])
        assert shown(api, f"chat/{ann.id}") == names("owner", direct=True)
        assert shown(api, f"chat/{ben.id}") == names("member", direct=True)
        asked = len(api.asked("setMyCommands"))
        await run.channel.set_command_menus(offered)
        assert len(api.asked("setMyCommands")) == asked
        await run.channel.set_command_menus([(somebody(ann), "member")])
        assert shown(api, f"chat/{ann.id}") == names("member", direct=True)
        assert shown(api, f"chat/{ben.id}") is None
        await run.channel.set_command_menus([])
        assert shown(api, f"chat/{ann.id}") is None
        assert len(api.asked("deleteMyCommands")) == 2


@story
async def test_what_is_offered_before_it_is_connected_is_shown_then() -> None:
    async with BotApi() as api:
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        for _ in range(2):
            async with running(api, commands=COMMAND_SPECS) as run:
                await run.channel.set_command_menus([(somebody(ann), "admin")])
                await run.up()
                await api.until(lambda: shown(api, f"chat/{ann.id}") == names("admin", direct=True))
        assert len([call for call in api.asked("setMyCommands") if call["scope"]["type"] == "chat"]) == 1


@story
async def test_whatever_telegram_says_to_it_an_offer_raises_nothing_and_is_made_up_for() -> None:
    async with BotApi() as api, running(api, commands=COMMAND_SPECS) as run:
        await run.up()
        await api.called("getUpdates")
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        for refusal in (500, 429, 400):
            api.faults.fail("setMyCommands", refusal)
            await run.channel.set_command_menus([(somebody(ann), "owner")])
            assert shown(api, f"chat/{ann.id}") is None
        await run.channel.set_command_menus([(somebody(ann), "owner")])
        assert shown(api, f"chat/{ann.id}") == names("owner", direct=True)
