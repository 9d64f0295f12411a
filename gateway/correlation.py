"""What the log lines that are written just now are about: a conversation, a turn, a post.

Whoever begins with something says so once; every log line of that work, also of libraries, then carries it
(`gateway.logs`). It costs a context variable, and nothing where nobody logs.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_TITLE_LOOKUP: ContextVar[Callable[[str], str]] = ContextVar("title")
_LOG_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("about", default=MappingProxyType({}))


@contextmanager
def log_context(**what: str) -> Iterator[None]:
    """Until this ends, and in tasks that are begun meanwhile, log lines carry these, and none of what held before.

    Nothing is taken over, because a task of one conversation may be begun in the middle of another's turn.
    """
    before = _LOG_CONTEXT.set(what)
    try:
        yield
    finally:
        _LOG_CONTEXT.reset(before)


def current_log_context() -> Mapping[str, str]:
    """What holds now; with `place`, what people call the conversation, once `set_title_lookup` was called."""
    found, title = _LOG_CONTEXT.get(), _TITLE_LOOKUP.get(None)
    if title is None or "conversation" not in found:
        return found
    return {**found, "place": title(found["conversation"])}


def set_title_lookup(title: Callable[[str], str]) -> None:
    """From here on, and in tasks that are begun from here on, log lines tell what conversations are called."""
    _TITLE_LOOKUP.set(title)
