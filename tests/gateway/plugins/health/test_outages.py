"""Outages that no link tells of, as an operator sees them: rooms that cannot enter, models that do
not answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.models.base import ModelBusy, ModelError, ModelUnusable
from agent.models.scripted import Script, ScriptedModel, ScriptRule
from gateway import app
from gateway.config.loader import ConfigFiles, parse_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import SystemClock
from gateway.core.events import ChannelName
from gateway.plugins.health import FAILURE_REMEDIES
from gateway.plugins.health.program import judge_gateway
from gateway.runtime.turn_record import CUT_TEXT
from reverie.testing.console import ConsoleChannel
from reverie.testing.gateway import Screen
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import Ircd, Options
from reverie.testing.servers.model_api import Answer, ModelApi
from reverie.testing.servers.ports import free_port
from reverie.testing.waiting import until
from tests.kits.ops import Operated, operated

OFFICE = ChannelName("office")


@asynccontextmanager
async def gateway(
    folder: Path, channel: dict[str, Any], **agent: str
) -> AsyncIterator[httpx.AsyncClient]:
    """One with this channel, its real adapter, and a client of its HTTP server."""
    port = free_port()
    settings = parse_config(
        {
            "channels": {"here": channel},
            "agents": [{"id": "reverie", **agent}],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "store": {"path": "reverie.db"},
            "ops": {"port": port},
        },
        folder,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(
        app.run(settings, stop, live=LiveSettings(settings, ConfigFiles(folder, {})))
    )
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20
        ) as client:
            yield client
    finally:
        stop.set()
        await task


async def reasons(client: httpx.AsyncClient, wanted: str) -> dict[str, Any]:
    """What `/ready` tells once one of its reasons holds that."""
    async with asyncio.timeout(60):
        while True:
            try:
                told: dict[str, Any] = (await client.get("/ready")).json()
            except httpx.ConnectError:
                told = {"reasons": []}
            if any(wanted in reason for reason in told["reasons"]):
                return told
            await asyncio.sleep(0.02)


async def healthy(folder: Path) -> tuple[bool, list[str]]:
    return await judge_gateway(folder / "reverie.db", [ChannelName("here")], datetime.now(UTC))


def irc(ircd: Ircd, *rooms: str) -> dict[str, Any]:
    address = {"host": "127.0.0.1", "port": ircd.port, "tls": False}
    return {"platform": "irc", "nick": "mira", "rooms": [*rooms], **address}


async def test_rooms_of_irc_that_refuse_us_are_named_with_the_reason(
    tmp_path: Path,
) -> None:
    async with (
        Ircd(Options(refused={"#closed": "474"})) as ircd,
        gateway(tmp_path, irc(ircd, "#open", "#closed")) as client,
    ):
        told = await reasons(client, "#closed")
        (reason,) = told["reasons"]
        assert "cannot enter" in reason
        assert "474" in reason
        assert told["ready"], "the other room is served"
        is_well, findings = await healthy(tmp_path)
        assert is_well
        assert any("#closed" in line and "cannot enter" in line for line in findings)


async def test_a_nick_that_was_taken_from_us_is_named_and_owners_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Ircd() as ircd, gateway(tmp_path, irc(ircd, "#open")) as client:
        bot = await ircd.joined("mira", "#open")
        for nick in ("Guest1", "Guest2"):
            bot.send(f":{bot.nick}!mira@test.host NICK :{nick}")
            bot.nick = nick
            await reasons(client, nick)
        told = await reasons(client, "Guest2")
        assert told["ready"], "it can be talked to"
        (reason,) = told["reasons"]
        assert "changed our nick from mira to Guest2 (" in reason
    assert (
        len(
            [
                line
                for line in caplog.messages
                if line.startswith("for owners: here is connected, but")
            ]
        )
        == 1
    )


async def test_a_persona_whose_directory_is_gone_is_named_and_owners_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mira").mkdir()
    async with (
        Ircd() as ircd,
        gateway(tmp_path, irc(ircd, "#open"), workspace="mira") as client,
    ):
        bot = await ircd.joined("mira", "#open")
        (tmp_path / "mira").rmdir()
        bot.drop()  # a state that changes is written at once
        await reasons(client, "reverie has no persona")
        assert any("no persona" in line for line in (await healthy(tmp_path))[1])
    assert (
        sum("for owners: reverie answers without its persona" in line for line in caplog.messages)
        == 1
    )


async def test_chats_of_telegram_in_which_the_bot_is_not_are_named(tmp_path: Path) -> None:
    async with BotApi() as api:
        group = api.group("Team Berlin")
        channel = {"platform": "telegram", "token": api.token, "base_url": api.url}
        async with gateway(tmp_path, {**channel, "rooms": [str(group.id), "-1009999"]}) as client:
            (reason,) = (await reasons(client, "-1009999"))["reasons"]
            assert "Chat not found" in reason
            assert "add the bot to this chat" in reason


async def test_rooms_that_discord_does_not_show_are_named(tmp_path: Path) -> None:
    async with DiscordApi() as api:
        channel = {
            "platform": "discord",
            "token": api.token,
            "api_url": api.api_url,
            "gateway_url": api.gateway_url,
        }
        async with gateway(
            tmp_path, {**channel, "rooms": [api.room, api.world.guild, "999999999999999999"]}
        ) as client:
            (reason,) = (await reasons(client, "999999999999999999"))["reasons"]
            assert "invite the bot" in reason


async def ready(it: Operated) -> dict[str, Any]:
    told: dict[str, Any] = (await it.client.get("/ready")).json()
    return told


@pytest.mark.parametrize(
    "error", [ModelBusy("cannot connect to 127.0.0.1:9"), ModelUnusable("the key is refused")]
)
async def test_a_model_that_does_not_answer_is_told_to_owners_once_and_so_is_its_end(
    tmp_path: Path, error: ModelError
) -> None:
    office = Screen()
    room = ConsoleChannel(OFFICE, office.show)
    script = Script(errors=(error,) * 2)
    llm = {
        "providers": {"s": {"kind": "scripted"}},
        "models": {"main": {"provider": "s"}},
        "overload_wait": 0,
    }
    more: dict[str, Any] = {"access": {"dm": "open", "tell": "office/room"}, "llm": llm}
    async with operated(tmp_path, script, channels=[room], **more) as it:

        async def is_ready() -> bool:
            return bool((await ready(it))["ready"])

        await until(is_ready)
        before = await ready(it)
        for _ in range(2):
            await it.ask("hello?", sender="you")
            told = await ready(it)
            assert not told["ready"]
            assert [error.reason in reason for reason in told["reasons"]] == [True]
        await office.until(1)
        await it.ask("and now?", sender="you")
        assert await ready(it) == before
        await office.until(2)
        began, over = (part.body for part in office.parts)
        assert error.reason in began
        assert FAILURE_REMEDIES[error.cause] in began
        assert "(in demo/you)" in began
        assert "answers reverie again" in over


async def test_half_an_answer_says_so_to_the_person_and_names_the_setting_to_owners(
    tmp_path: Path,
) -> None:
    office = Screen()
    room = ConsoleChannel(OFFICE, office.show)
    script = Script(rules=(ScriptRule(match="story", reply="once upon a time " * 40),))
    model = ScriptedModel(script, clock=SystemClock(), max_output_tokens=20)
    more: dict[str, Any] = {"access": {"dm": "open", "tell": "office/room"}}
    async with operated(tmp_path, model, channels=[room], **more) as it:
        await it.ask("a story, please", sender="you")
        assert it.screen.parts[0].body.endswith(CUT_TEXT)
        await office.until(1)
        (told,) = (part.body for part in office.parts)
        assert "half an answer in demo/you" in told
        assert FAILURE_REMEDIES["cut"] in told
        assert "max_output_tokens (20)" not in told, "the log has it, in English"
        assert (await ready(it))["ready"], "the model answers"
        await it.ask("and then?", sender="you")
        said = [part.text for message in model.requests[-1].conversation for part in message.parts]  # type: ignore[union-attr]
        assert any("once upon a time" in text for text in said)
        assert not any("not complete" in text for text in said)


async def test_a_server_that_reads_less_than_it_was_sent_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ModelApi() as api:
        api.default = lambda body: Answer(
            text="hi",
            usage={"prompt_tokens": min(len(json.dumps(body)) // 3, 1_024), "completion_tokens": 1},
        )
        models = {"main": {"provider": "s", "name": "qwen3:8b"}}
        llm = {"providers": {"s": {"kind": "openai", "base_url": api.url}}, "models": models}
        more: dict[str, Any] = {"access": {"dm": "open"}, "llm": llm}
        async with operated(tmp_path, configured=True, **more) as it:
            for _ in range(2):
                await it.ask("hello", sender="you")

            async def is_told() -> bool:
                _, findings = await healthy(tmp_path)
                return any(
                    "has read 1024 of about" in line and "OLLAMA" in line for line in findings
                )

            await until(is_told)
    assert len([one for one in caplog.records if "OLLAMA_CONTEXT_LENGTH" in one.getMessage()]) == 1


async def test_owners_are_told_which_fallbacks_were_asked(tmp_path: Path) -> None:
    office, busy = Screen(), ModelBusy("too many requests")
    busy.status = 529
    models = {"main": {"provider": "s", "fallbacks": ["spare", "last"]}, "spare": {"provider": "s"}}
    llm = {
        "providers": {"s": {"kind": "scripted"}},
        "models": {**models, "last": {"provider": "s"}},
        "overload_wait": 0,
    }
    more: dict[str, Any] = {"access": {"dm": "open", "tell": "office/room"}, "llm": llm}
    room = ConsoleChannel(OFFICE, office.show)
    async with operated(tmp_path, Script(errors=(busy,)), channels=[room], **more) as it:
        await it.console.receive_message("hello?")
        await office.until(1)
        assert "(spare, last)" in office.parts[0].body
        assert "With a model of another provider" not in office.parts[0].body
