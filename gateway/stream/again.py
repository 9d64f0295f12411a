"""Answers that may not have arrived, or were refused: the notice for whoever waits, and what the
command `again` repeats.
"""

import hashlib
from dataclasses import replace
from typing import Final

from gateway.core.events import Command, ConversationId, DeliveryReport, Message, Post, PostKey
from gateway.core.facts import MESSAGE_KINDS, PostQueued
from gateway.core.i18n import _, use_language
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_markdown
from gateway.store import StoreReader

TURN_KINDS: Final = ("turn_ended", "acted")
"""Kinds of the entries that cause a post of an agent."""
MAX_REPEATED: Final = 3


async def find_uncertain_posts(reader: StoreReader, conversation: ConversationId) -> list[Post]:
    """Return answers that may not have arrived there and were not repeated since, oldest first."""
    posts = list[Post]()
    for stored in reversed(
        await reader.newest_entries(200, kinds=["delivery", "command"], conversation=conversation)
    ):
        fact = stored.fact
        if isinstance(fact, Command) and fact.name == "again":
            if any(isinstance(one.fact, PostQueued) for one in await reader.caused_by(stored.seq)):
                break
            continue
        if (
            isinstance(fact, DeliveryReport)
            and fact.state == "uncertain"
            and (post := await _find_answer(reader, fact.post))
        ):
            posts.append(post)
        if len(posts) == MAX_REPEATED:
            break
    return posts[::-1]


async def build_doubt_notice(
    reader: StoreReader, post: Post, refusal: str, *, marks_replies: bool
) -> Post | None:
    """Return the notice for the person who waited for this post; always the same. None: nobody did.

    Of an answer it says that it may not have arrived, or (`refusal` not empty) why it was refused.
    A notice that may not have arrived, and one of the gateway itself to whoever had written, is
    said once more: it may be read twice. `marks_replies`: the channel shows to whom a post replies;
    else the notice begins with the name.
    """
    key = PostKey(hashlib.sha256(f"doubt:{post.key}".encode()).hexdigest()[:26])
    if await _find_answer(reader, post.key) is None:
        return (
            replace(post, key=key)
            if not refusal and await _is_said_once_more(reader, post)
            else None
        )
    newest = await reader.newest_entries(1, kinds=MESSAGE_KINDS, conversation=post.to.conversation)
    direct = (
        bool(newest) and isinstance(newest[0].fact, Message) and newest[0].fact.kind == "direct"
    )
    if not direct and post.reply_to is None:
        return None
    question = (
        None
        if direct
        else await reader.entry_by_key(f"message:{post.to.conversation}:{post.reply_to}")
    )
    name = (
        question.fact.sender.name
        if question is not None and isinstance(question.fact, Message)
        else ""
    )
    called = f"{escape_markdown(name)}: " if name and not marks_replies else ""
    with use_language(post.language):
        text = (
            _("(My answer cannot be shown here: {reason})").format(
                reason=escape_markdown(Redactor()(refusal), 300)
            )
            if refusal
            else _('(My last answer may not have reached you. Write "again", and I repeat it.)')
            if direct
            else _(
                '(My last answer may not have reached you. Write "again" to me, and I repeat it.)'
            )
        )
    return Post(
        key=key,
        to=post.to,
        text=f"{called}{text}",
        reply_to=post.reply_to,
        style="notice",
        private=post.private,
    )


async def _find_answer(reader: StoreReader, key: PostKey) -> Post | None:
    """Return the post if a turn or `again` posted it. Notices of the gateway itself are never
    repeated.
    """
    post, cause = await reader.find_post(key)
    if cause is None:
        return None
    repeats = isinstance(cause.fact, Command) and cause.fact.name == "again"
    return post if repeats or cause.kind in TURN_KINDS else None


async def _is_said_once_more(reader: StoreReader, post: Post) -> bool:
    """Return whether it is the first notice about an answer, or the gateway's to somebody whom the
    agent hears.
    """
    _, cause = await reader.find_post(post.key)
    if cause is None:
        return False
    if isinstance(cause.fact, DeliveryReport):
        return await _find_answer(reader, cause.fact.post) is not None
    judged = await reader.find_judgement(cause.seq)
    return isinstance(cause.fact, Message) and judged is not None and judged.fate != "refused"
