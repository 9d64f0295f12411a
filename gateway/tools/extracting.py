"""Having a page read in a process that has nothing to lose."""

import json
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.tools.schema import ToolCallRefused
from gateway.process import ProgramNotStarted, run_program

EXTRACT_PROGRAM: Final = Path(__file__).with_name("extract.py")
EXTRACT_TIMEOUT_S: Final = 15.0
MAX_EXTRACT_BYTES: Final = 14_000_000
"""A million characters, each twelve bytes at most as JSON writes them, and a title."""


class ExtractedPage(BaseModel):
    """What a page says."""

    model_config = ConfigDict(frozen=True)

    title: str
    """On one line. Empty: it has none."""
    text: str
    cut: bool
    """There was more text."""


async def extract_page(body: bytes, *, kind: str, charset: str, url: str, cut: bool) -> ExtractedPage:
    """Read a page of a kind that `is_text_type` names. `cut`: only its beginning is there. Raises Refused."""
    head = json.dumps({"kind": kind, "charset": charset, "url": url, "cut": "yes" if cut else ""}).encode()
    try:
        ran = await run_program(
            (sys.executable, "-I", str(EXTRACT_PROGRAM)),
            env={},
            cwd=Path("/"),
            time_s=EXTRACT_TIMEOUT_S,
            max_bytes=MAX_EXTRACT_BYTES,
            said=head + b"\n" + body,
        )
        if ran.end_reason == "exit" and ran.status == 0:
            return ExtractedPage.model_validate_json(ran.output)
    except ProgramNotStarted:
        raise ToolCallRefused("Pages cannot be read now: the program that does it cannot be started.") from None
    except ValidationError:
        pass  # as if it had crashed, which it may have been made to
    raise ToolCallRefused("This page cannot be read: it is broken, or too much for one.")


def is_text_type(kind: str) -> bool:
    """Whether a media type is text of some sort. Not said: perhaps."""
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("+xml", "+json"))
        or kind in ("application/json", "application/xml", "application/yaml", "application/x-yaml")
        or kind in ("application/javascript", "application/x-javascript", "application/x-ndjson", "application/toml")
    )
