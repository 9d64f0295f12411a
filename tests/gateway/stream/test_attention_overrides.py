"""Thresholds and rules set at run time: their effect on attention, also after a restart."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.core.clock import ManualClock
from gateway.core.facts import AttentionRuleSet, AttentionThresholdSet, Fact
from gateway.store import NewEntry, Store
from gateway.store.rebuild import rebuild
from gateway.stream.attention import MAX_RULES, AttentionPolicy, AttentionRule, LiveAttention, judge
from tests.gateway.stream.test_attention import ALARM, AT, YES, said
from tests.kits.channels import story
from tests.kits.policies import attention_of
from tests.kits.store import NOW

CONFIGURED = AttentionPolicy(
    rules=(AttentionRule(type="irc", urgency=1, keyword="tea"),), thresholds={"irc.libera": 1, "irc.libera.mention": 3}
)


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Store, LiveAttention]]:
    """Load them as a start does."""
    async with await Store.open(tmp_path / "s.db", ManualClock(NOW)) as store:
        overrides = attention_of(store)
        await overrides.load()
        yield store, overrides


async def write(store: Store, *facts: Fact) -> None:
    await store.append([NewEntry(fact=fact, at=NOW, conversation=AT.conversation) for fact in facts])


def rule(name: str, type: str = "irc", *, keyword: str = "", gone: bool = False) -> AttentionRuleSet:  # noqa: A002 - it is what it is
    return AttentionRuleSet(rule=name, type=type, urgency=3, keyword=keyword, gone=gone, by="irc:ann")


def bar(type: str, value: int | None) -> AttentionThresholdSet:  # noqa: A002 - it is what it is
    return AttentionThresholdSet(type=type, value=value, by="irc:ann")


def policy(overrides: LiveAttention) -> AttentionPolicy:
    return AttentionPolicy(rules=CONFIGURED.rules, thresholds=CONFIGURED.thresholds, overrides=overrides.overrides)


@story
async def test_a_rule_that_is_made_decides_first_from_then_on_until_it_is_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, overrides):
        assert judge(policy(overrides), said("room", "tea?"), YES, "all").rule == "attention.rules[0]"
        await write(store, rule("r1", keyword="TEA"))
        judged = judge(policy(overrides), said("room", "tea?"), YES, "ambient")
        assert (judged.rule, judged.urgency, judged.fate) == ("notify rule r1", 3, "due")
        assert judge(policy(overrides), said("room", "coffee"), YES, "ambient").fate == "noted"
        await write(store, rule("r2", "irc.libera.room"))
        assert judge(policy(overrides), said("room", "tea?"), YES, "ambient").rule == "notify rule r2"
    async with opened(tmp_path) as (store, overrides):
        assert judge(policy(overrides), said("room", "tea?"), YES, "ambient").rule == "notify rule r2"
        await write(store, rule("r2", gone=True))
        assert judge(policy(overrides), said("room", "tea?"), YES, "ambient").rule == "notify rule r1"
        await write(store, rule("r1", gone=True))
        assert judge(policy(overrides), said("room", "tea?"), YES, "all").rule == "attention.rules[0]"
        assert overrides.rules == []
    assert await rebuild(tmp_path / "s.db") == []


@story
async def test_a_threshold_stands_in_place_of_the_configured_one_until_it_is_reset(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, overrides):
        assert judge(policy(overrides), ALARM, YES, "all").fate == "due"
        await write(store, bar("agent", 3), bar("irc.libera.mention", 0), bar("irc.libera", 2))
        judged = judge(policy(overrides), ALARM, YES, "all")
        assert (judged.fate, judged.rule) == ("noted", "notify threshold agent is 3")
        assert judge(policy(overrides), said("room", "tea?"), YES, "all").rule == "notify threshold irc.libera is 2"
        assert judge(policy(overrides), said("mention", "hi"), YES, "all", level="focused").fate == "due"
        await write(store, bar("irc.libera", None), bar("never", None))
    async with opened(tmp_path) as (_, overrides):
        assert judge(policy(overrides), ALARM, YES, "all").rule == "notify threshold agent is 3"
        assert dict(overrides.overrides.thresholds) == {"agent": 3, "irc.libera.mention": 0}
        assert judge(policy(overrides), said("room", "tea?"), YES, "all").rule == "attention.rules[0]"
        assert judge(policy(overrides), said("room", "tea?"), YES, "all").fate == "due"


@story
async def test_no_name_of_a_rule_is_given_twice(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, overrides):
        first, over = overrides.reserve_name()
        second, _ = overrides.reserve_name()
        assert (first, second) == ("r1", "r2")
        over()
        await write(store, rule("r2"), rule("r3"), rule("by hand"))
        await write(store, rule("r3", gone=True))
    async with opened(tmp_path) as (_, overrides):
        assert [one.rule for one in overrides.rules] == ["r2", "by hand"]
        assert overrides.reserve_name()[0] == "r4"


@story
async def test_names_stay_new_after_as_many_as_may_be_were_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        names = [f"r{number}" for number in range(1, MAX_RULES + 1)]
        await write(store, *(rule(name) for name in names))
        await write(store, *(rule(name, gone=True) for name in names))
    async with opened(tmp_path) as (_, overrides):
        assert overrides.reserve_name()[0] == f"r{MAX_RULES + 1}"


@story
async def test_it_is_full_with_those_that_are_about_to_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, overrides):
        await write(store, *(rule(f"r{number}") for number in range(1, MAX_RULES)))
        full = [overrides.is_full]
        _, over = overrides.reserve_name()
        full.append(overrides.is_full)
        over()
        full.append(overrides.is_full)
        name, over = overrides.reserve_name()
        await write(store, rule(name))
        over()
        full.append(overrides.is_full)
        assert full == [False, True, False, True]


@story
async def test_what_is_written_while_the_log_is_read_counts(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, _):
        await write(store, bar("irc", 3), bar("x", 1), rule("r1"), rule("r2"))
        for steps in range(40):
            overrides = attention_of(store)
            reading = asyncio.create_task(overrides.load())
            for _ in range(steps):
                await asyncio.sleep(0)
            await write(store, bar("irc", steps % 4), bar("x", None), rule("r1", gone=True), rule(f"r{steps + 3}"))
            await reading
            assert dict(overrides.overrides.thresholds) == {"irc": steps % 4}
            assert [one.rule for one in overrides.rules][-1] == f"r{steps + 3}"
            assert len(overrides.rules) == steps + 2
            await write(store, bar("x", 1), rule("r1"))
            await write(store, rule("r1", gone=True), rule("r1"))


@story
async def test_what_was_in_the_log_already_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, overrides):
        entry = NewEntry(fact=bar("irc", 2), at=NOW, conversation=AT.conversation, key="once")
        await store.append([entry])
        await write(store, bar("irc", 0))
        await store.append([entry])
        assert dict(overrides.overrides.thresholds) == {"irc": 0}


def test_the_command_line_tells_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "channels": {"c": {"platform": "console"}},
        "agents": [{"id": "a"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": str(tmp_path / "s.db")},
        "attention": {"thresholds": {"irc": "low"}, "rules": [{"type": "irc", "urgency": "low"}]},
    }
    (tmp_path / "reverie.yaml").write_text(json.dumps(config))

    @story
    async def written(*facts: Fact) -> None:
        async with opened(tmp_path) as (store, _):
            await write(store, *facts)

    def printed(*words: str) -> list[str]:
        assert main(["notifications", *words, "--config", str(tmp_path)]) == 0
        return capsys.readouterr().out.splitlines()[:-1]  # the last says that no gateway is running

    written()
    assert printed("threshold", "irc.a") == ["`irc.a` passes from low on (`attention.thresholds.irc`)."]
    assert printed("threshold", "x") == ["`x` passes whatever it is."]
    written(bar("irc", 3), rule("r7", "irc.b", keyword="fire"))
    assert printed("threshold", "irc.a") == ["`irc.a` passes from urgent on (`notify threshold irc`)."]
    assert printed("rules")[:2] == [
        "- `notify rule r7`: `irc.b, with 'fire': urgent`; 0 decided by it",
        "- `attention.rules[0]`: `irc: low`; 0 decided by it",
    ]
