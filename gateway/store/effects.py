"""Effects: facts that become durable together with an event and its answer, and what follows once
they are.

`CommandEffect` is that of a command; a message past a limit, and a stranger's request, have effects
of the same form. `Decision` is all that was decided about an event.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from gateway.core.events import ConversationId, Post, PostButton, PostKey
from gateway.core.facts import Fact, Judgement, PostQueued, Seq
from gateway.core.frozen import frozen
from gateway.core.i18n import current_language, use_language
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


def queue_post(post: Post) -> EffectFact:
    """Return the fact that has a post delivered: once for each key, however often it is
    appended.
    """
    return EffectFact(PostQueued(post=post), post.to.conversation, f"post:{post.key}")


def build_notice_end(notice: Post | None, outcome: str) -> Sequence[EffectFact]:
    """Return the post that takes the buttons from a notice and adds a line with the outcome. Empty:
    it has none.

    One for each notice: the first outcome counts.
    """
    if notice is None or not notice.buttons:
        return ()
    key = PostKey(hashlib.sha256(f"outcome:{notice.key}".encode()).hexdigest()[:26])
    ended = replace(
        notice, key=key, text=f"{notice.text}\n\n{outcome}", buttons=(), replaces=notice.key
    )
    return (queue_post(ended),)


def _settle_nothing(_result: AppendResult | None) -> None:
    """Nothing follows."""


@frozen
class CommandEffect:
    """Answer of a command and what it changes, not yet in the log. That may stay locked until
    `settle` is called.

    Made by `done` and `refuse`.
    """

    answer: str
    """Text for the sender. Empty: none, or it is posted separately."""
    ok: bool = True
    """False: the request was not carried out. For the audit."""
    facts: tuple[EffectFact, ...] = ()
    """Facts to append, all in one transaction."""
    settle: Callable[[AppendResult | None], None] = _settle_nothing
    """To be called exactly once, in any case: with the append result of the command's own entry, or
    with None if that is not known. Follow-up actions happen only if that entry is new. Returns at
    once."""
    page: int = 1
    buttons: tuple[PostButton, ...] = ()
    """Choices, each a command of its own. Shown where the channel can, so the answer says it,
    too."""
    private: bool | None = None
    """True: only the sender may see the answer. None: as the command's definition says."""
    data: object = None
    """The same for programs: what pydantic can dump to JSON. None: only the text. Shown to the
    operator alone."""

    @property
    def changes(self) -> bool:
        """True if it is to be appended, or settled."""
        return bool(self.facts) or self.settle is not _settle_nothing

    def __add__(self, other: "CommandEffect") -> "CommandEffect":
        """Combine two effects, with the answer of the first."""

        def settle(result: AppendResult | None) -> None:
            self.settle(result)
            other.settle(result)

        return replace(self, facts=(*self.facts, *other.facts), settle=settle)

    def entries(self, command: NewEntry) -> Sequence[NewEntry]:
        """Return the entries to append after the command's own; none is written if that one is a
        duplicate.
        """
        keys = [
            None if command.key is None else f"changed:{command.key}:{number}"
            for number in range(len(self.facts))
        ]
        return build_effect_entries(
            self.facts, keys, at=command.at, place=command.conversation, cause=command
        )


@frozen
class Decision:
    """What is decided about an event, so far."""

    judgement: Judgement
    post: Post | None = None
    """Answers it. None: nothing does."""
    effect: CommandEffect | None = None
    """Facts to append with it, settled then. None: none."""

    def with_facts(self, facts: Sequence[EffectFact]) -> "Decision":
        """Return the decision with more facts to append."""
        if not facts:
            return self
        more = CommandEffect(answer="", facts=tuple(facts))
        return replace(self, effect=more if self.effect is None else self.effect + more)


def done(
    answer: str,
    *facts: Fact | EffectFact,
    then: Callable[[Seq], object] | None = None,
    buttons: tuple[PostButton, ...] = (),
    data: object = None,
) -> CommandEffect:
    """Return the answer of a command that is carried out, with the facts to append.

    `then`: begins what follows, once; it gets the command's own entry, and returns at once. It is
    called in the language of the caller.
    """
    language = current_language()

    def settle(result: AppendResult | None) -> None:
        if then is not None and result is not None and result.is_new:
            with use_language(language):
                then(result.seq)

    return CommandEffect(
        answer=answer,
        facts=tuple(one if isinstance(one, EffectFact) else EffectFact(one) for one in facts),
        settle=_settle_nothing if then is None else settle,
        buttons=buttons,
        data=data,
    )


def refuse(answer: str) -> CommandEffect:
    """Return the answer of a command that is not carried out, and changes nothing."""
    return CommandEffect(answer=answer, ok=False)


def build_effect_entries(
    facts: Sequence[EffectFact],
    keys: Sequence[str | None],
    *,
    at: datetime,
    place: ConversationId | None,
    cause: NewEntry | None = None,
) -> list[NewEntry]:
    """Return the entries of these facts, with their judgements. `keys`, `place`: of facts that name
    none.
    """
    entries = list[NewEntry]()
    for effect, key in zip(facts, keys, strict=True):
        where = effect.place or place
        entries.append(
            NewEntry(
                fact=effect.fact, at=at, conversation=where, key=effect.key or key, cause=cause
            )
        )
        if effect.judged is not None:
            entries.append(
                NewEntry(fact=effect.judged, at=at, conversation=where, cause=entries[-1])
            )
    return entries
