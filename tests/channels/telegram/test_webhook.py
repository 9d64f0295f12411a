"""Whether Telegram still means to call us: a webhook is looked after for as long as it is used."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from channels.base import Denied
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged, Message
from tests.channels.telegram.channel_kit import Running, running
from tests.kits.channels import story
from tests.servers.bot_api import BotApi
from tests.servers.ports import free_port


@pytest.fixture
def hook() -> dict[str, Any]:
    port = free_port()
    return {"port": port, "path": "/hook", "url": f"http://127.0.0.1:{port}/hook", "secret": "a-secret"}


@story
async def test_a_webhook_that_somebody_removed_is_set_again_and_nothing_is_lost(hook: dict[str, Any]) -> None:
    async with BotApi() as api:
        ann, clock = api.person("Ann"), ManualClock()
        async with running(api, clock, webhook=hook) as run:
            await api.until(lambda: api.updates.hook is not None)
            api.updates.set_hook(None, drop_pending=False)
            api.private_says(ann, "is anybody there?")
            await run.until_advancing(clock, lambda: bool(run.all(Message)))
            assert api.updates.hook is not None
            assert api.updates.hook["secret_token"] == "a-secret"
            assert run.links == [True]


@story
async def test_a_token_that_is_taken_back_ends_the_channel_in_plain_words(hook: dict[str, Any]) -> None:
    async with BotApi() as api:
        clock = ManualClock()
        async with running(api, clock, webhook=hook) as run:
            await api.until(lambda: api.updates.hook is not None)
            api.token = "7000000001:another"
            await run.until_advancing(clock, run.task.done)
            with pytest.raises(Denied, match="BotFather"):
                run.task.result()
            assert run.links == [True, False, False]


BREAKS: dict[str, Callable[[BotApi], object]] = {
    "500": lambda api: api.faults.fail("getWebhookInfo", 500, times=3),
    "429": lambda api: api.faults.fail("getWebhookInfo", 429, retry_after=100),
    "cut off": lambda api: api.faults.drop("getWebhookInfo", after=True),
    "nonsense": lambda api: api.faults.say("getWebhookInfo", b'{"ok":true,"result":{"url":[]}}'),
}


@pytest.mark.parametrize("what", BREAKS)
@story
async def test_an_api_that_cannot_be_asked_is_a_link_that_is_down_until_it_can(what: str, hook: dict[str, Any]) -> None:
    async with BotApi() as api:
        ann, clock = api.person("Ann"), ManualClock()
        async with running(api, clock, webhook=hook) as run:
            await api.until(lambda: api.updates.hook is not None)
            BREAKS[what](api)
            await run.until_advancing(clock, lambda: run.links == [True, False, True])
            api.private_says(ann, "hi")
            assert (await run.message()).text == "hi"
            assert all("a-secret" not in link.reason for link in run.all(ConnectionChanged))


@story
async def test_why_telegram_cannot_call_is_told_once(hook: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    async with BotApi() as api:
        clock = ManualClock()
        info = {"url": hook["url"], "has_custom_certificate": False, "pending_update_count": 3}
        info |= {"last_error_date": 1795000000, "last_error_message": "no route\n\x1b[31m for a-secret"}
        async with running(api, clock, webhook=hook) as run:
            await api.until(lambda: api.updates.hook is not None)
            api.faults.say("getWebhookInfo", json.dumps({"ok": True, "result": info}).encode(), times=3)
            await run.until_advancing(clock, lambda: len(api.asked("getWebhookInfo")) >= 4)
        told = [record.getMessage() for record in caplog.records if "could not call" in record.getMessage()]
        assert told == ["telegram.test: Telegram could not call the webhook: no route [31m for <secret>"]


@story
async def test_a_webhook_is_listened_on_again_by_the_same_channel(hook: dict[str, Any]) -> None:
    async with BotApi() as api:
        ann = api.person("Ann")
        async with running(api, webhook=hook) as run:
            for number in range(5):
                await api.until(lambda: api.updates.hook is not None)
                api.private_says(ann, f"are you there? {number}")
                assert (await run.message()).text == f"are you there? {number}"
                run.open.clear()
                api.private_says(ann, "and this?")
                await run.end()
                again = Running(run.channel)
                assert (await again.message()).text == "and this?", "it is told until it is durable"
                await again.end()
                run.task, run.seen = asyncio.create_task(run.channel.run(run._emit)), []
                run.open.set()
