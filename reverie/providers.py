"""What a provider of models needs: its settings, `Model`, requests and chunks, errors, and an HTTP
client.

A `ProviderSettings` declares the provider, and makes its clients. A client translates a
`ModelRequest` at the call, and yields text, tool calls and one `StreamEnd`; its errors say what the
caller does next. It does not retry. The checks of both: `reverie.testing.providers`.
"""

from agent.models.adapt import (
    append_suffix as append_suffix,
    find_tool_loop_start as find_tool_loop_start,
    parse_tool_input as parse_tool_input,
)
from agent.models.base import (
    EMPTY_USER_TEXT as EMPTY_USER_TEXT,
    MAX_IMAGE_BYTES as MAX_IMAGE_BYTES,
    MAX_IMAGE_SIDE as MAX_IMAGE_SIDE,
    MAX_IMAGES as MAX_IMAGES,
    MAX_IMAGES_BYTES as MAX_IMAGES_BYTES,
    AnswerSpoiled as AnswerSpoiled,
    AnswerUnreadable as AnswerUnreadable,
    CacheBreakpoint as CacheBreakpoint,
    Effort as Effort,
    FailureCause as FailureCause,
    MessagePart as MessagePart,
    Model as Model,
    ModelBusy as ModelBusy,
    ModelError as ModelError,
    ModelMessage as ModelMessage,
    ModelRequest as ModelRequest,
    ModelUnusable as ModelUnusable,
    PartialText as PartialText,
    PromptTooLong as PromptTooLong,
    RequestRefused as RequestRefused,
    StreamChunk as StreamChunk,
    StreamEnd as StreamEnd,
    StreamStart as StreamStart,
    SystemBlock as SystemBlock,
    TextPart as TextPart,
    ThinkingDelta as ThinkingDelta,
    ThinkingMode as ThinkingMode,
    ToolResult as ToolResult,
)
from agent.models.http import (
    DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S,
    HalfJoiner as HalfJoiner,
    ModelHttpClient as ModelHttpClient,
    RemoteModel as RemoteModel,
    SseEvent as SseEvent,
    StreamText as StreamText,
    encode_body as encode_body,
    encode_json as encode_json,
    error_from_stream as error_from_stream,
    is_window_full as is_window_full,
    join_endpoint as join_endpoint,
    parse_event as parse_event,
    report_unread as report_unread,
    sanitize_reason as sanitize_reason,
)
from agent.models.settings import (
    Caching as Caching,
    Connection as Connection,
    KeyedSettings as KeyedSettings,
    ModelConfig as ModelConfig,
    ModelOptions as ModelOptions,
    ModelTraits as ModelTraits,
    ProviderKey as ProviderKey,
    ProviderSettings as ProviderSettings,
    ProviderUrl as ProviderUrl,
    RemoteSettings as RemoteSettings,
    SetupChoice as SetupChoice,
)
from gateway.core.clock import (
    Clock as Clock,
    SystemClock as SystemClock,
)
from gateway.core.events import (
    CacheTtl as CacheTtl,
    Usage as Usage,
)
from gateway.core.tool_spec import (
    Image as Image,
    ToolCall as ToolCall,
    ToolSpec as ToolSpec,
)
