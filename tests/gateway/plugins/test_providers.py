"""A provider of models of somebody else's: from its settings to an answer, and what it declares."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import SplitResult

import pytest
from pydantic import Field

from agent.models.base import Model, ModelRequest, StreamChunk, StreamEnd, TextPart
from agent.models.settings import KeyedSettings, ModelOptions, ModelTraits
from gateway.config.loader import ConfigError, ConfigFiles, read_config
from gateway.config.model_check import list_models
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import Usage
from gateway.plugin import Plugin
from gateway.plugins import UnusablePlugin, find_providers, use_plugins
from gateway.runtime.models import open_model_services
from reverie.demo.stage import choose_model
from reverie.testing.gateway import Gateway, settings
from reverie.testing.servers.model_api import ModelApi
from tests.kits.models import parse_provider


class OracleConfig(KeyedSettings):
    """An oracle, which says the same to all."""

    usual: ClassVar = ModelTraits(10_000, 50, "automatic")
    names_models: ClassVar = False
    runs_here: ClassVar = True
    demo: ClassVar = ("ORACLE", "delphi")

    kind: Literal["oracle"]
    base_url: str = "http://oracle.example"
    saying: str = "know thyself"
    omens: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def is_at(cls, url: SplitResult) -> bool:
        return url.hostname == "oracle.example"

    def make(self, options: ModelOptions, **_: object) -> Model:
        if not self.saying:
            raise ValueError("an oracle says something")
        if self.saying == "the library":
            raise ImportError("there is no library for oracles")
        return Oracle(self.saying, options)


class Oracle:
    def __init__(self, saying: str, options: ModelOptions) -> None:
        self.saying = saying
        self.name = options["name"]
        self.label = "an oracle"
        self.context_tokens = options["context_tokens"]
        self.max_output_tokens = options["max_output_tokens"]
        self.family = "oracle"
        self.takes_tools = self.takes_images = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        yield TextPart(text=f"{self.saying}, in {request.max_output_tokens} tokens")
        usage = Usage(input_tokens=7, output_tokens=3)
        yield StreamEnd(stop_reason="end", usage=usage, model="oracle-1")

    async def start(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""


class OraclePlugin(Plugin):
    name = "oracle"
    providers: ClassVar = {"oracle": OracleConfig}


def configured(tmp: Path, *, off: tuple[str, ...] = (), **provider: object) -> Any:
    provider = {"kind": "oracle"} | provider
    llm = {"providers": {"o": provider}, "models": {"main": {"provider": "o"}}}
    return settings(tmp, llm=llm, plugins={"off": list(off)})


async def test_provider_of_a_plugin_answers_with_its_traits_and_is_accounted(
    tmp_path: Path,
) -> None:
    with use_plugins(OraclePlugin):
        async with Gateway(configured(tmp_path, saying="nothing in excess")) as gateway:
            assert await gateway.ask("hello") == "nothing in excess, in 50 tokens"
        [turn] = await gateway.turns()
    assert (turn.model, turn.usage.input_tokens, turn.usage.output_tokens) == ("oracle-1", 7, 3)
    assert [one.provider for one in turn.accounts] == ["oracle"]


def test_declarations_of_a_provider_are_read_where_they_count() -> None:
    with use_plugins(OraclePlugin):
        demo = choose_model({"ORACLE_API_KEY": "k"})
        told = parse_provider({"base_url": "http://oracle.example/v1"})
    assert demo == ({"kind": "oracle", "api_key": "${ORACLE_API_KEY}"}, {"name": "delphi"})
    assert told.kind == "oracle"


async def test_models_that_a_provider_lists_are_read_with_its_key() -> None:
    async with ModelApi() as api:
        api.models = [{"id": "delphi", "context_length": 9_000}]
        with use_plugins(OraclePlugin):
            one = parse_provider({"kind": "oracle", "base_url": api.url, "api_key": "k"})
            listed = await list_models(one)
    assert (listed.names, listed.context_tokens) == (("delphi",), {"delphi": 9_000})


@pytest.mark.parametrize(
    ("provider", "off", "key"),
    [
        ({"kind": "orakle"}, (), "llm.providers.o.kind"),
        ({}, ("oracle",), "llm.providers.o.kind"),
        ({"sayings": "x"}, (), "llm.providers.o.sayings"),
    ],
    ids=["unknown", "off", "setting"],
)
def test_provider_that_is_not_there_is_named(
    tmp_path: Path, provider: dict[str, object], off: tuple[str, ...], key: str
) -> None:
    with use_plugins(OraclePlugin), pytest.raises(ConfigError) as raised:
        configured(tmp_path, off=off, **provider)
    [problem] = raised.value.problems
    assert problem.key == key


@pytest.mark.parametrize(("saying", "why"), [("", "says something"), ("the library", "no library")])
async def test_model_that_its_provider_cannot_make_is_told_at_its_section(
    tmp_path: Path, saying: str, why: str
) -> None:
    def write(saying: str) -> LiveSettings:
        written = {
            "channels": {"console": {"platform": "console"}},
            "agents": [{"id": "reverie"}],
            "llm": {
                "providers": {"o": {"kind": "oracle"}, "p": {"kind": "oracle", "saying": saying}},
                "models": {
                    "main": {"provider": "o", "fallbacks": ["second"]},
                    "second": {"provider": "p"},
                },
            },
        }
        (tmp_path / "reverie.yaml").write_text(json.dumps(written, indent=1))
        (tmp_path / "reverie.yaml").chmod(0o600)
        return LiveSettings(read_config(tmp_path, {}).settings, ConfigFiles(tmp_path, {}))

    with use_plugins(OraclePlugin):
        live = write("know thyself")
        async with open_model_services(live, ManualClock(), model=None):
            broken = write(saying)
            [problem] = (await live.reload()).problems
        with pytest.raises(ConfigError, match=f"llm.models.second: .*{why}"):
            async with open_model_services(broken, ManualClock(), model=None):
                pass
    assert (problem.key, problem.line > 0) == ("llm.models.second", True)
    assert why in problem.message


def test_built_in_provider_that_is_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scripted is off"):
        settings(tmp_path, plugins={"off": ["scripted"]})


class Taken(Plugin):
    name = "taken"
    providers: ClassVar = {"openai": OracleConfig}


class Misnamed(Plugin):
    name = "misnamed"
    providers: ClassVar = {"delphi": OracleConfig}


@pytest.mark.parametrize("plugin", [Taken, Misnamed])
def test_provider_with_a_name_that_is_taken_or_not_its_own_is_unusable(
    plugin: type[Plugin],
) -> None:
    with pytest.raises(UnusablePlugin), use_plugins(plugin):
        pass
    assert find_providers().keys().isdisjoint({"delphi", "oracle"})
