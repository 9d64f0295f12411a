"""Which accounts are one person, from the links between two of them. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.records import IdentityLinked
from gateway.standing import MASK_PREFIX

MAX_LINKED_ACCOUNTS: Final = 8
"""Accounts of one person."""


def is_verifiable(person: str) -> bool:
    """Whether a platform can vouch for that id at all: nobody does for what a server merely shows."""
    return not person.partition(":")[2].startswith(MASK_PREFIX)


def group_linked_accounts(links: Iterable[IdentityLinked]) -> Mapping[str, frozenset[str]]:
    """By person: the others. Links are taken in this order; one that would make a group too large does not count."""
    whole: dict[str, frozenset[str]] = {}
    for link in links:
        if not (is_verifiable(link.one) and is_verifiable(link.other)):
            continue
        both = whole.get(link.one, frozenset({link.one})) | whole.get(link.other, frozenset({link.other}))
        if len(both) <= MAX_LINKED_ACCOUNTS:
            whole.update(dict.fromkeys(both, both))
    return {one: others - {one} for one, others in whole.items() if len(others) > 1}


def sort_pair(one: str, other: str) -> tuple[str, str]:
    """In the order in which a link names them."""
    return (one, other) if one < other else (other, one)
