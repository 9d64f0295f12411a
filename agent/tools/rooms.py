"""What the agent can do on a platform besides posting: what it is told of these tools. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

DEFAULT_MESSAGES: Final = 20
MAX_MESSAGES: Final = 50
"""Messages at once."""
MAX_ADDRESS_CHARS: Final = 500
"""Of a handle or an address."""
MAX_REACTION_CHARS: Final = 64
MAX_EDIT_CHARS: Final = 8_000
MAX_TOPIC_CHARS: Final = 400
MAX_CAPTION_CHARS: Final = 1_000
"""Telegram takes 1,024 (https://core.telegram.org/bots/api#senddocument)."""
MAX_PATH_CHARS: Final = 1_000

_MessageField = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_ADDRESS_CHARS,
        description="`last`: the one that you answer. `mine`: your newest post here. Or a handle like m12, which "
        "read_room and recall show.",
    ),
]
_OwnMessageField = Annotated[
    str,
    Field(
        min_length=1, max_length=MAX_ADDRESS_CHARS, description="`mine`: your newest post here. Or a handle like m12."
    ),
]
_AddressField = Annotated[
    str | None, Field(max_length=MAX_ADDRESS_CHARS, description="Of another place, as it is written. Left out: here.")
]


class ReactArgs(ToolArguments):
    """`react`."""

    message: _MessageField
    reaction: Annotated[str, Field(min_length=1, max_length=MAX_REACTION_CHARS, description="An emoji.")]
    remove: Annotated[bool, Field(description="Take it off again.")] = False


class EditOwnArgs(ToolArguments):
    """`edit_own`."""

    message: _OwnMessageField
    text: Annotated[str, Field(min_length=1, max_length=MAX_EDIT_CHARS, description="All that it is to say.")]


class DeleteOwnArgs(ToolArguments):
    """`delete_own`."""

    message: _OwnMessageField


class ReadRoomArgs(ToolArguments):
    """`read_room`."""

    address: _AddressField = None
    before: Annotated[
        str | None, Field(max_length=MAX_ADDRESS_CHARS, description="Only what was said before this handle.")
    ] = None
    count: Annotated[int, Field(ge=1, le=MAX_MESSAGES, description="How many messages.")] = DEFAULT_MESSAGES


class WhoArgs(ToolArguments):
    """`who`."""

    address: _AddressField = None


class SetTopicArgs(ToolArguments):
    """`set_topic`."""

    topic: Annotated[str, Field(max_length=MAX_TOPIC_CHARS, description="One line.")]


class SendFileArgs(ToolArguments):
    """`send_file`."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS, description="Of one of your files.")]
    text: Annotated[str, Field(max_length=MAX_CAPTION_CHARS, description="Posted with it, in Markdown.")] = ""


REACT = define_tool("react", "Put a reaction on a message of this conversation.", ReactArgs)
EDIT_OWN = define_tool("edit_own", "Let a message that you posted read differently.", EditOwnArgs, task=True)
DELETE_OWN = define_tool("delete_own", "Take back a message that you posted.", DeleteOwnArgs, task=True)
READ_ROOM = define_tool(
    "read_room",
    "Read what was said here before, or in another place that may be told of here, as it reads now. "
    "Each message has a handle.",
    ReadRoomArgs,
    parallel=True,
    polls=True,
)
WHO = define_tool(
    "who", "Who is here, or in another place that may be told of here.", WhoArgs, parallel=True, polls=True
)
SET_TOPIC = define_tool("set_topic", "Change the topic of the room that you are in.", SetTopicArgs, task=True)
SEND_FILE = define_tool("send_file", "Post one of your files here.", SendFileArgs, task=True)
PLATFORM_TOOLS: Final = (DELETE_OWN, EDIT_OWN, REACT, READ_ROOM, SEND_FILE, SET_TOPIC, WHO)
