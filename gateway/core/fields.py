"""Types of configuration values: durations, time zones and paths."""

import os
import re
from pathlib import Path
from typing import Annotated, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def _parse_duration(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(
            "not a duration; write seconds (300) or a number with ms, s, m, h or d (5m)"
        )
    return float(match[1]) * _UNITS[match[2]]


def _check_time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("not a time zone; write an IANA name, e.g. Europe/Zurich") from None
    return value


TimeZone = Annotated[
    str, AfterValidator(_check_time_zone), Field(json_schema_extra={"format": "time-zone"})
]
"""An IANA name, e.g. `Europe/Zurich`."""
Duration = Annotated[
    float,
    BeforeValidator(_parse_duration),
    Field(ge=0, strict=True, allow_inf_nan=False, json_schema_extra={"format": "duration"}),
]
"""Seconds. Accepts `300`, `5m`, `1h`."""


PathT = TypeVar("PathT", str, Path)


def _resolve_path(path: PathT, info: ValidationInfo) -> PathT:
    """Return the path, which starts at the directory that is the context of the validation. Raises
    ValueError if the system does not accept it.
    """
    if "\0" in str(path):
        raise ValueError("a path cannot contain the character NUL")
    try:
        os.fsencode(path)
        expanded = Path(path).expanduser()
    except UnicodeEncodeError as error:
        why = f"the encoding of file names is {error.encoding} here, which lacks a character of it"
        raise ValueError(f"{why}; set LC_ALL to a UTF-8 locale, e.g. C.UTF-8") from None
    except RuntimeError:  # `~user` without a home here: keep the path
        expanded = Path(path)
    return type(path)(info.context / expanded) if info.context and str(path) else path


LocalPath = Annotated[Path, Field(strict=False), AfterValidator(_resolve_path)]
"""Path that is relative to the configuration directory when written, absolute when read."""
LocalFile = Annotated[str, AfterValidator(_resolve_path)]
"""Path of a file, as text: see `LocalPath`."""


class ConfigSection(BaseModel):
    """A part of the configuration: frozen, and unknown keys are errors.

    A default of this type is made by `model_construct`: each instance that is checked builds the
    validator of its class, which that of the whole configuration has, too.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, defer_build=True
    )
