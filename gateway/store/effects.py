"""What a command changes: facts that become durable with its answer, and what follows once they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.events import ConversationId
from gateway.core.facts import Fact
from gateway.store.types import AppendResult, NewEntry


class EffectFact(NamedTuple):
    """A fact that a command makes."""

    fact: Fact
    place: ConversationId | None = None
    """Where it stands. None: where the command was given."""
    key: str = ""
    """Of its entry. Empty: it is named after the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEffect:
    """What comes of a wish. Until it is settled what it is about is held."""

    answer: str
    facts: tuple[EffectFact, ...] = ()
    """To be written down all in one transaction."""
    settle: Callable[[AppendResult | None], None] = lambda _: None
    """Call it once, in any case: with what became of the entry that asked for it, or None if that is not known. What is
    to follow follows only if it is written now. Returns at once."""

    def __add__(self, other: "CommandEffect") -> "CommandEffect":
        """Both, by these words."""

        def settle(asked: AppendResult | None) -> None:
            self.settle(asked)
            other.settle(asked)

        return CommandEffect(answer=self.answer, facts=(*self.facts, *other.facts), settle=settle)

    def entries(self, asked: NewEntry) -> Sequence[NewEntry]:
        """To be appended behind the entry that asked for it: if that is in the log already, they are not written."""
        return [
            NewEntry(
                fact=made.fact,
                at=asked.at,
                conversation=made.place or asked.conversation,
                key=made.key or (f"changed:{asked.key}:{number}" if asked.key is not None else None),
                cause=asked,
            )
            for number, made in enumerate(self.facts)
        ]
