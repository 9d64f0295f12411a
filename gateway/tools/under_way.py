"""What tools carry out just now, and how an operator ends it."""

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from agent.models.base import ToolResult
from gateway.events import ConversationId


@dataclass(slots=True, eq=False)
class _RunningCall:
    conversation: ConversationId
    name: str
    began_s: float
    """As `time.monotonic` has it."""
    task: asyncio.Task[ToolResult]
    killed: bool = False


class RunningCalls:
    """For all agents: each conversation is one agent's."""

    def __init__(self) -> None:
        self._calls: list[_RunningCall] = []

    def describe(self, conversation: ConversationId) -> list[str]:
        """What is carried out there, in a few words each, the oldest first."""
        now_s = time.monotonic()
        return [
            f"{one.name}, for {now_s - one.began_s:.0f} s" for one in self._calls if one.conversation == conversation
        ]

    async def run(
        self, conversation: ConversationId, name: str, work: Coroutine[Any, Any, ToolResult]
    ) -> ToolResult | None:
        """Carry it out there. None: it was killed, and has ended.

        Cancelled, it ends the work, too, and lets the cancellation through.
        """
        one = _RunningCall(conversation, name, time.monotonic(), asyncio.ensure_future(work))
        self._calls.append(one)
        try:
            await asyncio.wait({one.task})
        except asyncio.CancelledError:
            one.task.cancel()
            await asyncio.wait({one.task})
            raise
        finally:
            self._calls.remove(one)
        return None if one.killed and one.task.cancelled() else one.task.result()

    def kill(self, conversation: ConversationId) -> list[str]:
        """End all that is carried out there; its names. Returns at once."""
        there = [one for one in self._calls if one.conversation == conversation and not one.killed]
        for one in there:
            one.killed = True
            one.task.cancel()
        return [one.name for one in there]
