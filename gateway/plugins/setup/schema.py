"""`reverie schema`: the JSON schema of the configuration, for editors that complete and check YAML
(https://json-schema.org/draft/2020-12). The sections of the plugins of this environment are in it.
"""

import argparse
import json
import subprocess
import sys
from functools import cache
from typing import Any, Final

Schema = dict[str, Any]
"""A part of a JSON schema: https://json-schema.org/understanding-json-schema."""

_PRINT: Final = """
import json
from gateway.core.fields import ConfigSection
ConfigSection.model_config["use_attribute_docstrings"] = True
from gateway.plugins import settings_model
print(json.dumps(settings_model().model_json_schema()))
"""
"""In a process of its own: docstrings are read when a class is made, which would make every start
45 ms longer."""
_REFERENCE: Final[Schema] = {"type": "string", "pattern": r"\$\{[^}]+\}"}
"""Text with a `${NAME}` or `${file:PATH}` in it may become anything."""
_DURATION: Final[Schema] = {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)?\s*$"}
_ABOUT: Final = ("title", "description", "default")


@cache
def read_schema() -> Schema:
    """Return the schema of the settings as the program has them; do not change it. The first call
    blocks for a second.
    """
    command = [sys.executable, "-P", "-c", _PRINT]
    done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - this Python and our own text
    found: Schema = json.loads(done.stdout)
    return found


def schema_for_editors() -> str:
    """Return the schema of what may be written into one file, which need not be all of it."""
    written = _allow_written(read_schema())
    del written["required"]
    return json.dumps(written, indent=1) + "\n"


def _allow_written(told: Any) -> Any:  # noqa: ANN401 - a part of a schema
    """Return a part of the schema that takes durations with units, references in place of values,
    and providers whose kind follows from their address.
    """
    if isinstance(told, list):
        return [_allow_written(one) for one in told]
    if not isinstance(told, dict):
        return told
    if told.get("type") in ("integer", "number", "boolean", "string") and "const" not in told:
        return _allow_reference(told)
    found = dict[str, Any]()
    for key, value in told.items():
        if key in ("properties", "$defs"):
            found[key] = {name: _allow_written(one) for name, one in value.items()}
        elif key == "default":
            found[key] = value
        elif key != "discriminator":
            found["anyOf" if key == "oneOf" else key] = _allow_written(value)
    if "kind" in found.get("required", ()):
        found["required"].remove("kind")
    return found


def _allow_reference(scalar: Schema) -> Schema:
    value = {key: one for key, one in scalar.items() if key not in (*_ABOUT, "format")}
    if value == {"type": "string"}:
        return scalar
    units = [_DURATION] if scalar.get("format") == "duration" else []
    about: Schema = {key: scalar[key] for key in _ABOUT if key in scalar}
    return {**about, "anyOf": [value, *units, _REFERENCE]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie schema`. Exit code: 0."""
    parser.epilog = (
        "reverie schema > DIR/reverie.schema.json; then the first line of the YAML is "
        "`# yaml-language-server: $schema=reverie.schema.json`, as `reverie setup` writes it"
    )
    parser.set_defaults(handler=_run)


def _run(_: argparse.Namespace) -> int:
    sys.stdout.write(schema_for_editors())
    return 0
