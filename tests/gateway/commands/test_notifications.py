"""`notify`: types and thresholds, shown and set by commands, on a real store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.commands.context import CommandContext
from gateway.commands.definition import SuggestionSource
from gateway.commands.dispatcher import rank_suggestions
from gateway.commands.notifications import (
    MAX_TYPE_CHARS,
    suggest_types,
)
from gateway.config.models import AttentionConfig
from gateway.core.clock import ManualClock
from gateway.core.events import Message
from gateway.core.facts import AttentionThresholdSet, Judgement
from gateway.core.identity import Role
from gateway.store import NewEntry, Store
from gateway.stream.attention import (
    MAX_THRESHOLDS,
    LiveAttention,
    assess,
)
from tests.gateway.commands.commands_kit import Counter, typing
from tests.gateway.stream.test_attention import YES, said
from tests.kits.commands import command_context
from tests.kits.policies import attention_of
from tests.kits.settings import live_settings
from tests.kits.store import NOW, judged, place
from tests.kits.store import said as written

HERE = place("#a")


CONFIGURED = AttentionConfig.model_validate(
    {
        "rules": [{"type": "irc", "urgency": "low", "keyword": "tea"}],
        "thresholds": {"irc.libera": "low"},
    }
)


@dataclass
class Kit:
    store: Store
    clock: ManualClock
    overrides: LiveAttention

    def at(self, role: Role = "admin", *, direct: bool = False) -> Counter:
        return Counter(self.store, self.clock, self.context, HERE, role, direct=direct)

    @property
    def context(self) -> CommandContext:
        """Commands wired as in the gateway."""
        return command_context(self.store, self.clock, attention=self.overrides)

    def judged(self, message: Message) -> tuple[str, int, str]:
        """Return the judgement of an event by now."""
        one = assess(self.overrides.policy, message, YES, "ambient")
        return one.fate, one.urgency, one.rule

    async def came(self, number: int, dotted: str) -> None:
        """Append an event of that type, in its own minute."""
        at = NOW + timedelta(minutes=number)
        message = replace(written(number), at=at)
        one = judged(message, 2)
        assert isinstance(one.fact, Judgement)
        await self.store.append([message, replace(one, at=at, fact=replace(one.fact, type=dotted))])


@asynccontextmanager
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    clock = ManualClock(NOW)
    async with await Store.open(tmp_path / "s.db", clock) as store:
        overrides = attention_of(store, live_settings(attention=CONFIGURED))
        await overrides.load()
        yield Kit(store, clock, overrides)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Kit]:
    async with kit(tmp_path) as made:
        yield made


async def test_types_are_told_the_newest_first_with_what_passes(it: Kit) -> None:
    assert await it.at().says("notify types") == "There was no notification so far."
    await it.came(1, "irc.test.room.#`a")
    await it.came(2, "irc.test.room.#b")
    await it.came(3, "irc.test.direct.42")
    await it.at()("notify threshold", type="irc.test.direct", urgency="urgent")
    last = "so far, the last at 2026-03-04 05"
    assert (await it.at().says("notify types")).splitlines() == [
        (
            f"- `irc.test.direct`: 1 {last}:09 UTC; only urgent and above reach me (`notify threshold "
            "irc.test.direct`)"
        ),
        f"- `irc.test.room`: 2 {last}:08 UTC; all of them reach me",
    ]


async def test_a_threshold_is_set_seen_and_taken_back(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        at = it.at()
        await it.came(1, "irc.libera.room")
        stands = (
            "`irc.libera.room.#a`: only low and above reach me (`attention.thresholds.irc.libera`)."
        )
        assert await at.says("notify threshold", type="`irc.libera.room.#a`") == stands
        assert (
            await at.says("notify threshold", type="discord.x")
            == "`discord.x`: all of them reach me."
        )
        assert it.judged(said("mention"))[0] == "due"
        words = await at.says("notify threshold", type="irc.libera.mention", urgency="urgent")
        assert (
            words == "From now on, for `irc.libera.mention`: only urgent and above reach me. "
            "No notification of this type came so far; is it spelled right?"
        )
        assert await at.says("notify threshold", type="irc.libera", urgency="normal") == (
            "From now on, for `irc.libera`: only normal and above reach me."
        )
        assert it.judged(said("room", "tea")) == ("noted", 1, "notify threshold irc.libera is 2")
        (first, _) = await it.store.entries(kinds=["threshold_set"])
        assert first.fact == AttentionThresholdSet(
            type="irc.libera.mention", value=3, by="irc.test:root"
        )
    async with kit(tmp_path) as it:
        at = it.at()
        assert it.judged(said("room", "tea"))[2] == "notify threshold irc.libera is 2"
        assert await at.says("notify threshold", type="irc.libera", urgency="reset") == (
            "The threshold is removed. `irc.libera`: only low and above reach me "
            "(`attention.thresholds.irc.libera`)."
        )
        assert it.judged(said("room", "tea"))[0] == "due"
        again = await at("notify threshold", type="irc.libera", urgency="reset")
        assert again.answer.startswith("No threshold was set by command for this type.")
        assert not again.changes
        assert "`notify threshold irc.libera.mention`" in await at.says(
            "notify threshold", type="irc.libera.mention.#x"
        )
        assert len(await it.store.entries(kinds=["threshold_set"])) == 3


async def test_a_type_that_never_came_may_be_misspelt(it: Kit) -> None:
    await it.came(1, "irc.test.room.#a")
    for dotted in ("irc.test.room.*", "irc.test.room.#new", "irc.test", "irc"):
        assert "No notification of this type" not in await it.at().says(
            "notify threshold", type=dotted, urgency="low"
        )
    assert set(it.overrides.thresholds) == {
        "irc.test.room",
        "irc.test.room.#new",
        "irc.test",
        "irc",
    }
    assert "No notification of this type" in await it.at().says(
        "notify threshold", type="irc.y", urgency="low"
    )


async def test_wrong_arguments_change_nothing(it: Kit) -> None:
    for dotted in ("`", "*", "a\nb", "x" * (MAX_TYPE_CHARS + 1), "..", "\u202eirc"):
        for more in ({}, {"urgency": "low"}):
            answer = await it.at()("notify threshold", type=dotted, **more)
            assert not answer.ok
            assert answer.answer.startswith("Write a type")
    assert await it.store.entries(kinds=["threshold_set"]) == []


async def test_there_are_only_so_many(it: Kit) -> None:
    facts = [
        AttentionThresholdSet(type=f"irc.{number}", value=1, by="x")
        for number in range(MAX_THRESHOLDS)
    ]
    await it.store.append([NewEntry(fact=fact, at=NOW) for fact in facts])
    answer = await it.at()("notify threshold", type="new", urgency="low")
    assert not answer.ok
    assert not answer.changes
    assert (await it.at()("notify threshold", type="irc.7", urgency="normal")).ok
    assert it.overrides.thresholds["irc.7"] == 2


async def test_types_are_suggested(it: Kit) -> None:

    async def suggested(source: SuggestionSource, sub: str, arg: str, begun: str = "") -> list[str]:
        return rank_suggestions(await source(typing(HERE, "notify", sub, arg), it.context), begun)

    for number, word in enumerate(["room.#a", "direct.ann", "room.#b"]):
        await it.came(number, f"irc.test.{word}")
    told = await suggested(suggest_types, "threshold", "type")
    assert told == ["irc.test.room", "irc.test", "irc", "irc.test.direct"]
    assert await suggested(suggest_types, "threshold", "type", "`DIR") == ["irc.test.direct"]
    for number in range(40):
        await it.came(10 + number, f"irc.{'long' * 50}.{number}")
        await it.came(60 + number, f"irc.x.room.#{number}")
    told = await suggested(suggest_types, "threshold", "type")
    assert len(told) == 25
    assert max(map(len, told)) <= 100
