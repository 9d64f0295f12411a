"""What models a provider has, as far as it says so, and whether its key and its address are good."""

import asyncio
import contextlib
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.models.base import Busy, ModelError
from agent.models.config import AnthropicConfig, LocalConfig, ProviderConfig, ScriptedConfig
from agent.models.http import Api, endpoint, root
from agent.models.http import where as place
from channels.payload import number, obj, objs, string
from gateway.probes.base import Finding
from gateway.probes.found import Found
from gateway.probes.net import LIMIT_S, probe_url

_VERSION: Final = {"anthropic-version": "2023-06-01"}
_WINDOWS: Final = ("max_input_tokens", "max_model_len", "context_length", "context_window")
"""What servers call the window in their lists: Anthropic, vLLM, OpenRouter, Groq."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """What a provider says it has."""

    findings: list[Finding] = field(default_factory=list)
    names: tuple[str, ...] = ()
    """In the provider's order, newest first with most. Empty: it does not list them."""
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    """Name -> tokens, where it says so."""
    has_answered: bool = True
    """It has answered something, if only that there is no list."""


async def list_models(provider: ProviderConfig, *, where: str = "") -> Offered:
    """Ask a provider what it has. Never raises but for cancellation; takes 10 s at most.

    Servers that keep no such list are no fault; a key that is refused is.
    """
    found = found_of(provider, where)
    offered = Offered(has_answered=False)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            offered = await listed_by(provider, found, LIMIT_S / 2)
    if not offered.has_answered and not found.has_failed:
        silent(provider, found)
    return replace(offered, findings=found.findings)


def silent(provider: ProviderConfig, found: Found) -> None:
    """Tell that no answer came in time."""
    if not isinstance(provider, LocalConfig | ScriptedConfig):
        fix = "look at base_url, and at firewalls between here and there; then try again"
        found.bad("net.timeout", f"{place(provider.base_url)} does not answer", fix)


def nearest(name: str, names: tuple[str, ...], most: int = 3) -> list[str]:
    """Of `names` those that read most like `name`. Pure."""
    low = {one.lower(): one for one in names}
    close = [low[one] for one in difflib.get_close_matches(name.lower(), list(low), n=most, cutoff=0.5)]
    return close or [one for one in names if name.lower() in one.lower()][:most]


def found_of(provider: ProviderConfig, where: str) -> Found:
    """Where findings about it are collected: never with its key."""
    return Found(where, [_key(provider)])


def _key(provider: ProviderConfig) -> str:
    key = None if isinstance(provider, LocalConfig | ScriptedConfig) else provider.api_key
    written = key.get_secret_value() if key else ""
    return "" if written.lower() == "none" else written


async def listed_by(provider: ProviderConfig, found: Found, limit_s: float) -> Offered:
    """What it has, without findings: these go to `found`."""
    if isinstance(provider, LocalConfig | ScriptedConfig):
        return Offered()
    key = _key(provider)
    if isinstance(provider, AnthropicConfig):
        headers, query = _VERSION | ({"x-api-key": key} if key else {}), "?limit=1000"
    else:
        headers, query = ({"authorization": f"Bearer {key}"} if key else {}), ""
    api = Api(url=endpoint(provider.base_url, "/models") + query, headers=headers, secret=key, timeout_s=limit_s)
    try:
        async with asyncio.timeout(limit_s):
            told: object = json.loads(await api.get())
    except ModelError as error:
        if error.status in {401, 403}:
            refused_key(provider, found, error)
        elif error.status is None:
            await unreachable_at(provider, found, error)
            return Offered(has_answered=False)
        return Offered()
    except TimeoutError:
        return Offered(has_answered=False)
    except (ValueError, RecursionError):
        return Offered()
    finally:
        await api.aclose()
    return _read(told)


def _read(told: object) -> Offered:
    """A list of models in the form of Anthropic or OpenAI; llama.cpp's has the window in `meta`. Pure."""
    rows = [row for row in objs(told, "data") if string(row, "id")]
    windows: dict[str, int] = {}
    for row in rows:
        said = [number(row, key) for key in _WINDOWS] + [number(obj(row, "meta"), "n_ctx")]
        window = next((one for one in said if one), None)
        if window:
            windows[string(row, "id")] = int(window)
    return Offered(names=tuple(string(row, "id") for row in rows), context_tokens=windows)


def refused_key(provider: ProviderConfig, found: Found, error: ModelError) -> None:
    """Tell that the key is not taken."""
    what = "the key is refused" if _key(provider) else "the server wants a key, and none is given"
    found.bad("model.key", f"{what}: {error.reason}", f"make or copy the key at {account_of(provider)}")


def account_of(provider: ProviderConfig) -> str:
    """Where keys and credit are to be had."""
    base = "" if isinstance(provider, LocalConfig | ScriptedConfig) else place(provider.base_url)
    known = {"api.anthropic.com": "console.anthropic.com", "api.openai.com": "platform.openai.com"}
    return known.get(base, base or "the provider")


async def unreachable_at(provider: ProviderConfig, found: Found, error: ModelError) -> None:
    """Tell why there was no answer, as far as looking at its address tells."""
    if isinstance(provider, LocalConfig | ScriptedConfig):
        return
    lost = [one for one in await probe_url(root(provider.base_url)) if one.level == "bad"]
    for one in lost:
        found.bad(one.code, one.what, one.fix)
    if not lost and not isinstance(error, Busy):
        found.bad("model.answer", error.reason, "look at base_url")
