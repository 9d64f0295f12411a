"""Native commands on Discord, through the whole gateway: acknowledged at once, answered once, to
whom they concern."""

from pathlib import Path
from typing import Any

import pytest

from tests.gateway.system.platforms.discord_kit import Town, town
from tests.kits.channels import story
from tests.servers.discord_api_rest import Interaction


async def ready(it: Town) -> None:
    """The commands are known to Discord."""
    await it.api.connected()
    await it.api.until(lambda: bool(it.api.commands.table.get("global")))


async def answered(it: Town, asked: Interaction) -> str:
    await it.api.until(lambda: bool(it.api.told(asked)))
    await it.calm()
    (told,) = it.api.told(asked)
    assert it.api.offences == []
    return told


@pytest.mark.parametrize(("name", "private"), [("whoami", True), ("version", False)])
@story
async def test_a_command_is_answered_where_it_concerns(
    name: str, private: bool, tmp_path: Path
) -> None:
    async with town(tmp_path) as it, it.inside():
        await ready(it)
        asked = it.api.slash(it.api.room, it.api.ann, name)
        assert await answered(it, asked)
        assert asked.ephemeral is private
        assert len(it.api.texts(it.api.room)) == (0 if private else 1)
        assert it.asked == []


@pytest.mark.parametrize("on", ["callback", "answer"])
@pytest.mark.parametrize("what", ["500 before", "500 after", "reset after", "silent", "429"])
@story
async def test_a_command_is_answered_once_whatever_becomes_of_its_requests(
    on: str, what: Any, tmp_path: Path
) -> None:
    async with town(tmp_path) as it, it.inside():
        await ready(it)
        it.api.faults.add(
            r"POST /interactions/" if on == "callback" else r"(POST|PATCH) /webhooks/", what
        )
        asked = it.api.slash(it.api.room, it.api.ann, "version")
        assert await answered(it, asked)
        assert len(it.api.texts(it.api.room)) == 1


@pytest.mark.parametrize("name", ["whoami", "version"])
@story
async def test_a_stranger_is_shown_their_code_by_whatever_command_they_begin_with(
    name: str, tmp_path: Path
) -> None:
    async with town(tmp_path) as it:
        it.config["access"] |= {"dm": "pairing", "roles": {"admin": [f"discord.test:{it.api.ann}"]}}
        it.write()
        async with it.inside():
            await ready(it)
            alone = it.api.world.dm(it.api.ben)
            asked = it.api.slash(alone, it.api.ben, name)
            assert "Send them this code" in await answered(it, asked)
            again = it.api.slash(alone, it.api.ben, name)
            assert "only after my operator has approved you" in await answered(
                it, again
            )  # one reminder
            again = it.api.slash(alone, it.api.ben, name)
            told = await answered(it, again)
            if name == "whoami":  # always, since an owner needs it for the configuration
                assert f"discord.test:{it.api.ben}" in told
            else:
                assert told == "I am not allowed to answer you here."
            assert it.asked == []


@story
async def test_who_is_blocked_is_told_nothing(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.config["access"]["roles"] = {"blocked": [f"discord.test:{it.api.ben}"]}
        it.write()
        async with it.inside():
            await ready(it)
            asked = it.api.slash(it.api.room, it.api.ben, "version")
            assert await answered(it, it.api.slash(it.api.room, it.api.ann, "version"))
            assert it.api.told(asked) == []
