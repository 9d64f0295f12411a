"""What is approved for longer than a call: one tool, of one agent, in one conversation, for calls of a shape."""

import hashlib
from typing import Final, NamedTuple

from gateway.core.events import ConversationId
from gateway.core.facts import ApprovalEnded, Seq
from gateway.core.identity import ROLE_ORDER
from gateway.store import Store

GRANTED_ALWAYS: Final = "for good"
GRANTED_FOR_SESSION: Final = "until it begins afresh there"


class ToolGrant(NamedTuple):
    """What it is about."""

    agent: str
    tool: str
    conversation: ConversationId


class CallProvenance(NamedTuple):
    """A call, as far as a word for longer depends on it."""

    least_role: str
    """The least role of those whose words are behind it. Empty: not known."""
    foreign: bool
    """Text from outside is behind it, too."""
    arguments: str
    """As `digest_arguments`. Empty: not known."""


def digest_arguments(arguments: str) -> str:
    """Of arguments as they are taken (`gateway.access.approval_texts.normalize_arguments`)."""
    return hashlib.sha256(arguments.encode("utf-8", "surrogatepass")).hexdigest()


def covers(granted: CallProvenance, call: CallProvenance, needs: str) -> bool:
    """Whether what was approved for one call covers another. Pure. `needs`: the role that the tool takes.

    Never a call that weaker words are behind than were when it was approved. Beside words below the role that the tool
    takes, or text from outside, only the same call. Where it is not known what was behind, only owners' words count.
    """
    least = _role_rank(call.least_role)
    if least < (_role_rank(granted.least_role) if granted.least_role else _role_rank("owner")):
        return False
    if least >= _role_rank(needs) and not call.foreign:
        return True
    same = bool(granted.arguments) and granted.arguments == call.arguments
    return same and (granted.foreign or not call.foreign)


def _role_rank(role: str) -> int:
    return ROLE_ORDER.index(role) if role in ROLE_ORDER else -1  # what is no role is below all


class ToolGrants:
    """All of them: those for good in the store, those of this process in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: dict[ToolGrant, list[tuple[Seq, CallProvenance]]] = {}
        """Since when, and for calls of which shape."""

    async def is_granted(self, grant: ToolGrant, call: CallProvenance, needs: str) -> bool:
        """Whether such a call is approved there by now."""
        if any(covers(shape, call, needs) for shape in await self._live_session_grants(grant)):
            return True
        approved = await self._store.approved(*grant)
        entry = await self._store.entry(approved) if approved is not None else None
        fact = entry.fact if entry is not None else None
        return isinstance(fact, ApprovalEnded) and covers(provenance_from_fact(fact), call, needs)

    def add_session_grant(self, grant: ToolGrant, since: Seq, shape: CallProvenance) -> None:
        """Approved until the conversation begins afresh behind that position, or the process ends."""
        self._session.setdefault(grant, []).append((since, shape))

    def drop_session_grant(self, grant: ToolGrant) -> None:
        """The same no more."""
        self._session.pop(grant, None)

    def reset_conversation(self, conversation: ConversationId) -> None:
        """Somebody has the conversation begin afresh, whether or not anything was in view there."""
        for grant in [one for one in self._session if one.conversation == conversation]:
            self.drop_session_grant(grant)

    async def list_grants(self) -> dict[ToolGrant, str]:
        """Everything that is approved, and how long."""
        found = {one: GRANTED_FOR_SESSION for one in [*self._session] if await self._live_session_grants(one)}
        return found | {ToolGrant(*one): GRANTED_ALWAYS for one in await self._store.approvals()}

    async def _live_session_grants(self, grant: ToolGrant) -> list[CallProvenance]:
        if grant not in self._session:
            return []
        fresh = await self._store.last_fresh_start(grant.conversation)
        lives = [(since, shape) for since, shape in self._session.get(grant, []) if since > fresh]
        if lives:
            self._session[grant] = lives
        else:
            self.drop_session_grant(grant)
        return [shape for _, shape in lives]


def provenance_from_fact(ended: ApprovalEnded) -> CallProvenance:
    """Of the call that this was about."""
    return CallProvenance(ended.least, ended.foreign, ended.arguments)
