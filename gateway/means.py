"""What the turns of one agent are made with."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agent.models.base import Model, Request, ToolCall, ToolResult, ToolSpec
from agent.tools.surface import Kind
from agent.turn import Tools
from gateway import access
from gateway.briefing import Briefing
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.evidence import Evidences
from gateway.folds import Folds
from gateway.hands import Whereabouts
from gateway.hearing import Hearing
from gateway.limits.limits import Limits
from gateway.media import Media
from gateway.recalling import Recalling
from gateway.redaction import Redact, Redactor
from gateway.settings_context import ContextOptimization, RecallConfig
from gateway.store import Store
from gateway.views import Views


async def _none(*_: object) -> str:
    return ""


async def _nowhere(_conversation: ConversationId) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Everything of it."""

    store: Store
    clock: Clock
    model: Model
    agent_id: str
    prompt_context: Briefing
    reader: Hearing
    media: Media
    history: Views
    compactor: Folds
    evidence: Evidences
    ambient_recall: Recalling
    optimization: Callable[[], ContextOptimization]
    """What the operator says by now of what a model is told."""
    recall_config: RecallConfig
    tools_for: Callable[[Whereabouts], Tools]
    """The tools of a turn: asked when it begins, and again when somebody speaks in its middle."""
    directives: Callable[[ConversationId, bool, bool], Awaitable[str]]
    """What a turn is to keep in mind; empty mostly."""
    reachable_places: Callable[[ConversationId], Awaitable[str]] = _nowhere
    """Where a turn may write to besides; empty mostly. It is told as other people's words."""
    can_afford: Callable[[str, Request], bool]
    """Whether this agent may ask for this, unasked itself."""
    on_truncated: Callable[[], None]
    """Told when a tool's result was too large to be told whole."""

    access_policy: access.Policy
    limits: Limits | None = None
    """What people may cause. None: there are no budgets."""
    ceiling_usd: Callable[[Request], float] = lambda _: 0.0
    """What a request may cost at most."""
    surface: Kind = "native"
    """How tools are told."""
    has_late_tools: bool = False
    """Tools may come and go while the gateway runs."""
    skill_catalogue: Callable[[], Awaitable[str]] = _none
    """The catalogue of skills."""
    describe_tools: Callable[[ConversationId, Sequence[str]], Awaitable[str]] = _none
    """How they are there just now, for whoever has these roles; empty: nothing is to be said."""
    redact: Redact = field(default_factory=Redactor)
    """Given what a turn says."""
    max_tool_rounds: int = 8
    """Answers with tool calls in one turn."""

    @property
    def is_small_model(self) -> bool:
        """The model is a very small one."""
        return self.model.family == "local"


class Exchanged:
    """Tools of a turn that are others once somebody speaks in its middle."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """As they are by now."""
        return self.tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        """The same."""
        return await self.tools.call(call)
