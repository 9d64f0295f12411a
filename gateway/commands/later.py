"""What is told of a command after its answer, because it took long or went wrong."""

import hashlib
from collections.abc import Callable

from gateway.clock import Clock
from gateway.events import Command, MessageId, Post, PostKey
from gateway.records import PostQueued, Seq, dedup_key
from gateway.store import NewEntry, OutboxPost, Store


class CommandFollowUp:
    """Says it where the command was given."""

    def __init__(
        self, store: Store, clock: Clock, post: Callable[[OutboxPost], None], named: Callable[[str], str] = str
    ) -> None:
        """`post` is called with what is said, after it is durable. `named` puts the titles of places into it."""
        self._with_titles = named
        self._store, self._clock, self._post = store, clock, post

    async def send(self, command: Command, cause: Seq, words: str, *, private: bool) -> None:
        """Say it as a reply, once. `cause`: the command's entry. Raises `StoreError`."""
        post = Post(
            key=follow_up_key(command, "later"),
            to=command.at,
            text=self._with_titles(words),
            reply_to=MessageId(command.id),
            private=private,
        )
        now, place = self._clock.now(), command.at.conversation
        entry = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=f"post:{post.key}", cause=cause)
        (queued,) = await self._store.append([entry])
        if queued.is_new:
            self._post(OutboxPost(seq=queued.seq, at=now, post=post, parts=()))


def follow_up_key(command: Command, what: str) -> PostKey:
    """Of a post that a command makes besides its answer: always the same, as long as a ULID."""
    return PostKey(hashlib.sha256(f"{what}:{dedup_key(command)}".encode()).hexdigest()[:26])
