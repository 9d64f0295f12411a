"""Grants: approvals for longer than one call, each for one tool of one agent in one conversation."""

import hashlib
from typing import Final, NamedTuple

from gateway.core.events import ConversationId
from gateway.core.facts import ApprovalEnded, Seq
from gateway.core.trust import role_rank
from gateway.store import Store

GRANTED_ALWAYS: Final = "for good"
GRANTED_FOR_SESSION: Final = "until it begins afresh there"


class ToolGrant(NamedTuple):
    """Subject of a grant."""

    agent: str
    tool: str
    conversation: ConversationId


class CallProvenance(NamedTuple):
    """Properties of a call that decide whether a grant covers it."""

    least_role: str
    """Lowest role of those whose words led to it. Empty: unknown."""
    foreign: bool
    """True: text from outside led to it, too."""
    arguments: str
    """Hash by `digest_arguments`. Empty: unknown."""


def digest_arguments(arguments: str) -> str:
    """Return the hash of normalised arguments (`gateway.access.approval_texts.normalize_arguments`)."""
    return hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()


def covers(granted: CallProvenance, call: CallProvenance, required_role: str) -> bool:
    """Return True if an approval for one call covers another. Pure. `required_role`: the role that the tool requires.

    It never covers a call with words of a lower role than the approved one had. With words below the required role, or
    with text from outside, it covers only the same call. If the origin is unknown, it covers only calls by owners'
    words.
    """
    least = role_rank(call.least_role)
    if least < (role_rank(granted.least_role) if granted.least_role else role_rank("owner")):
        return False
    if least >= role_rank(required_role) and not call.foreign:
        return True
    same = bool(granted.arguments) and granted.arguments == call.arguments
    return same and (granted.foreign or not call.foreign)


class ToolGrants:
    """Permanent grants, from the store, and grants of this process, in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: dict[ToolGrant, list[tuple[Seq, CallProvenance]]] = {}
        """Position from which each holds, and the call that was approved."""

    async def is_granted(self, grant: ToolGrant, call: CallProvenance, required_role: str) -> bool:
        """Return True if such a call is approved there now."""
        if any(covers(provenance, call, required_role) for provenance in await self._live_session_grants(grant)):
            return True
        approved = await self._store.approved(*grant)
        entry = await self._store.entry(approved) if approved is not None else None
        fact = entry.fact if entry is not None else None
        return isinstance(fact, ApprovalEnded) and covers(provenance_from_fact(fact), call, required_role)

    def add_session_grant(self, grant: ToolGrant, since: Seq, provenance: CallProvenance) -> None:
        """Approve until the conversation is started afresh behind that position, or the process ends."""
        self._session.setdefault(grant, []).append((since, provenance))

    def drop_session_grant(self, grant: ToolGrant) -> None:
        """Drop the session's approvals of this tool."""
        self._session.pop(grant, None)

    def reset_conversation(self, conversation: ConversationId) -> None:
        """Drop the grants of a conversation that is started afresh."""
        for grant in [grant for grant in self._session if grant.conversation == conversation]:
            self.drop_session_grant(grant)

    async def list_grants(self) -> dict[ToolGrant, str]:
        """Return all grants, each with its duration in words."""
        found = {grant: GRANTED_FOR_SESSION for grant in [*self._session] if await self._live_session_grants(grant)}
        return found | {ToolGrant(*grant): GRANTED_ALWAYS for grant in await self._store.approvals()}

    async def _live_session_grants(self, grant: ToolGrant) -> list[CallProvenance]:
        if grant not in self._session:
            return []
        fresh = await self._store.last_fresh_start(grant.conversation)
        lives = [(since, provenance) for since, provenance in self._session.get(grant, []) if since > fresh]
        if lives:
            self._session[grant] = lives
        else:
            self.drop_session_grant(grant)
        return [provenance for _, provenance in lives]


def provenance_from_fact(ended: ApprovalEnded) -> CallProvenance:
    """Return the provenance of the call that this verdict was about."""
    return CallProvenance(ended.least, ended.foreign, ended.arguments)
