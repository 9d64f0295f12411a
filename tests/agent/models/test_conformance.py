"""Every remote provider is a model: the checks of `reverie.testing.providers` hold for it."""

from typing import Any, ClassVar

from pydantic import SecretStr

from agent.models.settings import ProviderSettings
from gateway.plugins.providers import (
    AnthropicConfig,
    GeminiConfig,
    MiniMaxConfig,
    OpenAIConfig,
)
from reverie.testing.providers import ModelApiKit, ProviderConformance
from reverie.testing.servers.gemini_api import GeminiApi
from reverie.testing.servers.minimax_api import MiniMaxApi
from reverie.testing.servers.vertex_api import VertexApi
from tests.kits.models import KEY, parse_provider


class OpenAiKit(ModelApiKit):
    def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
        return OpenAIConfig(
            kind="openai", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )


class AnthropicKit(ModelApiKit):
    length_stop = "max_tokens"

    def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
        return AnthropicConfig(
            kind="anthropic", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )

    def usage(self, prompt: int, output: int) -> dict[str, Any]:
        return {"input_tokens": prompt, "output_tokens": output}


class MiniMaxKit(ModelApiKit):
    server = MiniMaxApi

    model = "MiniMax-M3"

    def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
        return MiniMaxConfig(
            kind="minimax", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )


class VertexKit(AnthropicKit):
    server = VertexApi

    def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
        written = {"kind": "vertex", "project": "a-project", "region": "europe-west1"}
        urls = dict.fromkeys(("base_url", "metadata_url"), self.api.url)
        return parse_provider({**written, **urls, "timeout": timeout_s})


class GeminiKit(ModelApiKit):
    server = GeminiApi
    length_stop = "MAX_TOKENS"
    lacks: ClassVar = {"calls_that_the_limit_cut_arrive": "the API sends whole calls only"}

    model = "gemini-3.8-flash"

    def settings(self, timeout_s: float = 10.0) -> ProviderSettings:
        return GeminiConfig(
            kind="gemini", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )

    def usage(self, prompt: int, output: int) -> dict[str, Any]:
        return {"promptTokenCount": prompt, "candidatesTokenCount": output}


class TestOpenAi(ProviderConformance):
    kit = OpenAiKit


class TestAnthropic(ProviderConformance):
    kit = AnthropicKit


class TestMiniMax(ProviderConformance):
    kit = MiniMaxKit


class TestVertex(ProviderConformance):
    kit = VertexKit


class TestGemini(ProviderConformance):
    kit = GeminiKit
