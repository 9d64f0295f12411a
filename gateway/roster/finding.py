"""Whom an admin means: by id, or by what somebody called themselves in that conversation lately."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Final, NamedTuple

from gateway.events import Address, ChannelName, Command, ConversationId, Message, Sender
from gateway.records import MESSAGE_KINDS
from gateway.roster.words import format_person
from gateway.standing import Role, person_key
from gateway.store import StoreReader
from gateway.tools.consent import inline_code

RECENT_LINES: Final = 200
"""So many of the newest lines there are looked through for a name."""
_MAX_CANDIDATES: Final = 10
_MENTION: Final = re.compile(r"<@!?(\d+)>")
"""https://discord.com/developers/docs/reference#message-formatting"""
_ID_PATTERN: Final = re.compile(r"\d+|(?:account|mask):.+")
"""What ids look like."""
_ANY_ID: Final = re.compile(r".+", re.DOTALL)
_PLATFORM_IDS: Final = {
    "irc": (re.compile(r"(?:account|mask|relay):.+"), "account:someone"),
    "telegram": (re.compile(r"-?\d+"), "1001"),
    "discord": (re.compile(r"\d+"), "80351110224678912"),
}
"""The same by platform, with an example: what is given to a nick holds for nobody."""


class PersonMatch(NamedTuple):
    """Somebody."""

    person: str
    name: str
    """As they called themselves last, if that is known. Untrusted."""
    is_by_name: bool = False
    """They were meant by that name."""
    last_role: Role = "guest"
    """What they were when they spoke there last."""

    @property
    def label(self) -> str:
        """For people."""
        return format_person(self.person, self.name)


async def read_recent_senders(reader: StoreReader, place: ConversationId) -> dict[str, Sender]:
    """Who said something there lately, by id, as they were last. Also who was refused."""
    said = await reader.newest_entries(RECENT_LINES, kinds=(*MESSAGE_KINDS, "command"), conversation=place)
    senders = [(entry.fact.at, entry.fact.sender) for entry in said if isinstance(entry.fact, Message | Command)]
    return {person_key(at.channel, sender.id): sender for at, sender in senders}


def find_person(
    written: str, at: Address, platforms: Mapping[ChannelName, str], recent: Mapping[str, str], known: Mapping[str, str]
) -> PersonMatch | str:
    """Whom that means there, or why nobody, in words. Pure.

    `platforms`: of all channels, as `Capabilities.platform` has them. `recent`: who was heard there, `known`: who else
    is known; both by id, with names. Only a name that was heard counts, and only if nobody else has it: anybody can
    take any.
    """
    mention = _MENTION.fullmatch(written.strip())
    word = mention[1] if mention else written.strip("` ").removeprefix("@")
    channel, _, sender_id = word.partition(":")
    if sender_id and channel in platforms:
        whom = person_key(ChannelName(channel), sender_id)
        wrong = explain_invalid_id(word, platforms[ChannelName(channel)])
        if wrong and whom not in recent and whom not in known:
            return wrong
        return PersonMatch(whom, recent.get(whom) or known.get(whom, ""))
    own = person_key(at.channel, word)
    if _ID_PATTERN.fullmatch(word):  # whoever calls themselves so is not meant by it
        known = {own: "", **known}
    found = {one: name for one, name in recent.items() if _fold_name(name) == _fold_name(word)}
    meant = {one: name for one, name in {**known, **recent}.items() if one == own}
    if len(found | meant) > 1:
        lines = [f"- {format_person(one, name)}" for one, name in list((found | meant).items())[:_MAX_CANDIDATES]]
        return "\n".join([f"More than one goes by {inline_code(word)}. Write the id of whom you mean:", *lines])
    for one, name in (found | meant).items():
        return PersonMatch(one, name, one not in meant)
    return f"I have heard nobody called {inline_code(word)} here lately. Write their id, as `whoami` shows it to them."


def explain_invalid_id(written: str, platform: str) -> str:
    """Why `channel:id` is nobody on a platform of that kind, in words; empty: it may be somebody."""
    channel, _, sender_id = written.partition(":")
    shape, example = _PLATFORM_IDS.get(platform.lower(), (_ANY_ID, ""))
    if shape.fullmatch(sender_id):
        return ""
    return f"{inline_code(written)} is nobody's id. Write it as `whoami` shows it to them, e.g. `{channel}:{example}`."


def _fold_name(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip()
