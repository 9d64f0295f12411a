"""The models: prices, fallbacks, one token asked of each; and the list of a provider's models.

Codes: `model.key`, `model.name`, `model.credit`, `model.busy`, `model.answer`, `model.cache`,
`model.context`, `model.price`, `model.calls`, `model.fallbacks`, and those of `net`. Sources:
platform.claude.com/docs/en/api/models-list, platform.openai.com/docs/api-reference/models,
ai.google.dev/api/models, llama.cpp tools/server/README.md (`/v1/models`, `/props`).
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from email.utils import parsedate_to_datetime
from typing import Final

from agent.cache.prices import Price, PriceTable
from agent.models.adapt import adapt_request
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
from agent.models.config import build_model
from agent.models.http import ModelHttpClient, strip_version
from agent.models.settings import ModelConfig, ProviderSettings, RemoteSettings
from channels.text import get_number, get_object, get_str
from gateway.config.check_registry import CheckContext, check
from gateway.config.secrets import PriceTableError, load_price_table
from gateway.config.validation import list_used_models
from gateway.core.clock import SystemClock
from gateway.core.events import Usage
from gateway.core.findings import PROBE_TIMEOUT_S, Finding, FindingCollector, ok
from gateway.core.frozen import frozen
from gateway.core.net_probe import probe_url
from gateway.core.tool_spec import ToolSpec

_MAX_NAMED: Final = 8
_CLOCK_S: Final = 3600.0
_WINDOW_KEYS: Final = (
    "max_input_tokens",
    "max_model_len",
    "context_length",
    "context_window",
    "inputTokenLimit",
)
"""Names of the context window in lists of models: Anthropic, vLLM, OpenRouter, Groq, Google."""


@frozen
class ModelListing:
    """Models that a provider lists."""

    findings: list[Finding] = field(default_factory=list)
    names: tuple[str, ...] = ()
    """In the provider's order, mostly newest first. Empty: it does not list them."""
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    """Context window by name, where the provider states it."""
    has_answered: bool = True
    """True if the provider answered at all, even without a list."""


async def list_models(provider: ProviderSettings, *, where: str = "") -> ModelListing:
    """Fetch a provider's models. Takes 10 s at most; raises nothing but CancelledError.

    A server without such a list is no problem; a refused key is.
    """
    found = FindingCollector(where, [provider.secret])
    offered = ModelListing(has_answered=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            offered = await _fetch_model_list(provider, found, PROBE_TIMEOUT_S / 2)
    if not offered.has_answered and not found.has_failed:
        _report_no_answer(provider, found)
    return replace(offered, findings=found.findings)


def _report_no_answer(provider: ProviderSettings, found: FindingCollector) -> None:
    if isinstance(provider, RemoteSettings):
        found.bad(
            "net.timeout",
            f"{provider.host} does not answer",
            "check base_url and the firewalls on the way, then try again",
        )


async def _fetch_model_list(
    provider: ProviderSettings, found: FindingCollector, limit_s: float
) -> ModelListing:
    """Fetch the models. Problems are added to `found`."""
    request = provider.list_request() if isinstance(provider, RemoteSettings) else None
    if not isinstance(provider, RemoteSettings) or request is None:
        return ModelListing()
    api = ModelHttpClient(
        url=request[0],
        headers=request[1],
        secret=provider.secret,
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
        _judge_clock(api, found)
        await api.aclose()
    return _read_model_list(provider.listed_models(answer))


def _judge_clock(api: ModelHttpClient, found: FindingCollector) -> None:
    """Warn if the clock of this machine is wrong by more than an hour, by the server's."""
    off_s = 0.0
    with contextlib.suppress(ValueError, OverflowError):
        off_s = SystemClock().now().timestamp() - parsedate_to_datetime(api.date).timestamp()
    if abs(off_s) > _CLOCK_S:
        found.warn(
            "net.clock",
            f"this machine's clock differs from that of {api.host} by {off_s / 3600:+,.1f} h",
            "set it (timedatectl set-ntp true): reminders, budgets and logins go by it",
        )


def _read_model_list(rows: Sequence[object]) -> ModelListing:
    """Read the rows of a list of models; llama.cpp has the window in `meta`. Pure."""
    named = {
        get_str(row, "id"): row for row in rows if isinstance(row, dict) and get_str(row, "id")
    }
    windows: dict[str, int] = {}
    for name, row in named.items():
        sizes = [get_number(row, key) for key in _WINDOW_KEYS] + [
            get_number(get_object(row, "meta"), "n_ctx")
        ]
        window = next((one for one in sizes if one), None)
        if window:
            windows[name] = int(window)
    return ModelListing(names=tuple(named), context_tokens=windows)


def _report_refused_key(
    provider: ProviderSettings, found: FindingCollector, error: ModelError
) -> None:
    has_key = isinstance(provider, RemoteSettings) and provider.has_credential
    what = "the key is refused" if has_key else "the server needs a key, and none is configured"
    found.bad(
        "model.key",
        f"{what}: {error.reason}",
        f"create or copy the key at {_account_site(provider)}",
    )


_ACCOUNT_SITES: Final = {
    "api.anthropic.com": "console.anthropic.com",
    "api.openai.com": "platform.openai.com",
    "api.minimax.io": "platform.minimax.io",
    "generativelanguage.googleapis.com": "aistudio.google.com",
}
"""Where people have their accounts, by host: some speak the API of others, too."""


def _account_site(provider: ProviderSettings) -> str:
    if not isinstance(provider, RemoteSettings):
        return "the provider"
    return provider.account_site or _ACCOUNT_SITES.get(provider.host, provider.host)


async def _report_unreachable(
    provider: ProviderSettings, found: FindingCollector, error: ModelError
) -> None:
    """Add findings on why there was no answer, from probing the address."""
    if not isinstance(provider, RemoteSettings):
        return
    reached = await probe_url(strip_version(provider.base_url), proxy=provider.proxy)
    if reached.level == "bad":
        found.add(reached)
    elif not isinstance(error, ModelBusy):
        found.bad("model.answer", error.reason, "check base_url")


_LIST_TIMEOUT_S: Final = 4.0
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
    provider: ProviderSettings,
    prices: PriceTable,
    *,
    where: str = "",
    keys: tuple[str, str] = ("", ""),
) -> tuple[list[Finding], int | None]:
    """Ask the model for one token. Takes 20 s at most; raises nothing but CancelledError.

    Returns also the context window that the provider states, None: it does not. It costs as much as
    a prompt of some hundred tokens. `keys`: names of the model and of its provider in the
    configuration.
    """
    found, listed = FindingCollector(where, [provider.secret]), ModelListing(has_answered=False)
    price = provider.find_price(prices, config)
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


_TOOL: Final = ToolSpec(
    name="look", description="Looks.", schema='{"type":"object","properties":{}}'
)
"""Goes with the question: some servers take none, or only with an option, and turns have them."""


async def _ask(
    config: ModelConfig, provider: ProviderSettings, keys: tuple[str, str], text: str
) -> Usage:
    """Ask for one token, and return the bill. Raises ModelError, ValueError for a bad
    configuration, and ImportError for a library that is missing.
    """
    key, source = keys[0] or "model", keys[1] or "provider"
    single = config.model_copy(update={"provider": source, "fallbacks": ()})
    built: dict[str, Candidate] = {}
    build_model(key, {key: single}, {source: provider}, SystemClock(), made=built)
    conversation = (ModelMessage(role="user", parts=(TextPart(text=text),)),)
    request = ModelRequest(
        blocks=(),
        conversation=conversation,
        tools=(_TOOL,),
        max_output_tokens=1,
        shared_key="probe",
    )
    usage, model = Usage(), built[key].model
    try:
        async with contextlib.aclosing(model.stream(adapt_request(request, model))) as chunks:
            async for chunk in chunks:
                usage = chunk.usage if isinstance(chunk, StreamEnd) else usage
    finally:
        await model.aclose()
    return usage


async def _ask_one_token(
    config: ModelConfig,
    provider: ProviderSettings,
    found: FindingCollector,
    listed: ModelListing,
    keys: tuple[str, str],
) -> None:
    """Ask for one token through the same code that answers people."""
    name = config.name or provider.kind
    try:
        await _ask(config, provider, keys, "Say OK.")
    except (ImportError, ValueError) as error:
        found.bad("model.answer", str(error), "correct the entry")
    except ModelError as error:
        await _explain_failure(error, name, provider, found, listed)
    else:
        found.ok("model.answer", f"{name} answers")


async def _explain_failure(
    error: ModelError,
    name: str,
    provider: ProviderSettings,
    found: FindingCollector,
    listed: ModelListing,
) -> None:
    if _OUTPUT_LIMIT_REACHED.search(error.reason):
        found.ok("model.answer", f"{name} answers")
    elif isinstance(error, ModelUnusable) and error.no_credit:
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
            if isinstance(provider, RemoteSettings)
            else "do that, or choose another provider"
        )
        found.bad("model.answer", f"{name} gave no answer: {error.reason}", fix)


def _report_configuration(
    config: ModelConfig,
    provider: ProviderSettings,
    price: Price,
    found: FindingCollector,
    listed: ModelListing,
) -> None:
    """Add findings on configuration that works but will surprise somebody."""
    name, options = config.name or provider.kind, provider.options("", config)
    written = options["context_tokens"]
    windows = listed.context_tokens
    only = not provider.names_models and len(windows) == 1  # then its name does not matter
    window = next(iter(windows.values())) if only else windows.get(config.name or "")
    if window is not None and written > window:
        fix = f"write context_tokens: {window}"
        found.warn(
            "model.context", f"{name} takes {window} tokens, and {written} are configured", fix
        )
    else:
        found.ok("model.context", f"a prompt may have {written} tokens together with the answer")
    if provider.is_unknown_server and config.leaks is not False and _UNREAD_FAMILIES.search(name):
        what = (
            f"calls of tools that {name} writes as text are not read: its server must parse "
            "them itself"
        )
        fix = (
            "turn its parser of tool calls on (vLLM, SGLang: --tool-call-parser), then set "
            "leaks: false"
        )
        found.warn("model.calls", what, fix)
    if price.known and not price.is_priced:
        found.warn(
            "model.price", f"the price of {name} is not known", "add its prices to prices.yaml"
        )
    elif not price.known:
        what = f"{name} is not in the price table, so a high price is assumed"
        found.warn(
            "model.price", what, "add its prices to prices.yaml in the configuration directory"
        )
    elif provider.is_free and not price.input_usd:
        found.ok("model.price", f"{name} costs nothing: its server is your own, and wants no key")
    if provider.traits(config.name or "").caching != "none" and not provider.runs_here:
        found.ok("model.cache", f"prompts are cached from {price.minimum_tokens} tokens on")


@check("model", each=list_used_models, online=True)
async def check_model(context: CheckContext, key: str) -> Sequence[Finding]:
    """Check one model in use."""
    config = context.settings.llm.models[key]
    provider = context.settings.llm.providers[config.provider]
    if provider.untested:
        return [ok("model.answer", provider.untested, f"llm.models.{key}")]
    try:
        prices = load_price_table(context.environment.directory)
    except PriceTableError:  # reported by a check of its own
        return []
    return (
        await probe_model(
            config, provider, prices, where=f"llm.models.{key}", keys=(key, config.provider)
        )
    )[0]
