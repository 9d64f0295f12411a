"""`/model`: what an agent thinks with, from its next turn on, over restarts, and with all that
depends on it."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.models.base import ModelUnusable
from gateway.core.facts import ModelSelected, RoomAssigned, ViewFolded
from gateway.core.identity import Role
from gateway.runtime.agent import Agent
from reverie.testing.channels import story
from reverie.testing.gateway import CONSOLE
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from reverie.testing.waiting import until
from tests.kits.commands import TABLE
from tests.kits.model_choice import ANN, Gate, configured, serving


async def chosen(gate: Gate, name: str, mind: Agent | None = None) -> None:
    """Switch, and wait until it is in use."""
    answer = await gate.command("model switch", name=name)
    assert answer.answer.startswith(f"`reverie` uses `{name}` from its next answer on.")
    await gate.until(lambda: (mind or gate.gateway.agents.agents[0]).agent_model.name == name)


def asked(api: ModelApi) -> list[tuple[str, str]]:
    """Which model each request was for, and its key's last letter."""
    seen = [one for one in api.seen if not one.path.endswith("count_tokens")]
    keys = [
        one.headers.get("authorization", "") or one.headers.get("x-api-key", "") for one in seen
    ]
    return [(str(one.body["model"]), key[-1]) for one, key in zip(seen, keys, strict=True)]


OPENAI, ANTHROPIC = ("gpt-first", "o"), ("claude-sonnet-5-5", "a")


@story
async def test_the_next_turn_is_taken_with_another_and_holds_over_a_restart_until_reset(
    tmp_path: Path,
) -> None:
    async with ModelApi() as api:
        api.default = lambda _: Answer(text="I see.")
        made = configured(tmp_path, api)
        async with serving(made) as gate:
            await gate.ask("one", sender="ann")
            await chosen(gate, "other")
            assert "claude-sonnet-5-5" in gate.gateway.agents.model_labels
            await gate.ask("two", sender="ann")
            again = await gate.command("model switch", name="other")
            assert (again.answer, again.facts) == ("`reverie` already uses `other`.", ())
        async with serving(made) as gate:
            await gate.ask("three", sender="ann")
            await gate.command("model reset")
            await gate.until(lambda: gate.gateway.agents.agents[0].agent_model.name == "main")
            await gate.ask("four", sender="ann")
        async with serving(made) as gate:
            await gate.ask("five", sender="ann")
            facts = [
                one for one in await gate.facts("model_chosen") if isinstance(one, ModelSelected)
            ]
            assert [(one.agent, one.model, one.by) for one in facts] == [
                ("reverie", "other", "console:ann"),
                ("reverie", "", "console:ann"),
            ]
            assert [turn.model for turn in await gate.turns()] == [
                *("gpt-first", "claude-sonnet-5-5", "claude-sonnet-5-5", "gpt-first", "gpt-first")
            ]
        assert asked(api) == [OPENAI, ANTHROPIC, ANTHROPIC, OPENAI, OPENAI]
        told = json.dumps(api.seen[-1].body["messages"])
        assert [
            told.count(f"(owner): {word}") for word in ("one", "two", "three", "four", "five")
        ] == [1] * 5
        assert not api.violations


def began(folder: Path) -> list[Path]:
    """The file of that name among the agent's."""
    return [*folder.rglob("files/**/began")]


@story
async def test_a_turn_that_has_begun_ends_with_what_it_began_with(tmp_path: Path) -> None:
    async with ModelApi() as api:
        ran = json.dumps({"command": "touch began; while [ ! -e go ]; do sleep 0.01; done"})
        api.then(Answer(text="Let me see.", calls=(("c1", "bash", ran),)), Answer(text="Done."))
        async with serving(configured(tmp_path, api, tools={"bash": {"sandbox": "off"}})) as gate:
            await gate.console.receive_message("work", sender="ann")
            await gate.until(lambda: began(tmp_path) != [])
            await chosen(gate, "other")
            assert (
                gate.gateway.agents.registry.running.describe(gate.at.conversation) != []
            )  # what runs there is still told
            began(tmp_path)[0].with_name("go").touch()
            await gate.screen.until(1)
            await gate.ask("and now?", sender="ann")
        assert asked(api)[:3] == [OPENAI, OPENAI, ANTHROPIC]
        assert not api.violations  # its tools and their results are told in the other dialect, too


def _long(number: int) -> str:
    return f"message {number}: " + " ".join(f"word{number}x{place}" for place in range(900))


@pytest.mark.parametrize("summarised", [False, True])
@story
async def test_a_long_conversation_is_folded_for_a_small_window_and_back_again(
    tmp_path: Path, summarised: bool
) -> None:
    async with ModelApi() as api, ModelApi(window=8_000) as tight:
        api.default = tight.default = lambda _: Answer(text="I see.")
        small: Json = {
            "provider": "t",
            "name": "claude-small",
            "context_tokens": 8_000,
            "max_output_tokens": 1_000,
        }
        large: Json = {"provider": "a", "name": "claude-sonnet-5-5", "context_tokens": 200_000}
        made = configured(
            tmp_path,
            api,
            {"large": large, "small": small},
            tight=tight,
            agents=[{"id": "reverie", "model": "large"}],
            optimization={"compaction": {"enabled": summarised}},
        )
        async with serving(made) as gate:
            for number in range(12):
                await gate.ask(_long(number), sender="ann")
            assert len(json.dumps(api.seen[-1].body)) > 100_000
            answer = await gate.command("model switch", name="small")
            assert (
                "It can read less at once (8,000 tokens), so I shorten long conversations."
                in answer.answer
            )
            await gate.until(lambda: gate.gateway.agents.agents[0].agent_model.name == "small")
            await gate.ask("what was the last number?", sender="ann")
            body = tight.seen[-1].body
            assert len(json.dumps(body)) < 8_000 * 4
            assert "what was the last number?" in json.dumps(body)
            folds = [one for one in await gate.facts("folded") if isinstance(one, ViewFolded)]
            assert folds
            assert "drop" in folds[-1].kinds
            await chosen(gate, "large")
            await gate.ask("and now?", sender="ann")
            assert all(turn.outcome == "replied" for turn in await gate.turns())
        assert not api.violations
        assert (
            bool(tight.violations) == summarised
        )  # what is too long for it to summarise leaves without a summary


@story
async def test_what_cannot_be_made_ready_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ModelApi() as api:
        made = configured(tmp_path, api)
        async with serving(made) as gate:
            first = gate.equipment.pool.get("reverie", "other").primary

            async def fails() -> None:
                raise ModelUnusable("no `weights`\nthere")

            monkeypatch.setattr(first, "start", fails)
            assert (await gate.command("model here", name="main")).ok  # the room has its own
            answer = await gate.command("model switch", name="other")
            assert answer.answer == "`reverie` uses `other` from its next answer on."
            await gate.screen.until(1)
            told = gate.screen.parts[0].body
            assert told.startswith("I cannot use `other`: `no 'weights' there`.")
            assert (await gate.command("model reset")).ok
            await gate.ask("one", sender="ann")
        assert asked(api) == [OPENAI]


@story
async def test_the_list_tells_what_there_is_and_no_secret(tmp_path: Path) -> None:
    async with ModelApi() as api:
        models: dict[str, Any] = {
            "odd`name": {"provider": "a", "name": "no-such-model", "fallbacks": ["other"]}
        }
        async with serving(configured(tmp_path, api, models)) as gate:
            await chosen(gate, "other")
            told = (await gate.command("model list")).answer
            lines = [line.split("; ") for line in told.splitlines()]
            assert [line[0] for line in lines] == [
                "- `main`: openai `gpt-first`",
                "- `other`: anthropic `claude-sonnet-5-5`",
                "- `odd'name`: anthropic `no-such-model`",
            ]
            assert lines[0][1:] == ["reads 32,000 tokens, answers up to 8,000", "price not known"]
            assert lines[1][2:] == ["price known", "sees images", "used by `reverie`"]
            assert lines[2][2:] == ["price not known", "sees images", "if it fails: `other`"]
            for secret in ("sk-secret", api.url):
                assert secret not in told
            answer = await gate.command("model switch", name="othre")
            assert not answer.ok
            assert answer.answer == (
                "There is no model `othre`. Did you mean `other`? `model list` shows all."
            )
            assert "`x'y`" in (await gate.command("model switch", name="x`y")).answer


@story
async def test_a_room_has_its_own_model_over_restarts_until_default_and_others_keep_theirs(
    tmp_path: Path,
) -> None:
    async with ModelApi() as api:
        api.default = lambda _: Answer(text="I see.")
        made = configured(tmp_path, api)
        wrong = "There is no model `othr`. Did you mean `other`? `model list` shows all."

        async def talk(gate: Gate) -> None:
            await gate.ask("one", sender="ann")
            await gate.ask("reverie: two", sender="ann", room="lobby")

        async with serving(made) as gate:
            assert (await gate.command("model here", name="othr")).answer == wrong
            await gate.command("model here", name="other")
            await talk(gate)
            kept = await gate.facts("room_assigned")
            assert [one.model for one in kept if isinstance(one, RoomAssigned)] == ["other"]
            shown = await gate.command("model here")
            assert (shown.answer, shown.facts) == ("This room uses `other`.", ())
        async with serving(made) as gate:
            await talk(gate)
            await gate.command("model here", name="default")
            await talk(gate)
        assert asked(api) == [ANTHROPIC, OPENAI, ANTHROPIC, OPENAI, OPENAI, OPENAI]


@story
async def test_a_room_that_gets_another_model_is_not_held_back_by_the_outage_of_the_first(
    tmp_path: Path,
) -> None:
    async with ModelApi() as api:
        away = Answer(status=429, headers={"retry-after": "900"})
        api.default = lambda body: away if body["model"] == OPENAI[0] else Answer(text="I see.")
        async with serving(configured(tmp_path, api)) as gate:
            await gate.console.receive_message("reverie: one", sender="ann", room="lobby")
            await gate.until(lambda: len(asked(api)) == 1)
            await gate.console.receive_message("two", sender="ann")
            await gate.until(lambda: gate.gateway.agents.agents[0].is_put_off(ANN.conversation))
            await gate.command("model here", name="other")
            await gate.until(lambda: "I see." in [part.body for part in gate.screen.parts])
        assert asked(api)[0] == OPENAI
        assert asked(api).count(ANTHROPIC) == 1


@story
async def test_what_was_chosen_for_a_room_and_is_gone_no_longer_counts(tmp_path: Path) -> None:
    async with ModelApi() as api:
        api.default = lambda _: Answer(text="I see.")
        made = configured(tmp_path, api, {"third": {"provider": "a", "name": "claude-sonnet-5-5"}})
        async with serving(made) as gate:
            await gate.command("model here", name="third")
            await gate.ask("one", sender="ann")
        async with serving(configured(tmp_path, api)) as gate:
            await gate.ask("two", sender="ann")
        assert asked(api) == [ANTHROPIC, OPENAI]


@story
async def test_another_agent_answers_in_a_room_until_default(
    tmp_path: Path,
) -> None:
    async with ModelApi() as api:
        api.default = lambda _: Answer(text="I see.")
        elsewhere = [{"match": {"channel": CONSOLE, "room": "attic"}}]
        mira = {"id": "mira", "model": "other", "bindings": elsewhere}
        agents = [mira, {"id": "reverie", "model": "main"}]
        async with serving(configured(tmp_path, api, agents=agents)) as gate:
            answer = await gate.command("persona here", name="mirra")
            assert answer.answer == "There is no agent `mirra`. Did you mean `mira`?"
            await gate.command("persona here", name="mira")
            await gate.ask("one", sender="ann")
            await gate.command("persona here", name="default")
            await gate.ask("two", sender="ann")
        assert asked(api) == [ANTHROPIC, OPENAI]


def test_an_admin_of_one_room_chooses_its_model_but_no_agent_with_its_memory_and_tools() -> None:
    def may(command: str, everywhere: Role) -> bool:
        meant = TABLE.people[command].find_meant("here")
        return meant.is_allowed_for("admin", direct=False, everywhere=everywhere)

    assert may("model", "guest")
    assert not may("persona", "guest")
    assert may("persona", "admin")


@story
async def test_after_a_restart_the_gaps_between_all_requests_of_a_turn_count_as_before(
    tmp_path: Path,
) -> None:
    def expected(gate: Gate) -> float:
        [cache] = gate.equipment.pool.caches
        return cache.forecast("reverie", ANN.conversation).expected_requests

    async with ModelApi() as api:
        api.then(Answer(calls=(("c", "no_such_tool", "{}"),)), Answer(text="I see."))
        made = configured(tmp_path, api)
        async with serving(made) as gate:
            await gate.ask("one", sender="ann")
            await gate.calm()
            before = expected(gate)
        async with serving(made) as gate:
            await until(lambda: expected(gate) == before)
