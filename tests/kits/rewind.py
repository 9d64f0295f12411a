"""Where views are changed because somebody asks for it, without agents beside it."""

from dataclasses import dataclass, field
from typing import Any, cast

from gateway.context.conversation import ConversationLocks
from gateway.core.clock import Clock
from gateway.core.events import ConversationId
from gateway.runtime.rewind import Rewinder
from gateway.store import Store
from gateway.stream.inbox import ReadyConversation
from tests.kits.tasks import LooseTasks


@dataclass
class Views:
    """What agents are told of it."""

    noticed: list[ReadyConversation] = field(default_factory=list)
    folded: list[ConversationId] = field(default_factory=list)
    broken: bool = False

    def notice(self, arrival: ReadyConversation) -> None:
        self.noticed.append(arrival)

    def holds(self, conversation: ConversationId) -> bool:
        del conversation
        return True

    async def compact(self, conversation: ConversationId) -> str:
        self.folded.append(conversation)
        if self.broken:
            raise KeyError("a bug")
        return "From 9 tokens to 3."


def rewinds(
    store: Store, clock: Clock, views: Views, *, doors: ConversationLocks | None = None
) -> Rewinder:
    return Rewinder(
        store=store,
        clock=clock,
        room_locks=doors or ConversationLocks(),
        agents=cast("Any", views),
        tasks=LooseTasks(),
    )
