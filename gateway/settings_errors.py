"""What pydantic found wrong, said to an operator: which key, and what to write there."""

import difflib
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.settings import Settings
from gateway.settings_source import Keys, Tree, value_at

_TAGGED_UNIONS = (("channels",), ("llm", "providers"))
"""Where pydantic puts a union's tag into the location, after the key below these."""
REQUIRED_MESSAGE = "is required"
_MESSAGES = {
    "missing": REQUIRED_MESSAGE,
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list, e.g. [a, b]",
    "list_type": "must be a list, e.g. [a, b]",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
    "path_type": "must be a path in quotes",
}
_CONTEXT_MESSAGES = {
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_pattern_mismatch": "must look like {pattern}",
    "too_short": "must have at least {min_length}",
    "string_too_short": "must have at least {min_length} characters",
}


def explain_errors(error: ValidationError, data: dict[str, Tree]) -> list[tuple[Keys, str]]:
    """Keys and message for each mistake in `data`. No message holds a value."""
    found: dict[Keys, list[str]] = {}
    for detail in error.errors(include_url=False, include_input=False):
        keys = _error_keys(detail, data)
        if detail["type"] == "extra_forbidden":
            keys, message = _unknown_key(keys, data)
        else:
            message = _error_message(detail)
        messages = found.setdefault(keys, [])
        if message not in messages:
            messages.append(message)
    # A union complains for each of its forms: where one got further into the value, the others are beside the point.
    return [
        (keys, ", or ".join([messages[0], *(message.removeprefix("must be ") for message in messages[1:])]))
        for keys, messages in found.items()
        if messages == [REQUIRED_MESSAGE]
        or not any(len(other) > len(keys) and other[: len(keys)] == keys for other in found)
    ]


def _error_keys(detail: ErrorDetails, data: dict[str, Tree]) -> Keys:
    loc = detail["loc"]
    for above in _TAGGED_UNIONS:
        if loc[: len(above)] == above:
            loc = (*loc[: len(above) + 1], *loc[len(above) + 2 :])
    keys: Keys = ()
    node: Tree = data
    for key in loc:
        if key in (node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()):
            keys, node = (*keys, key), value_at(node, key)
    if detail["type"] == "missing":
        return (*keys, loc[-1])
    if detail["type"].startswith("union_tag"):
        return (*keys, detail["ctx"]["discriminator"].strip("'"))
    return keys


def _error_message(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind == "union_tag_not_found":
        return REQUIRED_MESSAGE
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind in _CONTEXT_MESSAGES:
        return _CONTEXT_MESSAGES[kind].format(**detail["ctx"])
    return _MESSAGES.get(kind, detail["msg"])


def _unknown_key(keys: Keys, data: dict[str, Tree]) -> tuple[Keys, str]:
    *above, key = keys
    name, colon, _ = str(key).partition(":")
    if colon:  # `{password:secret}`: the rest may be what must not be shown
        return (*above, name), "unknown key; write a space after the colon"
    known = sorted(_known_keys(tuple(above), data))
    close = difflib.get_close_matches(name.replace("-", "_").lower(), known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known)}"
    return keys, f"unknown key; {hint}"


def _known_keys(keys: Keys, data: dict[str, Tree]) -> set[str]:
    forms: list[Any] = [Settings]
    node: Any = data
    for key in keys:
        forms = [below for form in forms for below in _forms_below(form, key)]
        node = node[key]
    return {name for form in forms if _fits_form(form, node) for name in form.model_fields}


def _forms_below(form: Any, key: str | int) -> list[Any]:  # noqa: ANN401  # type annotations are objects of any kind
    if isinstance(form, type) and issubclass(form, BaseModel):
        field = form.model_fields.get(str(key))
        return _forms(field.annotation) if field else []
    arguments = get_args(form)
    origin = get_origin(form)
    return _forms(arguments[1] if origin is dict else arguments[0]) if origin in {dict, tuple, list} else []


def _forms(annotation: Any) -> list[Any]:  # noqa: ANN401  # the same
    origin = get_origin(annotation)
    if origin is Annotated:
        return _forms(get_args(annotation)[0])
    if origin in {Union, UnionType}:
        return [form for part in get_args(annotation) for form in _forms(part)]
    return [annotation]


def _fits_form(form: Any, node: Any) -> bool:  # noqa: ANN401  # the same
    if not (isinstance(form, type) and issubclass(form, BaseModel) and isinstance(node, dict)):
        return False
    return all(
        node[tag] in get_args(form.model_fields[tag].annotation)
        for tag in ("platform", "kind")
        if tag in node and tag in form.model_fields
    )
