"""Labels: who wrote a text, and who may read it. Pure.

A model may act upon every text in its request, and may repeat any of it. So each piece of text
carries a label, for as long as anything made of it is kept: a message and, apart from it, what it
forwards or quotes, an attachment, a topic, a file, a page, a note, a summary. Labels are joined: a
request has the integrity of its least trusted piece, and may be read by those who may read every
piece. A person who passes on other people's words does not lend them authority.

The lattice is that of information-flow control (Denning, "A lattice model of secure information
flow", 1976), as FIDES (arXiv:2505.23643) and CaMeL (arXiv:2503.18813) use it for agents. What a
label allows is decided in `gateway.core.permissions`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from gateway.core.frozen import frozen
from gateway.core.scopes import OWNER_SCOPE, PUBLIC, TRUSTED_ROLES

Integrity = Literal["outside", "guest", "member", "admin", "owner"]
"""Lowest standing among the authors of a text. `outside`: they have no role here, or nobody knows
who they are."""

INTEGRITIES: Final[tuple[Integrity, ...]] = ("outside", "guest", "member", "admin", "owner")
"""The lowest first."""
_RANKS: Final[Mapping[str, int]] = {integrity: rank for rank, integrity in enumerate(INTEGRITIES)}
MAX_READERS: Final = 16
"""Scopes that one label names. A text made of more places is for a verified owner in private
alone."""


@frozen(kw_only=False)
class Label:
    """Label of a piece of text. Default: written by the operator, an owner or the agent itself, for
    everybody.
    """

    integrity: Integrity = "owner"
    readers: tuple[str, ...] = ()
    """Scopes (`gateway.core.scopes`), sorted: only who can read all of them may read the text.
    Empty: everybody."""
    source: str = ""
    """Piece that has this integrity, in the gateway's own words: the handle of a message, the name
    of a tool. Empty: not known, or it is the operator's, an owner's or the agent's own."""

    def __or__(self, other: "Label") -> "Label":
        return self if self == other else join((self, other))

    @property
    def is_trusted(self) -> bool:
        """True if owners, admins and the agent itself wrote all of it."""
        return self.integrity in TRUSTED_ROLES


TRUSTED_LABEL: Final = Label()
"""Label of text by owners, admins or the agent itself, which everybody may read."""
OUTSIDE_LABEL: Final = Label("outside")
"""Label of text from outside, whose author is not known, which everybody may read."""
MEMORY_LABEL: Final = Label("admin", (OWNER_SCOPE,), source="MEMORY.md")
"""Label of USER.md and MEMORY.md: dreams make that of the notes of owners and admins."""


@dataclass(slots=True, eq=False)
class RequestLabel:
    """Label of everything in a turn's requests so far. One object for all calls of a turn."""

    label: Label = TRUSTED_LABEL


def join(labels: Iterable[Label]) -> Label:
    """Return the label of all these texts together."""
    lowest, readers = TRUSTED_LABEL, set[str]()
    for one in labels:
        readers.update(one.readers)
        if one.integrity != lowest.integrity:
            is_lower = _RANKS.get(one.integrity, 0) < _RANKS.get(lowest.integrity, 0)
            lowest = one if is_lower else lowest
        elif one.source and not lowest.source:
            lowest = one
    source = lowest.source if lowest.integrity != "owner" else ""
    limited = sorted(readers) if len(readers) <= MAX_READERS else [OWNER_SCOPE]
    return Label(lowest.integrity, tuple(limited), source)


def rank_integrity(integrity: str) -> int:
    """Return the rank of an integrity or of a role: higher means more rights. Anything unknown is
    `outside`.
    """
    return _RANKS.get(integrity, 0)


def label_of_role(role: str, source: str = "") -> Label:
    """Return the label of a text whose author has this role. A blocked person counts as somebody
    outside.
    """
    return Label(INTEGRITIES[_RANKS.get(role, 0)], source=source)


def label_of_work(integrity: str, readers: tuple[str, ...], work: str) -> Label:
    """Return the label of a notice that some work has ended (`TaskFinished`)."""
    return replace(label_of_role(integrity, f"the end of a {work}"), readers=readers)


def role_of_integrity(integrity: str) -> str:
    """Return the role whose rights an author of this integrity has: outside, those of a guest."""
    return "guest" if integrity == "outside" else integrity


def describe_integrity(integrity: str) -> str:
    """Return in words whose text has this integrity at least."""
    if integrity == "outside":
        return "text from outside"
    return f"words of {integrity}s" + ("" if integrity == "owner" else " and above")


def readers_of(scope: str) -> tuple[str, ...]:
    """Return `Label.readers` for a text of one scope."""
    return () if scope == PUBLIC else (scope,)
