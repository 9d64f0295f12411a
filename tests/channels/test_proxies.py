"""Proxies: which one leads to a server, and that all platforms and providers go through it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from agent.models.base import ModelError
from agent.models.openai import OpenAIModel
from gateway.core.events import ConnectionChanged
from gateway.core.proxy import ProxySetting, find_proxy, through
from reverie.testing.channels import Run
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import Ircd
from reverie.testing.servers.model_api import ModelApi
from reverie.testing.servers.ports import free_port
from reverie.testing.servers.proxy import Proxy
from tests.channels.discord import channel_kit as discord_kit
from tests.channels.irc import channel_kit as irc_kit
from tests.channels.telegram import channel_kit as telegram_kit
from tests.kits.models import ask, text

VARIABLES = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("setting", "environment", "url", "expected"),
    [
        (None, {}, "https://a.example", ""),
        (None, {"HTTPS_PROXY": "http://p:1"}, "https://a.example", "http://p:1"),
        (None, {"HTTPS_PROXY": "p:1"}, "wss://a.example", "http://p:1"),
        (None, {"HTTPS_PROXY": "https://p"}, "https://a.example", "https://p"),
        (None, {"HTTPS_PROXY": "http://p:1"}, "http://a.example", ""),
        (None, {"HTTPS_PROXY": "http://p:1"}, "irc://a.example", ""),
        (None, {"ALL_PROXY": "socks5h://p:1"}, "irc://a.example", "socks5h://p:1"),
        (
            None,
            {"ALL_PROXY": "http://p:1", "HTTPS_PROXY": "http://q:2"},
            "https://a.example",
            "http://q:2",
        ),
        (None, {"ALL_PROXY": "http://p:1", "NO_PROXY": "example"}, "https://a.example", ""),
        (None, {"ALL_PROXY": "http://p:1"}, "https://127.0.0.2", ""),
        (None, {"ALL_PROXY": "http://p:1"}, "http://localhost:8080", ""),
        ("none", {"ALL_PROXY": "http://p:1"}, "https://a.example", ""),
        (
            "socks5://q:2",
            {"ALL_PROXY": "http://p:1", "NO_PROXY": "*"},
            "https://127.0.0.1",
            "socks5://q:2",
        ),
    ],
)
def test_which_proxy_leads_to_a_server(
    setting: str | None,
    environment: dict[str, str],
    url: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(None if setting is None else SecretStr(setting), url) == expected


class Section(BaseModel):
    proxy: ProxySetting | None = None


@pytest.mark.parametrize(
    "url",
    ["p:1080", "ftp://p:1", "socks4://p:1", "socks5://", "http://u:pw-of-it@p:x", "http://p/x"],
)
def test_what_is_no_proxy_is_refused_without_being_quoted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValidationError, match="not the URL of a proxy") as told:
        Section.model_validate({"proxy": url})
    assert "pw-of-it" not in str(told.value.errors()[0]["msg"])
    if "://" in url:
        monkeypatch.setenv("ALL_PROXY", url)
        with pytest.raises(
            ValueError, match="the environment names a proxy that is no URL"
        ) as named:
            find_proxy(None, "https://a.example")
        assert "pw-of-it" not in str(named.value)


def test_no_https_proxy_leads_to_irc_and_discord_whose_libraries_take_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "https://p:1")
    for url in ("irc://a.example", "wss://a.example"):
        with pytest.raises(ValueError, match="the environment names a proxy that is no URL"):
            find_proxy(None, url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("socks5://ann:secret@p:9", " through the proxy p:9"),
        ("http://[::1]", " through the proxy [::1]:80"),
        ("https://p", " through the proxy p:443"),
        ("", ""),
    ],
)
def test_a_proxy_is_named_without_its_password(url: str, shown: str) -> None:
    assert through(url) == shown


Talk = Callable[[dict[str, Any]], contextlib.AbstractAsyncContextManager[None]]
"""Says something through a channel, or asks a model, with these more settings."""


@contextlib.asynccontextmanager
async def _telegram(more: dict[str, Any]) -> AsyncIterator[None]:
    async with BotApi() as api:
        url = api.url.replace("127.0.0.1", "server.test")
        async with telegram_kit.running(url, token=api.token, **more) as run:
            ann = api.person("Ann")
            api.private_says(ann, "hi")
            assert (await run.message()).text == "hi"
            await run.tell("hello", telegram_kit.at(ann))
            assert api.said(ann) == ["hello"]
            yield


@contextlib.asynccontextmanager
async def _discord(more: dict[str, Any]) -> AsyncIterator[None]:
    async with DiscordApi() as api:
        names: dict[str, Any] = {
            "api_url": api.api_url.replace("127.0.0.1", "server.test"),
            "gateway_url": api.gateway_url.replace("127.0.0.1", "server.test"),
        }
        async with discord_kit.running(api, **names, **more) as run:
            user = api.world.add_user("ann")
            room = api.world.dm(user)
            await run.until(lambda: bool(run.all(ConnectionChanged)))
            api.says(room, user, "hi")
            assert (await run.message()).text == "hi"
            await run.channel.send(discord_kit.part("hello", room))
            assert api.texts(room)[-1] == "hello"
            yield


@contextlib.asynccontextmanager
async def _irc(more: dict[str, Any]) -> AsyncIterator[None]:
    async with (
        Ircd() as ircd,
        irc_kit.running(ircd, host="server.test", contact="ann", **more) as run,
    ):
        await run.until(lambda: any(link.up for link in run.all(ConnectionChanged)))
        await run.channel.send(irc_kit.part("hello"))
        yield


@contextlib.asynccontextmanager
async def _provider(more: dict[str, Any]) -> AsyncIterator[None]:
    proxy = SecretStr(more["proxy"]) if "proxy" in more else None
    async with ModelApi() as api:
        model = OpenAIModel(
            name="a", model="m", base_url=api.url.replace("127.0.0.1", "server.test"), proxy=proxy
        )
        assert text(await ask(model)) == "You said: hi"
        await model.aclose()
        yield


TALKS = pytest.mark.parametrize("talk", [_telegram, _discord, _irc, _provider])


@TALKS
@pytest.mark.parametrize("kind", ["socks5", "http"])
async def test_each_platform_and_provider_goes_through_the_proxy_of_its_settings(
    talk: Talk, kind: str
) -> None:
    async with (
        Proxy("ann", "pw-of-a-proxy") as proxy,
        talk({"proxy": proxy.url if kind == "socks5" else proxy.http_url}),
    ):
        pass
    assert {host for host, _ in proxy.asked} == {"server.test"}


@TALKS
async def test_each_platform_and_provider_goes_through_the_proxy_of_the_environment(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy("ann", "pw-of-a-proxy") as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        async with talk({}):
            pass
    assert {host for host, _ in proxy.asked} == {"server.test"}


async def _named(run: Run[Any]) -> str:
    """Why it is not connected."""
    await run.until(lambda: bool(run.all(ConnectionChanged)))
    return run.all(ConnectionChanged)[0].reason


async def test_a_proxy_that_does_not_answer_is_named_without_its_password() -> None:
    port = free_port()
    more: dict[str, Any] = {"proxy": f"socks5://ann:pw-of-a-proxy@127.0.0.1:{port}"}
    name = f"through the proxy 127.0.0.1:{port}"
    reasons = []
    async with DiscordApi() as api, discord_kit.running(api, **more) as discord:
        reasons.append(await _named(discord))
    async with irc_kit.running(free_port(), **more) as irc:
        reasons.append(await _named(irc))
    async with telegram_kit.running("http://server.test", **more) as telegram:
        reasons.append(await _named(telegram))
    with pytest.raises(ModelError) as told:
        await ask(
            OpenAIModel(
                name="a", model="m", base_url="http://server.test", proxy=SecretStr(more["proxy"])
            )
        )
    for reason in (*reasons, str(told.value)):
        assert name in reason
        assert "pw-of" not in reason
