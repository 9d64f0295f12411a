"""The counter that the `llm.context_optimization.token_counter` section asks for."""

from typing import Literal

from agent.models.config import AnthropicConfig, ProviderConfig
from agent.tokens.endpoint import EndpointCounter
from agent.tokens.offline import OfflineCounter
from gateway.clock import Clock

CounterBackend = Literal["auto", "anthropic_api", "tiktoken"]


def build_counter(
    backend: CounterBackend, provider: ProviderConfig, offline: OfflineCounter, *, capacity: int, clock: Clock
) -> OfflineCounter | EndpointCounter:
    """Build the counter for one provider's models. No IO.

    `auto` and `anthropic_api` ask Anthropic's API where that is the provider; all others have no such endpoint and
    are counted offline. Close an `EndpointCounter` with `aclose`; `offline` stays its owner's.
    """
    if backend == "tiktoken" or not isinstance(provider, AnthropicConfig):
        return offline
    return EndpointCounter(
        offline,
        clock=clock,
        api_key=provider.api_key.get_secret_value() if provider.api_key else "",
        base_url=provider.base_url,
        capacity=capacity,
    )
