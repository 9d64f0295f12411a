"""`notify`: thresholds and rules, shown and set by commands, on a real store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.commands.context import CommandContext
from gateway.commands.notifications import (
    MAX_KEYWORD_CHARS,
    MAX_TYPE_CHARS,
    MAX_TYPES,
    RECENT_NOTIFICATIONS,
    suggest_rules,
    suggest_types,
)
from gateway.commands.suggestions import SuggestionSource, rank_suggestions
from gateway.core.clock import ManualClock
from gateway.core.events import Message
from gateway.core.facts import AttentionRuleSet, AttentionThresholdSet, Fact, Judgement
from gateway.core.identity import Role
from gateway.store import NewEntry, Store
from gateway.stream.attention import MAX_RULES, MAX_THRESHOLDS, AttentionPolicy, AttentionRule, LiveAttention, judge
from tests.gateway.commands.commands_kit import Counter, typing
from tests.gateway.stream.test_attention import YES, said
from tests.kits.commands import command_context
from tests.kits.settings import live_settings
from tests.kits.store import NOW, judged, place
from tests.kits.store import said as written

HERE = place("#a")


class PlayedAttention(LiveAttention):
    """Attention that the test configures."""

    configured = AttentionPolicy(
        rules=(AttentionRule(type="irc", urgency=1, keyword="tea"),), thresholds={"irc.libera": 1}
    )

    @property
    def policy(self) -> AttentionPolicy:
        return replace(self.configured, overrides=self.overrides)


@dataclass
class Kit:
    """One process."""

    store: Store
    clock: ManualClock
    overrides: PlayedAttention

    def at(self, role: Role = "admin", *, direct: bool = False) -> Counter:
        """Return the counter of a person."""
        return Counter(self.store, self.clock, self.context, HERE, role, direct=direct)

    @property
    def context(self) -> CommandContext:
        """Commands wired as in the gateway."""
        return command_context(self.store, self.clock, attention=self.overrides)

    def judged(self, message: Message) -> tuple[str, int, str]:
        """Return the judgement of an event by now."""
        one = judge(self.overrides.policy, message, YES, "ambient")
        return one.fate, one.urgency, one.rule

    async def came(self, number: int, dotted: str, rule: str = "default") -> None:
        """Append an event of that type, in its own minute."""
        at = NOW + timedelta(minutes=number)
        message = replace(written(number), at=at)
        one = judged(message, 2)
        assert isinstance(one.fact, Judgement)
        await self.store.append([message, replace(one, at=at, fact=replace(one.fact, type=dotted, rule=rule))])


@asynccontextmanager
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    clock = ManualClock(NOW)
    async with await Store.open(tmp_path / "s.db", clock) as store:
        overrides = PlayedAttention(store, live_settings())
        await overrides.load()
        yield Kit(store, clock, overrides)


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Kit]:
    async with kit(tmp_path) as made:
        yield made


async def test_types_are_told_the_newest_first_with_what_passes(it: Kit) -> None:
    assert await it.at().says("notify types") == "There was no notification so far."
    await it.came(1, "irc.libera.room.#`a")
    await it.came(2, "irc.libera.room.#`a")
    await it.came(3, "telegram.main.reaction.7")
    await it.at()("notify threshold", type="telegram", urgency="urgent")
    last = "so far, the last at 2026-03-04 05"
    assert (await it.at().says("notify types")).splitlines() == [
        f"- `telegram.main.reaction.7`: 1 {last}:09 UTC; urgent and above pass (`notify threshold telegram`)",
        f"- `irc.libera.room.#\\u0060a`: 2 {last}:08 UTC; low and above pass (`attention.thresholds.irc.libera`)",
    ]


async def test_who_speaks_alone_with_the_agent_is_named_to_an_owner_alone(it: Kit) -> None:
    for number, dotted in enumerate(
        [
            "telegram.main.direct.42",
            "telegram.main.reaction.42",
            "telegram.main.room.7",
            "telegram.other.reaction.42",
            "irc.x.direct.ann.7",
        ]
    ):
        await it.came(number, dotted)
    told = (await it.at("owner").says("notify types")).splitlines()
    assert [line.split("`")[1] for line in told[:-1]] == ["telegram.other.reaction.42", "telegram.main.room.7"]
    assert told[-1] == "- and 3 types of direct chats"
    alone = (await it.at("owner", direct=True).says("notify types")).splitlines()
    assert len(alone) == 5
    assert (await it.at("admin", direct=True).says("notify types")).splitlines() == told


async def test_of_many_types_those_that_came_before_are_counted(it: Kit) -> None:
    for number in range(MAX_TYPES + 3):
        await it.came(number, f"irc.x.room.#{number}")
    lines = (await it.at().says("notify types")).splitlines()
    assert len(lines) == MAX_TYPES + 1
    assert lines[-1] == "- and 3 older types"
    assert lines[0].startswith(f"- `irc.x.room.#{MAX_TYPES + 2}`")


async def test_a_threshold_is_set_seen_and_taken_back(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        at = it.at()
        await it.came(1, "irc.libera.room.#a")
        stands = "`irc.libera.room.#a`: low and above pass (`attention.thresholds.irc.libera`)."
        assert await at.says("notify threshold", type="`irc.libera.room.#a`") == stands
        assert await at.says("notify threshold", type="discord.x") == "`discord.x`: all pass."
        assert it.judged(said("mention"))[0] == "due"
        words = await at.says("notify threshold", type="irc.libera.mention", urgency="urgent")
        assert (
            words == "From now on, for `irc.libera.mention`: urgent and above pass. "
            "No notification of this type came so far; is it spelled right?"
        )
        assert await at.says("notify threshold", type="irc.libera", urgency="normal") == (
            "From now on, for `irc.libera`: normal and above pass."
        )
        assert it.judged(said("room", "tea")) == ("noted", 1, "notify threshold irc.libera is 2")
        (first, _) = await it.store.entries(kinds=["threshold_set"])
        assert first.fact == AttentionThresholdSet(type="irc.libera.mention", value=3, by="irc.test:root")
    async with kit(tmp_path) as it:
        at = it.at()
        assert it.judged(said("room", "tea"))[2] == "notify threshold irc.libera is 2"
        assert await at.says("notify threshold", type="irc.libera", urgency="reset") == (
            "The threshold is removed. `irc.libera`: low and above pass (`attention.thresholds.irc.libera`)."
        )
        assert it.judged(said("room", "tea"))[0] == "due"
        again = await at("notify threshold", type="irc.libera", urgency="reset")
        assert again.text.startswith("No threshold was set by command for this type.")
        assert again.effect is None
        assert "`notify threshold irc.libera.mention`" in await at.says(
            "notify threshold", type="irc.libera.mention.#x"
        )
        assert len(await it.store.entries(kinds=["threshold_set"])) == 3


async def test_what_is_counted_together_is_no_unknown_type(it: Kit) -> None:
    await it.came(1, "irc.x.room.*")
    for dotted in ("irc.x.room.*", "irc.x.room.#new", "irc.x", "irc"):
        assert "No notification of this type" not in await it.at().says("notify threshold", type=dotted, urgency="low")
    assert set(it.overrides.overrides.thresholds) == {"irc.x.room", "irc.x.room.#new", "irc.x", "irc"}
    assert "No notification of this type" in await it.at().says("notify threshold", type="irc.y", urgency="low")
    assert "No notification of this type" not in await it.at().says("notify rule", type="*.room.*", urgency="low")


async def test_a_rule_is_added_in_front_listed_and_taken_back(tmp_path: Path) -> None:
    async with kit(tmp_path) as it:
        at = it.at()
        assert (await at.says("notify rules")).splitlines() == [
            "- `attention.rules[0]`: `irc, with 'tea': low`; decisions: 0",
            "(counted over the newest 0 notifications)",
        ]
        assert await at.says("notify rule", urgency="urgent", type="irc.libera", keyword="tea  `now`") == (
            "I added rule `r1` in front of all others: `irc.libera, with 'tea \\u0060now\\u0060': urgent`. "
            "No notification of this type came so far; is it spelled right?"
        )
        assert it.judged(said("room", "Tea `NOW`!")) == ("due", 3, "notify rule r1")
        assert it.judged(said("room", "tea")) == ("due", 1, "attention.rules[0]")
        await at("notify rule", urgency="normal", type="irc.*.room.*")
        await it.came(1, "irc.libera.room.#a", "notify rule r1")
    async with kit(tmp_path) as it:
        at = it.at()
        assert it.judged(said("room", "tea")) == ("due", 2, "notify rule r2")
        assert (await at.says("notify rules")).splitlines() == [
            "- `notify rule r2`: `irc.*.room.*: normal`; decisions: 0",
            "- `notify rule r1`: `irc.libera, with 'tea \\u0060now\\u0060': urgent`; decisions: 1",
            "- `attention.rules[0]`: `irc, with 'tea': low`; decisions: 0",
            "(counted over the newest 1 notifications)",
        ]
        assert await at.says("notify unrule", id="`R2`") == "I removed rule `r2`."
        assert it.judged(said("room", "tea")) == ("due", 1, "attention.rules[0]")
        again = await at("notify unrule", id="r2")
        assert (again.ok, again.text) == (
            False,
            "There is no rule `r2` that was added by command. These were added: `r1`.",
        )
        assert (
            await at.says("notify rule", urgency="low", type="irc")
            == "I added rule `r3` in front of all others: `irc: low`."
        )


async def test_nothing_is_there(it: Kit) -> None:
    it.overrides.configured = AttentionPolicy(thresholds={})
    assert await it.at().says("notify rules") == "There are no rules."
    answer = await it.at()("notify unrule", id="`@everyone\n")
    assert (answer.ok, answer.text) == (False, "There is no rule `@everyone` that was added by command.")


async def test_wrong_arguments_change_nothing(it: Kit) -> None:
    for dotted in ("`", "*", "a\nb", "x" * (MAX_TYPE_CHARS + 1), "..", "\u202eirc"):
        for sub, more in (("threshold", {}), ("threshold", {"urgency": "low"}), ("rule", {"urgency": "low"})):
            answer = await it.at()(f"notify {sub}", type=dotted, **more)
            assert not answer.ok
            assert answer.text.startswith("Write a type")
    answer = await it.at()("notify rule", type="irc", urgency="low", keyword="x" * (MAX_KEYWORD_CHARS + 1))
    assert (answer.ok, answer.text) == (False, f"A keyword can have at most {MAX_KEYWORD_CHARS} characters.")
    assert await it.store.entries(kinds=["rule_set", "threshold_set"]) == []


async def test_the_same_event_twice_is_done_once(it: Kit) -> None:
    at = it.at()
    for _ in range(2):
        await at.give("notify rule", {"urgency": "low", "type": "irc"}, id="n1")
        await at.give("notify threshold", {"urgency": "low", "type": "irc"}, id="n2")
    assert [one.rule for one in it.overrides.rules] == ["r1"]
    assert len(await it.store.entries(kinds=["threshold_set"])) == 1
    for _ in range(MAX_RULES):
        await at.give("notify rule", {"urgency": "low", "type": "irc"}, kept=False)
    assert [one.rule for one in it.overrides.rules] == ["r1"]
    assert (await at("notify rule", urgency="low", type="irc")).ok


async def test_there_are_only_so_many(it: Kit) -> None:
    facts: list[Fact] = [
        AttentionRuleSet(rule=f"r{one}", type="irc", urgency=1, by="x") for one in range(MAX_RULES - 1)
    ]
    facts += [AttentionThresholdSet(type=f"irc.{number}", value=1, by="x") for number in range(MAX_THRESHOLDS)]
    await it.store.append([NewEntry(fact=fact, at=NOW) for fact in facts])
    assert (await it.at()("notify rule", type="irc", urgency="low")).ok
    answer = await it.at()("notify rule", type="irc", urgency="low")
    assert (answer.ok, answer.effect) == (False, None)
    answer = await it.at()("notify threshold", type="new", urgency="low")
    assert (answer.ok, answer.effect) == (False, None)
    assert (await it.at()("notify threshold", type="irc.7", urgency="normal")).ok
    assert it.overrides.overrides.thresholds["irc.7"] == 2


async def test_rules_count_the_newest_notifications_alone(it: Kit) -> None:
    entries = list[NewEntry]()
    for number in range(RECENT_NOTIFICATIONS + 5):
        message = written(number)
        one = judged(message)
        assert isinstance(one.fact, Judgement)
        entries += [message, replace(one, fact=replace(one.fact, rule="attention.rules[0]"))]
    await it.store.append(entries)
    assert f"decisions: {RECENT_NOTIFICATIONS}" in await it.at().says("notify rules")


async def test_types_and_rules_are_suggested(it: Kit) -> None:

    async def suggested(source: SuggestionSource, sub: str, arg: str, begun: str = "") -> list[str]:
        return rank_suggestions(await source(typing(HERE, "notify", sub, arg), it.context), begun)

    for number, dotted in enumerate(["irc.x.room.#a", "irc.x.direct.ann", "irc.x.reaction.ann", "irc.x.room.#b"]):
        await it.came(number, dotted)
    told = await suggested(suggest_types, "rule", "type")
    assert told == ["irc.x.room.#b", "irc.x.room", "irc.x", "irc", "irc.x.room.#a"]
    assert await suggested(suggest_types, "threshold", "type", "`ROOM.#A") == ["irc.x.room.#a"]
    for number in range(40):
        await it.came(10 + number, f"irc.{'long' * 50}.{number}")
        await it.came(60 + number, f"irc.x.room.#{number}")
    told = await suggested(suggest_types, "rule", "type")
    assert len(told) == 25
    assert max(map(len, told)) <= 100
    assert await suggested(suggest_rules, "unrule", "id") == []
    await it.at()("notify rule", type="irc", urgency="low")
    assert await suggested(suggest_rules, "unrule", "id", "R") == ["r1"]
