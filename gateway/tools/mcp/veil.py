"""What a server says, without what only it and we may know, and without what nobody sees. Pure."""

import unicodedata
from collections.abc import Iterable
from typing import Final

from agent.workspace.text import normalize_text

REDACTED: Final = "[secret]"
_MIN_SECRET_CHARS: Final = 6
"""What is shorter would be found in words that are no secrets."""


class McpSecretFilter:
    """Takes secrets out of texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """Each is taken out whole, and so is each of its words: a header's value may be `Bearer ...`."""
        words = {word for secret in secrets for word in (secret, *secret.split()) if len(word) >= _MIN_SECRET_CHARS}
        self._words = sorted(words, key=lambda word: (-len(word), word))

    def redact(self, text: str) -> str:
        for word in self._words:
            text = text.replace(word, REDACTED)
        return text


def sanitize_text(text: str, most: int) -> str:
    """`normalize_text`, without characters that nobody sees or that turn lines around, at most so long."""
    lines = normalize_text(text[: 4 * most])
    seen = normalize_text("".join(char for char in lines if char in "\n\t" or unicodedata.category(char)[0] != "C"))
    return seen if len(seen) <= most else f"{seen[: most - 1].rstrip()}…"
