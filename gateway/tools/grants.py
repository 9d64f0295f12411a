"""What is approved for longer than a call: one tool, of one agent, in one conversation."""

from typing import Final, NamedTuple

from gateway.events import ConversationId
from gateway.records import Seq
from gateway.store import Store

FOR_GOOD: Final = "for good"
UNTIL_FRESH: Final = "until it begins afresh there"


class Grant(NamedTuple):
    """What it is about."""

    agent: str
    tool: str
    conversation: ConversationId


class Grants:
    """All of them: those for good in the store, those of this process in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: dict[Grant, Seq] = {}
        """Since when."""

    async def holds(self, grant: Grant) -> bool:
        """Whether it is approved there by now."""
        return await self._lives(grant) or await self._store.approved(*grant)

    def keep(self, grant: Grant, since: Seq) -> None:
        """Approved until the conversation begins afresh behind that position, or the process ends."""
        self._session[grant] = since

    def drop(self, grant: Grant) -> None:
        """The same no more."""
        self._session.pop(grant, None)

    def afresh(self, conversation: ConversationId) -> None:
        """Somebody has the conversation begin afresh, whether or not anything was in view there."""
        for grant in [one for one in self._session if one.conversation == conversation]:
            self.drop(grant)

    async def told(self) -> dict[Grant, str]:
        """Everything that is approved, and how long."""
        found = {one: UNTIL_FRESH for one in [*self._session] if await self._lives(one)}
        return found | {Grant(*one): FOR_GOOD for one in await self._store.approvals()}

    async def _lives(self, grant: Grant) -> bool:
        since = self._session.get(grant)
        if since is not None and since <= await self._store.fresh(grant.conversation):
            self.drop(grant)
            return False
        return since is not None
