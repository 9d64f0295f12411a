"""How types of notifications register themselves: by being seen. Pure.

A table counts each type, and when it was first and last seen. Rooms and people are parts of a type, and a server
can make up as many as it likes: so each family of types (all of one channel and word, `irc.libera.room`) has room
for a number of them, and whatever comes later is counted together, as `irc.libera.room.*`. Nothing is ever taken
out, so that it does not matter how the log is cut into transactions, and a rebuild finds the same.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from gateway.events import ConversationId

MAX_FAMILY_TYPES: Final = 200
"""Types that are counted each for itself in a family: more rooms than most people are in."""

COUNT_TYPES: Final = f"""
WITH new AS (
    SELECT key AS first, value ->> 0 AS family, value ->> 1 AS type, value ->> 2 AS together,
        value ->> 3 AS times, value ->> 4 AS first_at, value ->> 5 AS last_at, value ->> 6 AS last
    FROM json_each(?)
), met AS (
    SELECT *, EXISTS (
        SELECT 1 FROM notification_type AS old WHERE old.family = new.family AND old.type = new.type
    ) AS known, (SELECT count(*) FROM notification_type AS old WHERE old.family = new.family) AS size
    FROM new
), placed AS (
    SELECT *, size + row_number() OVER (PARTITION BY family, known ORDER BY first) AS position FROM met
), named AS (
    SELECT *, iif(known OR position <= {MAX_FAMILY_TYPES}, type, together) AS name FROM placed
), told AS (
    SELECT family, name, times,
        first_value(first_at) OVER (PARTITION BY family, name ORDER BY first) AS first_at,
        first_value(last_at) OVER (PARTITION BY family, name ORDER BY last DESC) AS last_at
    FROM named
)
INSERT INTO notification_type (family, type, count, first_at, last_at)
SELECT family, name, sum(times), first_at, last_at FROM told WHERE true GROUP BY family, name
ON CONFLICT DO UPDATE SET count = count + excluded.count, last_at = excluded.last_at
"""  # noqa: S608 - constants only
"""Takes what `merge_sightings` gives. `WHERE true`: else ON would be a join's
(https://www.sqlite.org/lang_upsert.html#parsing_ambiguity)."""


class TypeSighting(NamedTuple):
    """A type that was seen, in the order in which `COUNT_TYPES` reads it."""

    family: str
    """Empty: of types that name no place, e.g. `irc.libera.link`."""
    type: str
    together: str
    """As what it is counted if its family is full."""
    times: int
    first_at: str
    """UTC, as the log has it. First and last in the log's order: a clock may have been set back between."""
    last_at: str


@lru_cache(maxsize=4_096)
def type_family(dotted: str, conversation: ConversationId | None) -> str:
    """The type without its place; empty if it names none."""
    place = (conversation or "").partition("/")[2].replace("/", ".").replace("%2F", "/").replace("%25", "%")
    return dotted.removesuffix(f".{place}") if place and dotted.endswith(f".{place}") else ""


def sight_type(dotted: str, conversation: ConversationId | None, at: str) -> TypeSighting:
    """One notification's."""
    of = type_family(dotted, conversation)
    return TypeSighting(of, dotted, f"{of}.*" if of else "*", 1, at, at)


def merge_sightings(many: Iterable[TypeSighting]) -> str:
    """Each type once, in the order of first sight, as JSON: one step of the database, however many there are.

    The table becomes the same as if each came by itself: a family that was full when a type came first is full
    for ever, and one that was not has that type from then on.
    """
    found: dict[tuple[str, str], list[str | int]] = {}
    for place, one in enumerate(many):
        before = found.setdefault((one.family, one.type), [*one[:3], 0, *one[4:], place])
        before[3:] = [int(before[3]) + one.times, before[4], one.last_at, place]
    return json.dumps(list(found.values()))
