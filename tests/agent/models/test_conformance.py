"""Every remote provider is a model: the checks of `reverie.testing.providers` hold for it."""

from typing import Any

from agent.models.base import Model
from reverie.testing.providers import ModelApiKit, ProviderConformance
from reverie.testing.servers.gemini_api import GeminiApi
from reverie.testing.servers.minimax_api import MiniMaxApi
from reverie.testing.servers.vertex_api import VertexApi
from tests.kits.models import make


class OpenAiKit(ModelApiKit):
    def make(self, timeout_s: float = 10.0) -> Model:
        return make("openai", self.api.url, timeout_s)


class AnthropicKit(ModelApiKit):
    length_stop = "max_tokens"

    def make(self, timeout_s: float = 10.0) -> Model:
        return make("anthropic", self.api.url, timeout_s)

    def usage(self, prompt: int, output: int) -> dict[str, Any]:
        return {"input_tokens": prompt, "output_tokens": output}


class MiniMaxKit(ModelApiKit):
    server = MiniMaxApi

    def make(self, timeout_s: float = 10.0) -> Model:
        return make("minimax", self.api.url, timeout_s)


class VertexKit(AnthropicKit):
    server = VertexApi

    def make(self, timeout_s: float = 10.0) -> Model:
        return make("vertex", self.api.url, timeout_s)


class GeminiKit(ModelApiKit):
    server = GeminiApi
    length_stop = "MAX_TOKENS"

    def make(self, timeout_s: float = 10.0) -> Model:
        return make("gemini", self.api.url, timeout_s)

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
