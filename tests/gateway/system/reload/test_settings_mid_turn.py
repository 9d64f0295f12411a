"""What the configuration says counts from the next message on, and never in the middle of a turn:
on a real gateway."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings, ReloadResult
from gateway.core.clock import ManualClock
from reverie.testing.gateway import Gateway
from reverie.testing.servers.model_api import Answer, ModelApi

Json = dict[str, Any]
OWNER = "irc.libera:ann"


def config(url: str) -> Json:
    return {
        "channels": {
            "irc.libera": {"platform": "console", "rooms": ["#garden", "#lobby"]},
            "telegram.main": {"platform": "console"},
            "discord.main": {"platform": "console"},
        },
        "agents": [{"id": "ana", "bindings": [{"prompt": "Edition one."}]}],
        "llm": {
            "providers": {
                "p": {"kind": "anthropic", "base_url": url, "api_key": "first-api-key-of-ours"}
            },
            "models": {
                "main": {"provider": "p", "name": "claude-sonnet-5-5", "max_output_tokens": 1_001},
                "other": {"provider": "p", "name": "claude-haiku-4-5", "max_output_tokens": 1_002},
            },
            "context_optimization": {"token_counter": {"enabled": False}},
        },
        "attention": {"coalesce": 0},
        "access": {"dm": "allowlist", "roles": {"owner": [OWNER], "member": ["irc.libera:bob"]}},
        "tools": {"off": ["bash"]},
        "ops": {"port": 0},
        "store": {"path": "reverie.db"},
    }


class Town:
    """A gateway whose configuration is written again."""

    def __init__(self, folder: Path, gateway: Gateway, api: ModelApi, said: Json) -> None:
        assert gateway.live is not None
        self.folder, self.gateway, self.api, self.said, self.live = (
            folder,
            gateway,
            api,
            said,
            gateway.live,
        )
        self.came = list[ReloadResult]()
        self.live.add_reload_listener(self.came.append)

    async def reload(self) -> ReloadResult:
        self.came.clear()
        write(self.folder, self.said)
        last = await self.live.reload()
        # The gateway may have seen the file by itself before: then the changes stand in that result.
        return next((one for one in self.came if one.applied), last)

    async def ask(self, text: str, sender: str = "ann", room: str | None = "#garden") -> None:
        await self.gateway.ask(text, sender=sender, room=room)

    async def unheard(self, text: str, sender: str, room: str | None) -> None:
        """Somebody says something, and nobody answers before somebody else is answered who speaks
        after them."""
        count, asked = len(self.gateway.screen.parts), len(self.api.seen)
        await self.gateway.say(text, sender=sender, room=room, on="irc.libera")
        await self.ask("reverie, are you there?")
        assert (len(self.gateway.screen.parts), len(self.api.seen)) == (count + 1, asked + 1)

    @property
    def last(self) -> Json:
        return self.api.seen[-1].body


def write(folder: Path, said: Json | str) -> None:
    """As an editor does."""
    new = folder / ".reverie.yaml.new"
    new.write_text(said if isinstance(said, str) else json.dumps(said))
    new.chmod(0o600)
    new.replace(folder / "reverie.yaml")


@contextlib.asynccontextmanager
async def town(folder: Path) -> AsyncIterator[Town]:
    async with asyncio.timeout(60), ModelApi() as api:
        said = config(api.url)
        write(folder, said)
        settings = read_config(folder, {}).settings
        async with Gateway(
            settings, clock=ManualClock(), live=LiveSettings(settings, folder, {})
        ) as gateway:
            it = Town(folder, gateway, api, said)
            await it.ask("!whoami")  # it is up
            yield it
    assert api.violations == []


async def test_a_role_that_is_taken_away_is_gone_at_the_next_message(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        await it.ask("hello", sender="bob", room=None)
        it.said["access"]["roles"]["member"] = []
        assert (await it.reload()).applied == ("access.roles.member",)
        await it.unheard("hello?", sender="bob", room=None)
        it.said["access"]["roles"]["member"] = ["irc.libera:bob"]
        await it.reload()
        await it.ask("and now?", sender="bob", room=None)


async def test_a_room_that_is_taken_away_or_bound_otherwise_is_so_at_the_next_message(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        await it.ask("reverie, hello")
        assert "Edition one." in json.dumps(it.last["system"])
        it.said["agents"][0]["bindings"][0]["prompt"] = "Edition two."
        assert (await it.reload()).applied == ("agents.ana.bindings",)
        await it.ask("reverie, hello")
        assert "Edition two." in json.dumps(it.last["system"])
        it.said["agents"][0]["bindings"].insert(0, {"match": {"room": "#lobby"}, "listen": "off"})
        await it.reload()
        await it.unheard("reverie, hello", sender="ann", room="#lobby")


async def test_a_turn_that_runs_ends_with_what_it_began_with(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        reloading: list[asyncio.Task[ReloadResult]] = []

        def first(_: Json) -> Answer:
            it.api.default = lambda _: Answer(text="done")
            it.said["llm"]["providers"]["p"]["api_key"] = "second-api-key-of-ours"
            it.said["agents"][0] |= {"model": "other", "bindings": [{"prompt": "Edition two."}]}
            it.said["tools"]["max_rounds"] = 0
            reloading.append(asyncio.create_task(it.reload()))
            return Answer(calls=(("c1", "intentions", "{}"),), delay_s=0.5)

        it.api.default = first
        await it.ask("reverie, what is to come?")
        (came,) = [await one for one in reloading]
        assert came.applied == (
            "agents.ana.bindings",
            "agents.ana.model",
            "llm.providers.p.api_key",
            "tools.max_rounds",
        )
        await it.ask("reverie, and now?")
        seen = [
            (
                one.headers["x-api-key"],
                one.body["model"],
                one.body["max_tokens"],
                "Edition two." in str(one.body),
            )
            for one in it.api.seen
        ]
        before = ("first-api-key-of-ours", "claude-sonnet-5-5", 1_001, False)
        assert seen == [
            before,
            before,
            ("second-api-key-of-ours", "claude-haiku-4-5", 1_002, True),
        ]


async def test_a_new_secret_is_known_before_it_is_used_and_an_old_one_stays_so(
    tmp_path: Path,
) -> None:
    async with town(tmp_path) as it:
        for key in ("second-api-key-of-ours", "third-api-key-of-ours"):
            it.said["llm"]["providers"]["p"]["api_key"] = key
            await it.reload()
        await it.ask("reverie, first-api-key-of-ours second-api-key-of-ours third-api-key-of-ours")
        assert it.api.seen[-1].headers["x-api-key"] == "third-api-key-of-ours"
        assert "-api-key-of-ours" not in json.dumps(it.last)
