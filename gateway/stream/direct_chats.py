"""The direct chats in which people wrote, and that of an owner."""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from gateway.core.events import Address, ChannelName, Command, Message, Sender
from gateway.core.facts import OPERATOR_CHANNEL, Fact, is_direct_line
from gateway.core.identity import AccessPolicy, identify
from gateway.store import StoreReader

DIRECT_KINDS: Final = ("direct", "command")
"""Kinds of entries that somebody may have written in a direct chat."""
PAGE_ENTRIES: Final = 300
MAX_PAGES: Final = 10
"""At most this many pages of this size of direct messages, newest first, are searched for one from
an owner."""


class DirectChat(NamedTuple):
    """A direct chat, as its newest line shows it."""

    at: Address
    sender: Sender
    language: str | None = None
    """Tag of the language of their client, if known."""


def parse_direct_chat(fact: Fact) -> DirectChat | None:
    """Return the direct chat in which somebody wrote this. None: it was not written in one."""
    if isinstance(fact, Message | Command) and is_direct_line(fact):
        return DirectChat(fact.at, fact.sender, fact.language)
    return None


async def iter_direct_chats(reader: StoreReader) -> AsyncIterator[DirectChat]:
    """Yield the direct chats in which people wrote, the newest lines first; a chat again for each
    of them. Raises StoreError.
    """
    before = None
    for __ in range(MAX_PAGES):
        page = await reader.newest_entries(PAGE_ENTRIES, before=before, kinds=DIRECT_KINDS)
        for one in reversed(page):
            if (chat := parse_direct_chat(one.fact)) is not None:
                yield chat
        if len(page) < PAGE_ENTRIES:
            return
        before = page[0].seq


async def find_owner_chat(
    reader: StoreReader, policy: AccessPolicy, beside: ChannelName | None = None
) -> DirectChat | None:
    """Return the chat in which an owner wrote last; that of the operator's own channel only if
    there is no other. Raises StoreError.

    `beside`: a channel that does not count.
    """
    operator_chat = None
    async for chat in iter_direct_chats(reader):
        if chat.at.channel != beside and is_of_owner(chat, policy):
            if chat.at.channel != OPERATOR_CHANNEL:
                return chat
            operator_chat = operator_chat or chat
    return operator_chat


def is_of_owner(chat: DirectChat, policy: AccessPolicy) -> bool:
    """Return whether this is a verified owner everywhere: an owner of one room or agent gets no
    notices.
    """
    return identify(policy, chat.at, chat.sender).global_role == "owner"
