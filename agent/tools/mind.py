"""What the agent may do by itself: speak where it lives, put away, rest. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

MAX_POST_CHARS: Final = 8_000


class SendMessageArgs(ToolArguments):
    """`send_message`."""

    address: Annotated[str, Field(description="Where, as it is written above what is pending there.")]
    text: Annotated[str, Field(min_length=1, max_length=MAX_POST_CHARS, description="What to post, in Markdown.")]


class MarkHandledArgs(ToolArguments):
    """`mark_handled`."""

    address: Annotated[str, Field(description="Where, as it is written above what is pending there.")]


class RestUntilArgs(ToolArguments):
    """`rest_until`."""

    time: Annotated[
        str | None, Field(description="ISO 8601, or like `in 2h` or `18:30`. Left out: until something comes.")
    ] = None
    events: Annotated[
        tuple[str, ...],
        Field(max_length=10, description="Types of notifications that wake you earlier, e.g. `irc.libera.room`."),
    ] = ()


class GoQuietArgs(ToolArguments):
    """`go_quiet`."""

    time: Annotated[str, Field(description="Until when: ISO 8601, or like `in 2h` or `18:30`. At most a day.")]


SEND_MESSAGE = define_tool(
    "send_message",
    "Post something in another place that you live in. What is pending there is dealt with by it.",
    SendMessageArgs,
    task=True,
)
MARK_HANDLED = define_tool(
    "mark_handled", "Put away what is pending in a place: nothing is to be done about it.", MarkHandledArgs
)
REST_UNTIL = define_tool(
    "rest_until", "Begin nothing by yourself until then. Who speaks to you is still answered.", RestUntilArgs
)
GO_QUIET = define_tool("go_quiet", "Let nothing below urgent disturb anybody until then.", GoQuietArgs)
AUTONOMY_TOOLS: Final = (GO_QUIET, MARK_HANDLED, REST_UNTIL, SEND_MESSAGE)
