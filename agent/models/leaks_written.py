"""What a model wrote, read as calls of the tools that there are. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.models.base import ToolSpec
from agent.models.leaks_values import InvalidValue, coerce_value, read_value, to_json

_NAME_KEYS: Final = ("name", "tool_name", "tool", "function")
_ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input", "tool_input")
_NAME_PATTERN: Final = re.compile(
    r"""["'](?:name|tool_name|tool|function)["']\s*:\s*["']([A-Za-z0-9_.:-]{1,128})["']"""
)
_ARGUMENTS_PATTERN: Final = re.compile(r"""["'](?:arguments|parameters|args|input|tool_input)["']\s*:""")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakedCall:
    """A call of a declared tool."""

    name: str
    arguments: str
    """A JSON object. May hold lone surrogates, if the model spelled any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLeakedCall:
    """What was meant as a call of a declared tool, and cannot be carried out."""

    name: str
    message: str
    """For the model: what is wrong, and what would do. Nothing of what it wrote is in it."""


class NotACall(Exception):
    """It is text after all."""

    def __init__(self, upto: int) -> None:
        super().__init__(upto)
        self.upto = upto  # nothing in front of this place begins a call


class DeclaredTools:
    """The tools that there are."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._schemas = {spec.name: spec.schema for spec in specs}
        self._parsed_schemas = dict[str, Mapping[str, object]]()

    def resolve_name(self, written: str) -> str:
        """The tool that is meant. Empty: there is none."""
        name = written.strip()
        return name if name in self._schemas else self._strip_prefix(name.removeprefix("functions."))

    def _strip_prefix(self, name: str) -> str:
        return name if name in self._schemas else ""

    def has_required(self, given: Mapping[str, object], name: str) -> bool:
        """Whether nothing is missing that the tool needs."""
        required = self._load_schema(name).get("required")
        return not isinstance(required, list) or all(one in given for one in required)

    def coerce(self, raw: str, key: str, name: str) -> object:
        """An argument that was written as plain text."""
        return coerce_value(raw, key, self._load_schema(name))

    def build_call(self, name: str, given: object, form: str) -> LeakedCall | BadLeakedCall:
        """A call with these arguments."""
        try:
            if isinstance(given, str):
                given = read_value(given) if given.strip() else {}
            if isinstance(given, dict):
                return LeakedCall(name=name, arguments=to_json(given))
        except InvalidValue as wrong:
            return self.build_bad_call(name, form, str(wrong))
        return self.build_bad_call(name, form, "its arguments are not one JSON object")

    def build_bad_call(self, name: str, form: str, why: str) -> BadLeakedCall:
        """A call that cannot be carried out."""
        return BadLeakedCall(
            name=name,
            message=f"You wrote a call of {name} into your text ({form}), and it cannot be carried out: {why}. "
            f"Nothing was done. Call {name} as the tool that it is, with its arguments as one JSON object.",
        )

    def build_calls(self, value: object, form: str, *, strict: bool = False) -> list[LeakedCall | BadLeakedCall]:
        """The calls that a value of JSON holds. Empty: it holds none, or not only calls.

        `strict`: each must bring its arguments.
        """
        calls = list[LeakedCall | BadLeakedCall]()
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict) and isinstance(one.get("function"), dict):
                one = one["function"]  # noqa: PLW2901 - as OpenAI writes it
            if not isinstance(one, dict):
                return []
            name = next((self.resolve_name(one[key]) for key in _NAME_KEYS if isinstance(one.get(key), str)), "")
            given = [one[key] for key in _ARGUMENT_KEYS if key in one]
            if not name or (strict and not given):
                return []
            calls.append(self.build_call(name, {} if not given or given[0] is None else given[0], form))
        return calls

    def find_named_tool(self, text: str, *, strict: bool = False) -> str:
        """The tool that a broken object names. Empty: none, or `strict` and it names no arguments."""
        found = (self.resolve_name(match[1]) for match in _NAME_PATTERN.finditer(text))
        return next((name for name in found if name), "") if not strict or _ARGUMENTS_PATTERN.search(text) else ""

    def _load_schema(self, name: str) -> Mapping[str, object]:
        if name not in self._parsed_schemas:
            try:
                schema = json.loads(self._schemas[name])
            except (ValueError, RecursionError):  # of a foreign server
                schema = {}
            self._parsed_schemas[name] = schema if isinstance(schema, dict) else {}
        return self._parsed_schemas[name]
