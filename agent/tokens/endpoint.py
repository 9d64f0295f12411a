"""Token counter that uses Anthropic's endpoint, in the background and never while a conversation
waits.

Obeys platform.claude.com/docs/en/api/messages-count-tokens: the body of a request without the
fields that concern the answer; free, but with its own limit of requests per minute; by its own
words an estimate, which ignores caching.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from agent.models.base import ModelBusy, ModelError, ModelRequest, PromptTooLong
from agent.models.breaker import CircuitBreaker
from agent.models.http import ModelHttpClient, anthropic_headers, join_endpoint
from gateway.core.clock import Clock
from gateway.core.ratelimit import LruDict

COUNT_TIMEOUT_S = 20.0
"""Limit for a whole answer. Nothing waits for it, but a request that hangs keeps the next ones from
being sent."""
_MAX_CONCURRENT = 2
"""Limit of requests under way. Further ones are dropped: the next request brings a better one."""
_COUNTED_FIELDS = (
    "messages",
    "model",
    "output_config",
    "system",
    "thinking",
    "tool_choice",
    "tools",
)
"""Fields of a request's body that the endpoint accepts; others (`max_tokens`, `stream`, ...) are
refused."""

RequestBody = Mapping[str, object]
OnCount = Callable[[int], None]


class _TokenCount(BaseModel):
    model_config = ConfigDict(strict=True)
    input_tokens: int = Field(ge=0)


class EndpointCounter:
    """Counts whole requests by the provider's endpoint.

    Counts are remembered under the hash of the request, so that the same request is sent once.
    After three failures in a row there are no requests for 30 s, then for twice as long each time
    up to 300 s; after one with a `retry-after`, for as long as that says.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        write: Callable[[ModelRequest, str], RequestBody],
        api_key: str = "",
        base_url: str = "https://api.anthropic.com",
        capacity: int = 1024,
        timeout_s: float = COUNT_TIMEOUT_S,
        proxy: SecretStr | None = None,
    ) -> None:
        """Open no connection yet. Raises ValueError for a bad URL or key.

        `write`: builds the body of a request to this model. `capacity`: limit of counts remembered;
        0: none.
        """
        url = join_endpoint(base_url, "/messages/count_tokens")
        self._api = ModelHttpClient(
            url=url,
            headers=anthropic_headers(api_key),
            secret=api_key,
            timeout_s=timeout_s,
            proxy=proxy,
        )
        self.write = write
        self._timeout_s = timeout_s
        self._clock = clock
        self._counts = LruDict[bytes, int](capacity)
        self._pending: dict[bytes, asyncio.Task[None]] = {}
        self.breaker = CircuitBreaker()
        """State of the endpoint, for people and metrics."""

    @property
    def is_exact(self) -> bool:
        """Return whether it counts, and always has in this process."""
        return not self.breaker.has_opened

    def get_count(self, body: RequestBody) -> int | None:
        """Return the provider's count of this request. None: not requested, or forgotten.

        No IO, but writes the request as JSON to hash it: 1 ms for 200 KB.
        """
        return self._look_up(_hash_body(countable_body(body)))

    def request_count(self, body: RequestBody, on_count: OnCount = lambda _: None) -> None:
        """Request a count in the background.

        Nothing is sent if the count is known or under way, or if the breaker is open. `body` is a
        request as it goes to `/v1/messages`, with its cache breakpoints; it is read before this
        returns. `on_count` is called with the count if there is one, at once if it is known, and
        must not raise. Needs a running loop.
        """
        counted = countable_body(body)
        key = _hash_body(counted)
        known = self._look_up(key)
        if known is not None:
            on_count(known)
            return
        now_s = self._clock.monotonic()
        if (
            key in self._pending
            or len(self._pending) >= _MAX_CONCURRENT
            or not self.breaker.admits(now_s)
        ):
            return
        self.breaker = self.breaker.record_attempt(now_s)
        task = asyncio.create_task(self._ask(key, counted, on_count), name="count_tokens")
        self._pending[key] = task
        task.add_done_callback(lambda _: self._pending.pop(key, None))

    async def wait_settled(self) -> None:
        """Wait until no request is under way."""
        while self._pending:
            await asyncio.wait(self._pending.values())

    async def aclose(self) -> None:
        """Cancel requests under way and close the connections. Safe to call twice."""
        for task in self._pending.values():
            task.cancel()
        await self.wait_settled()
        await self._api.aclose()

    def _look_up(self, key: bytes) -> int | None:
        if key in self._counts:
            self._counts.move_to_end(key)
        return self._counts.get(key)

    async def _ask(self, key: bytes, body: RequestBody, on_count: OnCount) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._api.fetch(body)
            tokens = _TokenCount.model_validate_json(answer).input_tokens
        except PromptTooLong:  # the provider works, and the request is too long to count
            self.breaker = self.breaker.record_success()
        except (TimeoutError, ModelError, ValidationError) as error:
            hint_s = error.retry_after_s if isinstance(error, ModelBusy) else None
            self.breaker = self.breaker.record_failure(self._clock.monotonic(), hint_s=hint_s)
        else:
            self.breaker = self.breaker.record_success()
            self._counts.put(key, tokens)
            on_count(tokens)


def countable_body(body: RequestBody) -> RequestBody:
    """Return the part of a request's body that is counted.

    Without fields that concern the answer, and without cache breakpoints, which may move.
    """
    counted = {name: body[name] for name in _COUNTED_FIELDS if name in body}
    counted |= {
        name: _strip_breakpoints(counted[name]) for name in ("system", "tools") if name in counted
    }
    if isinstance(messages := counted.get("messages"), list):
        counted["messages"] = [
            message | {"content": _strip_breakpoints(message.get("content"))}
            for message in messages
        ]
    return counted


def _strip_breakpoints(items: object) -> object:
    """Remove the breakpoints of these items.

    Nothing inside of them changes: a tool's arguments and results may have a `cache_control` of
    their own.
    """
    if not isinstance(items, list):
        return items
    return [{name: item[name] for name in item if name != "cache_control"} for item in items]


def _hash_body(body: RequestBody) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
