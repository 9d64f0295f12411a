"""Character cards as SillyTavern writes them, and the normal form of texts. Pure.

A card that cannot be read raises `InvalidCard`, never another error. Specifications:

- Version 2: https://github.com/malfoyslastname/character-card-spec-v2/blob/main/spec_v2.md
- Version 3: https://github.com/kwaroran/character-card-spec-v3/blob/main/SPEC_V3.md
- Texts in PNG files: https://www.w3.org/TR/png-3/ sections 5 (chunks) and 11.3.3 (tEXt, as
  SillyTavern writes)

Differences from the specifications:

- The card is part of the prompt's cached front, so it must not differ between two turns. Therefore
  the text for behind the history (`post_history_instructions`) is an instruction like the others,
  `system_prompt` adds to the gateway's own text and does not replace it, only constant lore is
  used, and of the macros only those of names.
- Greetings and examples are samples of style. The agent does not greet, and nobody it talks to is
  `{{user}}`.
- Version 3 forbids the use of `personality`, `scenario` and the like in one sentence and lists them
  as its own fields in the next; cards carry them, so they are used.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator, Mapping

from gateway.core.text_safety import normalize_text

CARD_FILES = ("AVATAR.json", "AVATAR.png")
"""Names of a workspace's card: the first that exists, and nowhere else."""
MAX_CARD_FILE_BYTES = 16_000_000
MAX_NAME_CHARS = 100
MAX_FIELD_CHARS = 50_000
"""Limit of one field, before macros: far more than is used of a whole card."""
CARD_SPECS = ("chara_card_v2", "chara_card_v3")


class InvalidCard(ValueError):
    """The file holds no usable character card. The message says why, and what is expected."""


def render_card(content: bytes) -> str:
    """Render the character of a JSON or PNG file, which are distinguished by their first bytes, as
    the model reads it: the most important parts first. Raises `InvalidCard`.
    """
    if len(content) > MAX_CARD_FILE_BYTES:
        raise InvalidCard(f"it is larger than {MAX_CARD_FILE_BYTES} bytes")
    root = _parse_json(_embedded_json(content) if content.startswith(PNG_SIGNATURE) else content)
    if (spec := root.get("spec")) in CARD_SPECS:
        data = root.get("data")
        if not isinstance(data, dict):
            raise InvalidCard("its `data` is not an object")
    elif (
        spec is None and "name" in root
    ):  # version 1 had the fields at the top and no name for itself
        data = root
    else:
        raise InvalidCard(f"it is no character card: `spec` must be one of {', '.join(CARD_SPECS)}")
    return _render_character(data)


def _embedded_json(content: bytes) -> bytes:
    found: dict[bytes, bytes] = {}
    at = len(PNG_SIGNATURE)
    while at + _CHUNK_HEAD.size <= len(content):
        size, kind = _CHUNK_HEAD.unpack_from(content, at)
        at += _CHUNK_HEAD.size
        if kind == b"tEXt":
            keyword, _, value = content[at : at + size].partition(b"\0")
            found.setdefault(keyword.lower(), value)
        at += size + _CRC_BYTES
    text = found.get(b"ccv3", found.get(b"chara"))  # version 3: where both are, ccv3 counts
    if text is None:
        raise InvalidCard(
            "the PNG file has no text `ccv3` or `chara`: export the card with its data in the "
            "picture"
        )
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise InvalidCard("the card in the PNG file is not base64, or is cut off") from None


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


def _render_character(data: Mapping[str, object]) -> str:
    name = _clean_name(data.get("nickname")) or _clean_name(data.get("name"))
    if not name:
        raise InvalidCard("the character has no name")

    def field(key: str) -> str:
        return _replace_macros(data.get(key), name)

    def sample(key: str) -> str:
        text = field(key)
        return text and f"Samples of style; they never happened.\n\n{text}"

    instructions = (field("system_prompt"), field("post_history_instructions"))
    parts = (
        ("Description", field("description")),
        ("Personality", field("personality")),
        ("Scenario", field("scenario")),
        ("Instructions", "\n\n".join(filter(None, instructions))),
        ("World", "\n\n".join(_iter_lore(data.get("character_book"), name))),
        ("Greeting", sample("first_mes")),
        ("Conversations", sample("mes_example")),
    )
    sections = [f"## {title}\n\n{text}" for title, text in parts if text]
    return "\n\n".join(
        [f"You play {name}. What stands above holds also for this character.", *sections]
    )


def _clean_name(value: object) -> str:
    if not isinstance(value, str):
        return ""
    return " ".join(normalize_text(re.sub(r"[{}<>]", "", value[:MAX_NAME_CHARS])).split())


def _iter_lore(book: object, name: str) -> Iterator[str]:
    entries = book.get("entries") if isinstance(book, dict) else None
    if not isinstance(entries, list):
        return
    kept = [
        (
            order if isinstance(order := entry.get("insertion_order"), int) else 0,
            _replace_macros(entry["content"], name),
        )
        for entry in entries[:1_000]
        if isinstance(entry, dict)
        and entry.get("enabled") is not False
        and entry.get("constant") is True
        and isinstance(entry.get("content"), str)
    ]
    yield from (text for _, text in sorted(kept, key=lambda pair: pair[0]) if text)


_MACRO = re.compile(r"\{\{(char|bot|user|original)\}\}|<(char|bot|user)>", re.IGNORECASE)


def _replace_macros(value: object, name: str) -> str:
    if not isinstance(value, str):
        return ""
    texts = {"char": name, "bot": name, "user": "the person you talk to", "original": ""}
    return normalize_text(
        _MACRO.sub(lambda match: texts[(match[1] or match[2]).lower()], value[:MAX_FIELD_CHARS])
    )


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_TEXT_BYTES = 4_000_000
_CHUNK_HEAD = struct.Struct(">I4s")
_CRC_BYTES = 4


def decode_text(content: bytes) -> str:
    """Decode a file and normalize it by `normalize_text`.

    Invalid UTF-8 is replaced, and a byte order mark dropped.
    """
    return normalize_text(
        content.decode("utf-8", "replace").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    )
