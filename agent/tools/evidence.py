"""Reading word for word what was told in part: what a model is told of that tool. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

DEFAULT_EVIDENCE_CHARS: Final = 4_000
MAX_EVIDENCE_CHARS: Final = 20_000


class FetchEvidenceArgs(ToolArguments):
    """What `fetch_evidence` takes."""

    handle: Annotated[
        str,
        Field(min_length=1, max_length=200, description="As it stands where that was told, e.g. e12, t12.3 or v12-34."),
    ]
    offset: Annotated[int, Field(ge=0, description="How many characters of it to leave out.")] = 0
    limit: Annotated[
        int, Field(ge=1, le=MAX_EVIDENCE_CHARS, description="How many characters of it to give, at most.")
    ] = DEFAULT_EVIDENCE_CHARS


FETCH_EVIDENCE = define_tool(
    "fetch_evidence",
    "Read word for word what you were told only in part: a result of a tool, or turns that are not shown any more. "
    "Says where to go on if there is more of it.",
    FetchEvidenceArgs,
    parallel=True,
)
