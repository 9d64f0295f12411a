"""Character cards as SillyTavern writes them. Pure; what cannot be read is a `InvalidCard`, never another error.

Version 2: https://github.com/malfoyslastname/character-card-spec-v2/blob/main/spec_v2.md
Version 3: https://github.com/kwaroran/character-card-spec-v3/blob/main/SPEC_V3.md

Where this departs from the specifications:

- The card stands in the prompt's cached front. So what they put behind the history (`post_history_instructions`)
  is an instruction like the others, `system_prompt` adds to the gateway's own text and does not replace it, of
  lore only what is constant is used, and chance takes the first choice: nothing may differ between two turns.
- Greetings and examples are samples of style. The agent does not greet, and nobody it talks to is `{{user}}`.
- Version 3 forbids the use of `personality`, `scenario` and the like in one sentence and lists them as
  its own fields in the next; cards carry them, so they are used.
"""

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent.workspace.png import MAX_TEXT_BYTES, PNG_SIGNATURE, InvalidPng, read_png_texts
from agent.workspace.text import normalize_text

CARD_FILES = ("AVATAR.json", "AVATAR.png")
"""Where a workspace keeps its card: the first of these that is there, and nowhere else."""
MAX_CARD_FILE_BYTES = 16_000_000
MAX_NAME_CHARS = 100
MAX_FIELD_CHARS = 50_000
"""Of one field, before macros; far more than is used of a whole card."""
MAX_LORE_ENTRIES = 1_000
"""Entries of a character book that are looked at."""
USER_MACRO = "the person you talk to"

CARD_SPECS = ("chara_card_v2", "chara_card_v3")


class InvalidCard(ValueError):
    """The file holds no character card that can be used. The text says why, and what would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharacterCard:
    """A character. Empty: not said. Texts are tidy, their macros replaced."""

    name: str
    """What it is called: the nickname, where there is one."""
    description: str
    personality: str
    scenario: str
    instructions: tuple[str, ...]
    """What the maker tells the model."""
    lore: tuple[str, ...]
    """What always holds in the character's world."""
    greeting: str
    examples: str


def read_card(content: bytes) -> CharacterCard:
    """The card in a JSON or PNG file, told apart by its first bytes. Raises `InvalidCard`."""
    if len(content) > MAX_CARD_FILE_BYTES:
        raise InvalidCard(f"it is larger than {MAX_CARD_FILE_BYTES} bytes")
    root = _parse_json(_embedded_json(content) if content.startswith(PNG_SIGNATURE) else content)
    if (spec := root.get("spec")) in CARD_SPECS:
        data = root.get("data")
        if not isinstance(data, dict):
            raise InvalidCard("its `data` is not an object")
    elif spec is None and "name" in root:  # version 1 had the fields at the top and no name for itself
        data = root
    else:
        raise InvalidCard(f"it is no character card: `spec` must be one of {', '.join(CARD_SPECS)}")
    return _build_card(data)


def _embedded_json(content: bytes) -> bytes:
    try:
        found = read_png_texts(content)
    except InvalidPng as bad:
        raise InvalidCard(str(bad)) from None
    text = found.get("ccv3", found.get("chara"))  # version 3: where both are, ccv3 counts
    if text is None:
        raise InvalidCard("the PNG file has no text `ccv3` or `chara`: export the card with its data in the picture")
    text = b"".join(text.split())
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise InvalidCard("the card in the PNG file is not base64") from None


def _parse_json(content: bytes) -> Mapping[str, object]:
    if len(content) > MAX_TEXT_BYTES:
        raise InvalidCard(f"its text is longer than {MAX_TEXT_BYTES} bytes")
    try:
        root = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InvalidCard("its text is not UTF-8") from None
    except RecursionError:
        raise InvalidCard("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidCard(f"its text is not JSON: {error.msg} in line {error.lineno}") from None
    except ValueError:  # an integer of thousands of digits
        raise InvalidCard("its JSON holds a number that is too long") from None
    if not isinstance(root, dict):
        raise InvalidCard("its JSON is not an object")
    return root


def _build_card(data: Mapping[str, object]) -> CharacterCard:
    name = _clean_name(data.get("nickname")) or _clean_name(data.get("name"))
    if not name:
        raise InvalidCard("the character has no name")

    def field(key: str) -> str:
        return _replace_macros(data.get(key), name)

    instructions = (field("system_prompt"), field("post_history_instructions"))
    return CharacterCard(
        name=name,
        description=field("description"),
        personality=field("personality"),
        scenario=field("scenario"),
        instructions=tuple(text for text in instructions if text),
        lore=tuple(_iter_lore(data.get("character_book"), name)),
        greeting=field("first_mes"),
        examples=field("mes_example"),
    )


def _clean_name(value: object) -> str:
    """On one line, and never a macro itself."""
    if not isinstance(value, str):
        return ""
    return " ".join(normalize_text(re.sub(r"[{}<>]", "", value[:MAX_NAME_CHARS])).split())


def _iter_lore(book: object, name: str) -> Iterator[str]:
    entries = book.get("entries") if isinstance(book, dict) else None
    if not isinstance(entries, list):
        return
    kept: list[tuple[float, str]] = []
    for entry in entries[:MAX_LORE_ENTRIES]:
        if not isinstance(entry, dict) or entry.get("enabled") is False:
            continue
        text, decorators = _strip_decorators(entry.get("content"))
        constant = entry.get("constant") is True and entry.get("use_regex") is not True
        if "@@activate" in decorators or (constant and "@@dont_activate" not in decorators):
            kept.append((_insertion_order(entry.get("insertion_order")), _replace_macros(text, name)))
    yield from (text for _, text in sorted(kept, key=lambda pair: pair[0]) if text)


def _insertion_order(value: object) -> float:
    if not isinstance(value, int | float) or (isinstance(value, float) and math.isnan(value)):
        return 0.0
    return float(min(max(value, -1e9), 1e9))  # JSON's integers may be too long for a float


def _strip_decorators(content: object) -> tuple[str, frozenset[str]]:
    """Version 3: an entry begins with lines that start with `@@`."""
    if not isinstance(content, str):
        return "", frozenset()
    lines = normalize_text(content[:MAX_FIELD_CHARS]).split("\n")
    decorators = set()
    while lines and (lines[0].startswith("@@") or not lines[0]):
        decorators.add(lines.pop(0).partition(" ")[0])
    return "\n".join(lines), frozenset(decorators)


_MACRO = re.compile(r"\{\{([^{}]*)\}\}|<(char|bot|user)>", re.IGNORECASE)
_DEPTH = 3
"""Macros within macros that are followed."""


def _replace_macros(value: object, name: str) -> str:
    """The text with its macros replaced; those that nobody knows stay."""
    if not isinstance(value, str):
        return ""

    def replacement(match: re.Match[str]) -> str:
        inside = match[1] if match[1] is not None else match[2]
        verb, _, rest = inside.partition(":")
        match verb.strip().lower():
            case "char" | "bot":
                return name
            case "user":
                return USER_MACRO
            case "original" | "comment" | "hidden_key":
                return ""
            case "random" | "pick":
                return re.split(r"(?<!\\),", rest.lstrip(":"))[0].replace("\\,", ",").strip()
            case "roll":
                return "1"
            case "reverse":
                return rest[::-1]
        return "" if inside.startswith("//") else match[0]

    text = value[:MAX_FIELD_CHARS]
    for _ in range(_DEPTH):
        text = _MACRO.sub(replacement, text)
    return normalize_text(text)


def render_card(card: CharacterCard) -> str:
    """The character as the model reads it, what matters most first."""
    samples = "Samples of style; they never happened."
    parts = (
        ("Description", card.description),
        ("Personality", card.personality),
        ("Scenario", card.scenario),
        ("Instructions", "\n\n".join(card.instructions)),
        ("World", "\n\n".join(card.lore)),
        ("Greeting", card.greeting and f"{samples}\n\n{card.greeting}"),
        ("Conversations", card.examples and f"{samples}\n\n{card.examples}"),
    )
    told = [f"## {title}\n\n{text}" for title, text in parts if text]
    return "\n\n".join([f"You play {card.name}. What stands above holds also for this character.", *told])
