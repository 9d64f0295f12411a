"""What people do on Telegram, as notifications, each heard once whatever goes wrong on the way."""

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from channels.base import Denied
from gateway.core.clock import ManualClock
from gateway.core.events import Command, ConnectionChanged, Message
from gateway.core.facts import dedup_key
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_http import BAD_GATEWAY, post
from reverie.testing.servers.ports import free_port
from tests.channels.telegram.channel_kit import Running, at, config, running


async def test_nothing_is_confirmed_before_it_is_durable_and_nothing_more_is_asked_for(
    api: BotApi, run: Running
) -> None:
    ann = api.person("Ann")
    run.open.clear()
    for number in range(300):
        api.private_says(ann, str(number))
    await api.until(
        lambda: bool(api.asked("getUpdates")) and api.asked("getUpdates")[-1].answer is not None
    )
    await asyncio.sleep(0.1)
    assert not api.updates.confirmed
    assert (
        len([call for call in api.asked("getUpdates") if call.answer and call.answer["result"]])
        == 1
    )
    run.open.set()
    await run.some(Message, 300)
    assert [m.text for m in run.all(Message)] == [str(number) for number in range(300)]


async def test_what_was_not_durable_comes_again_with_the_same_key() -> None:
    async with BotApi() as api:
        ann = api.person("Ann")
        asked = api.private_says(ann, "one")
        async with running(api) as first:
            await first.up()
            api.edits(ann, asked, "two")
            api.presses(ann, ann, asked, "approve go", forged=True)
            await first.some(Command)
        again = [
            update
            for call in api.asked("getUpdates")
            if call.answer
            for update in call.answer["result"]
        ]
        async with BotApi() as other:
            for update in again:
                other.updates.put_raw(update)
            async with running(other) as second:
                await second.some(Command)
        keys = [
            {dedup_key(event) for event in run.seen if not isinstance(event, ConnectionChanged)}
            for run in (first, second)
        ]
        assert keys[0] == keys[1]
        assert len(keys[0]) == 3


async def test_a_press_is_answered_once_it_is_durable(api: BotApi, run: Running) -> None:
    ann = api.person("Ann")
    asked = api.private_says(ann, "hi")
    await run.message()
    run.open.clear()
    query = api.presses(ann, ann, asked, "approve yes", forged=True)
    polls = len(api.asked("getUpdates"))
    await api.until(lambda: bool(api.asked("getUpdates")[polls - 1].answer))
    await asyncio.sleep(0.05)
    assert not api.asked("answerCallbackQuery")
    run.open.set()
    (command,) = await run.some(Command)
    assert (command.name, command.args, command.origin) == ("approve", "yes", "button")
    assert command.id == f"button:{query}"
    unknown = api.presses(ann, ann, asked, "Approve!", forged=True)
    answered = await api.called("answerCallbackQuery")
    assert (answered["callback_query_id"], answered["text"]) == (
        unknown,
        "I do not know this button.",
    )
    api.presses(ann, ann, asked, "deny no", forged=True)
    api.faults.drop("answerCallbackQuery")
    await run.some(Command, 2)
    api.private_says(ann, "still here")
    await run.message(2)


async def test_privacy_mode_is_told_to_the_operator(
    caplog: pytest.LogCaptureFixture, api: BotApi
) -> None:
    caplog.set_level(logging.INFO)
    api.world.sees_all = False
    async with running(api) as run:
        await run.up()
    assert [one for one in caplog.messages if "setprivacy" in one]
    assert run.all(ConnectionChanged)[0].reason == f"connected to {api.url} as @reverie_bot"


HOOK = {"port": 0, "url": "http://127.0.0.1:1/x", "secret": "s3cret-of-16-chars"}


@pytest.fixture
def hook() -> dict[str, Any]:
    port = free_port()
    return {
        "port": port,
        "path": "/hook",
        "url": f"http://127.0.0.1:{port}/hook",
        "secret": "a-secret-of-16-chars",
    }


async def test_with_a_webhook_telegram_is_answered_when_it_is_durable(
    hook: dict[str, Any], api: BotApi
) -> None:
    ann = api.person("Ann")
    api.private_says(ann, "before")
    async with running(api, webhook=hook) as run:
        await run.up()
        await run.message()
        run.open.clear()
        api.private_says(ann, "held")
        await asyncio.sleep(0.1)
        assert len(api.updates.confirmed) == 1
        run.open.set()
        await run.message(2)
        api.album(ann, ann, 2)
        await run.message(4)
    assert not api.asked("getUpdates")
    assert [status for _, status in api.updates.deliveries] == [200] * 4
    # From now on by polling: the webhook is taken down, and nothing is lost.
    api.private_says(ann, "after")
    async with running(api, cursor=run.cursor) as polling:
        assert (await polling.message()).text == "after"


@pytest.mark.parametrize(
    "secret", ["", "fifteen-letters", "sixteen or more letters", "x" * 257, "\u00fc" * 16]
)
def test_a_webhooks_secret_is_long_and_what_telegram_takes(secret: str) -> None:
    with pytest.raises(ValueError, match="letters") as told:
        config("http://127.0.0.1:1", webhook=HOOK | {"secret": secret})
    assert not secret or secret not in str(told.value)


@pytest.mark.parametrize("token", ["", "1:a b", "1:a/../x", "1:{token}"])
def test_what_is_no_token_is_told_when_the_configuration_is_read(token: str) -> None:
    with pytest.raises(ValueError, match="BotFather") as told:
        config("http://127.0.0.1:1", token=token)
    assert not token or token not in str(told.value)


async def test_a_webhook_that_somebody_removed_is_set_again_and_nothing_is_lost(
    hook: dict[str, Any], api: BotApi
) -> None:
    ann, clock = api.person("Ann"), ManualClock()
    async with running(api, clock, webhook=hook) as run:
        await api.until(lambda: api.updates.hook is not None)
        api.updates.set_hook(None, drop_pending=False)
        api.private_says(ann, "is anybody there?")
        await run.until_advancing(clock, lambda: bool(run.all(Message)))
        assert api.updates.hook is not None
        assert api.updates.hook["secret_token"] == "a-secret-of-16-chars"
        assert run.links == [True]


BREAKS: dict[str, Callable[[BotApi], object]] = {
    "500": lambda api: api.faults.fail("getWebhookInfo", 500, times=3),
    "429": lambda api: api.faults.fail("getWebhookInfo", 429, retry_after=100),
    "cut off": lambda api: api.faults.drop("getWebhookInfo", after=True),
    "nonsense": lambda api: api.faults.say("getWebhookInfo", b'{"ok":true,"result":{"url":[]}}'),
}


@pytest.mark.parametrize("what", BREAKS)
async def test_an_api_that_cannot_be_asked_is_a_link_that_is_down_until_it_can(
    what: str, hook: dict[str, Any], api: BotApi
) -> None:
    ann, clock = api.person("Ann"), ManualClock()
    async with running(api, clock, webhook=hook) as run:
        await api.until(lambda: api.updates.hook is not None)
        BREAKS[what](api)
        await run.until_advancing(clock, lambda: run.links == [True, False, True])
        api.private_says(ann, "hi")
        assert (await run.message()).text == "hi"
        assert all("a-secret-of-16-chars" not in link.reason for link in run.all(ConnectionChanged))


Break = Callable[[BotApi], object]
NEAR_NO_TIME: dict[str, Any] = {"poll_timeout": 1, "request_timeout": 0.3}

POLLS: dict[str, Break] = {
    "429": lambda api: api.faults.fail("getUpdates", 429, retry_after=7, times=3),
    "500": lambda api: api.faults.fail("getUpdates", 500, times=2),
    "502 as a page": lambda api: api.faults.say(
        "getUpdates", BAD_GATEWAY, status=502, kind="text/html"
    ),
    "404 as a page": lambda api: api.faults.say(
        "getUpdates", BAD_GATEWAY, status=404, kind="text/html"
    ),
    "409": lambda api: api.faults.fail(
        "getUpdates", 409, "Conflict: terminated by other getUpdates request", times=3
    ),
    "no JSON": lambda api: api.faults.say("getUpdates", b'{"ok":true,"result":[{"upd', after=True),
    "not an object": lambda api: api.faults.say("getUpdates", b"[1]"),
    "no list": lambda api: api.faults.say("getUpdates", b'{"ok":true,"result":{"update_id":1}}'),
    "nothing": lambda api: api.faults.say("getUpdates", b""),
    "dropped before": lambda api: api.faults.drop("getUpdates"),
    "dropped after": lambda api: api.faults.drop("getUpdates", after=True, times=3),
    "cut in the middle": lambda api: api.faults.drop(
        "getUpdates", after=True, begun=b"HTTP/1.1 200 X\r\nContent-Le"
    ),
    "one byte at a time": lambda api: api.faults.slow("getUpdates", chunk_bytes=1),
    "hung up": lambda api: api.faults.hang_up("getUpdates", times=3),
    "who we are, 502": lambda api: api.faults.say(
        "getMe", BAD_GATEWAY, status=502, kind="text/html", times=2
    ),
    "who we are, dropped": lambda api: api.faults.drop("getMe", times=2),
    "who we are, nonsense": lambda api: api.faults.say("getMe", b'{"ok":true,"result":{"id":"x"}}'),
    "who we are, in few words": lambda api: api.faults.say(
        "getMe", b'{"ok":true,"result":{"id":666,"username":"x"}}'
    ),
    "who we are, 429": lambda api: api.faults.fail("getMe", 429, retry_after=30),
}


@pytest.mark.parametrize("what", POLLS)
async def test_whatever_breaks_a_poll_each_update_comes_once(what: str, api: BotApi) -> None:
    ann, clock = api.person("Ann"), ManualClock()
    for number in range(3):
        api.private_says(ann, f"before {number}")
    fault = POLLS[what](api)
    async with running(api, clock, poll_timeout=1) as run:
        await run.until_advancing(clock, lambda: len(run.all(Message)) >= 3)
        api.private_says(ann, "after")
        await run.until_advancing(clock, lambda: len(run.all(Message)) >= 4)
        assert [message.text for message in run.all(Message)] == [
            "before 0",
            "before 1",
            "before 2",
            "after",
        ]
        await run.until_advancing(clock, lambda: not api.updates.pending and run.links[-1])
        assert len(api.updates.confirmed) == 4
        assert fault.met > 0  # type: ignore[attr-defined]
        if what == "409":
            (down,) = [link for link in run.all(ConnectionChanged) if not link.up]
            assert "another process" in down.reason


async def test_requests_keep_their_distance_however_long_it_lasts(api: BotApi) -> None:
    clock = ManualClock()
    api.faults.fail("getUpdates", 500, times=None)
    async with running(api, clock, chance=lambda: 1.0) as run:
        times_s: list[float] = []
        while len(times_s) < 9:
            seen = len(api.asked("getUpdates"))
            await run.until_advancing(
                clock,
                lambda seen=seen: len(api.asked("getUpdates")) > seen,  # type: ignore[misc]
            )
            times_s.append(clock.monotonic())
        gaps_s = [after - before for before, after in pairwise(times_s)]
        assert gaps_s[-1] == pytest.approx(10, abs=1)
        assert sorted(gaps_s) == pytest.approx(gaps_s, abs=1)
        assert run.links[-1] is False


async def test_a_webhook_in_the_way_is_taken_down_without_losing_updates(api: BotApi) -> None:
    ann = api.person("Ann")
    await api.methods.call("setWebhook", {"url": "https://elsewhere.example/x"}, {})
    api.updates.close()
    api.private_says(ann, "hi")
    api.updates.close()
    async with running(api) as run:
        assert (await run.message()).text == "hi"
    assert api.asked("deleteWebhook")
    assert not any(call.get("drop_pending_updates") for call in api.asked("deleteWebhook"))


async def test_a_refused_token_ends_it_with_a_reason_that_does_not_tell_it(api: BotApi) -> None:
    clock = ManualClock()
    async with running(api, clock, token="7000000001:wrong-but-secret") as run:
        await run.until_advancing(clock, run.task.done)
        assert clock.monotonic() > 120, "it is asked for minutes whether that is so"
        with pytest.raises(Denied) as refused:
            await run.task
        assert "secret" not in refused.value.reason + "".join(
            link.reason for link in run.all(ConnectionChanged)
        )
    api.private_says(api.person("Ann"), "hi")
    async with running(api, clock) as run:
        await run.until_advancing(clock, lambda: bool(run.messages))
        api.faults.fail("*", 401, times=None)
        await run.until_advancing(clock, run.task.done)
        with pytest.raises(Denied):
            await run.task


@pytest.mark.parametrize("code", [401, 404])
async def test_one_refusal_ends_nothing_and_what_is_to_be_said_is_said_meanwhile(
    code: int, api: BotApi
) -> None:
    ann, clock = api.person("Ann"), ManualClock()
    async with running(api, clock) as run:
        await run.up()
        api.private_says(ann, "one")
        await run.until_advancing(clock, lambda: len(run.messages) == 1)
        asked = len(api.asked("getMe"))
        api.faults.fail("getUpdates", code, times=6)
        await run.until_advancing(clock, lambda: run.links[-1] is False)
        assert run.all(ConnectionChanged)[-1].says
        await run.tell("said meanwhile", at(ann))
        assert api.said(ann) == ["said meanwhile"]
        api.private_says(ann, "two")
        await run.until_advancing(clock, lambda: len(run.messages) == 2)
        assert len(api.asked("getMe")) == asked + 6
        assert run.links == [True, False, True]


async def test_after_a_quiet_week_the_ids_may_begin_anew(api: BotApi) -> None:
    # "If there are no new updates for at least a week, then identifier of the next update will be
    # chosen randomly instead of sequentially." https://core.telegram.org/bots/api#update
    ann, clock = api.person("Ann"), ManualClock()
    api.private_says(ann, "hi")
    async with running(api, clock, poll_timeout=1) as run:
        await run.until_advancing(clock, lambda: bool(run.all(Message)) and not api.updates.pending)
        clock.advance(7 * 86400)
        await run.until_advancing(
            clock, lambda: "offset" not in api.asked("getUpdates")[-1].parameters
        )
        api.updates.restart(500)
        api.private_says(ann, "again")
        await run.until_advancing(clock, lambda: not api.updates.pending)
        assert [message.text for message in run.all(Message)] == ["hi", "again"]


async def test_an_album_split_over_two_polls_is_one_message(api: BotApi) -> None:
    clock, ann = ManualClock(), api.person("Ann")
    api.private_says(ann, "look:")
    api.sends(ann, ann, "photo", caption="us", media_group_id="g1")
    async with running(api, clock) as run:
        await api.called("getUpdates")
        await run.until_advancing(clock, lambda: len(run.all(Message)) == 1)
        api.sends(ann, ann, "photo", media_group_id="g1")  # while the first is held
        await run.until_advancing(clock, lambda: len(run.all(Message)) == 2)
        album = run.all(Message)[1]
        assert (album.text, len(album.attachments)) == ("us", 2)
        api.private_says(ann, "nice?")
        await run.until_advancing(clock, lambda: len(run.all(Message)) == 3)
        assert [message.text for message in run.all(Message)] == ["look:", "us", "nice?"]


async def test_a_webhook_is_believed_only_with_its_secret(
    hook: dict[str, Any], api: BotApi
) -> None:
    ann, url = api.person("Ann"), hook["url"]
    api.private_says(ann, "before")
    async with running(api, webhook=hook) as run:
        assert (await run.message()).text == "before"
        api.private_says(ann, "hi")
        assert (await run.message(2)).text == "hi"
        forged = json.dumps(
            {"update_id": 1, "message": api.shown(ann)[0].body | {"text": "forged"}}
        ).encode()
        wrong: list[dict[str, str]] = [{}, {"X-Telegram-Bot-Api-Secret-Token": "wrong"}]
        for headers in wrong:
            assert await post(url, headers, forged) in (401, 403)
        right = {"X-Telegram-Bot-Api-Secret-Token": hook["secret"]}
        assert await post(url.replace("/hook", "/elsewhere"), right, forged) == 404
        assert await post(url, right, b"{no json") == 200
        assert await post(url, right, b" " * (2**20 + 1)) == 413
        api.private_says(ann, "bye")
        assert (await run.message(3)).text == "bye"
        assert [m.text for m in run.all(Message)] == ["before", "hi", "bye"]
        run.broken = OSError("the disk is full")
        api.private_says(ann, "not durable")
        with pytest.raises(OSError, match="disk"):
            await run.task
    await api.until(lambda: bool(api.updates.pending))
    assert {status for _, status in api.updates.deliveries[:3]} == {200}
    assert api.updates.deliveries[-1][1] != 200
