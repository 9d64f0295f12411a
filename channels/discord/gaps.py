"""How far we have heard, what may have been missed, and what to ask the history for. Pure.

Discord keeps no queue for those who were away: what was said meanwhile is found by asking each channel for
its messages behind the newest one that we know. Until that is done the durable position must not move on.
"""

import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta

from channels.discord.directory import DiscordPlace
from channels.discord.ids import parse_id, snowflake_at

ANY_ROOM = "*"
MAX_DIRECTS = 64
"""So many direct chats are remembered, the latest ones: Discord does not list them."""
_MARGIN = timedelta(seconds=60)
"""Messages reach us not quite in the order of their ids; what comes twice is known by its id."""


class DiscordProgress:
    """How far each shard has heard."""

    def __init__(self, cursor: str | None, history_age_s: float) -> None:
        self._history_age = timedelta(seconds=min(history_age_s, 10.0**9))
        marks, self.direct_chats = _parse_cursor(cursor)
        self._previous_mark = min(marks, default=None)
        """Where the process before us was with all that it heard; None once every shard has begun from there. The
        earliest of its shards counts for all of ours: there may be another number of them now."""
        self._marks: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._guessed: set[int] = set()
        """Shards whose position is of our own clock, which may go ahead of Discord's."""
        self._gaps: dict[int, set[str]] = {}
        """Shard -> guilds whose gap is still open; an empty name is that of direct chats, `ANY_ROOM` any guild at
        all."""

    def begin_session(self, shard: int, guilds: Iterable[str], now: datetime, *, shards: int = 1) -> None:
        """A new session, one of `shards`: all that it covers may have a gap. `guilds`: none if they are not told."""
        if shard not in self._marks and self._previous_mark is not None:
            self._marks[shard] = self._previous_mark
        known = shard in self._marks and self._history_age > timedelta(0)
        told = set(guilds) or ({ANY_ROOM} if shards == 1 else set())  # a shard may well have none
        self._gaps[shard] = told | ({""} if self.direct_chats and not shard else set()) if known else set()
        if not known:
            self._marks[shard] = snowflake_at(now)
            self._guessed.add(shard)
        self._newest[shard] = max(self._newest.get(shard, 0), self._marks[shard])
        if len(self._marks) >= shards:
            self._previous_mark = None

    def open_gap(self, shard: int, guild: str) -> None:
        """A guild has become unavailable: what is said there now is not told."""
        if self._history_age > timedelta(0):
            self._gaps.setdefault(shard, set()).add(guild)

    def has_gap(self, shard: int, guild: str) -> bool:
        """Whether there may be a gap."""
        missing = self._gaps.get(shard, set())
        return guild in missing or (bool(guild) and ANY_ROOM in missing)

    def has_guild_gap(self, shard: int) -> bool:
        """Whether there may be a gap in some guild."""
        return bool(self._gaps.get(shard, set()) - {""})

    def close_gap(self, shard: int, guild: str) -> None:
        """There is no gap any more."""
        self._gaps.get(shard, set()).discard(guild)

    def record_message(self, shard: int, message: str, now: datetime) -> None:
        """This message is being made durable. One that claims to be from the future moves us no further than now."""
        number = min(int(message), snowflake_at(now + _MARGIN))
        if shard in self._guessed:
            self._guessed.discard(shard)
            self._marks[shard], self._newest[shard] = min(self._marks.get(shard, number), number), 0
        self._newest[shard] = max(self._newest.get(shard, 0), number)

    def record_direct(self, direct: str, message: str) -> None:
        """Somebody wrote to us directly."""
        self.direct_chats.pop(direct, None)
        self.direct_chats[direct] = message
        while len(self.direct_chats) > MAX_DIRECTS:
            del self.direct_chats[next(iter(self.direct_chats))]

    def history_after(self, shard: int, now: datetime) -> int:
        """Ask for what has a larger id than this."""
        mark = self._marks.get(shard, self._previous_mark or 0)
        return max(mark - (int(_MARGIN / timedelta(milliseconds=1)) << 22), snowflake_at(now - self._history_age))

    def exceeds_history_age(self, shard: int, now: datetime) -> bool:
        """Whether the gap begins before what is still answered."""
        return self._marks.get(shard, 0) < snowflake_at(now - self._history_age)

    def to_cursor(self) -> str:
        """All of it, as text; the position of a shard with gaps is where they begin."""
        for shard, heard in self._newest.items():
            if not self._gaps.get(shard):
                self._marks[shard] = heard
        marks = {str(shard): str(mark) for shard, mark in sorted(self._marks.items())}
        if self._previous_mark is not None:
            marks["*"] = str(self._previous_mark)
        return json.dumps({"v": 1, "marks": marks, "directs": self.direct_chats}, separators=(",", ":"))


def _parse_cursor(cursor: str | None) -> tuple[list[int], dict[str, str]]:
    """Positions and direct chats that a cursor tells; nothing if it is none of ours."""
    try:
        found = json.loads(cursor or "{}")
        marks = [int(parse_id(mark)) for mark in found.get("marks", {}).values()]
        directs = {parse_id(direct): parse_id(message) for direct, message in found.get("directs", {}).items()}
        return marks, {direct: message for direct, message in directs.items() if direct and message}
    except (ValueError, AttributeError, TypeError):
        return [], {}


def is_open_place(place: DiscordPlace, rooms: AbstractSet[str]) -> bool:
    """Whether something is said there, and the operator has opened it: itself, what it hangs on, its guild, or all."""
    return place.has_messages and (ANY_ROOM in rooms or bool({place.id, place.parent, place.guild} & rooms))


def plan_history(places: Iterable[DiscordPlace], since: int, rooms: AbstractSet[str]) -> list[DiscordPlace]:
    """Which of them to ask for what was said behind `since`: all but those whose newest message is known and older.

    What is opened by itself is asked in any case: `last_message_id` need not be right.
    """
    return [
        place
        for place in places
        if is_open_place(place, rooms)
        and (place.id in rooms or not place.last_message or int(place.last_message) > since)
    ]
