"""Native commands on Discord, through the whole gateway: acknowledged at once, answered once, to whom they concern."""

from pathlib import Path
from typing import Any

import pytest

from gateway.commands.table import COMMAND_SPECS
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


@story
async def test_the_table_is_registered_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        for _ in range(2):
            async with it.inside():
                await ready(it)
        names = [row["name"] for row in it.api.commands.table["global"]]
        assert names == [*(spec.name for spec in COMMAND_SPECS), "Ask about this message"]
        assert len(it.api.made("PUT ")) == 1


@pytest.mark.parametrize(("name", "private"), [("whoami", True), ("version", False)])
@story
async def test_a_command_is_answered_where_it_concerns(name: str, private: bool, tmp_path: Path) -> None:
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
async def test_a_command_is_answered_once_whatever_becomes_of_its_requests(on: str, what: Any, tmp_path: Path) -> None:
    async with town(tmp_path) as it, it.inside():
        await ready(it)
        it.api.faults.add(r"POST /interactions/" if on == "callback" else r"(POST|PATCH) /webhooks/", what)
        asked = it.api.slash(it.api.room, it.api.ann, "version")
        assert await answered(it, asked)
        assert len(it.api.texts(it.api.room)) == 1


@story
async def test_commands_during_a_cut_are_answered_after_it(tmp_path: Path) -> None:
    async with town(tmp_path) as it, it.inside():
        await ready(it)
        it.api.cut()
        asked = it.api.slash(it.api.room, it.api.ann, "version")
        assert await answered(it, asked)


@story
async def test_subs_are_answered_and_suggested_to_who_may_use_them(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.config["access"]["roles"] = {"admin": [f"discord.test:{it.api.ann}"]}
        it.write()
        async with it.inside():
            await ready(it)
            asked = it.api.slash(it.api.room, it.api.ann, "notify threshold", urgency="low", type="direct")
            assert "direct" in await answered(it, asked)
            assert asked.ephemeral
            for who, told in ((it.api.ann, ["status"]), (it.api.ben, [])):
                typing = it.api.commands.type(it.api.room, who, "help", "command", "stat")
                await it.api.until(lambda typing=typing: typing.choices is not None)  # type: ignore[misc] # its own
                assert typing.choices == told
            refused = it.api.slash(it.api.room, it.api.ben, "notify threshold", urgency="low", type="direct")
            sent = it.api.commands.send_form(it.api.room, it.api.ann)
            await it.api.until(lambda: sent.answered == 6)
            assert await answered(it, refused) == "This command needs the role admin or above in all places."
            assert refused.ephemeral
            assert it.asked == []
            assert it.api.offences == []


@pytest.mark.parametrize("name", ["whoami", "version"])
@story
async def test_a_stranger_is_shown_their_code_by_whatever_command_they_begin_with(name: str, tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.config["access"] |= {"dm": "pairing", "roles": {"admin": [f"discord.test:{it.api.ann}"]}}
        it.write()
        async with it.inside():
            await ready(it)
            alone = it.api.world.dm(it.api.ben)
            asked = it.api.slash(alone, it.api.ben, name)
            assert "Send them this code" in await answered(it, asked)
            again = it.api.slash(alone, it.api.ben, name)
            assert "only after my operator has approved you" in await answered(it, again)  # one reminder
            again = it.api.slash(alone, it.api.ben, name)
            told = await answered(it, again)
            if name == "whoami":  # always, since an owner needs it for the configuration
                assert f"discord.test:{it.api.ben}" in told
            else:
                assert told == "I am not allowed to answer you here."
            assert it.asked == []


@story
async def test_a_question_about_an_old_message_shows_it_to_the_model(tmp_path: Path) -> None:
    async with town(tmp_path, preview="all") as it:
        old = it.api.says(it.api.room, it.api.ben, "Lighthouses need whale oil.", ago_s=9_000)
        async with it.inside():
            await ready(it)
            asked = it.api.commands.ask_about(it.api.room, it.api.ann, old)
            await it.api.until(lambda: bool(asked.form))
            it.api.commands.fill_in(asked, "Is that still so? t1z")
            await it.answered("t1z")
            await it.calm()
            assert "whale oil" in str(it.model.seen[-1].body["messages"])
            (answer,) = [one for one in it.api.world.messages[it.api.room].values() if "t1z" in one["content"]]
            assert answer["message_reference"]["message_id"] == old
            assert it.api.offences == []


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
