"""From answers to bytes: every text in them is redacted, then cut. Pure."""

import json
from collections.abc import Callable, Iterator
from typing import Final

from gateway.redaction import Redact

MAX_TEXT_CHARS: Final = 16_000
"""Of a text, unless it is part of a prompt."""
MAX_PROMPT_CHARS: Final = 2_000_000
"""Of a prompt's block: larger than any window."""
ELLIPSIS: Final = "…"
_CONVERSATION_KEYS: Final = ("conversation", "to", "place")
"""Keys that name one."""


def serialize_answer(tree: object, redact: Redact, *, chars: int = MAX_TEXT_CHARS) -> bytes:
    """As JSON in UTF-8. `tree`: an answer, dumped."""
    told = redact_tree(tree, redact, chars)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def find_untitled(tree: object) -> Iterator[tuple[dict[str, object], str]]:
    """Every part of a dumped answer that names a conversation and has room for its title, with that conversation."""
    if isinstance(tree, dict):
        named = next((tree[key] for key in _CONVERSATION_KEYS if tree.get(key)), None)
        if isinstance(named, str) and tree.get("title") == "":
            yield tree, named
        for value in tree.values():
            yield from find_untitled(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from find_untitled(value)


def add_titles(tree: object, title: Callable[[str], str]) -> None:
    """Write what people call each conversation beside it."""
    for part, conversation in find_untitled(tree):
        part["title"] = title(conversation)


def redact_tree(told: object, redact: Redact, chars: int = MAX_TEXT_CHARS) -> object:
    """The same tree with its texts redacted and cut. Keys that stand for somebody's words are looked at, too."""
    if isinstance(told, str):
        return clip_text(redact(told), chars) if told else told
    if isinstance(told, dict):
        return {key: redact_tree(value, redact, chars) for key, value in told.items()}
    if isinstance(told, list):
        return [redact_tree(value, redact, chars) for value in told]
    return told


def clip_text(text: str, chars: int = MAX_TEXT_CHARS) -> str:
    """The text, cut if it is longer than that."""
    return text if len(text) <= chars else f"{text[: chars - len(ELLIPSIS)]}{ELLIPSIS}"
