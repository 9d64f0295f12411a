"""New codes, by the system's own chance."""

import secrets
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from gateway.roster.codes import CODE_ALPHABET, CODE_CHARS, hash_code

REQUEST_CHARS: Final = 5
REQUEST_LETTERS: Final = "".join(char for char in CODE_ALPHABET.lower() if char not in "dk")
"""Of a request's name: none holds `pwd` or `key`, for what stands behind these is taken for a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedCode:
    """A code, and what the log keeps of it."""

    code: str
    """To be shown once: it stands in that post, and nowhere else."""
    request: str
    """What people call it who may not see it."""
    salt: str
    digest: str

    def __repr__(self) -> str:
        """Without the code."""
        return f"Minted({self.request})"


def generate_code(taken: Container[str]) -> GeneratedCode:
    """A new one. `taken`: names that are in use."""
    code, salt, request = _word(CODE_ALPHABET, CODE_CHARS), secrets.token_hex(16), _word(REQUEST_LETTERS, REQUEST_CHARS)
    while request in taken:
        request = _word(REQUEST_LETTERS, REQUEST_CHARS)
    return GeneratedCode(code=code, request=request, salt=salt, digest=hash_code(salt, code))


def _word(letters: str, chars: int) -> str:
    return "".join(secrets.choice(letters) for _ in range(chars))
