"""What an adapter must remember over a restart. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Self

_OFFSET_EXPIRES = timedelta(days=6)
"""After a week without updates the next id is chosen at random (core.telegram.org/bots/api#update): an
offset as old as that could confirm updates that nobody has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramCursor:
    """How far the updates are taken in, and which groups have a new id."""

    offset: int | None = None
    """The first update not taken in. None: whatever Telegram has."""
    at_s: int = 0
    """Unix time when the last update was taken in."""
    moved: Mapping[str, str] = field(default_factory=dict)
    """Of groups that became supergroups: old id to new."""
    bot: str = ""
    """Whose updates they are, by what stands in front of the token's colon. Empty: that was not written down."""

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Reverse `dump`. What cannot be read is as if there were none: everything pending comes again."""
        try:
            value = json.loads(text or "{}")
            offset, at_s, moved = value.get("offset"), value.get("at", 0), value.get("moved", {})
            bot = str(value.get("bot", ""))
            if (offset is None or isinstance(offset, int)) and isinstance(at_s, int) and isinstance(moved, dict):
                return cls(offset=offset, at_s=at_s, moved={str(old): str(new) for old, new in moved.items()}, bot=bot)
        except (ValueError, AttributeError, RecursionError):
            pass
        return cls()

    def to_json(self) -> str:
        """As JSON, the same for equal cursors."""
        value: dict[str, object] = {"offset": self.offset, "at": self.at_s, "moved": dict(self.moved)}
        if self.bot:
            value["bot"] = self.bot
        return json.dumps(value, sort_keys=True, separators=(",", ":"))

    def for_bot(self, bot: str) -> Self:
        """For this bot: each counts its own updates, and another's offset would confirm what nobody has seen."""
        return replace(self, bot=bot, offset=self.offset if self.bot in ("", bot) else None)

    def request_offset(self, now: datetime) -> int | None:
        """The offset to ask with."""
        return self.offset if now.timestamp() - self.at_s < _OFFSET_EXPIRES.total_seconds() else None

    def advance(self, update_id: int, now: datetime) -> Self:
        """All up to `update_id` is taken in."""
        return replace(self, offset=update_id + 1, at_s=int(now.timestamp()))

    def with_move(self, old: str, new: str) -> Self:
        """The group `old` is now `new`."""
        return self if self.moved.get(old) == new or old == new else replace(self, moved={**self.moved, old: new})

    def known_room(self, chat: str, rooms: frozenset[str]) -> str:
        """Under which id the chat is known to us: the one that the operator lists, else the first it had."""
        if chat in rooms:
            return chat
        return next((old for old, new in self.moved.items() if new == chat), chat)

    def current_chat(self, room: str) -> str:
        """Where Telegram has the room now."""
        return self.moved.get(room, room)
