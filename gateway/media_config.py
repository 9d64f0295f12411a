"""The `media` section."""

from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.fields import ConfigSection, Duration
from gateway.transcribe import FILE_PLACEHOLDER


def _check_command(value: tuple[str, ...]) -> tuple[str, ...]:
    if value and (not value[0].strip() or not any(FILE_PLACEHOLDER in argument for argument in value[1:])):
        raise ValueError(f"a command is a list: the program, then its arguments, one of them with {FILE_PLACEHOLDER}")
    return value


class MediaConfig(ConfigSection):
    """What becomes of images and voice notes. Everything else is described in words only."""

    max_bytes: int = Field(default=10_000_000, ge=0)
    """Of one download; an image beyond what models take is never fetched. 0: nothing is."""
    max_images: int = Field(default=4, ge=0, le=5)
    """Shown with the new lines of one turn, the newest, if the model sees. 0: none."""
    timeout: Duration = 20.0
    """Seconds for the downloads of one turn, which go side by side."""
    transcribe: Annotated[tuple[str, ...], AfterValidator(_check_command)] = Field(default=(), strict=False)
    """A program and its arguments, which writes what is said in `{file}` to its standard output. Empty: none."""
    transcribe_timeout: Duration = 60.0
    """Seconds for the voice notes of one turn, one after the other; what is not written out by then is described."""
    keep: Duration = 86_400.0
    """How long an image stays on disk after it was last shown."""
