"""Answers that may not have arrived: the notice about them, and the posts that the command `again` repeats."""

import hashlib
from typing import Final

from gateway.core.events import Command, ConversationId, DeliveryReport, Message, Post, PostKey
from gateway.core.facts import MESSAGE_KINDS, PostQueued
from gateway.store import LogEntry, StoreReader

MAX_REPEATED: Final = 3
"""Newest answers that are repeated at once."""
LOOK_BACK: Final = 200
"""Deliveries and commands of a place that are searched."""


async def find_uncertain_posts(reader: StoreReader, conversation: ConversationId) -> list[Post]:
    """Return answers that may not have arrived there and were not repeated since, oldest first."""
    posts = list[Post]()
    for stored in reversed(
        await reader.newest_entries(LOOK_BACK, kinds=["delivery", "command"], conversation=conversation)
    ):
        fact = stored.fact
        if isinstance(fact, Command) and fact.name == "again" and await _was_answered(reader, stored):
            break
        if (
            isinstance(fact, DeliveryReport)
            and fact.state == "uncertain"
            and (post := await _find_answer(reader, fact.post))
        ):
            posts.append(post)
        if len(posts) == MAX_REPEATED:
            break
    return posts[::-1]


async def build_uncertain_notice(reader: StoreReader, post: Post, *, marks_replies: bool) -> Post | None:
    """Return the notice for the person who waited for this answer; always the same. None: nobody, or it is no answer.

    `marks_replies`: the channel shows to whom a post replies; else the notice begins with the name.
    """
    if await _find_answer(reader, post.key) is None:
        return None
    newest = await reader.newest_entries(1, kinds=MESSAGE_KINDS, conversation=post.to.conversation)
    direct = bool(newest) and isinstance(newest[0].fact, Message) and newest[0].fact.kind == "direct"
    if not direct and post.reply_to is None:
        return None
    question = None if direct else await reader.entry_by_key(f"message:{post.to.conversation}:{post.reply_to}")
    name = question.fact.sender.name if question is not None and isinstance(question.fact, Message) else ""
    called = f"{name}: " if name and not marks_replies else ""
    how = 'say "again"' if direct else 'say "again" to me'
    return Post(
        key=PostKey(hashlib.sha256(f"doubt:{post.key}".encode()).hexdigest()[:26]),
        to=post.to,
        text=f"{called}(My last answer may not have reached you: {how} and I repeat it.)",
        reply_to=post.reply_to,
        style="notice",
        private=post.private,
    )


async def _was_answered(reader: StoreReader, command: LogEntry) -> bool:
    return any(isinstance(one.fact, PostQueued) for one in await reader.caused_by(command.seq))


async def _find_answer(reader: StoreReader, key: PostKey) -> Post | None:
    """Return the post if a turn or `again` posted it. Notices of the gateway itself are never repeated."""
    queued = await reader.entry_by_key(f"post:{key}")
    if queued is None or queued.cause is None or not isinstance(queued.fact, PostQueued):
        return None
    cause = await reader.entry(queued.cause)
    if cause is None:
        return None
    repeats = isinstance(cause.fact, Command) and cause.fact.name == "again"
    return queued.fact.post if repeats or cause.kind in ("turn_ended", "acted") else None
