"""Types of configuration values shared by every section."""

import re
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def _parse_duration(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("not a duration; write seconds (300) or a number with ms, s, m, h or d (5m)")
    return float(match[1]) * _UNITS[match[2]]


def _check_time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("not a time zone; write an IANA name, e.g. Europe/Zurich") from None
    return value


TimeZone = Annotated[str, AfterValidator(_check_time_zone)]
"""An IANA name, e.g. `Europe/Zurich`."""
Duration = Annotated[float, BeforeValidator(_parse_duration), Field(ge=0, strict=True, allow_inf_nan=False)]
"""Seconds. Reads `300`, `5m`, `1h`."""


class ConfigSection(BaseModel):
    """A part of the configuration: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)
