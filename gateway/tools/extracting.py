"""Having a page read in a process that has nothing to lose."""

import json
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from agent.tools.schema import Refused
from gateway.process import NotStarted, run

PROGRAM: Final = Path(__file__).with_name("extract.py")
TIME_S: Final = 15.0
MAX_OUTPUT_BYTES: Final = 14_000_000
"""A million characters, each twelve bytes at most as JSON writes them, and a title."""


class Extracted(BaseModel):
    """What a page says."""

    model_config = ConfigDict(frozen=True)

    title: str
    """On one line. Empty: it has none."""
    text: str
    cut: bool
    """There was more text."""


async def extract(body: bytes, *, kind: str, charset: str, url: str, cut: bool) -> Extracted:
    """Read a page of a kind that `readable` names. `cut`: only its beginning is there. Raises Refused."""
    head = json.dumps({"kind": kind, "charset": charset, "url": url, "cut": "yes" if cut else ""}).encode()
    try:
        ran = await run(
            (sys.executable, "-I", str(PROGRAM)),
            env={},
            cwd=Path("/"),
            time_s=TIME_S,
            max_bytes=MAX_OUTPUT_BYTES,
            said=head + b"\n" + body,
        )
        if ran.end_reason == "exit" and ran.status == 0:
            return Extracted.model_validate_json(ran.output)
    except NotStarted:
        raise Refused("Pages cannot be read now: the program that does it cannot be started.") from None
    except ValidationError:
        pass  # as if it had crashed, which it may have been made to
    raise Refused("This page cannot be read: it is broken, or too much for one.")


def readable(kind: str) -> bool:
    """Whether a media type is text of some sort. Not said: perhaps."""
    return (
        not kind
        or kind.startswith("text/")
        or kind.endswith(("+xml", "+json"))
        or kind in ("application/json", "application/xml", "application/yaml", "application/x-yaml")
        or kind in ("application/javascript", "application/x-javascript", "application/x-ndjson", "application/toml")
    )
