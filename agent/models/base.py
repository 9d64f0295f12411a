"""Vocabulary of language models: requests, stream chunks, the `Model` protocol and its errors.

The parts of a request are ordered by how long they stay the same: tools, blocks (the system prompt,
most stable first), then the conversation. Providers translate a request at the call and nowhere
else.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Literal, Protocol

from gateway.core.events import CacheTtl, RequestUsage, ToolImage, Usage
from gateway.core.frozen import frozen
from gateway.core.tool_spec import Image, ResultExcerpt, ToolCall, ToolSpec

if TYPE_CHECKING:
    from agent.tokens.counter import CountText, PromptSize


Effort = Literal["low", "medium", "high", "xhigh", "max"]
"""Values of `output_config.effort`, least first."""
ThinkingMode = Literal["default", "off", "between_tools"]
"""`default`: the model's own. `between_tools`: only between tool calls (Sonnet 5.5)."""


@frozen
class SystemBlock:
    """Piece of the system prompt that changes as a whole."""

    name: str
    text: str
    """Not blank."""


@frozen
class TextPart:
    """Text of the user or of the model."""

    text: str


MAX_IMAGE_BYTES = 3_932_160
"""Bytes: 5 MiB as base64, the limit of Anthropic (platform.claude.com,
build-with-claude/vision)."""
MAX_IMAGE_SIDE = 8_000
"""Pixels: the limit of Anthropic; with a larger image the whole request is refused."""
MAX_IMAGES = 20
"""Images in one request: with more, the longest side may have 2,000 pixels only (the same page)."""
MAX_IMAGES_BYTES = 20_000_000
"""Bytes of all images in one request, before base64: the limit for the whole request is 32 MB
there."""


@frozen
class ToolResult:
    """Answer to the `ToolCall` with the same id."""

    id: str
    text: str
    is_error: bool = False
    kind: str = "text"
    """As `gateway.core.events.EvidenceRef.kind`. This and the following fields are not sent to the
    model."""
    origin: str = ""
    """As `gateway.core.events.EvidenceRef.origin`. Untrusted."""
    excerpt: "ResultExcerpt | None" = None
    """Set if this is a part of a result that is stored whole elsewhere. None: this is the whole
    result."""
    is_untrusted: bool = False
    """True: text from outside; it is rendered inside a fence that it cannot forge."""
    images: "tuple[tuple[ToolImage, Image], ...]" = ()
    """Sent behind all results of the same message, to models that take images."""


MessagePart = TextPart | Image | ToolCall | ToolResult
"""Part of a message."""


@frozen
class ModelMessage:
    """One message. Roles alternate; the first and the last message are the user's.

    A `ModelMessage` that answers tool calls holds a `ToolResult` for every call of the one before,
    results first.
    """

    role: Literal["user", "assistant"]
    parts: tuple[MessagePart, ...]
    thinking: str = ""
    """Thinking of an answer with calls: `StreamEnd.thinking`. Empty: not known."""
    sizes: "dict[CountText, tuple[int, int]]" = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Tokens of its text and of its images, once `measure_prompt` has counted them in some way."""
    wire: dict[str, bytes] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Its JSON, once a request held it, by form: a client's name for how it writes messages."""


@frozen
class CacheBreakpoint:
    """Place up to which the request should be cached, for a time after its last use."""

    behind: Literal["tools", "block", "said"]
    index: int = 0
    """Index of the block, or of the `ModelMessage`, whose last part that takes a breakpoint gets
    it. Ignored for tools.
    """
    lifetime: CacheTtl


@frozen
class ModelRequest:
    """Everything that a model receives for one answer."""

    blocks: tuple[SystemBlock, ...]
    conversation: tuple[ModelMessage, ...]
    aside: str = ""
    """Text of people or tools for this request only, in the user's role: behind the conversation
    and all breakpoints, before `now`. Never repeated. Untrusted."""
    now: str = ""
    """Instructions for this request only, behind everything else. Sent in the operator's role where
    the provider has a place for that. Never repeated."""
    tools: tuple[ToolSpec, ...] = ()
    answer_only: bool = False
    """True: the model must answer and may call no tool. The tools are sent all the same, for the
    cache."""
    thinks_less: bool = False
    """True: the model is asked for as little thinking as its provider can ask for."""
    breakpoints: tuple[CacheBreakpoint, ...] = ()
    """In the order of the request, at most four, `1h` before `5m`. For providers that cache on
    request."""
    max_output_tokens: int
    """0: no answer is wanted, the prompt is only read into the provider's cache."""
    shared_key: str
    """Key of the stable prefix (the agent), for providers that route requests by such a key."""
    conversation_id: str = ""
    """For providers that keep conversations apart. Empty: it belongs to none."""
    sizes: "dict[CountText, PromptSize]" = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Its sizes, once `measure_prompt` has counted them in some way. A changed copy has none."""

    @property
    def has_images(self) -> bool:
        """Return whether the conversation holds images."""
        return any(isinstance(part, Image) for said in self.conversation for part in said.parts)


EMPTY_USER_TEXT = "(nothing yet)"
"""Text of a user message where there would be none: the Messages API needs one, also if a request
only fills the cache, and templates of Qwen's answer 500 without one (vllm#36432)."""


@frozen
class StreamEnd:
    """Last chunk of every stream that did not raise."""

    stop_reason: Literal["end", "tools", "length", "refused"]
    """length: the output limit was reached; the last call, if there are calls, is not whole."""
    usage: Usage
    model: str
    """Name of the model that answered, as the provider gives it."""
    may_leak_calls: bool = False
    """True: the model is known to write tool calls as text, so an answer that is nothing but calls
    is not an answer."""
    ephemeral_from: int | None = None
    """Index of the first `ModelMessage` that was sent in a form which only the rest of its tool
    loop repeats. None: there is none."""
    thinking: str = ""
    """Thinking in front of calls, for `ModelMessage.thinking`: only the client that wrote it can
    read it. Empty: none.
    """
    account: RequestUsage | None = None
    """Cost and use of the cache. None: not accounted."""
    lost_accounts: tuple[RequestUsage, ...] = ()
    """Accounts of earlier attempts that broke off and are billed all the same."""
    instead_of: str = ""
    """Models before the one that answered, each with the reason why it did not. Empty: the first
    one answered."""


@frozen
class PartialText:
    """All text so far of an answer that is not whole yet.

    For display only: the next one may be shorter or quite different. The text that counts comes as
    `TextPart`.
    """

    text: str


PARTIAL_GROWTH = 1 + 1 / 64
"""How much longer than the last one a `PartialText` is: all of them together cost little."""


@frozen
class ThinkingDelta:
    """New piece of the thinking before the answer.

    For display only: it is not part of the answer, and an attempt that breaks off does not retract
    it. Empty: the model thinks or calls a tool, and there is nothing to show of it yet.
    """

    text: str


@frozen
class StreamStart:
    """The provider has read the prompt and begins to answer: what it cached of it can be read from
    now on.
    """

    usage: Usage | None = None
    """Usage that is billed even if nothing more comes. None: not reported yet, so that the prompt
    is estimated."""
    billed_accounts: Callable[[], tuple[RequestUsage, ...]] | None = field(
        default=None, compare=False
    )
    """Returns the accounts of this and earlier attempts; called only if the answer is cut off.
    None: not accounted."""


StreamChunk = StreamStart | PartialText | ThinkingDelta | TextPart | ToolCall | StreamEnd
"""Text comes in pieces, a tool call whole, `StreamEnd` once and last. `PartialText` comes only
before the first `TextPart`; `ThinkingDelta` at any time. `StreamStart` comes only
from providers that report the start: before all but these two, once for each attempt, and once more
right before an error if more is billed by then."""


class Model(Protocol):
    """One configured model."""

    @property
    def name(self) -> str:
        """The configured name, e.g. `main`."""

    @property
    def label(self) -> str:
        """Model and provider, for people."""

    @property
    def context_tokens(self) -> int:
        """Size of the window: input and output together."""

    @property
    def max_output_tokens(self) -> int:
        """Output limit of one answer."""

    @property
    def family(self) -> str:
        """Chooses persona variants such as `IDENTITY.local.md`: `anthropic`, `openai`, `local`,
        ...
        """

    @property
    def takes_tools(self) -> bool:
        """False: requests must come without tools."""

    @property
    def takes_images(self) -> bool:
        """False: requests must come without images."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        """Answer one request. Raises a `ModelError`, also after chunks have been yielded.

        Closing the generator or cancelling its consumer closes the connection at once. Does not
        retry: `agent.models.client.ModelClient` does.
        """

    async def start(self) -> None:
        """Do what takes long (load weights). Safe to call twice; requests wait for it."""

    async def aclose(self) -> None:
        """Release connections and child processes. Streams under way end with an error."""


FailureCause = Literal[
    "overloaded",
    "unreachable",
    "misconfigured",
    "budget",
    "too_long",
    "tools",
    "refused",
    "nothing",
    "cut",
    "conversation",
    "broken",
]
"""Reason of a missing answer; `gateway.runtime.turn_record` has the texts for people. budget: no
credit is left at the provider; tools: the model called tools although it had to answer; nothing:
the answer was empty; cut: it reached `max_output_tokens`; conversation: the provider fails at this
one alone; broken: an error of ours."""


# ModelError
# +-- ModelBusy        wait, then send the same again
# +-- AnswerSpoiled    ask for the same again at once: the next answer is another one
# +-- ModelUnusable    this model will not answer: try the next one, tell the operator
#     +-- AnswerUnreadable   it has, in a form that is not known
# +-- PromptTooLong    compact the conversation, then ask again
# +-- RequestRefused   the request is wrong: another model may take it, if not for the prompt


class ModelError(Exception):
    """A model gave no complete answer. The subclass says what to do. Holds no secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.accounts: tuple[RequestUsage, ...] = ()  # what is billed all the same
        self.status: int | None = None  # of the HTTP response with the error; None: there was none
        self.provider_message = (
            ""  # message, codes and field name of the error, for matching. Untrusted
        )

    @property
    def cause(self) -> FailureCause:
        """Reason that people are given."""
        return "broken"


class ModelBusy(ModelError):
    """Overloaded, rate-limited, cut off or silent: ask again after a while."""

    @property
    def cause(self) -> FailureCause:
        return "unreachable" if self.status is None else "overloaded"

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s  # the server's own hint; None: it gave none


class AnswerSpoiled(ModelError):
    """The model wrote a tool call or an answer that its own provider cannot read. The provider is
    not busy: waiting does not help.
    """

    @property
    def cause(self) -> FailureCause:
        return "nothing"


class ModelUnusable(ModelError):
    """No key, no credit, no such model, not installed: asking again will not help."""

    no_credit = False

    @property
    def cause(self) -> FailureCause:
        return "budget" if self.no_credit else "misconfigured"


class AnswerUnreadable(ModelUnusable):
    """The answer is whole, and nothing of it is in a form that is known."""

    @property
    def cause(self) -> FailureCause:
        return "nothing"


class PromptTooLong(ModelError):
    """The conversation does not fit the window."""

    @property
    def cause(self) -> FailureCause:
        return "too_long"


class RequestRefused(ModelError):
    """The provider refuses the request as it is."""

    def __init__(self, reason: str, *, caused_by_prompt: bool = False) -> None:
        super().__init__(reason)
        self.caused_by_prompt = (
            caused_by_prompt  # by its content, not by its form: other models would refuse it, too
        )

    @property
    def cause(self) -> FailureCause:
        return "refused" if self.caused_by_prompt else "misconfigured"
