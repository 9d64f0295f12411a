"""Answers as no Bot API should give them: none ends more than the call that it was given to."""

import asyncio
import json
from typing import Any

import pytest
from telegram.error import BadRequest, ChatMigrated, RetryAfter, TelegramError

from channels.base import CommandSpec, RateLimited, Rejected, SendError, Uncertain, Unreachable
from channels.telegram.api import TelegramServerError, WrongServerError, to_telegram_error
from gateway.core.clock import ManualClock
from gateway.core.events import Command, ConnectionChanged, Message
from tests.channels.discord.faults_kit import Hasty
from tests.channels.telegram.channel_kit import at, running
from tests.kits.channels import story
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_http import BAD_GATEWAY

COMMANDS = (CommandSpec(name="why", summary="Say why"),)


def body(**more: Any) -> bytes:
    return json.dumps({"ok": False, "description": "Odd"} | more).encode()


ODD = {
    "no result": ("*", 200, b'{"ok":true}'),
    "a row of the menu without a summary": ("getMyCommands", 200, body(ok=True, result=[{"command": "x"}])),
    "a menu that is none": ("getMyCommands", 200, body(ok=True, result=True)),
    "a method it does not know": ("getMyCommands", 404, body(error_code=404, description="Not Found")),
    "no success with 200": ("getMyCommands", 200, body(error_code=404)),
    "a webhook in few words": ("getWebhookInfo", 200, body(ok=True, result={"url": "https://elsewhere.example"})),
    "parameters that are none": ("getUpdates", 400, body(error_code=400, parameters="odd")),
    "a time that is none": ("getUpdates", 500, body(error_code=500, parameters={"retry_after": "soon"})),
    "a redirection": ("getUpdates", 301, BAD_GATEWAY),
    "a conflict with 200": ("getUpdates", 200, body(error_code=409, description="Conflict")),
}


@pytest.mark.parametrize("what", ODD)
@story
async def test_an_odd_answer_costs_one_call(what: str) -> None:
    method, status, answer = ODD[what]
    async with BotApi() as api:
        clock, ann = ManualClock(), api.person("Ann")
        if method == "getWebhookInfo":
            api.faults.fail("getUpdates", 409, "Conflict: can't use getUpdates method while webhook is active")
        for one in ("getMe", "getMyCommands", "setMyCommands", "getUpdates") if method == "*" else (method,):
            api.faults.say(one, answer, status=status)
        api.private_says(ann, "hi")
        async with running(api, clock, commands=COMMANDS) as run:
            await run.until_advancing(clock, lambda: bool(run.all(Message)) or run.task.done())
            assert not run.task.done() or run.task.result()


@story
async def test_a_button_that_cannot_be_answered_delays_nothing() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        (said,) = await run.tell("press", at(ann))
        api.faults.say("answerCallbackQuery", b'{"ok":true}')
        api.faults.stall("answerCallbackQuery")
        for _ in range(2):
            api.presses(ann, ann, int(said), "x")
        await run.some(Command, 2)
        api.private_says(ann, "still there?")
        async with asyncio.timeout(4):  # a request may take five seconds
            assert (await run.message(2)).text == "still there?"


@story
async def test_a_menu_that_takes_its_time_delays_nobody_for_long() -> None:
    async with BotApi() as api:
        api.faults.stall("getMyCommands")
        api.private_says(api.person("Ann"), "hi")
        async with running(api, commands=COMMANDS, request_timeout=60) as run, asyncio.timeout(120):
            await run.message()


REFUSED: dict[str, tuple[int, bytes, type[SendError]]] = {
    "no success with 200": (200, body(error_code=400, description="Bad Request: chat not found"), Rejected),
    "no success with 200, unexplained": (200, body(), Rejected),
    "a flood with 200": (200, body(error_code=429, parameters={"retry_after": 3}), RateLimited),
    "a flood beyond all numbers": (429, body(parameters={"retry_after": 10**400}), RateLimited),
    "a flood without an end": (429, b'{"ok":false,"parameters":{"retry_after":Infinity}}', RateLimited),
    "a flood without a time": (429, BAD_GATEWAY, RateLimited),
    "a refusal with a time": (400, body(parameters={"retry_after": 5}), Rejected),
    "a refusal with odd parameters": (400, body(parameters="odd"), Rejected),
    "a proxy's refusal": (403, BAD_GATEWAY, Rejected),
    "a redirection": (301, BAD_GATEWAY, Rejected),
    "a token or method that is not known": (404, body(), Unreachable),
    "a proxy that does not know us": (404, BAD_GATEWAY, Unreachable),
    "a failure with odd parameters": (500, body(parameters=[1]), Unreachable),
    "a page in place of an answer": (200, BAD_GATEWAY, Uncertain),
    "nothing in particular": (200, b'{"ok":true}', Uncertain),
    "a message without an id": (200, b'{"ok":true,"result":{}}', Uncertain),
}


@pytest.mark.parametrize("what", REFUSED)
@story
async def test_an_odd_answer_to_a_message_means_what_it_can(what: str) -> None:
    status, answer, error = REFUSED[what]
    async with BotApi() as api, running(api, Hasty(100)) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        await run.message()
        api.faults.say("sendMessage", answer, status=status)
        with pytest.raises(error) as told:
            await run.tell("x", at(ann))
        if isinstance(told.value, RateLimited):
            assert 0 < told.value.retry_after_s <= 86_400


@pytest.mark.parametrize(
    ("code", "answer", "error"),
    [
        (400, {"ok": False, "parameters": {"migrate_to_chat_id": -100}}, ChatMigrated),
        (429, {"ok": False}, RetryAfter),
        (420, {}, BadRequest),
        (404, {}, WrongServerError),
        (503, {"parameters": {"retry_after": 1}}, TelegramServerError),
    ],
)
def test_what_is_no_success_is_named(code: int, answer: dict[str, Any], error: type[TelegramError]) -> None:
    assert type(to_telegram_error(code, answer)) is error


@story
async def test_a_pause_that_lasts_is_told() -> None:
    async with BotApi() as api:
        clock = ManualClock()
        async with running(api, clock, poll_timeout=1) as run:
            await run.up()
            api.faults.fail("getUpdates", 429, retry_after=3600)
            api.private_says(api.person("Ann"), "hi")  # ends the poll
            await run.until_advancing(clock, lambda: run.links == [True, False])
            assert "3600" in run.all(ConnectionChanged)[-1].reason
            clock.advance(3600)
            await run.until_advancing(clock, lambda: run.links == [True, False, True])


@story
async def test_a_proxy_of_the_environment_is_not_asked_for_a_server_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with BotApi() as api, running(api) as run:
        await run.up()


@story
async def test_a_server_that_forgets_what_was_confirmed_is_not_asked_without_a_pause() -> None:
    async with BotApi() as api:
        ann, clock = api.person("Ann"), ManualClock()
        api.private_says(ann, "hi")
        known = {"ok": True, "result": [update for _, update in api.updates.pending]}
        api.faults.say("getUpdates", json.dumps(known).encode(), times=None)
        async with running(api, clock) as run:
            await run.message()
            await run.until_advancing(clock, lambda: clock.monotonic() >= 5)
            assert len(api.asked("getUpdates")) < 9
            assert len({message.id for message in run.all(Message)}) == 1
            api.faults.clear()
            api.private_says(ann, "still there?")
            await run.until_advancing(clock, lambda: run.all(Message)[-1].text == "still there?")
