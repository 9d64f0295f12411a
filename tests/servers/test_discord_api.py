"""The loopback Discord refuses what Discord refuses: or the proofs that rest on it would prove
little."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.discord_api_world import FORUM

IDENTIFY = {"op": 2, "d": {"token": Options().token, "intents": 1 << 9 | 1, "properties": {}}}


@asynccontextmanager
async def http(api: DiscordApi, token: str | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bot {token or api.token}"}
    ) as session:
        yield session


async def ask(
    session: aiohttp.ClientSession, api: DiscordApi, line: str, **body: Any
) -> tuple[int, Any]:
    method, path = line.split()
    async with session.request(method, api.api_url + path, json=body or None) as response:
        assert response.headers["Content-Type"] == "application/json"
        assert response.status != 429 or response.headers["Via"]
        return response.status, await response.json()


async def test_http_refuses_what_discord_refuses() -> None:
    async with DiscordApi() as api, http(api) as session, http(api, "wrong") as stranger:
        say = f"POST /channels/{api.room}/messages"
        forum, hidden, muted = (
            api.world.add_channel(name, kind=kind)
            for name, kind in (("f", FORUM), ("h", 0), ("m", 0))
        )
        api.world.hidden.add(hidden)
        api.world.muted.add(muted)
        thread = api.threads(forum, api.ann, "topic")
        api.world.channels[thread]["thread_metadata"]["locked"] = True
        quiet: Any = {"allowed_mentions": {"parse": []}}
        for line, body, status, code in (
            ("GET /nothing", {}, 404, 0),
            ("GET /channels/1", {}, 404, 10003),
            (f"GET /channels/{hidden}", {}, 403, 50001),
            (say, {"content": " "}, 400, 50006),
            (say, {"content": "x" * 2001}, 400, 50035),
            (say, {"content": "x", "nonce": "n" * 26}, 400, 50035),
            (say, {"content": "x", "message_reference": {"message_id": "1"}}, 400, 50035),
            (f"POST /channels/{muted}/messages", {"content": "x"}, 403, 50013),
            (f"POST /channels/{forum}/messages", {"content": "x"}, 400, 50008),
            (f"POST /channels/{thread}/messages", {"content": "x"}, 403, 160005),
            (
                f"PATCH /channels/{api.room}/messages/{api.says(api.room, api.ann, 'hers')}",
                {"content": "x"},
                403,
                50005,
            ),
            (f"GET /channels/{api.room}/messages/1", {}, 404, 10008),
            (f"GET /channels/{api.room}/messages?limit=101", {}, 400, 50035),
        ):
            answer = await ask(session, api, line, **body)
            assert (answer[0], answer[1]["code"]) == (status, code), line
        assert (await ask(stranger, api, "GET /users/@me"))[0] == 401
        assert api.texts(api.room) == []
        api.offences.clear()
        assert (await ask(session, api, say, content="x" * 2000, **quiet))[0] == 200
        assert api.offences == []
        await ask(session, api, say, content="@everyone")
        assert len(api.offences) == 1


async def test_a_bucket_is_told_and_then_enforced() -> None:
    async with DiscordApi(Options(limits=((".*", 2, 5.0),))) as api, http(api) as session:
        statuses = [(await ask(session, api, f"GET /channels/{api.room}"))[0] for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await ask(session, api, f"GET /channels/{api.other}"))[0] == 200


async def test_history_is_newest_first_and_in_pages() -> None:
    async with DiscordApi() as api, http(api) as session:
        ids = [api.says(api.room, api.ann, str(number)) for number in range(5)]
        path = f"GET /channels/{api.room}/messages"
        for query, expected in (
            ("?limit=2", ids[:-3:-1]),
            (f"?limit=2&after={ids[0]}", [ids[2], ids[1]]),
            (f"?limit=9&before={ids[2]}", [ids[1], ids[0]]),
        ):
            assert [
                message["id"] for message in (await ask(session, api, path + query))[1]
            ] == expected


@pytest.mark.parametrize(
    ("payloads", "code"),
    [
        ([IDENTIFY | {"d": {"token": "wrong", "intents": 1}}], 4004),
        ([IDENTIFY | {"d": {"token": Options().token, "intents": 1 << 40}}], 4013),
        ([IDENTIFY | {"d": {"token": Options().token, "intents": 1 << 15}}], 4014),
        ([{"op": 3, "d": {}}], 4003),
        ([{"op": 77}], 4001),
        (["no JSON"], 4002),
        ([IDENTIFY, IDENTIFY], 4005),
        ([{"op": 1, "d": "x" * 5000}], 1009),  # aiohttp's own limit answers; Discord says 4002
        ([{"op": 1, "d": None}] * 121, 4008),
    ],
)
async def test_the_gateway_closes_with_the_right_code(payloads: list[Any], code: int) -> None:
    options = Options(message_content=False)
    async with (
        DiscordApi(options) as api,
        http(api) as session,
        session.ws_connect(api.gateway_url) as socket,
    ):
        for payload in payloads:
            await socket.send_str(payload if isinstance(payload, str) else json.dumps(payload))
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            pass
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.data == code


@pytest.mark.parametrize(("code", "kept"), [(1000, False), (1001, False), (4000, True)])
async def test_how_the_client_says_goodbye_decides_whether_it_may_come_back(
    code: int, kept: bool
) -> None:
    async with DiscordApi() as api, http(api) as session:
        async with session.ws_connect(api.gateway_url) as socket:
            await socket.send_json(IDENTIFY)
            known = await api.connected()
            await socket.close(code=code)
        await api.until(lambda: not api.live)
        assert known.valid is kept
        missed = api.says(api.room, api.ann, "away")
        async with session.ws_connect(api.gateway_url) as socket:
            resume = {"token": api.token, "session_id": known.id, "seq": 2}
            await socket.send_json({"op": 6, "d": resume})
            told = [await socket.receive_json() for _ in range(3 if kept else 2)]
            assert [event["t"] or event["op"] for event in told[1:]] == (
                ["MESSAGE_CREATE", "RESUMED"] if kept else [9]
            )
            assert not kept or (told[1]["d"]["id"], told[1]["d"]["content"]) == (missed, "")
