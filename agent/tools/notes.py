"""What the agent can write down and look up. Pure: what it is told of these tools."""

from typing import Annotated, Final

from pydantic import Field

from agent.journal import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from agent.tools.schema import ToolArguments, define_tool

MAX_NOTE_QUERY_CHARS: Final = 200


class JournalArgs(ToolArguments):
    """What `journal` takes."""

    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="One line.")]
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS, description="What you want to know later.")]


class RememberArgs(ToolArguments):
    """What `remember` takes."""

    text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_TEXT_CHARS,
            description="One fact, understandable without this conversation: who, what, since when.",
        ),
    ]


class RecallArgs(ToolArguments):
    """What `recall` takes."""

    query: Annotated[
        str,
        Field(
            min_length=1, max_length=MAX_NOTE_QUERY_CHARS, description="A few words that must have been said together."
        ),
    ]


class ForgetArgs(ToolArguments):
    """What `forget` takes."""

    what: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_NOTE_QUERY_CHARS,
            description="Words that are all in it, or its handle, e.g. n12, as recall shows it.",
        ),
    ]


JOURNAL = define_tool(
    "journal",
    "Write an entry into your journal: what happened, what you found out, what you mean to do. Nothing is posted. "
    "It keeps to where it was written: what you write in private is found in private only.",
    JournalArgs,
    ephemeral=True,
)
REMEMBER = define_tool(
    "remember",
    "Keep a fact for good, such as a name, a preference or a promise. Nothing is posted. "
    "It keeps to where it was written, as a journal entry does.",
    RememberArgs,
)
RECALL = define_tool(
    "recall",
    "Search what was said before, and what you wrote down, for words. Gives at most ten places, the newest first, "
    "of those that may be told here.",
    RecallArgs,
    parallel=True,
)
FORGET = define_tool(
    "forget",
    "Forget for good what you wrote down with remember or journal. What was said in conversations is not touched.",
    ForgetArgs,
)
NOTE_TOOLS = (JOURNAL, REMEMBER, RECALL)
