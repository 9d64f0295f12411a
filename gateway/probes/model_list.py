"""What models a provider has, as far as it says so, and whether its key and its address are good."""

import asyncio
import contextlib
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.models.base import ModelBusy, ModelError
from agent.models.config import AnthropicConfig, LocalConfig, ProviderConfig, ScriptedConfig
from agent.models.http import ModelHttpClient, format_host, join_endpoint, strip_version
from channels.payload import get_number, get_object, get_objects, get_str
from gateway.probes.base import Finding
from gateway.probes.found import FindingCollector
from gateway.probes.net import PROBE_TIMEOUT_S, probe_url

_VERSION_HEADERS: Final = {"anthropic-version": "2023-06-01"}
_WINDOW_KEYS: Final = ("max_input_tokens", "max_model_len", "context_length", "context_window")
"""What servers call the window in their lists: Anthropic, vLLM, OpenRouter, Groq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """What a provider says it has."""

    findings: list[Finding] = field(default_factory=list)
    names: tuple[str, ...] = ()
    """In the provider's order, newest first with most. Empty: it does not list them."""
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    """Name -> tokens, where it says so."""
    has_answered: bool = True
    """It has answered something, if only that there is no list."""


async def list_models(provider: ProviderConfig, *, where: str = "") -> ModelListing:
    """Ask a provider what it has. Never raises but for cancellation; takes 10 s at most.

    Servers that keep no such list are no fault; a key that is refused is.
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
    """Tell that no answer came in time."""
    if not isinstance(provider, LocalConfig | ScriptedConfig):
        fix = "look at base_url, and at firewalls between here and there; then try again"
        found.bad("net.timeout", f"{format_host(provider.base_url)} does not answer", fix)


def find_nearest_models(name: str, names: tuple[str, ...], most: int = 3) -> list[str]:
    """Of `names` those that read most like `name`. Pure."""
    low = {one.lower(): one for one in names}
    close = [low[one] for one in difflib.get_close_matches(name.lower(), list(low), n=most, cutoff=0.5)]
    return close or [one for one in names if name.lower() in one.lower()][:most]


def create_collector(provider: ProviderConfig, where: str) -> FindingCollector:
    """Where findings about it are collected: never with its key."""
    return FindingCollector(where, [_read_key(provider)])


def _read_key(provider: ProviderConfig) -> str:
    key = None if isinstance(provider, LocalConfig | ScriptedConfig) else provider.api_key
    written = key.get_secret_value() if key else ""
    return "" if written.lower() == "none" else written


async def fetch_model_list(provider: ProviderConfig, found: FindingCollector, limit_s: float) -> ModelListing:
    """What it has, without findings: these go to `found`."""
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
            told: object = json.loads(await api.get())
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
    return _parse_model_list(told)


def _parse_model_list(told: object) -> ModelListing:
    """A list of models in the form of Anthropic or OpenAI; llama.cpp's has the window in `meta`. Pure."""
    rows = [row for row in get_objects(told, "data") if get_str(row, "id")]
    windows: dict[str, int] = {}
    for row in rows:
        said = [get_number(row, key) for key in _WINDOW_KEYS] + [get_number(get_object(row, "meta"), "n_ctx")]
        window = next((one for one in said if one), None)
        if window:
            windows[get_str(row, "id")] = int(window)
    return ModelListing(names=tuple(get_str(row, "id") for row in rows), context_tokens=windows)


def report_refused_key(provider: ProviderConfig, found: FindingCollector, error: ModelError) -> None:
    """Tell that the key is not taken."""
    what = "the key is refused" if _read_key(provider) else "the server wants a key, and none is given"
    found.bad("model.key", f"{what}: {error.reason}", f"make or copy the key at {find_account_site(provider)}")


def find_account_site(provider: ProviderConfig) -> str:
    """Where keys and credit are to be had."""
    base = "" if isinstance(provider, LocalConfig | ScriptedConfig) else format_host(provider.base_url)
    known = {"api.anthropic.com": "console.anthropic.com", "api.openai.com": "platform.openai.com"}
    return known.get(base, base or "the provider")


async def report_unreachable(provider: ProviderConfig, found: FindingCollector, error: ModelError) -> None:
    """Tell why there was no answer, as far as looking at its address tells."""
    if isinstance(provider, LocalConfig | ScriptedConfig):
        return
    lost = [one for one in await probe_url(strip_version(provider.base_url)) if one.level == "bad"]
    for one in lost:
        found.bad(one.code, one.what, one.fix)
    if not lost and not isinstance(error, ModelBusy):
        found.bad("model.answer", error.reason, "look at base_url")
