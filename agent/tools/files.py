"""The agent's own files: what a model is told of the tools for them. Pure."""

from typing import Annotated, Final

from pydantic import Field

from agent.tools.schema import ToolArguments, define_tool

DEFAULT_LINES: Final = 2_000
"""Read at once, where it is not said how many."""
MAX_LINES: Final = 10_000
MAX_CONTEXT_LINES: Final = 20
"""Lines around a match, on each side."""
MAX_PATTERN_CHARS: Final = 500

_Path = Annotated[str, Field(description="From the top of your files, e.g. notes/today.md.")]


class ReadFileArgs(ToolArguments):
    """What `read_file` takes."""

    path: _Path
    offset: Annotated[int, Field(ge=1, description="First line to read.")] = 1
    limit: Annotated[int, Field(ge=1, le=MAX_LINES, description="Lines to read at most.")] = DEFAULT_LINES


class WriteFileArgs(ToolArguments):
    """What `write_file` takes."""

    path: _Path
    text: Annotated[str, Field(description="All of the file.")]


class EditFileArgs(ToolArguments):
    """What `edit_file` takes."""

    path: _Path
    old: Annotated[str, Field(min_length=1, description="Exactly as it stands in the file, without line numbers.")]
    new: Annotated[str, Field(description="What stands there instead.")]
    all: Annotated[bool, Field(description="Replace it everywhere; else it must stand there once.")] = False


class GlobArgs(ToolArguments):
    """What `glob` takes."""

    pattern: Annotated[
        str, Field(max_length=MAX_PATTERN_CHARS, description="E.g. `*`, `notes/*.md` or `**/*.{py,toml}`.")
    ]


class GrepArgs(ToolArguments):
    """What `grep` takes."""

    pattern: Annotated[
        str, Field(min_length=1, max_length=MAX_PATTERN_CHARS, description="Regular expression, matched line by line.")
    ]
    path: Annotated[str, Field(description="File or directory; left out: all files.")] = ""
    glob: Annotated[str, Field(max_length=MAX_PATTERN_CHARS, description="Only these files, e.g. `*.md`.")] = ""
    ignore_case: bool = False
    context: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES, description="Lines to show around each match.")] = 0


class ViewImageArgs(ToolArguments):
    """What `view_image` takes."""

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
