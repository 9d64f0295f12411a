"""The commands about what may interrupt: types of notifications, thresholds and rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from channels.base import CommandTyped
from channels.text import line
from gateway import notifications
from gateway.attention import Policy, bar_of
from gateway.changes import Change, Made
from gateway.commands.sight import matching, sees_all
from gateway.commands.world import Answer, Ask, Handler, World
from gateway.notifications import URGENCIES, WORDS
from gateway.overrides import MOST_RULES, MOST_THRESHOLDS, Overrides, rule_of
from gateway.records import Fact, Judged, RuleSet, ThresholdSet
from gateway.store import Reader, SeenType
from gateway.tools.consent import code

MOST_TYPES: Final = 40
"""In one answer, those that came last."""
LAST: Final = 500
"""Notifications among which is counted what a rule decided."""
TYPE_CHARS: Final = 200
KEYWORD_CHARS: Final = 100
_SAID_CHARS: Final = TYPE_CHARS + KEYWORD_CHARS + 200
_DIRECT: Final = ".direct."
_NO_TYPE: Final = "Write a type, as `notify types` lists them, or the beginning of some: whole words between its dots."


class NotifyCommands:
    """`notify`."""

    def __init__(self, overrides: Overrides, reader: Reader, policy: Policy) -> None:
        """`policy`: what attention goes by, with what the overrides hold."""
        self._overrides = overrides
        self._reader = reader
        self._policy = policy

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """By name and sub."""
        return {
            "notify types": self.types,
            "notify threshold": self.threshold,
            "notify rules": self.rules,
            "notify rule": self.rule,
            "notify unrule": self.unrule,
        }

    async def types(self, ask: Ask, _world: World) -> str:
        """Those that came, the newest first; who speaks to the agent alone is counted, but for an owner alone."""
        found = await self._reader.notification_types()
        told = found if sees_all(ask) else _open(found)
        newest = sorted(told, key=lambda one: one.last_at, reverse=True)
        bars = notifications.thresholds(self._policy, [one.type for one in newest[:MOST_TYPES]])
        lines = [
            f"- {code(one.type, TYPE_CHARS)}: {one.count}, the last {one.last_at:%Y-%m-%d %H:%M} UTC; "
            f"{_passes(bar.lowest, bar.where)}"
            for one, bar in zip(newest, bars, strict=False)
        ]
        if len(newest) > MOST_TYPES:
            lines.append(f"- and {len(newest) - MOST_TYPES} that came before")
        if len(told) < len(found):
            lines.append(f"- and {len(found) - len(told)} of direct chats")
        return "\n".join(lines) if lines else "No notification came so far."

    async def threshold(self, ask: Ask, _world: World) -> Answer:
        """How a type stands, or a lowest urgency for it from now on."""
        dotted = _type(ask.arguments["type"]).removesuffix(".*")
        if not dotted:
            return Answer(text=_NO_TYPE, ok=False)
        urgency, here = ask.arguments.get("urgency"), self._policy.overrides().thresholds
        if urgency is None:
            return Answer(text=self._describe_threshold(self._policy, dotted))
        if urgency == "reset":
            if dotted not in here:
                return Answer(text=f"Nothing was set here for it. {self._describe_threshold(self._policy, dotted)}")
            left = replace(self._policy.overrides(), thresholds={one: here[one] for one in here if one != dotted})
            then = replace(self._policy, overrides=lambda: left)
            words = f"What was set here is taken back. {self._describe_threshold(then, dotted)}"
            return _changed(words, ThresholdSet(type=dotted, value=None, by=ask.person))
        if dotted not in here and len(here) >= MOST_THRESHOLDS:
            return Answer(text=f"There are {MOST_THRESHOLDS} of them already: take one back with `reset`.", ok=False)
        words = f"From now on {code(dotted, TYPE_CHARS)} {_passes(urgency, '')}.{await self._find_unseen_note(dotted)}"
        return _changed(words, ThresholdSet(type=dotted, value=URGENCIES[urgency], by=ask.person))

    async def rules(self, _ask: Ask, _world: World) -> str:
        """In the order in which they are tried, and how often each decided lately."""
        newest = await self._reader.newest_entries(LAST, kinds=["judged"])
        judged = [one.fact for one in newest if isinstance(one.fact, Judged)]
        found = [one for one in notifications.deciding(self._policy, judged) if one.says]
        lines = [f"- {code(one.rule)}: {code(one.says, _SAID_CHARS)}; {one.decided} decided by it" for one in found]
        return "\n".join([*lines, f"(of the newest {len(judged)} notifications)"]) if lines else "There are no rules."

    async def rule(self, ask: Ask, _world: World) -> Answer:
        """One more, in front of all others."""
        dotted, keyword = _type(ask.arguments["type"]), line(ask.arguments.get("keyword", ""), KEYWORD_CHARS + 1)
        if not dotted:
            return Answer(text=_NO_TYPE, ok=False)
        if len(keyword) > KEYWORD_CHARS:
            return Answer(text=f"A keyword has at most {KEYWORD_CHARS} characters.", ok=False)
        if self._overrides.is_full:
            return Answer(text=f"There are {MOST_RULES} of them already: take one back with `notify unrule`.", ok=False)
        unseen = await self._find_unseen_note(dotted)
        name, over = self._overrides.reserve_name()
        level = URGENCIES[ask.arguments["urgency"]]
        fact = RuleSet(rule=name, type=dotted, urgency=level, keyword=keyword, by=ask.person)
        says = code(notifications.said(rule_of(fact)), _SAID_CHARS)
        words = f"Rule `{name}` is added, in front of all others: {says}.{unseen}"
        return Answer(text=words, effect=Change(answer=words, facts=(Made(fact),), settle=lambda _: over()))

    async def unrule(self, ask: Ask, _world: World) -> Answer:
        """One less, of those that were added."""
        wanted = ask.arguments["id"].strip(" `").lower()
        found = next((one for one in self._overrides.rules if one.rule == wanted), None)
        if found is None:
            added = ", ".join(f"`{one.rule}`" for one in self._overrides.rules)
            there = f"Those that were added here: {added}." if added else "None was added here."
            return Answer(text=f"There is no rule {code(wanted)} to take back. {there}", ok=False)
        return _changed(f"Rule `{found.rule}` is taken back.", replace(found, gone=True, by=ask.person))

    async def suggest(self, typed: CommandTyped) -> list[str]:
        """To suggest: types that came, the newest first, and their beginnings; or the rules that were added."""
        if typed.sub == "unrule":
            return matching([one.rule for one in self._overrides.rules], typed.prefix)
        newest = sorted(_open(await self._reader.notification_types()), key=lambda one: one.last_at, reverse=True)
        words = (one.type.split(".") for one in newest)
        heads = (".".join(some[:end]) for some in words for end in range(len(some), 0, -1))
        return matching(dict.fromkeys(heads), typed.prefix)

    def _describe_threshold(self, policy: Policy, dotted: str) -> str:
        level, says = bar_of(policy, dotted)
        return f"{code(dotted, TYPE_CHARS)} {_passes(WORDS[level], says or 'default')}."

    async def _find_unseen_note(self, dotted: str) -> str:
        """Words for a type of which nothing came: it may be misspelt."""
        for one in await self._reader.notification_types():
            together = one.type.endswith(".*") and dotted.startswith(one.type[:-1])  # counted with others
            if together or one.type == dotted or one.type.startswith(f"{dotted}.") or fnmatchcase(one.type, dotted):
                return ""
        return " Nothing like that came so far."


def _open(types: Sequence[SeenType]) -> list[SeenType]:
    """Without those of direct chats: what else comes there names the same channel and room."""
    heads = [one.type.partition(_DIRECT) for one in types if _DIRECT in one.type]
    alone = {(f"{channel}.", f".{room}") for channel, _, room in heads}
    return [
        one
        for one in types
        if not any(one.type.startswith(channel) and one.type.endswith(room) for channel, room in alone)
    ]


def _type(written: str) -> str:
    """As it may be one; empty: it cannot."""
    dotted = written.strip(" `")
    return dotted if dotted.isprintable() and len(dotted) <= TYPE_CHARS and dotted.strip(".*") else ""


def _passes(lowest: str, says: str) -> str:
    because = f" ({code(says, _SAID_CHARS)})" if says and says != "default" else ""
    return f"passes whatever it is{because}" if lowest == WORDS[0] else f"passes from {lowest} on{because}"


def _changed(words: str, fact: Fact) -> Answer:
    return Answer(text=words, effect=Change(answer=words, facts=(Made(fact),)))
