"""Specifications of all built-in tools: name, description and arguments, as the model sees them. Pure.

In this order: reading shortened results, files, autonomy, notes, reminders, platforms, shell, skills, web, and the
tools that end a turn. Tools of MCP servers are not here. The handlers are in `gateway/tools`.
"""

from typing import Annotated, Final

from pydantic import Field

from agent.journal import MAX_TEXT_CHARS, MAX_TITLE_CHARS
from gateway.core.tool_spec import ToolArguments, ToolSpec, define_tool

DEFAULT_EVIDENCE_CHARS: Final = 4_000
MAX_EVIDENCE_CHARS: Final = 20_000


class FetchEvidenceArgs(ToolArguments):
    """Arguments of `fetch_evidence`."""

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


DEFAULT_LINES: Final = 2_000
"""Lines read at once without a `limit`."""
MAX_LINES: Final = 10_000
MAX_CONTEXT_LINES: Final = 20
"""Limit of lines on each side of a match."""
MAX_PATTERN_CHARS: Final = 500

_Path = Annotated[str, Field(description="From the top of your files, e.g. notes/today.md.")]


class ReadFileArgs(ToolArguments):
    """Arguments of `read_file`."""

    path: _Path
    offset: Annotated[int, Field(ge=1, description="First line to read.")] = 1
    limit: Annotated[int, Field(ge=1, le=MAX_LINES, description="Lines to read at most.")] = DEFAULT_LINES


class WriteFileArgs(ToolArguments):
    """Arguments of `write_file`."""

    path: _Path
    text: Annotated[str, Field(description="All of the file.")]


class EditFileArgs(ToolArguments):
    """Arguments of `edit_file`."""

    path: _Path
    old: Annotated[str, Field(min_length=1, description="Exactly as it stands in the file, without line numbers.")]
    new: Annotated[str, Field(description="What stands there instead.")]
    all: Annotated[bool, Field(description="Replace it everywhere; else it must stand there once.")] = False


class GlobArgs(ToolArguments):
    """Arguments of `glob`."""

    pattern: Annotated[
        str, Field(max_length=MAX_PATTERN_CHARS, description="E.g. `*`, `notes/*.md` or `**/*.{py,toml}`.")
    ]


class GrepArgs(ToolArguments):
    """Arguments of `grep`."""

    pattern: Annotated[
        str, Field(min_length=1, max_length=MAX_PATTERN_CHARS, description="Regular expression, matched line by line.")
    ]
    path: Annotated[str, Field(description="File or directory; left out: all files.")] = ""
    glob: Annotated[str, Field(max_length=MAX_PATTERN_CHARS, description="Only these files, e.g. `*.md`.")] = ""
    ignore_case: bool = False
    context: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES, description="Lines to show around each match.")] = 0


class ViewImageArgs(ToolArguments):
    """Arguments of `view_image`."""

    path: _Path


READ_FILE = define_tool(
    "read_file",
    "Read a text file, with its lines numbered (the number and the tab are not in the file). "
    "Says where to go on if there is more of it.",
    ReadFileArgs,
    task=True,
    parallel=True,
)
WRITE_FILE = define_tool(
    "write_file",
    "Make a file, or replace all of one. Directories above it are made. To change a part, use edit_file.",
    WriteFileArgs,
    task=True,
)
EDIT_FILE = define_tool(
    "edit_file",
    "Replace a piece of text in a file with another, and show the lines that changed.",
    EditFileArgs,
    task=True,
)
GLOB = define_tool(
    "glob",
    "List files and directories by pattern; `*` stays in one directory, `**` goes through all.",
    GlobArgs,
    task=True,
    parallel=True,
)
GREP = define_tool("grep", "Search your text files for a regular expression.", GrepArgs, task=True, parallel=True)
VIEW_IMAGE = define_tool(
    "view_image", "Look at a PNG, JPEG, GIF or WebP file.", ViewImageArgs, task=True, parallel=True
)
FILE_TOOLS: Final = (READ_FILE, WRITE_FILE, EDIT_FILE, GLOB, GREP, VIEW_IMAGE)


MAX_POST_CHARS: Final = 8_000


class SendMessageArgs(ToolArguments):
    """Arguments of `send_message`."""

    address: Annotated[str, Field(description="Where, as it is written above what is pending there.")]
    text: Annotated[str, Field(min_length=1, max_length=MAX_POST_CHARS, description="What to post, in Markdown.")]


class MarkHandledArgs(ToolArguments):
    """Arguments of `mark_handled`."""

    address: Annotated[str, Field(description="Where, as it is written above what is pending there.")]


class RestUntilArgs(ToolArguments):
    """Arguments of `rest_until`."""

    time: Annotated[
        str | None, Field(description="ISO 8601, or like `in 2h` or `18:30`. Left out: until something comes.")
    ] = None
    events: Annotated[
        tuple[str, ...],
        Field(max_length=10, description="Types of notifications that wake you earlier, e.g. `irc.libera.room`."),
    ] = ()


class GoQuietArgs(ToolArguments):
    """Arguments of `go_quiet`."""

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


MAX_NOTE_QUERY_CHARS: Final = 200


class JournalArgs(ToolArguments):
    """Arguments of `journal`."""

    title: Annotated[str, Field(max_length=MAX_TITLE_CHARS, description="One line.")]
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS, description="What you want to know later.")]


class RememberArgs(ToolArguments):
    """Arguments of `remember`."""

    text: Annotated[
        str,
        Field(
            min_length=1,
            max_length=MAX_TEXT_CHARS,
            description="One fact, understandable without this conversation: who, what, since when.",
        ),
    ]


class RecallArgs(ToolArguments):
    """Arguments of `recall`."""

    query: Annotated[
        str,
        Field(
            min_length=1, max_length=MAX_NOTE_QUERY_CHARS, description="A few words that must have been said together."
        ),
    ]


class ForgetArgs(ToolArguments):
    """Arguments of `forget`."""

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


class RemindArgs(ToolArguments):
    """Arguments of `remind`."""

    text: str = Field(description="What to be reminded of, in one line of at most 500 characters.")
    at: str = Field(
        default="",
        description="When: 2026-11-22T09:00 (with or without an offset), 18:30, tomorrow 9:00, or in 2h30m.",
    )
    every: str = Field(
        default="", description="To repeat: how long between two times, e.g. 90 min or 1 day. The first time is `at`."
    )
    cron: str = Field(
        default="",
        description="To repeat by the calendar, without `at` and `every`: minute, hour, day of the month, month and "
        "day of the week, e.g. 0 9 * * 1-5.",
    )
    timezone: str = Field(default="", description="Of `at` or `cron`, e.g. Europe/Zurich; left out: the operator's.")


class ListRemindersArgs(ToolArguments):
    """Arguments of `list_reminders`: none."""


class CancelReminderArgs(ToolArguments):
    """Arguments of `cancel_reminder`."""

    id: str = Field(description="As list_reminders and remind name it.")


REMIND = define_tool(
    "remind",
    "Set a reminder: when its time comes, you are told its text here and can act on it. Give `at`, `every` or `cron`.",
    RemindArgs,
)
LIST_REMINDERS = define_tool(
    "list_reminders",
    "List the reminders of this conversation that are still to come.",
    ListRemindersArgs,
    parallel=True,
)
CANCEL_REMINDER = define_tool("cancel_reminder", "Cancel a reminder of this conversation.", CancelReminderArgs)


DEFAULT_MESSAGES: Final = 20
MAX_MESSAGES: Final = 50
"""Limit of messages read at once."""
MAX_ADDRESS_CHARS: Final = 500
"""Limit of a handle or an address."""
MAX_REACTION_CHARS: Final = 64
MAX_EDIT_CHARS: Final = 8_000
MAX_TOPIC_CHARS: Final = 400
MAX_CAPTION_CHARS: Final = 1_000
"""Limit of the text with a file. Telegram allows 1,024 (https://core.telegram.org/bots/api#senddocument)."""
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
    """Arguments of `react`."""

    message: _MessageField
    reaction: Annotated[str, Field(min_length=1, max_length=MAX_REACTION_CHARS, description="An emoji.")]
    remove: Annotated[bool, Field(description="Take it off again.")] = False


class EditOwnArgs(ToolArguments):
    """Arguments of `edit_own`."""

    message: _OwnMessageField
    text: Annotated[str, Field(min_length=1, max_length=MAX_EDIT_CHARS, description="All that it is to say.")]


class DeleteOwnArgs(ToolArguments):
    """Arguments of `delete_own`."""

    message: _OwnMessageField


class ReadRoomArgs(ToolArguments):
    """Arguments of `read_room`."""

    address: _AddressField = None
    before: Annotated[
        str | None, Field(max_length=MAX_ADDRESS_CHARS, description="Only what was said before this handle.")
    ] = None
    count: Annotated[int, Field(ge=1, le=MAX_MESSAGES, description="How many messages.")] = DEFAULT_MESSAGES


class WhoArgs(ToolArguments):
    """Arguments of `who`."""

    address: _AddressField = None


class SetTopicArgs(ToolArguments):
    """Arguments of `set_topic`."""

    topic: Annotated[str, Field(max_length=MAX_TOPIC_CHARS, description="One line.")]


class SendFileArgs(ToolArguments):
    """Arguments of `send_file`."""

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


MAX_COMMAND_BYTES: Final = 100_000
"""Limit of a command. Linux allows arguments of 131,072 bytes (MAX_ARG_STRLEN, execve(2))."""
MAX_TAIL_LINES: Final = 10_000

_JobField = Annotated[str, Field(max_length=20, description="As `bash` named it, e.g. j1.")]


class BashArgs(ToolArguments):
    """Arguments of `bash`."""

    command: Annotated[str, Field(min_length=1, max_length=MAX_COMMAND_BYTES, description="For `bash -c`.")]
    timeout: Annotated[
        float | None, Field(gt=0, description="Seconds, if the usual time will not do; long work belongs in the back.")
    ] = None
    background: Annotated[bool, Field(description="Answer at once and let it run; you are told when it has ended.")] = (
        False
    )


class JobsArgs(ToolArguments):
    """Arguments of `jobs`: none."""


class JobOutputArgs(ToolArguments):
    """Arguments of `job_output`."""

    job: _JobField
    tail: Annotated[
        int | None, Field(ge=1, le=MAX_TAIL_LINES, description="Only so many of its last lines; left out: all.")
    ] = None


class JobKillArgs(ToolArguments):
    """Arguments of `job_kill`."""

    job: _JobField


BASH = define_tool(
    "bash",
    "Run a command in your files, and read its output and exit status. It has no input and no terminal; each command "
    "begins anew, and whatever it leaves running is ended with it.",
    BashArgs,
    task=True,
    polls=True,
)
JOBS = define_tool("jobs", "List what you run in the background here.", JobsArgs, parallel=True, polls=True)
JOB_OUTPUT = define_tool(
    "job_output", "Read what a background job has written so far.", JobOutputArgs, task=True, parallel=True, polls=True
)
JOB_KILL = define_tool("job_kill", "End a background job.", JobKillArgs, task=True)
SHELL_TOOLS: Final = (BASH, JOBS, JOB_OUTPUT, JOB_KILL)


MAX_SKILL_PATH_CHARS: Final = 400


class LoadSkillArgs(ToolArguments):
    """Arguments of `load_skill`."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="As the catalogue of skills names it.")]
    file: Annotated[
        str,
        Field(max_length=MAX_SKILL_PATH_CHARS, description="Another file or folder of the skill, e.g. examples/a.md."),
    ] = ""


LOAD_SKILL = define_tool(
    "load_skill",
    "Read a skill: the instructions for a task, or another of its files.",
    LoadSkillArgs,
    parallel=True,
)


MAX_URL_CHARS: Final = 4_000
MAX_WEB_QUERY_CHARS: Final = 400
"""Limit of a query: that of Brave (api-dashboard.search.brave.com, api-reference/web/search)."""
DEFAULT_RESULTS: Final = 5
MAX_RESULTS: Final = 20
"""Limit of results: that of Brave and Tavily."""


class WebFetchArgs(ToolArguments):
    """Arguments of `web_fetch`."""

    url: Annotated[
        str, Field(min_length=1, max_length=MAX_URL_CHARS, description="The whole address, with http:// or https://.")
    ]


class WebSearchArgs(ToolArguments):
    """Arguments of `web_search`."""

    query: Annotated[str, Field(min_length=1, max_length=MAX_WEB_QUERY_CHARS, description="A few words.")]
    count: Annotated[int, Field(ge=1, le=MAX_RESULTS, description="How many results.")] = DEFAULT_RESULTS


WEB_FETCH = define_tool(
    "web_fetch",
    "Read a page on the public web as text, with its links. Runs no scripts, sends no logins.",
    WebFetchArgs,
    task=True,
    parallel=True,
)
WEB_SEARCH = define_tool(
    "web_search",
    "Search the web: titles, addresses and short extracts. Read what fits with web_fetch.",
    WebSearchArgs,
    task=True,
    parallel=True,
)
WEB_TOOLS: Final = (WEB_FETCH, WEB_SEARCH)


ALL_TOOLS: Final = (
    FETCH_EVIDENCE,
    *FILE_TOOLS,
    *AUTONOMY_TOOLS,
    *NOTE_TOOLS,
    FORGET,
    REMIND,
    LIST_REMINDERS,
    CANCEL_REMINDER,
    *PLATFORM_TOOLS,
    *SHELL_TOOLS,
    LOAD_SKILL,
    *WEB_TOOLS,
)
"""All tools but those that end a turn."""
TOOL_NAMES: Final = tuple(sorted(spec.name for spec in ALL_TOOLS))
"""Their names, sorted. The tools that end a turn cannot be switched off, so they are not listed."""


STAY_SILENT = ToolSpec(
    name="stay_silent",
    description="End this turn without posting anything, because nothing needs to be said.",
    schema='{"additionalProperties":false,"properties":{},"type":"object"}',
    is_task=False,
)
YIELD_TO_USER = ToolSpec(
    name="yield_to_user",
    description="End this turn and rest until somebody speaks to you. Text written beside this call is posted.",
    schema='{"additionalProperties":false,"properties":{},"type":"object"}',
    is_task=False,
)
ENDING_TOOLS = (STAY_SILENT, YIELD_TO_USER)
"""Tools that end a turn without a reply, or with the text beside the call."""
