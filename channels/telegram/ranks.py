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

from channels.payload import Json, get_datetime, get_int, get_object, get_raw_str

RANKS: Final = ("creator", "administrator")
"""core.telegram.org/bots/api#chatmember"""
MEMBER_UPDATE: Final = "chat_member"
"""The update that tells of changes, where the bot is an administrator itself. It must be asked for by name."""
ANY_CHAT: Final = "*"
_MAX_AGE: Final = timedelta(minutes=10)
_RETRY_AFTER: Final = timedelta(minutes=1)
"""After a question that was not answered."""
_MAX_CONCURRENT: Final = 20
_MAX_GROUPS: Final = 1_000
_GROUP_TYPES: Final = frozenset({"group", "supergroup"})


@dataclass(slots=True)
class _GroupRanks:
    asked_at: datetime
    is_answered: bool = False
    ranks: dict[int, str] = field(default_factory=dict)


class TelegramRanks:
    """Of one account. Chats are named as Telegram names them now."""

    def __init__(self, rooms: AbstractSet[str]) -> None:
        """`rooms`: where it matters; `*`: anywhere. Empty: nowhere, so nothing is ever asked."""
        self._rooms = rooms
        self._groups: OrderedDict[str, _GroupRanks] = OrderedDict()

    @property
    def is_enabled(self) -> bool:
        """Whether it matters anywhere."""
        return bool(self._rooms)

    def chats_to_ask(self, updates: Iterable[Json], now: datetime) -> list[str]:
        """Chats to be asked about before these updates are read."""
        if not self._rooms:
            return []
        chats = dict.fromkeys(chat for update in updates if (chat := _group_of(update)) and self._is_relevant(chat))
        return [chat for chat in chats if self._is_due(chat, now)][:_MAX_CONCURRENT]

    def record_answer(self, chat: str, members: Sequence[Json] | None, now: datetime) -> None:
        """The answer to a question of `now`; None: there is none."""
        found = _GroupRanks(asked_at=now, is_answered=members is not None)
        for member in members or ():
            user, status = get_int(get_object(member, "user"), "id"), get_raw_str(member, "status")
            if user is not None and status in RANKS:
                found.ranks[user] = status
        self._groups[chat] = found
        self._groups.move_to_end(chat)
        if len(self._groups) > _MAX_GROUPS:
            self._groups.popitem(last=False)

    def apply_update(self, update: Json) -> None:
        """Take in one update: somebody was made an administrator, or is none any more."""
        change = get_object(update, MEMBER_UPDATE)
        member, when = get_object(change, "new_chat_member"), get_datetime(change, "date")
        group = self._groups.get(str(get_int(get_object(change, "chat"), "id")))
        user, status = get_int(get_object(member, "user"), "id"), get_raw_str(member, "status")
        if group is None or user is None:
            return
        if status not in RANKS:
            group.ranks.pop(user, None)
        elif when is not None and when >= group.asked_at:  # an older one may be over: the answer knows
            group.ranks[user] = status

    def ranks_of(self, chat: str, user: str, now: datetime) -> tuple[str, ...]:
        """What somebody is there: one rank or none."""
        group = self._groups.get(chat)
        if group is None or not group.is_answered or now - group.asked_at >= _MAX_AGE or not user.isdecimal():
            return ()
        rank = group.ranks.get(int(user))
        return (rank,) if rank else ()

    def _is_relevant(self, chat: str) -> bool:
        return ANY_CHAT in self._rooms or chat in self._rooms

    def _is_due(self, chat: str, now: datetime) -> bool:
        group = self._groups.get(chat)
        return group is None or now - group.asked_at >= (_MAX_AGE if group.is_answered else _RETRY_AFTER)


def _group_of(update: Json) -> str:
    """The group that an update is of; empty: none."""
    for event in update.values():
        for holder in (event, get_object(event, "message")):
            chat = get_object(holder, "chat")
            if get_raw_str(chat, "type") in _GROUP_TYPES and (number := get_int(chat, "id")) is not None:
                return str(number)
    return ""
