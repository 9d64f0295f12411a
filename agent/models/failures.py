"""What a provider's refusal means for us. Pure: status, headers and body in, a `ModelError` out.

Sources: platform.claude.com/docs/en/api/errors and /rate-limits; platform.openai.com/docs/guides/error-codes;
llama.cpp tools/server/README.md (`exceed_context_size_error`); RFC 9110 section 10.2.3 (Retry-After). What compatible
servers say stands beside their names.
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from agent.models.base import ModelBusy, ModelError, ModelUnusable, PromptTooLong, RequestRefused, StreamEnd

_REASON_CHARS = 240
"""Long enough for a provider's sentence, short enough for one log line."""

_RATE_LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")
"""Of Anthropic's rate limit headers (docs/en/api/rate-limits): those that may be used up."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,80}", re.ASCII)

_BUSY_STATUSES = frozenset({408, 409, 425, 429})
_UNUSABLE_STATUSES = frozenset({401, 402, 403, 404, 405, 410})
_OVERFLOW = re.compile(
    r"(?:prompt|input|request)\b.{0,40}\bis too long|context[ _](?:length|window|size|limit)|maximum context"
    r"|exceed_context|request_too_large|too many (?:input )?tokens|reduce the length"
    r"|maximum (?:model|prompt|allowed input) length|exceeds max length"  # vLLM, xAI, SGLang's router, Z.ai
    r"|exceeds the maximum number of tokens|token count.{0,40}exceeds the limit"  # Gemini, GitHub
    r"|exceeded model token limit|range of input length|more than max tokens allowed"  # Moonshot, DashScope, MiniMax
    r"|max_new_tokens`? must be|string_above_max_length",  # TGI, OpenAI
    re.IGNORECASE,
)
"""How providers say that a prompt does not fit."""
_TOO_LARGE = re.compile(r"request too large|tokens must be reduced", re.IGNORECASE)
"""OpenAI's 429 for what is more than a minute's tokens: waiting does not help."""
_FULL_SHARE = 0.99
"""Of the window: estimates of the end are that far off."""
_SCARCE_SHARE = 1 / 8
"""Of what was asked for: who stops so soon and has said nothing had no room. A limit of the server's own is larger."""
_NO_CREDIT = re.compile(
    r"enforced_spend_limit_reached|insufficient_quota|billing_hard_limit_reached|billing_not_active"
    r"|credit balance is too low",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model_not_found", re.IGNORECASE)
_PAYMENT_REQUIRED = 402
_BY_PROMPT = re.compile(
    r"\bmessages?(?:\.\d|\[\d|: (?!field required))|\bimage|media_type|base64|content[ _](?:policy|filter|management)"
    r"|invalid_prompt|responsible_?ai|roles? must alternate|tool_use_?id|tool_use ids|tool_call_id|`tool_result`"
    r"|role 'tool'|user message|last message|`thinking`|safety",
    re.IGNORECASE,
)
"""How providers find fault with what is said in a request: with a message, a picture, or what it is about. All else
(fields, values, tools, the model's name) is the request's own form."""
_CAUSED_BY_FORM = re.compile(
    r"cache_control|Extra inputs are not permitted|unsupported_parameter|unknown_parameter", re.IGNORECASE
)
_MESSAGE_CHARS = 4_000
_SECRET_CHARS = 8
_STATUS_BY_TYPE: dict[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "exceed_context_size_error": 400,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The status that an `error` event would have had as a response (platform.claude.com, errors)."""


class _ErrorBody(NamedTuple):
    """What an error body says."""

    message: str
    codes: tuple[str, ...] = ()
    request_id: str = ""
    param: str = ""
    """The field that is named, where that is told apart."""


def error_from_response(
    status: int, headers: Mapping[str, str], body: bytes, *, where: str, secret: str, now: datetime
) -> ModelError:
    """Name what a response that is not 200 asks us to do. `headers` has lower-case names.

    The reason quotes the provider's own message, shortened, with `secret` blacked out, and names the request as the
    provider does, if it does: its support asks for that.
    """
    told = _parse_error_body(body)
    if not told.request_id:
        told = told._replace(request_id=headers.get("request-id") or headers.get("x-request-id") or "")
    return _build_error(status, told, where=where, secret=secret, hint_s=retry_after_s(headers, now))


def error_from_stream(body: str, *, where: str, secret: str) -> ModelError:
    """Name what an error inside a stream that began with 200 asks us to do: by its type, else `ModelBusy`."""
    told = _parse_error_body(body.encode("utf-8", "replace"))
    numbers = [int(c) for c in told.codes if c.isdecimal() and len(c) == 3]  # noqa: PLR2004 - an HTTP status has 3 digits
    status = next((_STATUS_BY_TYPE[c] for c in told.codes if c in _STATUS_BY_TYPE), numbers[0] if numbers else 500)
    return _build_error(status, told, where=where, secret=secret, hint_s=None)


def is_window_full(end: StreamEnd, *, said: bool, asked: int, window: int) -> bool:
    """Whether an answer was cut because the window was full, not because it had the length that was asked for.

    `said`: anything at all. `asked`: tokens; 0: nothing was to be answered. `window`: the model's, as it is configured.
    """
    usage = end.usage
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if end.stop_reason != "length" or not prompt or usage.output_tokens >= asked:
        return False  # an answer that has all that was asked for ended there, however full the window is by now
    return prompt + usage.output_tokens >= window * _FULL_SHARE or (
        not said and usage.output_tokens < asked * _SCARCE_SHARE
    )


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds the server asks us to wait; None if it does not say, or not in a form we can read.

    Without a word about this request, that is until the last of Anthropic's limits is reset that is used up.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
            return float(value) * scale
    dates = [_parse_moment(parsedate_to_datetime, headers.get("retry-after", ""))]
    if dates == [None]:
        used_up = [
            limit for limit in _RATE_LIMITS if headers.get(f"anthropic-ratelimit-{limit}-remaining", "").strip() == "0"
        ]
        dates = [
            _parse_moment(datetime.fromisoformat, headers.get(f"anthropic-ratelimit-{limit}-reset", ""))
            for limit in used_up
        ]
    return max((max(0.0, (due - now).total_seconds()) for due in dates if due is not None), default=None)


def _parse_moment(read: Callable[[str], datetime], written: str) -> datetime | None:
    try:
        due = read(written)
        return due if due.tzinfo else due.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # the latter for a year or an offset beyond all measure
        return None


def _build_error(status: int, told: _ErrorBody, *, where: str, secret: str, hint_s: float | None) -> ModelError:
    error = _classify_error(status, told, where=where, secret=secret, hint_s=hint_s)
    error.status = status
    searched = " ".join((told.message, *told.codes, told.param))
    hidden = len(secret) >= _SECRET_CHARS  # what is shorter is none, and stands in any word
    error.provider_message = (searched.replace(secret, "***") if hidden else searched)[:_MESSAGE_CHARS]
    if isinstance(error, ModelUnusable):
        error.no_credit = status == _PAYMENT_REQUIRED or _NO_CREDIT.search(searched) is not None
    if isinstance(error, RequestRefused):
        error.caused_by_prompt = _BY_PROMPT.search(searched) is not None and _CAUSED_BY_FORM.search(searched) is None
    return error


def _classify_error(status: int, told: _ErrorBody, *, where: str, secret: str, hint_s: float | None) -> ModelError:
    message = told.message
    reason = sanitize_reason(
        f"{where} answered {status}: {message}" if message else f"{where} answered {status}", secret
    )
    if _REQUEST_ID.fullmatch(told.request_id) and not (secret and secret in told.request_id):
        reason = f"{reason} ({told.request_id})"
    searched = " ".join((message, *told.codes))
    if _NO_CREDIT.search(searched) or _NO_MODEL.search(searched):
        return ModelUnusable(reason)
    if status == 413 or (status in {400, 422, 500} and _OVERFLOW.search(searched)):  # noqa: PLR2004 - HTTP's own number
        return PromptTooLong(reason)
    if status == 429 and _TOO_LARGE.search(message):  # noqa: PLR2004 - HTTP's own number
        return PromptTooLong(reason)
    if status in _BUSY_STATUSES or status >= 500:  # noqa: PLR2004 - HTTP's own number
        return ModelBusy(reason, retry_after_s=hint_s)
    if status in _UNUSABLE_STATUSES or status < 400:  # noqa: PLR2004 - HTTP's own number; a redirect is a wrong base_url
        return ModelUnusable(reason)
    return RequestRefused(reason)


def sanitize_reason(text: str, secret: str) -> str:
    """One line, limited, without `secret`, that can be written as UTF-8 (JSON may hold half a surrogate pair)."""
    text = text.encode("utf-8", "replace").decode()
    if secret:
        text = text.replace(secret, "***")
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARS else line[: _REASON_CHARS - 1] + "…"


def _parse_error_body(body: bytes) -> _ErrorBody:
    """Read an error body in any of the shapes that servers use."""
    text = body.decode("utf-8", "replace")
    try:
        top: object = json.loads(text)
    except (ValueError, RecursionError):
        return _ErrorBody("" if "<html" in text.lower() else text)
    error: object = top.get("error", top) if isinstance(top, dict) else top
    if not isinstance(error, dict):
        return _ErrorBody(str(error))
    request_id = top.get("request_id") if isinstance(top, dict) else None
    details = error.get("details")
    inner = details.get("error_code") if isinstance(details, dict) else None
    codes = tuple(str(c) for c in (error.get("type"), error.get("code"), error.get("status"), inner) if c is not None)
    message = error.get("message") or error.get("detail") or ""
    param = error.get("param")
    return _ErrorBody(
        message if isinstance(message, str) else json.dumps(message),
        codes,
        request_id if isinstance(request_id, str) else "",
        param if isinstance(param, str) else "",
    )
