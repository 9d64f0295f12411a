"""What follows from decisions once they are durable, whoever made them: people are told, rooms are entered and left."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

from gateway.access import Policy, listed
from gateway.changes import Made
from gateway.events import Address, Delivery, Post, PostKey
from gateway.records import CodeGiven, CodeOver, Queued, RoomOpened
from gateway.store import Appended, Entry, OutboxPost

_MOST_LEAVING: Final = 1_000


def ended(request: CodeGiven) -> str:
    """The key of the fact that this code is over. Names of codes come again; their salts do not."""
    return f"code_over:{request.salt}"


def letter(request: CodeGiven, text: str) -> Made:
    """Tell whoever was shown a code what became of it: one post for each code, with the fact that it is over."""
    key, to = _key(ended(request)), request.at
    return Made(Queued(post=Post(key=key, to=to, text=text, style="notice")), to.conversation, f"post:{key}")


def _key(over: str) -> PostKey:
    return PostKey(hashlib.sha256(f"letter:{over}".encode()).hexdigest()[:26])


class Letters:
    """For `Store.hear`. A letter that was not delivered before the process ended is delivered by the next one."""

    def __init__(
        self,
        policy: Policy,
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

    def on_appended(self, entries: Sequence[Entry], written: Sequence[Appended]) -> None:
        """Do what follows."""
        fresh = [(entry, one) for entry, one in zip(entries, written, strict=True) if one.is_new]
        over = {_key(entry.key) for entry, _ in fresh if entry.key is not None and isinstance(entry.fact, CodeOver)}
        for entry, one in fresh:
            match entry.fact:
                case Queued(post=post) if post.key in over:
                    self._post(OutboxPost(seq=one.seq, at=entry.at, post=post, parts=()))
                case RoomOpened(open=True, room=room):
                    self._join(room)
                case RoomOpened(room=room) if not listed(self._policy, room):
                    self._leave_after_notice(room, fresh)
                case Delivery(post=key) if key in self._leaving:
                    self._leave(self._leaving.pop(key))
                case _:
                    pass

    def _leave_after_notice(self, room: Address, fresh: Sequence[tuple[Entry, Appended]]) -> None:
        """At once, or when what was to be said there with it has been."""
        posts = [entry.fact.post for entry, _ in fresh if isinstance(entry.fact, Queued)]
        last = next(
            (post for post in reversed(posts) if (post.to.channel, post.to.room) == (room.channel, room.room)), None
        )
        if last is None or len(self._leaving) >= _MOST_LEAVING:
            self._leave(room)
        else:
            self._leaving[last.key] = room
