"""Who runs which group, as Telegram tells it. Pure bookkeeping.

Messages do not say so, so it is asked for, and only in groups where the operator wants something to follow from it.
What was not told lately is not believed: then nobody has any rank.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from channels.payload import Json, moment, obj, raw, whole

RANKS: Final = ("creator", "administrator")
"""core.telegram.org/bots/api#chatmember"""
CHANGES: Final = "chat_member"
"""The update that tells of changes, where the bot is an administrator itself. It must be asked for by name."""
ANY: Final = "*"
_HOLDS: Final = timedelta(minutes=10)
_AGAIN: Final = timedelta(minutes=1)
"""After a question that was not answered."""
_AT_ONCE: Final = 20
_MOST_GROUPS: Final = 1_000
_GROUPS: Final = frozenset({"group", "supergroup"})


@dataclass(slots=True)
class _Group:
    asked_at: datetime
    is_answered: bool = False
    ranks: dict[int, str] = field(default_factory=dict)


class Ranks:
    """Of one account. Chats are named as Telegram names them now."""

    def __init__(self, rooms: AbstractSet[str]) -> None:
        """`rooms`: where it matters; `*`: anywhere. Empty: nowhere, so nothing is ever asked."""
        self._rooms = rooms
        self._groups: OrderedDict[str, _Group] = OrderedDict()

    @property
    def is_enabled(self) -> bool:
        """Whether it matters anywhere."""
        return bool(self._rooms)

    def chats_to_ask(self, updates: Iterable[Json], now: datetime) -> list[str]:
        """Chats to be asked about before these updates are read."""
        if not self._rooms:
            return []
        chats = dict.fromkeys(chat for update in updates if (chat := _group(update)) and self._is_relevant(chat))
        return [chat for chat in chats if self._is_due(chat, now)][:_AT_ONCE]

    def record_answer(self, chat: str, members: Sequence[Json] | None, now: datetime) -> None:
        """The answer to a question of `now`; None: there is none."""
        found = _Group(asked_at=now, is_answered=members is not None)
        for member in members or ():
            user, status = whole(obj(member, "user"), "id"), raw(member, "status")
            if user is not None and status in RANKS:
                found.ranks[user] = status
        self._groups[chat] = found
        self._groups.move_to_end(chat)
        if len(self._groups) > _MOST_GROUPS:
            self._groups.popitem(last=False)

    def apply_update(self, update: Json) -> None:
        """Take in one update: somebody was made an administrator, or is none any more."""
        change = obj(update, CHANGES)
        member, when = obj(change, "new_chat_member"), moment(change, "date")
        group = self._groups.get(str(whole(obj(change, "chat"), "id")))
        user, status = whole(obj(member, "user"), "id"), raw(member, "status")
        if group is None or user is None:
            return
        if status not in RANKS:
            group.ranks.pop(user, None)
        elif when is not None and when >= group.asked_at:  # an older one may be over: the answer knows
            group.ranks[user] = status

    def ranks_of(self, chat: str, user: str, now: datetime) -> tuple[str, ...]:
        """What somebody is there: one rank or none."""
        group = self._groups.get(chat)
        if group is None or not group.is_answered or now - group.asked_at >= _HOLDS or not user.isdecimal():
            return ()
        rank = group.ranks.get(int(user))
        return (rank,) if rank else ()

    def _is_relevant(self, chat: str) -> bool:
        return ANY in self._rooms or chat in self._rooms

    def _is_due(self, chat: str, now: datetime) -> bool:
        group = self._groups.get(chat)
        return group is None or now - group.asked_at >= (_HOLDS if group.is_answered else _AGAIN)


def _group(update: Json) -> str:
    """The group that an update is of; empty: none."""
    for event in update.values():
        for holder in (event, obj(event, "message")):
            chat = obj(holder, "chat")
            if raw(chat, "type") in _GROUPS and (number := whole(chat, "id")) is not None:
                return str(number)
    return ""
