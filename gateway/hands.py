"""What a turn may do beside saying something: its tools, carried out where it may use them.

The list of tools is the same in every turn, so that it never changes what is cached; what is not allowed is refused
at the call, with a reason that the model understands.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from agent.models.base import Excerpt, ToolCall, ToolResult, ToolSpec
from agent.tools.schema import Arguments, Refused, Taken, read
from gateway.events import Address, SenderId
from gateway.records import TurnId
from gateway.scopes import Sight
from gateway.store import StoreError

logger = logging.getLogger("reverie.tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Somebody whose words a turn answers."""

    id: SenderId
    name: str
    """For display only; anybody can take it."""
    role: str
    verified: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Which turn uses its tools, and where."""

    turn: TurnId
    agent: str
    at: Address
    sight: Sight
    autonomous: bool
    askers: tuple[Asker, ...] = ()
    """Who said what is new to the agent, oldest first. Empty: nobody did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a tool brought, and where that is from: all as in `ToolResult`."""

    text: str
    kind: str = "text"
    origin: str = ""
    part: Excerpt | None = None


@dataclass(frozen=True, slots=True)
class Hand:
    """One tool: how it is told, what it takes, who carries it out."""

    spec: ToolSpec
    takes: type[Arguments]
    does: Callable[[Any, Whereabouts], Awaitable[str | Given]]
    """Gives what the model is told, with no limit to its length. Raises Refused for what may not or cannot be."""

    @classmethod
    def of(
        cls, spec: ToolSpec, takes: type[Taken], does: Callable[[Taken, Whereabouts], Awaitable[str | Given]]
    ) -> Self:
        """The same, with the types held to each other."""
        return cls(spec, takes, does)


class Hands:
    """All tools of an agent."""

    def __init__(self, hands: Sequence[Hand]) -> None:
        self.specs = tuple(sorted((hand.spec for hand in hands), key=lambda spec: spec.name))
        self._hands = {hand.spec.name: hand for hand in hands}

    def at(self, where: Whereabouts) -> "Held":
        """For one turn."""
        return Held(self, where)

    async def call(self, call: ToolCall, where: Whereabouts) -> ToolResult:
        """Carry out one call. Raises `StoreError` and cancellation only."""
        hand = self._hands.get(call.name)
        if hand is None:
            return ToolResult(id=call.id, text=f"There is no tool named {call.name!r}.", error=True)
        try:
            told = await hand.does(read(hand.takes, call.arguments), where)
        except Refused as refused:
            logger.info("%s: %s is refused: %s", where.turn, call.name, refused)
            return ToolResult(id=call.id, text=str(refused), error=True)
        except StoreError:
            raise  # without its log the gateway cannot go on
        except Exception as error:  # a bug in that tool: the model goes on without it
            logger.exception("%s: %s broke", where.turn, call.name)
            return ToolResult(
                id=call.id, text=f"That did not work (internal error: {type(error).__name__}).", error=True
            )
        logger.debug("%s: %s", where.turn, call.name)
        given = Given(text=told) if isinstance(told, str) else told
        return ToolResult(id=call.id, text=given.text, kind=given.kind, origin=given.origin, part=given.part)


@dataclass(frozen=True, slots=True)
class Held:
    """`agent.turn.Tools` for one turn."""

    hands: Hands
    where: Whereabouts

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.hands.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.hands.call(call, self.where)
