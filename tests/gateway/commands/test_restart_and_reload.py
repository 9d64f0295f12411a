"""`restart` and `reload`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from channels.base import Denied, Emit
from gateway.commands.context import CommandContext
from gateway.config.loader import read_config
from gateway.config.reload import LiveSettings
from gateway.core.metrics import GatewayStats
from gateway.stream.supervisor import ChannelSupervisor
from tests.gateway.commands.rooms_kit import HERE, LOBBY, THERE, House, house
from tests.kits.channels import story
from tests.kits.commands import answer_of
from tests.kits.store import NOW
from tests.kits.supervisor import EmitIntake, ToldOwners

CONFIG = """\
channels: {}
access: {roles: {owner: ["here:root"]}}
agents: [{id: ana}]
llm:
  providers: {s: {kind: anthropic, api_key: sk-secret-%s}}
  models: {main: {provider: s, name: claude-sonnet-5-5}}
  context_optimization: {prompt_cache: {enabled: %s}}
ops: {port: %s}
"""


def write(directory: Path, *, key: str = "one", cache: str = "true", port: str = "0") -> None:
    file = directory / "reverie.yaml"
    file.write_text(CONFIG % (key, cache, port))
    file.chmod(0o600)


def running(it: House, tmp_path: Path) -> tuple[CommandContext, ChannelSupervisor]:
    write(tmp_path)
    live = LiveSettings(read_config(tmp_path, {}).settings, tmp_path, {})

    async def emit(batch: object, *, cursor: str | None = None) -> None:
        del batch, cursor

    stats = GatewayStats(dict.fromkeys(it.channels, "console"), NOW)
    runner = ChannelSupervisor(
        it.channels,
        clock=it.clock,
        stats=stats,
        outbox=it.outbox,
        owners=ToldOwners(),
        tasks=it.tasks,
    )
    runner.intake = EmitIntake(lambda _: emit)
    return replace(it.world, supervisor=runner, stats=stats, live=live), runner


@story
async def test_a_channel_is_restarted_once_and_nothing_more_is_said_of_it(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        world, runner = running(it, tmp_path)
        runs = list[str]()
        channel, run = it.channels[THERE], it.channels[THERE].run

        async def counted(emit: Emit) -> None:
            runs.append("run")
            await run(emit)

        channel.run = counted  # type: ignore[method-assign] # counted, and run
        ask = it.ask("restart", channel="THERE")
        answer = await answer_of(ask, world)
        assert answer.text == "I disconnect `there` and connect it again. If that does not work, I say so here."
        assert answer.effect is not None
        await it.written(ask, answer.effect)
        assert not runs, "first the answer goes out"
        while runner.is_restarting(THERE) or not runs:
            await asyncio.sleep(0.001)
        await it.written(ask, answer.effect)  # told again
        await asyncio.sleep(0.01)
        assert runs == ["run"]
        assert it.seen(LOBBY) == []
        await runner.close()


@pytest.mark.parametrize("written", ["ther", "irc`; rm", "far/x"])
@story
async def test_a_channel_that_there_is_not_is_not_restarted(tmp_path: Path, written: str) -> None:
    async with house(tmp_path) as it:
        world, _ = running(it, tmp_path)
        answer = await answer_of(it.ask("restart", channel=written), world)
        assert answer.text.startswith("I have no channel `")
        assert answer.text.count("`") % 2 == 0
        assert (answer.ok, answer.effect) == (False, None)


@story
async def test_a_channel_that_is_refused_again_is_told_of(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        world, runner = running(it, tmp_path)

        async def refused(emit: Emit) -> None:
            del emit
            raise Denied("the token is `refused`\n@everyone")

        it.channels[THERE].run = refused  # type: ignore[method-assign] # a platform that does not want it
        ask = it.ask("restart", channel="there")
        answer = await answer_of(ask, world)
        assert answer.effect is not None
        await it.written(ask, answer.effect)
        while not it.seen(LOBBY):
            await asyncio.sleep(0.001)
        (told,) = it.seen(LOBBY)
        assert told.startswith("`there` is refused, and stays off: `the token is ")
        assert told.count("`") == 4
        assert "\n" not in told
        await runner.close()


@story
async def test_while_it_is_restarted_it_is_not_restarted_again(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        world, runner = running(it, tmp_path)
        it.channels[HERE].run = _silent  # type: ignore[method-assign] # a platform that does not answer
        first = it.ask("restart", channel="here")
        answer = await answer_of(first, world)
        assert answer.effect is not None
        await it.written(first, answer.effect)
        while not runner.is_restarting(HERE):
            await asyncio.sleep(0.001)
        answer = await answer_of(it.ask("restart", channel="here"), world)
        assert (answer.ok, answer.text) == (False, "`here` is being restarted already.")
        await runner.close()


async def _silent(emit: Emit) -> None:
    del emit
    await asyncio.Event().wait()


@story
async def test_reload_tells_keys_and_never_what_they_say(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        world, _ = running(it, tmp_path)

        async def told() -> str:
            return (await answer_of(it.ask("reload"), world)).text

        assert await told() == "The configuration says what it said before."
        write(tmp_path, key="two", cache="false", port="9191")
        assert await told() == (
            "Changed from now on: `llm.context_optimization.prompt_cache.enabled`, `llm.providers.s.api_key`.\n"
            "Changed, but only after a restart: `ops.port`."
        )
        assert await told() == "Changed, but only after a restart: `ops.port`."
        write(tmp_path)
        keys = "`llm.context_optimization.prompt_cache.enabled`, `llm.providers.s.api_key`"
        assert await told() == f"Changed from now on: {keys}."


@story
async def test_reload_of_a_broken_configuration_tells_where_and_changes_nothing(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        world, _ = running(it, tmp_path)
        write(tmp_path, key="`x`\\n", port="many")
        answer = await answer_of(it.ask("reload"), world)
        assert not answer.ok
        first, *problems = answer.text.split("\n")
        assert first == "The configuration is broken, so what I had goes on:"
        (problem,) = problems
        assert "reverie.yaml:8: ops.port" in problem
        assert "sk-secret" not in answer.text
        (tmp_path / "reverie.yaml").unlink()
        answer = await answer_of(it.ask("reload"), world)
        assert "holds no configuration" in answer.text


@story
async def test_reload_without_files_says_so(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        world, _ = running(it, tmp_path)
        live = LiveSettings(read_config(tmp_path, {}).settings)
        world = replace(world, live=live)
        answer = await answer_of(it.ask("reload"), world)
        assert (answer.ok, answer.text) == (
            False,
            "I cannot read the configuration: `it is in no files`. What I had goes on.",
        )
