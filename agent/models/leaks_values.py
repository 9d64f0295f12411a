"""What models write as values: JSON, nearly JSON, Python's literals, and plain text for a declared type. Pure."""

import json
import math
import re
from collections.abc import Mapping
from typing import Final

from agent.models.leaks_input import MAX_DEPTH

_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,400})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_LITERALS: Final[Mapping[str, object]] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None,
}  # fmt: skip
_STRING_BODIES: Final = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "\n": ""}
_HEX: Final = re.compile("[0-9A-Fa-f]{4}")


class InvalidValue(ValueError):
    """It is no such value. The text says why, for the model, and repeats nothing of it."""


def read_value(text: str) -> object:
    """A value of JSON, also with raw line breaks in strings, single quotes, Python's words or a comma too many.

    Raises Wrong.
    """
    try:
        return json.loads(text, strict=False, parse_constant=_reject_json_constant)
    except (ValueError, RecursionError):
        pass
    reader = ValueReader(text)
    value = reader.read_value(0)
    reader.expect_end()
    return value


def to_json(value: object) -> str:
    """As JSON. Raises Wrong for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        raise InvalidValue("a number in it is too large") from None


def _reject_json_constant(_: str) -> object:
    raise InvalidValue("NaN and Infinity are no JSON")


class ValueReader:
    """Reads values one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_calls(self) -> list[tuple[str, dict[str, object]]]:
        """`[f(a=1), g()]`, or `f(a=1)` alone. Raises Wrong."""
        calls = []
        if not self._accept("["):
            calls.append(self._read_call())
        else:
            while not self._accept("]"):
                calls.append(self._read_call())
                if not self._accept(","):
                    self._expect("]")
                    break
        self.expect_end()
        return calls

    def _read_call(self) -> tuple[str, dict[str, object]]:
        name, given = self._read_word().removesuffix(".call"), dict[str, object]()
        self._expect("(")
        while not self._accept(")"):
            key = self._read_word()
            if not self._accept("="):
                raise InvalidValue("each argument must be named: key=value")
            given[key] = self.read_value(0)
            if not self._accept(","):
                self._expect(")")
                break
        return name, given

    def read_value(self, depth: int) -> object:
        """The next value. Raises Wrong."""
        if depth > MAX_DEPTH:
            raise InvalidValue(f"its arguments are nested deeper than {MAX_DEPTH}")
        self._skip_space()
        one = self._text[self._at : self._at + 1]
        if one == "{":
            return self._read_object(depth)
        if one == "[":
            return self._read_list(depth)
        if one and one in "\"'":
            return self._read_string()
        if found := _NUMBER.match(self._text, self._at):
            self._at = found.end()
            return json.loads(found.group())
        word = self._read_word()
        if word not in _LITERALS:
            raise InvalidValue(f"a value at character {self._at} is neither a number nor in quotes")
        return _LITERALS[word]

    def expect_end(self) -> None:
        """Raises Wrong if there is more."""
        self._skip_space()
        if self._at < len(self._text):
            raise InvalidValue(f"something follows at character {self._at}")

    def _read_object(self, depth: int) -> dict[str, object]:
        made = dict[str, object]()
        self._expect("{")
        while not self._accept("}"):
            if self._text[self._at : self._at + 1] not in ("'", '"'):
                raise InvalidValue(f"a key at character {self._at} is not in quotes")
            key = self._read_string()
            self._expect(":")
            made[key] = self.read_value(depth + 1)
            if not self._accept(","):
                self._expect("}")
                break
        return made

    def _read_list(self, depth: int) -> list[object]:
        made = list[object]()
        self._expect("[")
        while not self._accept("]"):
            made.append(self.read_value(depth + 1))
            if not self._accept(","):
                self._expect("]")
                break
        return made

    def _read_string(self) -> str:
        quote = self._text[self._at]
        plain, parts, at = _STRING_BODIES[quote], list[str](), self._at + 1
        while True:
            found = plain.match(self._text, at)
            assert found is not None
            parts.append(found.group())
            at = found.end()
            if self._text[at : at + 1] == quote:
                self._at = at + 1
                return "".join(parts)
            if at + 1 >= len(self._text):
                raise InvalidValue("a string in it does not end")
            escaped = self._text[at + 1]
            if escaped == "u" and (code := _HEX.match(self._text, at + 2)):
                parts.append(chr(int(code.group(), 16)))
                at = code.end()
                continue
            parts.append(_ESCAPES.get(escaped, escaped if escaped in "\"'\\/" else f"\\{escaped}"))
            at += 2

    def _read_word(self) -> str:
        self._skip_space()
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise InvalidValue(f"a word is missing at character {self._at}")
        self._at = found.end()
        return found.group()

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        assert found is not None
        self._at = found.end()

    def _accept(self, one: str) -> bool:
        self._skip_space()
        if not self._text.startswith(one, self._at):
            return False
        self._at += 1
        self._skip_space()
        return True

    def _expect(self, one: str) -> None:
        if not self._accept(one):
            raise InvalidValue(f"{one!r} is missing at character {self._at}")


def coerce_value(raw: str, key: str, schema: Mapping[str, object]) -> object:
    """Plain text as what the schema of a tool's arguments declares for that key. What it cannot be stays a text."""
    properties = schema.get("properties")
    declared = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = _allowed_types(declared, schema, 0)
    if not kinds or "string" in kinds:
        return raw
    plain = raw.strip()
    if "boolean" in kinds and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if "null" in kinds and plain in ("null", "None", ""):
        return None
    try:
        value = read_value(plain)
    except InvalidValue:
        return raw
    fits = {
        "integer": isinstance(value, int) or (isinstance(value, float) and value.is_integer()),
        "number": isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)),
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
    }
    if isinstance(value, bool) or not any(fits.get(kind) for kind in kinds):
        return raw
    return int(value) if isinstance(value, float) and "number" not in kinds else value


def _allowed_types(declared: object, root: Mapping[str, object], depth: int) -> set[str]:
    """Of which types a value may be. Empty: of any."""
    if not isinstance(declared, Mapping) or depth > MAX_DEPTH:
        return set()
    kind, found = declared.get("type"), set[str]()
    found |= {kind} if isinstance(kind, str) else {one for one in _as_list(kind) if isinstance(one, str)}
    for several in ("anyOf", "oneOf", "allOf"):
        for one in _as_list(declared.get(several)):
            found |= _allowed_types(one, root, depth + 1)
    for one in _as_list(declared.get("enum")):
        found |= {"string"} if isinstance(one, str) else set()
    reference, definitions = declared.get("$ref"), root.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, Mapping):
        found |= _allowed_types(definitions.get(reference.rpartition("/")[2]), root, depth + 1)
    return found


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
