"""Context variables that have a value within a block, such as the fields of log lines."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, TypeVar

T = TypeVar("T")

LOG_FIELDS: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "log_fields", default=MappingProxyType({})
)
"""What a log line is about: conversation, turn, post. `gateway.core.logging` writes it."""


@contextmanager
def set_within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable, and set it back at the end of the block."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def log_context(**what: str) -> AbstractContextManager[None]:
    """Add these fields to log lines until the block ends, also in tasks started meanwhile, and hide
    earlier ones.

    Nothing is inherited, because a task of one conversation may be started in the middle of
    another's turn. Costs one context variable, and nothing while nothing is logged.
    """
    return set_within(LOG_FIELDS, what)
