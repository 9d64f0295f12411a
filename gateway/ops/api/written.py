"""From answers to bytes: every text in them is redacted, then cut. Pure."""

import json
from typing import Final

from pydantic import BaseModel

from gateway.redaction import Redact

TEXT_CHARS: Final = 16_000
"""Of a text, unless it is part of a prompt."""
PROMPT_CHARS: Final = 2_000_000
"""Of a prompt's block: larger than any window."""
CUT: Final = "…"


def written(answer: BaseModel, redact: Redact, *, chars: int = TEXT_CHARS) -> bytes:
    """As JSON in UTF-8."""
    told = clean(answer.model_dump(mode="json"), redact, chars)
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def clean(told: object, redact: Redact, chars: int = TEXT_CHARS) -> object:
    """The same tree with its texts redacted and cut. Keys that stand for somebody's words are looked at, too."""
    if isinstance(told, str):
        return short(redact(told), chars) if told else told
    if isinstance(told, dict):
        return {key: clean(value, redact, chars) for key, value in told.items()}
    if isinstance(told, list):
        return [clean(value, redact, chars) for value in told]
    return told


def short(text: str, chars: int = TEXT_CHARS) -> str:
    """The text, cut if it is longer than that."""
    return text if len(text) <= chars else f"{text[: chars - len(CUT)]}{CUT}"
