"""What the turns of one agent are made with."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from agent.models.base import Model, ModelRequest, ToolCall, ToolResult, ToolSpec
from agent.tools.surface import ToolSurface
from agent.turn import Toolset
from gateway.briefing import PromptContextBuilder
from gateway.clock import Clock
from gateway.events import ConversationId
from gateway.evidence import EvidenceStore
from gateway.folds import Compactor
from gateway.hands import ToolContext
from gateway.hearing import ConversationReader
from gateway.limits.limits import UsageLimiter
from gateway.media import MediaStore
from gateway.recalling import AmbientRecall
from gateway.redaction import Redact, Redactor
from gateway.settings_context import ContextOptimizationConfig, RecallConfig
from gateway.standing import AccessPolicy
from gateway.store import Store
from gateway.views import HistoryStore


async def _no_text(*_: object) -> str:
    return ""


async def _no_places(_conversation: ConversationId) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Everything of it."""

    store: Store
    clock: Clock
    model: Model
    agent_id: str
    prompt_context: PromptContextBuilder
    reader: ConversationReader
    media: MediaStore
    history: HistoryStore
    compactor: Compactor
    evidence: EvidenceStore
    ambient_recall: AmbientRecall
    optimization: Callable[[], ContextOptimizationConfig]
    """What the operator says by now of what a model is told."""
    recall_config: RecallConfig
    tools_for: Callable[[ToolContext], Toolset]
    """The tools of a turn: asked when it begins, and again when somebody speaks in its middle."""
    directives: Callable[[ConversationId, bool, bool], Awaitable[str]]
    """What a turn is to keep in mind; empty mostly."""
    reachable_places: Callable[[ConversationId], Awaitable[str]] = _no_places
    """Where a turn may write to besides; empty mostly. It is told as other people's words."""
    can_afford: Callable[[str, ModelRequest], bool]
    """Whether this agent may ask for this, unasked itself."""
    on_truncated: Callable[[], None]
    """Told when a tool's result was too large to be told whole."""

    access_policy: AccessPolicy
    limits: UsageLimiter | None = None
    """What people may cause. None: there are no budgets."""
    ceiling_usd: Callable[[ModelRequest], float] = lambda _: 0.0
    """What a request may cost at most."""
    surface: ToolSurface = "native"
    """How tools are told."""
    has_late_tools: bool = False
    """Tools may come and go while the gateway runs."""
    skill_catalogue: Callable[[], Awaitable[str]] = _no_text
    """The catalogue of skills."""
    describe_tools: Callable[[ConversationId, Sequence[str]], Awaitable[str]] = _no_text
    """How they are there just now, for whoever has these roles; empty: nothing is to be said."""
    redact: Redact = field(default_factory=Redactor)
    """Given what a turn says."""
    max_tool_rounds: int = 8
    """Answers with tool calls in one turn."""

    @property
    def is_small_model(self) -> bool:
        """The model is a very small one."""
        return self.model.family == "local"


class ReplaceableTools:
    """Tools of a turn that are others once somebody speaks in its middle."""

    def __init__(self, tools: Toolset) -> None:
        self.tools = tools

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """As they are by now."""
        return self.tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        """The same."""
        return await self.tools.call(call)
