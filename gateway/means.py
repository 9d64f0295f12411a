"""What the turns of one agent are made with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.models.base import Model, Request
from agent.turn import Tools
from gateway.briefing import Briefing
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.evidence import Evidences
from gateway.folds import Folds
from gateway.hands import Whereabouts
from gateway.hearing import Hearing
from gateway.media import Media
from gateway.recalling import Recalling
from gateway.settings_context import ContextOptimization, RecallConfig
from gateway.store import Store
from gateway.views import Views


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Everything of it."""

    store: Store
    clock: Clock
    model: Model
    agent_id: str
    briefing: Briefing
    hearing: Hearing
    media: Media
    views: Views
    folds: Folds
    evidence: Evidences
    recalling: Recalling
    context: Callable[[], ContextOptimization]
    """What the operator says by now of what a model is told."""
    recall: RecallConfig
    hands: Callable[[Whereabouts], Tools]
    """The tools of a turn: asked when it begins, and again when somebody speaks in its middle."""
    guidance: Callable[[ConversationId, bool, bool], Awaitable[str]]
    """What a turn is to keep in mind; empty mostly."""
    afford: Callable[[str, Request], bool]
    """Whether this agent may ask for this, unasked itself."""
    truncated: Callable[[], None]
    """Told when a tool's result was too large to be told whole."""

    @property
    def plain(self) -> bool:
        """The model is a very small one."""
        return self.model.family == "local"
