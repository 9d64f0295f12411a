"""Context variables that have a value within a block."""

from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class SetWithin(Generic[T]):
    """Context manager that sets a variable, and sets it back at the end of the block."""

    __slots__ = ("_before", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._before = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._before)
