"""What the agent can do on a platform besides posting: what it is told of these tools. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import Arguments, spec

COUNT: Final = 20
MOST: Final = 50
"""Messages at once."""
MAX_NAME_CHARS: Final = 500
"""Of a handle or an address."""
MAX_REACTION_CHARS: Final = 64
MAX_TEXT_CHARS: Final = 8_000
MAX_TOPIC_CHARS: Final = 400
MAX_CAPTION_CHARS: Final = 1_000
"""Telegram takes 1,024 (https://core.telegram.org/bots/api#senddocument)."""
MAX_PATH_CHARS: Final = 1_000

_Message = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="`last`: the one that you answer. `mine`: your newest post here. Or a handle like m12, which "
        "read_room and recall show.",
    ),
]
_Mine = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME_CHARS, description="`mine`: your newest post here. Or a handle like m12."),
]
_Where = Annotated[
    str | None, Field(max_length=MAX_NAME_CHARS, description="Of another place, as it is written. Left out: here.")
]


class React(Arguments):
    """`react`."""

    message: _Message
    reaction: Annotated[str, Field(min_length=1, max_length=MAX_REACTION_CHARS, description="An emoji.")]
    remove: Annotated[bool, Field(description="Take it off again.")] = False


class EditOwn(Arguments):
    """`edit_own`."""

    message: _Mine
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS, description="All that it is to say.")]


class DeleteOwn(Arguments):
    """`delete_own`."""

    message: _Mine


class ReadRoom(Arguments):
    """`read_room`."""

    address: _Where = None
    before: Annotated[
        str | None, Field(max_length=MAX_NAME_CHARS, description="Only what was said before this handle.")
    ] = None
    count: Annotated[int, Field(ge=1, le=MOST, description="How many messages.")] = COUNT


class Who(Arguments):
    """`who`."""

    address: _Where = None


class SetTopic(Arguments):
    """`set_topic`."""

    topic: Annotated[str, Field(max_length=MAX_TOPIC_CHARS, description="One line.")]


class SendFile(Arguments):
    """`send_file`."""

    path: Annotated[str, Field(min_length=1, max_length=MAX_PATH_CHARS, description="Of one of your files.")]
    text: Annotated[str, Field(max_length=MAX_CAPTION_CHARS, description="Posted with it, in Markdown.")] = ""


REACT = spec("react", "Put a reaction on a message of this conversation.", React)
EDIT_OWN = spec("edit_own", "Let a message that you posted read differently.", EditOwn, task=True)
DELETE_OWN = spec("delete_own", "Take back a message that you posted.", DeleteOwn, task=True)
READ_ROOM = spec(
    "read_room",
    "Read what was said here before, or in another place that may be told of here, as it reads now. "
    "Each message has a handle.",
    ReadRoom,
    parallel=True,
    polls=True,
)
WHO = spec("who", "Who is here, or in another place that may be told of here.", Who, parallel=True, polls=True)
SET_TOPIC = spec("set_topic", "Change the topic of the room that you are in.", SetTopic, task=True)
SEND_FILE = spec("send_file", "Post one of your files here.", SendFile, task=True)
TOOLS: Final = (DELETE_OWN, EDIT_OWN, REACT, READ_ROOM, SEND_FILE, SET_TOPIC, WHO)
