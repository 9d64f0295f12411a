"""Texts about people and rooms, the form of one-time codes, and groups of linked accounts. Pure.

Names and ids are untrusted, and shown as code.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.core.events import ChannelName, ConversationId, Sender
from gateway.core.facts import IdentityLinked
from gateway.core.i18n import _
from gateway.core.identity import BRIDGE_PREFIX, MASK_PREFIX
from gateway.core.text_safety import escape_invisible, inline_code

CODE_ALPHABET: Final = "ACDEFGHJKMNPRTUWXY3479"
"""Letters and digits that are not mistaken for each other in common typefaces, in either case: no
0/O/Q, 1/I/L, 2/Z, 5/S, 6/G, 8/B, U/V. 22 to the 8th is 5e10, and a person has 30 tries in an hour.
"""
CODE_CHARS: Final = 8


def format_code(code: str) -> str:
    """Return the code in the form that people are shown."""
    return f"{code[: CODE_CHARS // 2]}-{code[CODE_CHARS // 2 :]}"


def is_formatted_code(text: str) -> bool:
    """Return whether the text looks exactly like a code as people are shown it."""
    code = text.replace("-", "", 1)
    return len(code) == CODE_CHARS and format_code(code) == text and set(code) <= set(CODE_ALPHABET)


MAX_LINKED_ACCOUNTS: Final = 8


def is_verifiable(person: str) -> bool:
    """Return whether a platform can verify this id: masks, and names behind a bridge, are only
    shown.
    """
    return not person.partition(":")[2].startswith((MASK_PREFIX, BRIDGE_PREFIX))


def group_linked_accounts(links: Iterable[IdentityLinked]) -> Mapping[str, frozenset[str]]:
    """Return the other accounts of each person. Links count in this order, without one that makes a
    group too large.
    """
    whole: dict[str, frozenset[str]] = {}
    for link in links:
        if not (is_verifiable(link.one) and is_verifiable(link.other)):
            continue
        both = whole.get(link.one, frozenset({link.one})) | whole.get(
            link.other, frozenset({link.other})
        )
        if len(both) <= MAX_LINKED_ACCOUNTS:
            whole.update(dict.fromkeys(both, both))
    return {one: others - {one} for one, others in whole.items() if len(others) > 1}


ID_CHARS: Final = 160
"""Room for an IRC mask: nick, user and a host of 63 characters. A person's id is shown whole or not
at all."""
NAME_CHARS: Final = 64


def format_person(person: str, name: str = "") -> str:
    """Return a person by id, with the name that they use."""
    shown = inline_code(person, ID_CHARS)
    return (
        f"{shown} ({inline_code(name, NAME_CHARS)})"
        if name.strip() and not person.endswith(f":{name}")
        else shown
    )


def format_room(conversation: ConversationId | str, about: str = "") -> str:
    """Return a room by id, with its own title."""
    shown = inline_code(conversation, ID_CHARS)
    has_title = about.strip() and not conversation.endswith(
        f"/{about}"
    )  # on some platforms the id is the name
    return f"{inline_code(about, NAME_CHARS)} ({shown})" if has_title else shown


def render_identity(channel: ChannelName, sender: Sender) -> str:
    """Return who somebody is, as the configuration takes it."""
    known = (
        _("You are `{id}`, which the platform confirms.")
        if sender.verified
        else _("You are `{id}`, which the platform does not confirm.")
    )
    return known.format(id=escape_invisible(f"{channel}:{sender.id}"))
