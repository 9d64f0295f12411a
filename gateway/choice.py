"""What `gateway.choosing` is asked, and what it needs of agents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.events import Address, ConversationId, MessageId
from gateway.thinkers import AgentModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoiceRequest:
    """Somebody wants an agent to think with another model."""

    name: str
    """A key of `llm.models`. Empty: what the configuration says."""
    at: Address
    """Where that was said: it is about whoever answers there."""
    by: str
    """Who, for people."""
    reply_to: MessageId | None = None
    """What is told later is a reply to this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredModel:
    """A model that is configured. Nothing of it is secret."""

    name: str
    provider: str
    kind: str
    model_name: str
    """By its provider. Empty: it has one only."""
    context_tokens: int
    max_output_tokens: int
    has_price: bool
    """What it costs is known."""
    takes_images: bool
    fallbacks: tuple[str, ...]
    used_by: tuple[str, ...]
    """By which agents."""


class ModelChoiceAgent(Protocol):
    """What is needed of an agent: `gateway.mind.Agent`."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def agent_model(self) -> AgentModel:
        """What its next turn is taken with."""

    def use_model(self, thinker: AgentModel) -> None:
        """From the next turn on."""

    async def warm_up(self) -> None:
        """Have a local model read in what all conversations begin with. Raises nothing."""


class ModelChoiceAgents(Protocol):
    """What is needed of all: `gateway.minds.Agents`."""

    def agent_for(self, conversation: ConversationId) -> ModelChoiceAgent:
        """Whose it is."""

    @property
    def agents(self) -> Sequence[ModelChoiceAgent]:
        """Each agent."""
