"""Character cards as SillyTavern writes them. Pure; what cannot be read is a `BadCard`, never another error.

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

from agent.workspace.png import MAX_TEXT_BYTES, SIGNATURE, BadPng, texts
from agent.workspace.text import tidy

AVATARS = ("AVATAR.json", "AVATAR.png")
"""Where a workspace keeps its card: the first of these that is there, and nowhere else."""
MAX_CARD_FILE_BYTES = 16_000_000
MAX_NAME_CHARS = 100
MAX_FIELD_CHARS = 50_000
"""Of one field, before macros; far more than is used of a whole card."""
MAX_LORE = 1_000
"""Entries of a character book that are looked at."""
USER = "the person you talk to"

SPECS = ("chara_card_v2", "chara_card_v3")


class BadCard(ValueError):
    """The file holds no character card that can be used. The text says why, and what would be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
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


def read_card(content: bytes) -> Card:
    """The card in a JSON or PNG file, told apart by its first bytes. Raises `BadCard`."""
    if len(content) > MAX_CARD_FILE_BYTES:
        raise BadCard(f"it is larger than {MAX_CARD_FILE_BYTES} bytes")
    root = _json(_embedded(content) if content.startswith(SIGNATURE) else content)
    if (spec := root.get("spec")) in SPECS:
        data = root.get("data")
        if not isinstance(data, dict):
            raise BadCard("its `data` is not an object")
    elif spec is None and "name" in root:  # version 1 had the fields at the top and no name for itself
        data = root
    else:
        raise BadCard(f"it is no character card: `spec` must be one of {', '.join(SPECS)}")
    return _card(data)


def _embedded(content: bytes) -> bytes:
    try:
        found = texts(content)
    except BadPng as bad:
        raise BadCard(str(bad)) from None
    text = found.get("ccv3", found.get("chara"))  # version 3: where both are, ccv3 counts
    if text is None:
        raise BadCard("the PNG file has no text `ccv3` or `chara`: export the card with its data in the picture")
    text = b"".join(text.split())
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except ValueError:
        raise BadCard("the card in the PNG file is not base64") from None


def _json(content: bytes) -> Mapping[str, object]:
    if len(content) > MAX_TEXT_BYTES:
        raise BadCard(f"its text is longer than {MAX_TEXT_BYTES} bytes")
    try:
        root = json.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadCard("its text is not UTF-8") from None
    except RecursionError:
        raise BadCard("its JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadCard(f"its text is not JSON: {error.msg} in line {error.lineno}") from None
    except ValueError:  # an integer of thousands of digits
        raise BadCard("its JSON holds a number that is too long") from None
    if not isinstance(root, dict):
        raise BadCard("its JSON is not an object")
    return root


def _card(data: Mapping[str, object]) -> Card:
    name = _name(data.get("nickname")) or _name(data.get("name"))
    if not name:
        raise BadCard("the character has no name")

    def field(key: str) -> str:
        return _filled(data.get(key), name)

    instructions = (field("system_prompt"), field("post_history_instructions"))
    return Card(
        name=name,
        description=field("description"),
        personality=field("personality"),
        scenario=field("scenario"),
        instructions=tuple(text for text in instructions if text),
        lore=tuple(_lore(data.get("character_book"), name)),
        greeting=field("first_mes"),
        examples=field("mes_example"),
    )


def _name(value: object) -> str:
    """On one line, and never a macro itself."""
    if not isinstance(value, str):
        return ""
    return " ".join(tidy(re.sub(r"[{}<>]", "", value[:MAX_NAME_CHARS])).split())


def _lore(book: object, name: str) -> Iterator[str]:
    entries = book.get("entries") if isinstance(book, dict) else None
    if not isinstance(entries, list):
        return
    kept: list[tuple[float, str]] = []
    for entry in entries[:MAX_LORE]:
        if not isinstance(entry, dict) or entry.get("enabled") is False:
            continue
        text, decorators = _undecorated(entry.get("content"))
        constant = entry.get("constant") is True and entry.get("use_regex") is not True
        if "@@activate" in decorators or (constant and "@@dont_activate" not in decorators):
            kept.append((_order(entry.get("insertion_order")), _filled(text, name)))
    yield from (text for _, text in sorted(kept, key=lambda pair: pair[0]) if text)


def _order(value: object) -> float:
    if not isinstance(value, int | float) or (isinstance(value, float) and math.isnan(value)):
        return 0.0
    return float(min(max(value, -1e9), 1e9))  # JSON's integers may be too long for a float


def _undecorated(content: object) -> tuple[str, frozenset[str]]:
    """Version 3: an entry begins with lines that start with `@@`."""
    if not isinstance(content, str):
        return "", frozenset()
    lines = tidy(content[:MAX_FIELD_CHARS]).split("\n")
    decorators = set()
    while lines and (lines[0].startswith("@@") or not lines[0]):
        decorators.add(lines.pop(0).partition(" ")[0])
    return "\n".join(lines), frozenset(decorators)


_MACRO = re.compile(r"\{\{([^{}]*)\}\}|<(char|bot|user)>", re.IGNORECASE)
_DEPTH = 3
"""Macros within macros that are followed."""


def _filled(value: object, name: str) -> str:
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
                return USER
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
    return tidy(text)


def card_text(card: Card) -> str:
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
