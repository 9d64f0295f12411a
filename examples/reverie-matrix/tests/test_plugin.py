"""The plugin as Reverie finds it."""

import asyncio
from importlib.metadata import entry_points
from pathlib import Path

from homeserver import Homeserver
from kit import NAME
from reverie_matrix.config import MatrixConfig

from reverie import Plugin
from reverie.platforms import SystemClock
from reverie.testing.channels import Run
from reverie.testing.gateway import Gateway, Script, settings


async def test_installed_plugin_brings_a_platform_that_connects(homeserver: Homeserver) -> None:
    (entry,) = entry_points(group="reverie.plugins", name="matrix")
    plugin: type[Plugin] = entry.load()
    assert plugin.name == entry.name
    factory = plugin.platforms["matrix"]
    token = homeserver.person("reverie").token
    section = {"platform": "matrix", "homeserver": homeserver.url, "access_token": token}
    settings = factory.settings.model_validate(section)
    assert isinstance(settings, MatrixConfig)
    channel = factory.make(
        name=NAME, settings=settings, clock=SystemClock(), cursor=None, commands=()
    )
    run = Run(channel)
    await run.up()
    await run.end()


async def test_configured_account_answers_in_a_room_once_over_a_restart(
    homeserver: Homeserver, tmp_path: Path
) -> None:
    bot, ann = homeserver.person("gatekeeper"), homeserver.person("ann_of_the_gate")
    room = ann.create_room(name="lobby", invite=(bot.id,))
    account = {"homeserver": homeserver.url, "access_token": bot.token, "rooms": [room]}
    made = settings(tmp_path, channels={"matrix.home": {"platform": "matrix", **account}})

    async def answers() -> list[str]:
        found = await asyncio.to_thread(ann.messages, room, bot.id)
        return [str(one["body"]) for one in found]

    async def has_joined() -> bool:
        found = await asyncio.to_thread(ann.state, room, "m.room.member", bot.id)
        return bool(found["membership"] == "join")

    async with Gateway(made, Script()) as gateway:
        await gateway.until(has_joined)  # what was said before is history
        await asyncio.to_thread(ann.say, room, "gatekeeper: who goes there?")
        await gateway.until(answers)
    await asyncio.to_thread(ann.say, room, "gatekeeper: and now?")
    async with Gateway(made, Script()) as gateway:

        async def are_both_answered() -> bool:
            return len(await answers()) > 1

        await gateway.until(are_both_answered)
    first, second = await answers()
    assert "who goes there?" in first
    assert "and now?" in second
