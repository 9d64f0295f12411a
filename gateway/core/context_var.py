"""Context variables that have a value within a block, such as the fields of log lines."""

from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LOG_FIELDS: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "log_fields", default=MappingProxyType({})
)
"""What a log line is about: conversation, turn, post. `gateway.core.logging` writes it."""


class SetWithin(Generic[T]):
    """Context manager of one block: sets a variable, and sets it back at the end."""

    __slots__ = ("_before", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._before = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._before)


def log_context(**what: str) -> SetWithin[Mapping[str, str]]:
    """Add these fields to log lines until the block ends, also in tasks started meanwhile, and hide
    earlier ones.

    Nothing is inherited, because a task of one conversation may be started in the middle of
    another's turn. Costs one context variable, and nothing while nothing is logged.
    """
    return SetWithin(LOG_FIELDS, what)
