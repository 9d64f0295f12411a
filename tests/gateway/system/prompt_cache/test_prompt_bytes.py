"""What goes to a strict Messages API over days: which bytes stay, which change, and what the cache
makes of it."""

import json
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent.tokens.counter import load_tokenizer
from gateway.config.loader import ConfigFiles, read_config
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from reverie.testing.gateway import Gateway
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.model_api import ModelApi, failure

MAX_PREFIX_TOKENS = 1_800
"""Of tools, protocol, default persona, skills and the names of the other tools, which stand in every
request: words that earn nothing there cost the most."""
EVENING = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)
CONFIG = """\
channels:
  irc.libera: {platform: console, rooms: ["#garden", "#lobby"]}
  telegram.main: {platform: console, rooms: ["#garden"]}
  discord.main: {platform: console, rooms: []}
agents: [{id: ana, workspace: ana, context_optimization: {prompt_cache: %s}}]
llm:
  providers: {p: {kind: anthropic, base_url: "%s", api_key: test}}
  models: {main: {provider: p, name: claude-sonnet-5-5}}
  context_optimization: {workspace_cache: {watch_debounce_ms: 50}, prompt_cache: {%s}}
attention: {coalesce: 0}
access: {dm: open, roles: {owner: ["irc.libera:ann"]}}
ops: {port: 0}
"""


def write(tmp: Path, url: str, prompt_cache: str = "true", knobs: str = "") -> None:
    (tmp / "reverie.yaml").write_text(CONFIG % (prompt_cache, url, knobs))
    (tmp / "reverie.yaml").chmod(0o600)


def town(tmp: Path, api: ModelApi, clock: ManualClock) -> Any:
    write(tmp, api.url)
    (tmp / "ana").mkdir()
    (tmp / "ana" / "SOUL.md").write_text("Calm. " + "Knows of gardens. " * 300)
    (tmp / "ana" / "USER.md").write_text("Ann grows beans.")
    settings = read_config(tmp, {}).settings
    return Gateway(settings, clock=clock, live=LiveSettings(settings, ConfigFiles(tmp, {})))


def fake(clock: ManualClock) -> ModelApi:
    return ModelApi(cache=MessagesCache(lambda text: -(-len(text) // 4)), clock=clock.monotonic)


def bare(value: Any) -> Any:
    """Without the marks, which may move."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key != "cache_control"}
    return [bare(item) for item in value] if isinstance(value, list | tuple) else value


def pieces(body: dict[str, Any]) -> list[str]:
    """Everything that is cached, in order, as bytes would be compared: all but what holds for one
    turn only."""
    said = [
        (m["role"], block)
        for m in body["messages"]
        if m["role"] != "system"
        for block in m["content"]
    ]
    return [json.dumps(bare(piece)) for piece in (*body["tools"], *body["system"], *said)]


def grows(bodies: list[dict[str, Any]]) -> bool:
    """Whether each request begins with all that the one before had."""
    return all(new[: len(old)] == old for old, new in pairwise(pieces(body) for body in bodies))


async def garden(gateway: Gateway, text: str, sender: str = "ann") -> None:
    await gateway.ask(f"reverie, {text}", sender=sender, room="#garden")


async def test_topic_sender_midnight_and_restart_change_no_byte_in_front_of_the_new_line(
    tmp_path: Path,
) -> None:
    clock = ManualClock(EVENING)
    async with fake(clock) as api, town(tmp_path, api, clock) as gateway:
        await garden(gateway, "hello")
        await gateway.consoles["irc.libera"].receive_topic("beans", room="#garden", sender="bob")
        await garden(gateway, "what is new?", sender="bob")
        clock.advance(1_200)  # past midnight
        await garden(gateway, "what day is it?", sender="eve")
        await gateway.end()
        gateway.start()
        await garden(gateway, "still there?")
        bodies = [one.body for one in api.seen if one.path.endswith("/messages")]
        assert (len(bodies), api.violations) == (4, [])
        assert grows(bodies)
        reads = [
            one.ticket.usage.cache_read_input_tokens for one in api.seen if one.ticket is not None
        ]
        assert reads[0] == 0
        assert all(reads[1:])


async def test_every_conversation_shares_its_beginning_and_reads_it(tmp_path: Path) -> None:
    clock = ManualClock(EVENING)
    async with fake(clock) as api, town(tmp_path, api, clock) as gateway:
        await garden(gateway, "hello")
        await gateway.ask("reverie, hi", sender="bob", room="#garden", on="telegram.main")
        await gateway.ask("hello", sender="ann", room=None)
        await gateway.ask("hello", sender="eve", room=None, on="discord.main")
        asked = [one for one in api.seen if one.ticket is not None]
        shared = len(asked[0].body["tools"]) + 1
        assert len({tuple(pieces(one.body)[:shared]) for one in asked}) == 1
        first, *others = [one.ticket for one in asked if one.ticket is not None]
        assert all(other.read >= shared for other in others)
        assert first.path[shared - 1].tokens > 1_024
        assert {one.body["messages"][-1]["role"] for one in asked} == {"user"}, (
            "nothing else is read after a line"
        )


async def test_what_every_conversation_begins_with_is_short(tmp_path: Path) -> None:
    clock = ManualClock(EVENING)
    async with fake(clock) as api:
        write(tmp_path, api.url)
        settings = read_config(tmp_path, {}).settings
        async with Gateway(settings, clock=clock) as gateway:
            await garden(gateway, "hello")
        body = api.seen[-1].body
        tools = json.dumps(bare(body["tools"]), separators=(",", ":"))
        shared = "\n\n".join([tools, body["system"][0]["text"], body["system"][1]["text"]])
        assert "- bash(command" in shared
        assert "attend" not in shared
        assert len(load_tokenizer().encode(shared)) <= MAX_PREFIX_TOKENS


async def test_what_says_that_there_is_no_answer_is_shown_to_no_model(tmp_path: Path) -> None:
    clock = ManualClock(EVENING)
    async with fake(clock) as api, town(tmp_path, api, clock) as gateway:
        api.then(failure(400, "invalid_request_error"))
        said = await gateway.ask("how do beans grow?", sender="eve", room=None)
        assert said
        clock.advance(60)
        for who in ("eve", "ann"):
            await gateway.ask(f"beans? {said}", sender=who, room=None)
            told = json.dumps(api.seen[-1].body["messages"])
            assert told.count(json.dumps(said)[1:-1]) == 1
            assert '"assistant"' not in told


async def test_user_and_memory_are_for_the_owner_alone(tmp_path: Path) -> None:
    clock = ManualClock(EVENING)
    async with fake(clock) as api, town(tmp_path, api, clock) as gateway:
        await garden(gateway, "hello")
        await gateway.ask("hello", sender="eve", room=None)
        await gateway.ask("hello", sender="ann", room=None)
        told = ["grows beans" in json.dumps(one.body) for one in api.seen if one.ticket is not None]
        assert told == [False, False, True]
