"""Effects of a command: facts that become durable together with its answer, and what follows once they are.

A message past a limit, and a stranger's request, have effects of the same form.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from gateway.core.events import ConversationId, Post, PostKey
from gateway.core.facts import Fact, Judgement, PostQueued
from gateway.store.types import AppendResult, NewEntry


class EffectFact(NamedTuple):
    """A fact that a command adds to the log."""

    fact: Fact
    place: ConversationId | None = None
    """Conversation of its entry. None: where the command was given."""
    key: str = ""
    """Deduplication key of its entry. Empty: derived from the command's key."""
    judged: Judgement | None = None
    """Judgement of the fact, if that is an event."""


def build_notice_end(notice: Post | None, outcome: str) -> Sequence[EffectFact]:
    """Return the post that takes the buttons from a notice and adds a line with the outcome. Empty: it has none.

    One for each notice: the first outcome counts.
    """
    if notice is None or not notice.buttons:
        return ()
    key = PostKey(hashlib.sha256(f"outcome:{notice.key}".encode()).hexdigest()[:26])
    ended = replace(notice, key=key, text=f"{notice.text}\n\n{outcome}", buttons=(), replaces=notice.key)
    return (EffectFact(PostQueued(post=ended), notice.to.conversation, f"post:{key}"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEffect:
    """Result of a command that is not yet in the log. What it changes may stay locked until `settle` is called."""

    answer: str
    """Text for the sender. Empty: none, or it is posted separately."""
    facts: tuple[EffectFact, ...] = ()
    """Facts to append, all in one transaction."""
    settle: Callable[[AppendResult | None], None] = lambda _: None
    """To be called exactly once, in any case: with the append result of the command's own entry, or with None if that
    is not known. Follow-up actions happen only if that entry is new. Returns at once."""

    def __add__(self, other: "CommandEffect") -> "CommandEffect":
        """Combine two effects, with the answer of the first."""

        def settle(result: AppendResult | None) -> None:
            self.settle(result)
            other.settle(result)

        return CommandEffect(answer=self.answer, facts=(*self.facts, *other.facts), settle=settle)

    def entries(self, command: NewEntry) -> Sequence[NewEntry]:
        """Return the entries to append after the command's own; none is written if that one is a duplicate."""
        keys = [None if command.key is None else f"changed:{command.key}:{number}" for number in range(len(self.facts))]
        return build_effect_entries(self.facts, keys, at=command.at, place=command.conversation, cause=command)


def build_effect_entries(
    facts: Sequence[EffectFact],
    keys: Sequence[str | None],
    *,
    at: datetime,
    place: ConversationId | None,
    cause: NewEntry | None = None,
) -> list[NewEntry]:
    """Return the entries of these facts, with their judgements. `keys`, `place`: of facts that name none."""
    entries = list[NewEntry]()
    for effect, key in zip(facts, keys, strict=True):
        where = effect.place or place
        entries.append(NewEntry(fact=effect.fact, at=at, conversation=where, key=effect.key or key, cause=cause))
        if effect.judged is not None:
            entries.append(NewEntry(fact=effect.judged, at=at, conversation=where, cause=entries[-1]))
    return entries
