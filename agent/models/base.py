"""What a turn asks of a language model, in no provider's dialect.

A request is laid out in the order of its life: tools, blocks (the system prompt, most stable first),
then the conversation. Providers translate at the call and nowhere else.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.events import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model is told of it."""

    name: str
    description: str
    schema: str
    """JSON Schema of the arguments, canonical JSON text (sorted keys, no spaces)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A piece of the system prompt that changes as a whole."""

    name: str
    text: str
    """Not blank."""
    ttl: Literal["long", "short"]
    """How long it stays worth caching: `long` outlives an hour, `short` minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Words."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The model asks for a tool."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it: untrusted and perhaps malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer to the `ToolCall` with the same id."""

    id: str
    text: str
    error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One side's contribution. Sides alternate, the user's first and last.

    A `Said` that answers tool calls holds a `ToolResult` for every call of the one before, results first.
    """

    role: Literal["user", "assistant"]
    parts: tuple[Text | ToolCall | ToolResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything a model sees for one answer."""

    blocks: tuple[Block, ...]
    conversation: tuple[Said, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int
    shared_key: str
    """Names whose stable prefix this is (the agent), for providers that route by such a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last chunk of every stream that did not raise."""

    stop: Literal["end", "tools", "length", "refused"]
    usage: Usage
    model: str
    """As the provider names what answered."""


Chunk = Text | ToolCall | End
"""Text comes in pieces, a tool call whole, `End` once and last."""


class Model(Protocol):
    """One configured model."""

    @property
    def name(self) -> str:
        """The configured name, e.g. `main`."""

    @property
    def label(self) -> str:
        """For people: what answers, and where."""

    @property
    def context_tokens(self) -> int:
        """The window: input and output together."""

    @property
    def max_output_tokens(self) -> int:
        """Asked for per answer."""

    @property
    def family(self) -> str:
        """Chooses persona variants such as `IDENTITY.local.md`: `anthropic`, `openai`, `local`, ..."""

    @property
    def takes_tools(self) -> bool:
        """False: requests must come without tools."""

    def stream(self, request: Request) -> AsyncGenerator[Chunk]:
        """Answer one request. Raises a `ModelError`, also after chunks have been yielded.

        Closing the generator or cancelling its consumer closes the provider's connection at once.
        Does not retry: `agent.models.failover` does.
        """

    async def start(self) -> None:
        """Make ready what takes long (load weights). Safe to call twice; requests wait for it."""

    async def aclose(self) -> None:
        """Release connections and child processes. Streams under way end with an error."""


# ModelError
# +-- Busy          wait, then ask the same again
# +-- Unusable      this model will not answer: try the next one, tell the operator
# +-- TooLong       fold the conversation, then ask again
# +-- Malformed     our request is wrong: give up, it is a bug or a wrong setting


class ModelError(Exception):
    """A model gave no (complete) answer. The subclass says what to do. Holds no secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Busy(ModelError):
    """Overloaded, rate-limited, cut off or silent: ask again after a while."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        """The server's own hint; None: it gave none."""


class Unusable(ModelError):
    """No key, no credit, no such model, not installed: asking again will not help."""


class TooLong(ModelError):
    """The conversation does not fit the window."""


class Malformed(ModelError):
    """The provider refuses the request as it is."""
