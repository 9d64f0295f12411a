"""What a turn may do beside saying something: its tools, carried out where it may use them."""

from dataclasses import dataclass

from gateway.events import Address, SenderId
from gateway.records import TurnId
from gateway.scopes import Sight


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
