"""What goes wrong on the way out to Telegram: each error says what is known, and nothing is said twice."""

import asyncio
import logging

import pytest

from channels.base import RateLimited, Rejected, SendError, Uncertain, Unreachable
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged, Message, Receipt
from tests.channels.discord.faults_kit import Hasty
from tests.channels.telegram.channel_kit import at, running
from tests.channels.telegram.test_receive_faults import NEAR_NO_TIME, POLLS, Break
from tests.kits.channels import story
from tests.servers.bot_api import BotApi
from tests.servers.bot_api_http import BAD_GATEWAY
from tests.servers.bot_api_world import Chat, Person

ODD = b'{"ok":true,"result":{"message_id":7,"date":1795272909000,"chat":{"id":1},"from":{"id":"x"}}}'
SENDS: dict[str, tuple[Break, type[SendError] | None, int]] = {
    "429": (lambda api: api.faults.fail("sendMessage", 429, retry_after=7), RateLimited, 0),
    "400": (lambda api: api.faults.fail("sendMessage", 400, "Bad Request: CHAT_RESTRICTED"), Rejected, 0),
    "403": (lambda api: api.faults.fail("sendMessage", 403, "Forbidden: bot was blocked by the user"), Rejected, 0),
    "413 as a page": (lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=413), Rejected, 0),
    "401": (lambda api: api.faults.fail("sendMessage", 401), Unreachable, 0),
    "404 as a page": (lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=404), Unreachable, 0),
    "500": (lambda api: api.faults.fail("sendMessage", 500), Unreachable, 0),
    "500 after": (lambda api: api.faults.fail("sendMessage", 500, after=True), None, 1),
    "502 as a page": (lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=502), Unreachable, 0),
    "502 as a page, after": (lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=502, after=True), None, 1),
    "504 as a page": (lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=504), Unreachable, 0),
    "504 as a page, after": (lambda api: api.faults.say("sendMessage", BAD_GATEWAY, status=504, after=True), None, 1),
    "no JSON": (lambda api: api.faults.say("sendMessage", b"{nope", after=True), Uncertain, 1),
    "half a result": (lambda api: api.faults.say("sendMessage", b'{"ok":true}', after=True), Uncertain, 1),
    "dropped before": (lambda api: api.faults.drop("sendMessage"), Uncertain, 0),
    "dropped after": (lambda api: api.faults.drop("sendMessage", after=True), Uncertain, 1),
    "cut": (lambda api: api.faults.drop("sendMessage", after=True, begun=b"HTTP/1.1 200 X\r\n"), Uncertain, 1),
    "silent before": (lambda api: api.faults.stall("sendMessage"), Uncertain, 0),
    "silent after": (lambda api: api.faults.stall("sendMessage", after=True), Uncertain, 1),
    "odd fields": (lambda api: api.faults.say("sendMessage", ODD, after=True), None, 1),
    "one byte at a time": (lambda api: api.faults.slow("sendMessage"), None, 1),
    "hung up": (lambda api: api.faults.hang_up("sendMessage"), None, 1),
}


@pytest.mark.parametrize("what", SENDS)
@story
async def test_what_went_wrong_with_a_message_is_told_as_what_it_is(what: str) -> None:
    fault, expected, shown = SENDS[what]
    async with BotApi() as api, running(api, Hasty(100), **NEAR_NO_TIME) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        await run.message()
        fault(api)
        gone: list[str] = []

        async def going() -> None:
            gone.append("gone")

        (part,) = run.parts("hello", at(ann))
        told: Receipt | SendError
        try:
            told = await run.channel.send(part, going)
        except SendError as error:
            told = error
        if isinstance(told, SendError):
            assert type(told) is expected
            assert api.token not in told.reason
            assert told.__cause__ is None
        else:
            assert expected is None
            assert told.ids
        if isinstance(told, RateLimited):
            assert told.retry_after_s == 7
        assert gone == ["gone"]
        assert len(api.said(ann)) == shown
        assert len(api.asked("sendMessage")) == 1, "never tried again by itself"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("group", [False, True])
@story
async def test_what_a_failing_server_did_is_found_out_amid_others_and_said_once(after: bool, group: bool) -> None:
    """Before and after it others speak, there and elsewhere; and the server stays away for a while."""
    async with BotApi() as api, running(api, Hasty(100), rooms=["*"], preview="off") as run:
        await run.up()
        ann, ben = api.person("Ann"), api.person("Ben")
        room: Chat | Person = api.group("Team") if group else ann

        async def heard() -> None:
            before = len(run.messages)
            if group:
                api.mentions(room, ann, "in the group")
            else:
                api.private_says(ann, "in private")
            api.private_says(ben, "elsewhere")
            await run.until(lambda: len(run.messages) == before + 2)

        await heard()
        await run.tell("the first", at(room))
        await heard()
        api.faults.say(
            "sendMessage", BAD_GATEWAY, status=502, after=after, where=lambda call: call["text"] == "the second"
        )
        api.faults.say("getMe", BAD_GATEWAY, status=502, times=3)
        sending = asyncio.create_task(run.tell("the second", at(room)))
        await api.until(lambda: len(api.asked("getMe")) > 1)
        await heard()
        try:
            await sending
        except Unreachable:
            assert not after
            await run.tell("the second", at(room))
        assert api.said(room) == ["the first", "the second"]


@story
async def test_without_a_server_nothing_was_sent() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        await api.stop()
        with pytest.raises(Unreachable):
            await run.tell("hello", at("1001"))
        await api.start()


@story
async def test_a_connection_that_was_closed_unsaid_is_not_used_again() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann = api.person("Ann")
        api.private_says(ann, "hi")
        await run.message()
        api.faults.hang_up("sendMessage")
        await api.until(lambda: api.updates.polling)
        before = api.open_connections
        await run.tell("one", at(ann))
        await api.until(lambda: api.open_connections < before)
        await run.tell("two", at(ann))
        assert api.said(ann) == ["one", "two"]


@story
async def test_a_chat_that_must_be_quiet_delays_no_other() -> None:
    async with BotApi() as api:
        clock = ManualClock()
        ann, ben = api.person("Ann"), api.person("Ben")
        api.private_says(ann, "hi")
        api.private_says(ben, "hi")
        async with running(api, clock) as run:
            await run.until_advancing(clock, lambda: len(run.all(Message)) == 2)
            api.faults.fail("sendMessage", 429, retry_after=3600, where=lambda call: call["chat_id"] == ann.id)
            with pytest.raises(RateLimited) as told:
                await run.tell("hello", at(ann))
            assert told.value.retry_after_s == 3600
            before_s = clock.monotonic()
            await run.tell("hello", at(ben))
            assert clock.monotonic() == before_s
            assert (api.said(ann), api.said(ben)) == ([], ["hello"])


@story
async def test_the_token_is_in_no_log_line_and_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("", "httpx", "httpcore", "telegram", "reverie", "asyncio", "aiohttp"):
        caplog.set_level(logging.DEBUG, logger=name or None)
    async with BotApi() as api:
        clock, ann = ManualClock(), api.person("Ann")
        api.private_says(ann, "hi")
        for name in ("502 as a page", "no JSON", "dropped before", "409", "429", "who we are, dropped"):
            POLLS[name](api)
        async with running(api, clock) as run:
            await run.until_advancing(clock, lambda: bool(run.all(Message)))
            for fault, _, _ in (SENDS[name] for name in ("400", "401", "no JSON", "dropped after", "429")):
                fault(api)
                with pytest.raises(SendError) as told:
                    await run.tell("hello", at(ann))
                clock.advance(10)
                assert api.token not in told.value.reason
            await api.stop()
            await run.until_advancing(clock, lambda: run.links[-1] is False)
            await api.start()
            reasons = [link.reason for link in run.all(ConnectionChanged)]
        secret = api.token.partition(":")[2]
        assert caplog.records
        assert not [record for record in caplog.records if secret in logging.Formatter().format(record)]
        assert not [reason for reason in reasons if secret in reason]
