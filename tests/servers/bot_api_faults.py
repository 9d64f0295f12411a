"""What may go wrong between a bot and the Bot API, and what the fake server was asked."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.servers.bot_api_http import Json, answer

BAD_GATEWAY = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>\r\n"


@dataclass(slots=True)
class Call:
    """One request of the bot."""

    method: str
    parameters: Json
    at_s: float = field(default_factory=time.monotonic)
    """When its last byte was read: comparable across processes on one Linux machine."""
    processed: bool = False
    """What was asked for has happened."""
    answer: Json | None = None
    """As it went out; None: no proper answer was given (yet)."""

    def __getitem__(self, name: str) -> Any:
        return self.parameters[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.parameters.get(name, default)


Where = Callable[[Call], bool]


@dataclass(slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, for the calls that it meets."""

    does: Literal["answer", "drop", "stall", "slow", "hang_up"]
    method: str
    times: int | None
    where: Where | None = None
    after: bool = False
    """The call is processed first."""
    wire: bytes = b""
    """`answer`: instead of any; `drop`: goes out before the connection is reset."""
    chunk_bytes: int = 0
    every_s: float = 0.0
    met: int = 0

    def meets(self, call: Call) -> bool:
        return self.times != 0 and self.method in (call.method, "*") and (self.where is None or self.where(call))


class Faults:
    """Added at any time; the oldest that meets a call happens to it. `times=None`: until `clear`."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []
        self.released = asyncio.Event()

    def fail(
        self,
        method: str,
        code: int,
        description: str | None = None,
        *,
        retry_after: float | None = None,
        times: int | None = 1,
        after: bool = False,
        where: Where | None = None,
    ) -> Fault:
        """Answer with an error in the API's own words; `after` processing it all the same."""
        words = {429: f"Too Many Requests: retry after {retry_after}", 401: "Unauthorized", 502: "Bad Gateway"}
        body: Json = {"ok": False, "error_code": code, "description": description or words.get(code, "Internal Error")}
        if retry_after is not None:
            body["parameters"] = {"retry_after": retry_after}
        wire = answer(code, json.dumps(body).encode())
        return self._add(Fault(does="answer", method=method, times=times, where=where, after=after, wire=wire))

    def say(
        self,
        method: str,
        body: bytes,
        *,
        status: int = 200,
        kind: str = "application/json",
        times: int | None = 1,
        after: bool = False,
        where: Where | None = None,
    ) -> Fault:
        """Answer with any body: broken JSON, HTML (`BAD_GATEWAY`), nothing."""
        wire = answer(status, body, kind)
        return self._add(Fault(does="answer", method=method, times=times, where=where, after=after, wire=wire))

    def drop(
        self,
        method: str,
        *,
        after: bool = False,
        begun: bytes = b"",
        times: int | None = 1,
        where: Where | None = None,
    ) -> Fault:
        """Reset the connection without an answer, or with the first bytes of one (`begun`)."""
        return self._add(Fault(does="drop", method=method, times=times, where=where, after=after, wire=begun))

    def stall(self, method: str, *, after: bool = False, times: int | None = 1, where: Where | None = None) -> Fault:
        """Say nothing until `release`, then answer; the connection stays open."""
        self.released.clear()
        return self._add(Fault(does="stall", method=method, times=times, where=where, after=after))

    def release(self) -> None:
        """Let what is stalled go on."""
        self.released.set()

    def slow(
        self,
        method: str,
        *,
        chunk_bytes: int = 1,
        every_s: float = 0.0,
        times: int | None = 1,
        where: Where | None = None,
    ) -> Fault:
        """Send a proper answer in segments of `chunk_bytes`, `every_s` apart."""
        fault = Fault(does="slow", method=method, times=times, where=where, after=True)
        fault.chunk_bytes, fault.every_s = chunk_bytes, every_s
        return self._add(fault)

    def hang_up(self, method: str, *, times: int | None = 1, where: Where | None = None) -> Fault:
        """Answer properly, then close the kept-alive connection without having said so."""
        return self._add(Fault(does="hang_up", method=method, times=times, where=where, after=True))

    def clear(self) -> None:
        """Nothing goes wrong any more, and what is stalled goes on."""
        self.rules.clear()
        self.release()

    def of(self, call: Call) -> Fault | None:
        """What happens to this call; counts as one time."""
        fault = next((rule for rule in self.rules if rule.meets(call)), None)
        if fault is not None:
            fault.met += 1
            if fault.times is not None:
                fault.times -= 1
        return fault

    def _add(self, fault: Fault) -> Fault:
        self.rules.append(fault)
        return fault
