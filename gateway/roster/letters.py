"""What follows from decisions once they are durable, whoever made them: people are told, rooms are entered and left."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from gateway.access import is_room_allowed
from gateway.changes import EffectFact
from gateway.events import Address, DeliveryReport, Post, PostKey
from gateway.records import CodeEnded, CodeIssued, PostQueued, RoomAccessChanged
from gateway.standing import AccessPolicy
from gateway.store import AppendResult, NewEntry, OutboxPost

_MAX_LEAVING: Final = 1_000


def code_over_key(request: CodeIssued) -> str:
    """The key of the fact that this code is over. Names of codes come again; their salts do not."""
    return f"code_over:{request.salt}"


def build_requester_notice(request: CodeIssued, text: str) -> EffectFact:
    """Tell whoever was shown a code what became of it: one post for each code, with the fact that it is over."""
    key, to = _notice_key(code_over_key(request)), request.at
    return EffectFact(PostQueued(post=Post(key=key, to=to, text=text, style="notice")), to.conversation, f"post:{key}")


def _notice_key(over: str) -> PostKey:
    return PostKey(hashlib.sha256(f"letter:{over}".encode()).hexdigest()[:26])


class AccessNotifier:
    """For `Store.hear`. A letter that was not delivered before the process ended is delivered by the next one."""

    def __init__(
        self,
        policy: AccessPolicy,
        post: Callable[[OutboxPost], None],
        join: Callable[[Address], None],
        leave: Callable[[Address], None],
    ) -> None:
        """Each is called on the event loop, and returns at once. `join`, `leave`: of rooms on any channel.

        `policy` knows what holds by then: the picture of that is to hear of it first.
        """
        self._policy = policy
        self._post = post
        self._join = join
        self._leave = leave
        self._leaving: dict[PostKey, Address] = {}
        """To be left once that was said there."""

    def on_appended(self, entries: Sequence[NewEntry], written: Sequence[AppendResult]) -> None:
        """Do what follows."""
        fresh = [(entry, one) for entry, one in zip(entries, written, strict=True) if one.is_new]
        over = {
            _notice_key(entry.key) for entry, _ in fresh if entry.key is not None and isinstance(entry.fact, CodeEnded)
        }
        for entry, one in fresh:
            match entry.fact:
                case PostQueued(post=post) if post.key in over:
                    self._post(OutboxPost(seq=one.seq, at=entry.at, post=post, parts=()))
                case RoomAccessChanged(open=True, room=room):
                    self._join(room)
                case RoomAccessChanged(room=room) if not is_room_allowed(self._policy, room):
                    self._leave_after_notice(room, fresh)
                case DeliveryReport(post=key) if key in self._leaving:
                    self._leave(self._leaving.pop(key))
                case _:
                    pass

    def _leave_after_notice(self, room: Address, fresh: Sequence[tuple[NewEntry, AppendResult]]) -> None:
        """At once, or when what was to be said there with it has been."""
        posts = [entry.fact.post for entry, _ in fresh if isinstance(entry.fact, PostQueued)]
        last = next(
            (post for post in reversed(posts) if (post.to.channel, post.to.room) == (room.channel, room.room)), None
        )
        if last is None or len(self._leaving) >= _MAX_LEAVING:
            self._leave(room)
        else:
            self._leaving[last.key] = room
