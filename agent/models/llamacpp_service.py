"""What a llama.cpp server tells of itself, and counts.

Obeys llama.cpp tools/server/README.md (`/props`, `/v1/chat/completions/input_tokens`, `/apply-template`, `/tokenize`).
"""

from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import BaseModel, ValidationError

from agent.models.base import ModelUnusable
from agent.models.http import ModelHttpClient, strip_version

M = TypeVar("M", bound=BaseModel)


class _ServerProps(BaseModel):
    total_slots: int = 0


class _InputTokens(BaseModel):
    input_tokens: int


class _AppliedTemplate(BaseModel):
    prompt: str


class _TokenizedPrompt(BaseModel):
    tokens: list[object]


class LlamaCppService:
    """The endpoints beside the conversations."""

    def __init__(self, *, base_url: str, api_key: str, timeout_s: float) -> None:
        self._secret = "" if api_key.lower() == "none" else api_key
        self._timeout_s = timeout_s
        self._root = strip_version(base_url)
        self._props = self._open_api("/props")
        self._input_tokens = self._open_api("/v1/chat/completions/input_tokens")
        self._template = self._open_api("/apply-template")
        self._tokenize = self._open_api("/tokenize")

    def _open_api(self, path: str) -> ModelHttpClient:
        headers = {"authorization": f"Bearer {self._secret}"} if self._secret else {}
        url = self._root + path
        return ModelHttpClient(url=url, headers=headers, secret=self._secret, timeout_s=self._timeout_s, reuse=False)

    async def count_slots(self) -> int:
        """Return how many prompts are kept at the same time. 0: it does not say. Raises a ModelError."""
        return self._parse_answer(_ServerProps, await self._props.get()).total_slots

    async def count_tokens(self, body: Mapping[str, object]) -> int:
        """Return the tokens of a chat completion's prompt, by the server's own template and tokenizer.

        Raises a ModelError; `ModelUnusable` if the server is too old to count.
        """
        asked = {key: value for key, value in body.items() if not key.startswith("stream")}
        try:
            return self._parse_answer(_InputTokens, await self._input_tokens.post(asked)).input_tokens
        except ModelUnusable:  # builds without it answer 404
            prompt = self._parse_answer(_AppliedTemplate, await self._template.post(asked)).prompt
        written = {"content": prompt, "add_special": True, "parse_special": True}
        return len(self._parse_answer(_TokenizedPrompt, await self._tokenize.post(written)).tokens)

    async def transfer_slot_file(self, slot: int, action: Literal["save", "restore"], name: str) -> None:
        """Write what a slot holds to a file of the server's `--slot-save-path`, or read it from there.

        Raises a ModelError; `Busy` (501) if it has no such path.
        """
        api = self._open_api(f"/slots/{slot}?action={action}")
        try:
            await api.post({"filename": name})
        finally:
            await api.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        for api in (self._props, self._input_tokens, self._template, self._tokenize):
            await api.aclose()

    def _parse_answer(self, kind: type[M], answer: bytes) -> M:
        try:
            return kind.model_validate_json(answer)
        except ValidationError:
            raise ModelUnusable(f"{self._props.host} does not answer as llama.cpp does") from None
