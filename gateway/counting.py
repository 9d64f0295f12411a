"""How large requests are before they are sent: which counter is used for which agent and model, and when.

Bytes are enough where nothing depends on the last percent, because every bill corrects them. The tokenizer takes 27 MB
once it is loaded, so it is, unless the operator asks for it, only for prompts that begin to fill their window.
"""

from collections.abc import Mapping
from typing import NamedTuple

from agent.models.anthropic_wire import build_anthropic_request
from agent.models.base import ModelRequest
from agent.models.config import AnthropicConfig, ModelConfig, ProviderConfig, context_tokens_of
from agent.tokens.build import build_counter
from agent.tokens.endpoint import EndpointCounter
from agent.tokens.meter import RequestMeter, TokenEstimate, TokenMeter
from agent.tokens.offline import OfflineCounter
from gateway.clock import Clock
from gateway.live import LiveSettings
from gateway.pictures import identify_image

LARGE_SHARE = 0.25
"""Of a model's window: of a prompt beyond that it matters how large it is."""


class TokenCounters:
    """The counters of one gateway."""

    def __init__(self, live: LiveSettings, clock: Clock) -> None:
        self._live = live
        self._clock = clock
        self._tokenizer, self._bytes = OfflineCounter(), OfflineCounter()
        self._bytes.close()  # it never loads anything
        self.fine, self.rough = (
            TokenMeter(self._tokenizer, look=identify_image),
            TokenMeter(self._bytes, look=identify_image),
        )
        self._endpoints: dict[_EndpointKey, EndpointCounter] = {}

    @property
    def live(self) -> LiveSettings:
        """What the operator wants by now."""
        return self._live

    def gauge(self, name: str, config: ModelConfig, provider: ProviderConfig) -> RequestMeter:
        """For one model, which its provider calls `name`."""
        return _ModelGauge(self, name, context_tokens_of(config, provider), config.provider, provider)

    def endpoint(self, key: str, provider: ProviderConfig) -> EndpointCounter | None:
        """What asks this provider to count, if the operator wants that by now and it can."""
        said = self._live.optimization.token_counter
        if not said.enabled or said.backend == "tiktoken" or not isinstance(provider, AnthropicConfig):
            return None
        asked = _EndpointKey(key, provider, said.cache_capacity)
        if asked not in self._endpoints:
            counter = build_counter(
                said.backend, provider, self._tokenizer, capacity=said.cache_capacity, clock=self._clock
            )
            assert isinstance(counter, EndpointCounter)
            self._endpoints[asked] = counter
        return self._endpoints[asked]

    def take_unused(self, providers: Mapping[str, ProviderConfig]) -> list[EndpointCounter]:
        """Those that nobody asks any more if these are the providers, by now; they are to be closed."""
        capacity = self._live.optimization.token_counter.cache_capacity
        gone = [one for one in self._endpoints if one != (one.key, providers.get(one.key), capacity)]
        return [self._endpoints.pop(one) for one in gone]

    async def aclose(self) -> None:
        """Stop asking and loading."""
        for endpoint in self._endpoints.values():
            await endpoint.aclose()
        self._tokenizer.close()


class _EndpointKey(NamedTuple):
    """Who is asked to count, and how much of that is remembered."""

    key: str
    provider: AnthropicConfig
    capacity: int


class _ModelGauge:
    """`agent.cache.keeper.Gauge` for one model."""

    def __init__(
        self, counting: TokenCounters, name: str, window_tokens: int, key: str, provider: ProviderConfig
    ) -> None:
        self._counting = counting
        self._name = name
        self._window_tokens = window_tokens
        self._key = key
        self._provider = provider
        self._counted_requests: dict[str, ModelRequest] = {}
        """By agent, the one request that the provider was asked to count: its prefix is the same in all others."""

    @property
    def _endpoint(self) -> EndpointCounter | None:
        return self._counting.endpoint(self._key, self._provider)

    def estimate(
        self, model: str, request: ModelRequest, before: tuple[ModelRequest, TokenEstimate] | None
    ) -> tuple[TokenMeter, TokenEstimate]:
        counting, live = self._counting, self._counting.live
        rough = counting.rough.estimate(model, request, before)
        if not live.enabled_optimizations(request.shared_key).token_counter:
            return counting.rough, rough
        meter, estimate = counting.rough, rough
        wanted = live.optimization.token_counter.backend == "tiktoken"
        endpoint = self._endpoint
        counted = endpoint is not None and endpoint.is_exact
        if wanted or (not counted and rough.tokens > LARGE_SHARE * self._window_tokens):
            meter, estimate = counting.fine, counting.fine.estimate(model, request, before)
        if endpoint is not None and request.shared_key not in self._counted_requests:
            self._counted_requests[request.shared_key] = request
            endpoint.request_count(self._body(request), lambda tokens: meter.record_count(estimate, tokens))
        return meter, estimate

    def is_exact(self, request: ModelRequest) -> bool:
        asked, endpoint = self._counted_requests.get(request.shared_key), self._endpoint
        if endpoint is None or asked is None or asked.conversation is not request.conversation:
            return False
        return endpoint.is_exact and endpoint.get_count(self._body(asked)) is not None

    def _body(self, request: ModelRequest) -> dict[str, object]:
        return build_anthropic_request(request, model=self._name).body
