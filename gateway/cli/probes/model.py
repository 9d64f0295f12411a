"""Probe of a model: key, name and address, tested by asking for one token; and the list of a provider's models.

Codes: `model.key`, `model.name`, `model.credit`, `model.busy`, `model.answer`, `model.cache`, `model.context`,
`model.price`, and those of `probes.base`. Sources: platform.claude.com/docs/en/api/models-list,
platform.openai.com/docs/api-reference/models, llama.cpp tools/server/README.md (`/v1/models`, `/props`).
"""

import asyncio
import contextlib
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.cache.prices import Price, PriceTable
from agent.models.base import (
    Model,
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    StreamEnd,
    TextPart,
)
from agent.models.config import (
    AnthropicConfig,
    LocalConfig,
    ModelConfig,
    OpenAIConfig,
    ProviderConfig,
    ScriptedConfig,
    build_model,
    context_tokens_of,
)
from agent.models.http import ModelHttpClient, format_host, join_endpoint, strip_version
from channels.text import get_number, get_object, get_objects, get_str
from gateway.cli.probes.base import PROBE_TIMEOUT_S, Finding, FindingCollector, probe_url
from gateway.core.clock import SystemClock

_VERSION_HEADERS: Final = {"anthropic-version": "2023-06-01"}
_WINDOW_KEYS: Final = ("max_input_tokens", "max_model_len", "context_length", "context_window")
"""Names of the context window in lists of models: Anthropic, vLLM, OpenRouter, Groq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """Models that a provider lists."""

    findings: list[Finding] = field(default_factory=list)
    names: tuple[str, ...] = ()
    """In the provider's order, mostly newest first. Empty: it does not list them."""
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    """Context window by name, where the provider states it."""
    has_answered: bool = True
    """True if the provider answered at all, even without a list."""


async def list_models(provider: ProviderConfig, *, where: str = "") -> ModelListing:
    """Fetch a provider's models. Takes 10 s at most; raises nothing but CancelledError.

    A server without such a list is no problem; a refused key is.
    """
    found = create_collector(provider, where)
    offered = ModelListing(has_answered=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            offered = await fetch_model_list(provider, found, PROBE_TIMEOUT_S / 2)
    if not offered.has_answered and not found.has_failed:
        report_no_answer(provider, found)
    return replace(offered, findings=found.findings)


def report_no_answer(provider: ProviderConfig, found: FindingCollector) -> None:
    """Add the finding that no answer came in time."""
    if not isinstance(provider, LocalConfig | ScriptedConfig):
        fix = "look at base_url, and at firewalls between here and there; then try again"
        found.bad("net.timeout", f"{format_host(provider.base_url)} does not answer", fix)


def find_nearest_models(name: str, names: tuple[str, ...], most: int = 3) -> list[str]:
    """Return those of `names` that are most similar to `name`. Pure."""
    low = {one.lower(): one for one in names}
    close = [low[one] for one in difflib.get_close_matches(name.lower(), list(low), n=most, cutoff=0.5)]
    return close or [one for one in names if name.lower() in one.lower()][:most]


def create_collector(provider: ProviderConfig, where: str) -> FindingCollector:
    """Return a collector whose findings never contain the provider's key."""
    return FindingCollector(where, [_read_key(provider)])


def _read_key(provider: ProviderConfig) -> str:
    key = None if isinstance(provider, LocalConfig | ScriptedConfig) else provider.api_key
    written = key.get_secret_value() if key else ""
    return "" if written.lower() == "none" else written


async def fetch_model_list(provider: ProviderConfig, found: FindingCollector, limit_s: float) -> ModelListing:
    """Fetch the models. Problems are added to `found`."""
    if isinstance(provider, LocalConfig | ScriptedConfig):
        return ModelListing()
    key = _read_key(provider)
    if isinstance(provider, AnthropicConfig):
        headers, query = _VERSION_HEADERS | ({"x-api-key": key} if key else {}), "?limit=1000"
    else:
        headers, query = ({"authorization": f"Bearer {key}"} if key else {}), ""
    api = ModelHttpClient(
        url=join_endpoint(provider.base_url, "/models") + query, headers=headers, secret=key, timeout_s=limit_s
    )
    try:
        async with asyncio.timeout(limit_s):
            answer: object = json.loads(await api.get())
    except ModelError as error:
        if error.status in {401, 403}:
            report_refused_key(provider, found, error)
        elif error.status is None:
            await report_unreachable(provider, found, error)
            return ModelListing(has_answered=False)
        return ModelListing()
    except TimeoutError:
        return ModelListing(has_answered=False)
    except (ValueError, RecursionError):
        return ModelListing()
    finally:
        await api.aclose()
    return _parse_model_list(answer)


def _parse_model_list(answer: object) -> ModelListing:
    """Parse a list of models as Anthropic or OpenAI send it; llama.cpp has the window in `meta`. Pure."""
    rows = [row for row in get_objects(answer, "data") if get_str(row, "id")]
    windows: dict[str, int] = {}
    for row in rows:
        sizes = [get_number(row, key) for key in _WINDOW_KEYS] + [get_number(get_object(row, "meta"), "n_ctx")]
        window = next((one for one in sizes if one), None)
        if window:
            windows[get_str(row, "id")] = int(window)
    return ModelListing(names=tuple(get_str(row, "id") for row in rows), context_tokens=windows)


def report_refused_key(provider: ProviderConfig, found: FindingCollector, error: ModelError) -> None:
    """Add the finding that the key is refused."""
    what = "the key is refused" if _read_key(provider) else "the server wants a key, and none is given"
    found.bad("model.key", f"{what}: {error.reason}", f"make or copy the key at {find_account_site(provider)}")


def find_account_site(provider: ProviderConfig) -> str:
    """Return the site that issues keys and credit."""
    base = "" if isinstance(provider, LocalConfig | ScriptedConfig) else format_host(provider.base_url)
    known = {"api.anthropic.com": "console.anthropic.com", "api.openai.com": "platform.openai.com"}
    return known.get(base, base or "the provider")


async def report_unreachable(provider: ProviderConfig, found: FindingCollector, error: ModelError) -> None:
    """Add findings on why there was no answer, from probing the address."""
    if isinstance(provider, LocalConfig | ScriptedConfig):
        return
    lost = [one for one in await probe_url(strip_version(provider.base_url)) if one.level == "bad"]
    for one in lost:
        found.bad(one.code, one.what, one.fix)
    if not lost and not isinstance(error, ModelBusy):
        found.bad("model.answer", error.reason, "look at base_url")


_LIST_TIMEOUT_S: Final = 4.0
_NO_CREDIT: Final = re.compile(r"credit balance|insufficient_quota|billing|spend_limit|quota|payment", re.IGNORECASE)
_NO_MODEL: Final = {
    404: re.compile(r"model", re.IGNORECASE),
    400: re.compile(
        r"\bmodel\b[^.]*(not found|not exist|unknown|no access|not have access)"
        r"|(unknown|no such|invalid|nonexistent) model\b|model_not_found",
        re.IGNORECASE,
    ),
}
"""How servers report an unknown model, by HTTP status. Other refusals with 400 name the model, too."""
_OUTPUT_LIMIT_REACHED: Final = re.compile(r"max_tokens or model output limit was reached", re.IGNORECASE)
"""Message of OpenAI's reasoning models when one token is not enough: key and name are valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProbeResult:
    """Result of probing one model."""

    findings: list[Finding] = field(default_factory=list)
    names: tuple[str, ...] = ()
    """See `ModelListing.names`."""
    context_tokens: int | None = None
    """Context window that the provider states. None: it does not."""
    minimum_tokens: int = 0
    """Shortest prefix that the model caches."""


async def probe_model(
    config: ModelConfig,
    provider: ProviderConfig,
    prices: PriceTable,
    *,
    where: str = "",
    keys: tuple[str, str] = ("", ""),
) -> ModelProbeResult:
    """Ask the model for one token. Takes 10 s at most; raises nothing but CancelledError.

    It costs as much as a prompt of ten tokens. `keys`: names of the model and of its provider in the configuration.
    """
    found, listed = create_collector(provider, where), ModelListing(has_answered=False)
    price = prices.find(config.name or "", provider=provider.kind)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            listed = await fetch_model_list(provider, found, _LIST_TIMEOUT_S)
            if not found.has_failed:
                await _ask_one_token(config, provider, found, listed, keys)
    except TimeoutError:
        if listed.has_answered:
            what = f"{config.name or provider.kind} has not answered yet"
            found.warn("model.busy", what, "try again; a server of one's own may still be loading the model")
        elif not found.has_failed:
            report_no_answer(provider, found)
    if not found.has_failed:
        _report_configuration(config, provider, price, found, listed)
    return ModelProbeResult(
        findings=found.findings,
        names=listed.names,
        context_tokens=listed.context_tokens.get(config.name or ""),
        minimum_tokens=price.minimum_tokens,
    )


async def _ask_one_token(
    config: ModelConfig, provider: ProviderConfig, found: FindingCollector, listed: ModelListing, keys: tuple[str, str]
) -> None:
    """Ask for one token through the same code that answers people."""
    key, source = keys[0] or "model", keys[1] or "provider"
    single = config.model_copy(update={"provider": source, "fallbacks": ()})
    built: dict[str, Model] = {}
    try:
        build_model(key, {key: single}, {source: provider}, SystemClock(), made=built)
    except ValueError as error:
        found.bad("model.answer", str(error), "correct the entry")
        return
    model, name = built[key], config.name or provider.kind
    conversation = (ModelMessage(role="user", parts=(TextPart(text="Say OK."),)),)
    request = ModelRequest(blocks=(), conversation=conversation, max_output_tokens=1, shared_key="probe")
    try:
        async with contextlib.aclosing(model.stream(request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, StreamEnd):
                    found.ok("model.answer", f"{name} answers")
    except ModelError as error:
        await _explain_failure(error, name, provider, found, listed)
    finally:
        await model.aclose()


async def _explain_failure(
    error: ModelError, name: str, provider: ProviderConfig, found: FindingCollector, listed: ModelListing
) -> None:
    """Add the finding that explains the failure."""
    if _OUTPUT_LIMIT_REACHED.search(error.reason):
        found.ok("model.answer", f"{name} answers")
    elif _is_without_credit(error):
        fix = f"add credit to the account at {find_account_site(provider)}, or raise its limit"
        found.bad("model.credit", f"the account has no credit: {error.reason}", fix)
    elif error.status in {401, 403}:
        report_refused_key(provider, found, error)
    elif name not in listed.names and (pattern := _NO_MODEL.get(error.status or 0)) and pattern.search(error.reason):
        close = find_nearest_models(name, listed.names)
        fix = f"it has {', '.join(close)}" if close else "look at the name in the provider's list of models"
        found.bad("model.name", f"there is no model {name}: {error.reason}", fix)
    elif isinstance(error, ModelBusy):
        if error.status is None:
            await report_unreachable(provider, found, error)
        if not found.has_failed:
            found.warn("model.busy", f"{name} does not answer at the moment: {error.reason}", "try again later")
    else:
        fix = (
            "do what the server says here; where it cannot be done, look at base_url, the provider's kind and the name"
        )
        found.bad("model.answer", f"{name} gave no answer: {error.reason}", fix)


def _is_without_credit(error: ModelError) -> bool:
    """Return whether the error is a money limit: 429 responses that no waiting helps are, too."""
    spent = isinstance(error, ModelUnusable) and error.status == 429  # noqa: PLR2004 - HTTP's own number
    return spent or error.status == 402 or _NO_CREDIT.search(error.reason) is not None  # noqa: PLR2004 - as above


def _report_configuration(
    config: ModelConfig, provider: ProviderConfig, price: Price, found: FindingCollector, listed: ModelListing
) -> None:
    """Add findings on configuration that works but will surprise somebody."""
    name, written = config.name or provider.kind, context_tokens_of(config, provider)
    window = listed.context_tokens.get(config.name or "") or _find_only_window(listed, provider)
    if window is not None and written > window:
        fix = f"write context_tokens: {window}"
        found.warn("model.context", f"{name} takes {window} tokens, and {written} are configured", fix)
    else:
        found.ok("model.context", f"prompts may have {written} tokens together with the answer")
    if price.known and not price.is_priced:
        found.warn("model.price", f"nobody knows what {name} costs", "write its prices into prices.yaml")
    elif not price.known:
        what = f"{name} is not in the price table, so it counts as a dear one"
        found.warn("model.price", what, "write its prices into prices.yaml in the configuration directory")
    if isinstance(provider, AnthropicConfig | OpenAIConfig):
        found.ok("model.cache", f"prompts are cached from {price.minimum_tokens} tokens on")


def _find_only_window(listed: ModelListing, provider: ProviderConfig) -> int | None:
    """Return the window of the only model of a llama.cpp server, whatever its name."""
    return (
        next(iter(listed.context_tokens.values()))
        if provider.kind == "llamacpp" and len(listed.context_tokens) == 1
        else None
    )
