"""What a turn asks of a language model, in no provider's dialect.

A request is laid out in the order of its life: tools, blocks (the system prompt, most stable first),
then the conversation. Providers translate at the call and nowhere else.

A request as another model can take it. Pure.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gateway.core.events import CacheTtl, RequestUsage, ToolImage, Usage
from gateway.core.tool_spec import Image, ResultExcerpt, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemBlock:
    """A piece of the system prompt that changes as a whole."""

    name: str
    text: str
    """Not blank."""
    ttl: Literal["long", "short"]
    """How long it stays worth caching: `long` outlives an hour, `short` minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """Words."""

    text: str


MAX_IMAGE_BYTES = 3_932_160
"""5 MiB once written as base64, which is what Anthropic measures (platform.claude.com, build-with-claude/vision)."""
MAX_IMAGE_SIDE = 8_000
"""Pixels, and the most that is taken there: more is refused as a whole request."""
MAX_IMAGES = 20
"""In one request: with more the longest side is 2,000 pixels (the same page)."""
MAX_IMAGES_BYTES = 20_000_000
"""In one request, before base64: the whole of it may have 32 MB there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer to the `ToolCall` with the same id."""

    id: str
    text: str
    is_error: bool = False
    kind: str = "text"
    """As `gateway.core.events.EvidenceRef.kind`. Not told to the model, as all that follows."""
    origin: str = ""
    """As `gateway.core.events.EvidenceRef.origin`. Untrusted."""
    excerpt: "ResultExcerpt | None" = None
    """It is a part of what stands whole somewhere already. None: it is all there is."""
    is_untrusted: bool = False
    """Somebody else's words: told behind a fence that they cannot forge."""
    images: "tuple[tuple[ToolImage, Image], ...]" = ()
    """Shown behind all results of the same answer, to a model that sees."""


MessagePart = TextPart | Image | ToolCall | ToolResult
"""What one side's contribution is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMessage:
    """One side's contribution. Sides alternate, the user's first and last.

    A `ModelMessage` that answers tool calls holds a `ToolResult` for every call of the one before, results first.
    """

    role: Literal["user", "assistant"]
    parts: tuple[MessagePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBreakpoint:
    """What is in front of this place should be cached, this long after its last use."""

    behind: Literal["tools", "block", "said"]
    index: int = 0
    """Of the block, or of the `ModelMessage`: behind its last piece that can be marked. Tools: all of them."""
    lifetime: CacheTtl


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Everything a model sees for one answer."""

    blocks: tuple[SystemBlock, ...]
    conversation: tuple[ModelMessage, ...]
    aside: str = ""
    """Words of people or of tools that are told for this request only: as the user's, behind the conversation and all
    marks, in front of `now`, and never repeated. Untrusted."""
    now: str = ""
    """What holds for this request only. Told behind all that, in the operator's weight where there is a place that has
    it, and never repeated."""
    tools: tuple[ToolSpec, ...] = ()
    answer_only: bool = False
    """No tool may be called, whatever there is: the answer is wanted. The tools stay, for what is cached."""
    breakpoints: tuple[CacheBreakpoint, ...] = ()
    """In the order of the request, at most four, `1h` before `5m`. For providers that are told what to cache."""
    max_output_tokens: int
    """0: nothing is to be answered, only the prompt read into the provider's cache."""
    shared_key: str
    """Names whose stable prefix this is (the agent), for providers that route by such a key."""
    conversation_id: str = ""
    """Whose conversation it is, for providers that keep one apart from others. Empty: nobody's."""


def append_suffix(request: ModelRequest) -> tuple[ModelMessage, ...]:
    """The conversation with `aside` and `now` as the user's last words, for dialects that have no better place."""
    told = tuple([TextPart(text=words) for words in (request.aside, request.now) if words.strip()])
    if not told:
        return request.conversation
    *before, last = request.conversation or (ModelMessage(role="user", parts=()),)
    if last.role != "user":
        before, last = [*before, last], ModelMessage(role="user", parts=())
    return (*before, ModelMessage(role="user", parts=(*last.parts, *told)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The last chunk of every stream that did not raise."""

    stop_reason: Literal["end", "tools", "length", "refused"]
    usage: Usage
    model: str
    """As the provider names what answered."""
    may_leak_calls: bool = False
    """The model is known to write tool calls as text: an answer that is calls and nothing else is no answer."""
    ephemeral_from: int | None = None
    """From this `ModelMessage` on the request was sent as only the rest of its tool loop will send it again. None:
    nowhere."""
    cleared_tokens: int = 0
    """Tokens of the request that the provider left out by itself, as it was asked to: they are not in `usage`."""
    account: RequestUsage | None = None
    """What became of the cache. None: nobody kept account."""
    lost_accounts: tuple[RequestUsage, ...] = ()
    """Of attempts before it that broke off, and are billed all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialText:
    """All that has been said so far of an answer that is not whole yet.

    For showing only: the next one may be shorter or quite another, and what counts comes as `TextPart`.
    """

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingDelta:
    """So much more was thought before the answer.

    For showing only: it is no part of the answer, and an attempt that breaks off takes none of it back.
    """

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """The provider has read the prompt and begins to answer: what it cached of it can be read from now on."""

    usage: Usage | None = None
    """What is billed even if nothing more comes. None: it does not say yet."""
    billed_accounts: Callable[[], tuple[RequestUsage, ...]] | None = field(default=None, compare=False)
    """The same as accounts, with those of attempts before it: to be asked if the answer is cut off, and only then.
    None: nobody keeps account."""


StreamChunk = StreamStart | PartialText | ThinkingDelta | TextPart | ToolCall | StreamEnd
"""Text comes in pieces, a tool call whole, `StreamEnd` once and last. `PartialText` comes only from a `Failover`, in
front of everything else; `ThinkingDelta` at any time; `StreamStart` only from providers that tell, in front of all but
these, once for each attempt, and once more right before an error if more is billed by then."""


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

    @property
    def takes_images(self) -> bool:
        """False: requests must come without images."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        """Answer one request. Raises a `ModelError`, also after chunks have been yielded.

        Closing the generator or cancelling its consumer closes the connection at once. Does not retry: `failover` does.
        """

    async def start(self) -> None:
        """Make ready what takes long (load weights). Safe to call twice; requests wait for it."""

    async def aclose(self) -> None:
        """Release connections and child processes. Streams under way end with an error."""


FailureCause = Literal[
    "overloaded", "unreachable", "misconfigured", "budget", "too_long", "tools", "refused", "nothing", "broken"
]
"""Why there is no answer, for people: `gateway.runtime.turn` has the words. budget: no credit is left at the provider;
tools: the model called tools where it was to answer; nothing: it answered without a word; broken: something else, of
ours."""


# ModelError
# +-- Busy          wait, then ask the same again
# +-- Unusable      this model will not answer: try the next one, tell the operator
# +-- TooLong       fold the conversation, then ask again
# +-- Malformed     our request is wrong: the next model may take it, unless it is what the prompt says


class ModelError(Exception):
    """A model gave no (complete) answer. The subclass says what to do. Holds no secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.accounts: tuple[RequestUsage, ...] = ()  # of what is billed all the same
        self.status: int | None = None  # of the HTTP answer that said so; None: there was none
        self.provider_message = (
            ""  # all that it said, for programs: message, codes and the field that it names. Untrusted
        )

    @property
    def cause(self) -> FailureCause:
        """What people are told of it."""
        return "broken"


class ModelBusy(ModelError):
    """Overloaded, rate-limited, cut off or silent: ask again after a while."""

    @property
    def cause(self) -> FailureCause:
        return "unreachable" if self.status is None else "overloaded"

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s  # the server's own hint; None: it gave none


class ModelUnusable(ModelError):
    """No key, no credit, no such model, not installed: asking again will not help."""

    no_credit = False

    @property
    def cause(self) -> FailureCause:
        return "budget" if self.no_credit else "misconfigured"


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
            caused_by_prompt  # because of what is said in it, not of how it is asked: others would not take it
        )

    @property
    def cause(self) -> FailureCause:
        return "refused" if self.caused_by_prompt else "misconfigured"


def adapt_request(request: ModelRequest, model: Model) -> ModelRequest:
    """Return `request` as `model` can take it: within its output limit; without tools or images if it takes none.

    Without tools, results stay as words of the user, and calls as a note of the assistant. Without images, there
    are words about them.
    """
    request = replace(request, max_output_tokens=min(request.max_output_tokens, model.max_output_tokens))
    if not model.takes_images and any(isinstance(part, Image) for said in request.conversation for part in said.parts):
        request = replace(
            request, conversation=tuple(_map_parts(said, _replace_image) for said in request.conversation)
        )
    return request if model.takes_tools else strip_tools(request)


def strip_tools(request: ModelRequest) -> ModelRequest:
    """The same without any tools: what was done with them stays as words."""
    conversation = tuple([_map_parts(said, _replace_tool_use) for said in request.conversation])
    return replace(request, tools=(), answer_only=False, conversation=conversation)


def _map_parts(said: ModelMessage, change: Callable[[MessagePart], MessagePart]) -> ModelMessage:
    """The same object where nothing changes: whoever lays requests out knows it by that."""
    parts = tuple([change(part) for part in said.parts])
    same = all(new is old for new, old in zip(parts, said.parts, strict=True))
    return said if same else ModelMessage(role=said.role, parts=parts)


def _replace_image(part: MessagePart) -> MessagePart:
    return TextPart(text=part.description) if isinstance(part, Image) else part


def _replace_tool_use(part: MessagePart) -> MessagePart:
    if isinstance(part, Image):
        return part
    return TextPart(text=f"(used the tool {part.name})" if isinstance(part, ToolCall) else part.text)
