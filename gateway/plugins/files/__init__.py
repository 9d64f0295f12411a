"""Tools for the agent's own files: read, write, edit, copy, list, search and view.

The order of this file: the tools, text in files, then search.

Replacing text works on bytes: invalid UTF-8, byte order marks and line ends stay as they are.
Searching blocks; it is bounded as listing is (`listing.SearchLimits`), and in the time that a
pattern may take.
"""

import asyncio
import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from gateway.commands.context import CommandCall, build_tool_context
from gateway.commands.definition import command
from gateway.context.workspace_fs import (
    FILES_PREFIX,
    FilesArea,
    PathParts,
    display_path,
    has_disk_space,
)
from gateway.core.i18n import _
from gateway.core.labels import Label, join
from gateway.core.media_types import identify_image, sound_suffix
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_MEMBERS, OUT, OWN, Effect
from gateway.core.private_files import is_partial_file
from gateway.core.scopes import Visibility
from gateway.core.text_safety import inline_code
from gateway.core.tool import Tool, ToolContext, ToolOutput, run_in_thread, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.files.listing import GlobPattern, SearchLimits, find_all, list_paths, walk
from gateway.plugins.files.undo import keep_files, undo_files
from gateway.store.effects import CommandEffect, done, refuse
from gateway.stream.media import prepare_image
from gateway.tools.dispatch import has_side_effects

MAX_CONCURRENT_SEARCHES: Final = 2
"""Searches of an agent at once: threads are few, and others (host names, images) need them, too."""
MAX_LINES: Final = 10_000
MAX_PATTERN_CHARS: Final = 500
MAX_NAMES: Final = 10
"""Files that are named of those that were brought back."""


class Files(Plugin):
    """Reads and changes the files of all agents. A file that may not be read in a place is as if
    it were not there.
    """

    name = "files"
    summary = "reads, writes and searches the files of agents"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._search_slots = defaultdict[str, asyncio.Semaphore](
            lambda: asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)
        )

    @hook
    async def before_call(self, turn: ToolContext, tool: Tool) -> None:
        """Tell owners, once a day, that the disk of the files is full."""
        folder = self.context.files.directory(turn.agent)
        if not has_side_effects(tool) or not folder.is_dir():
            return
        if not await run_in_thread(lambda _: has_disk_space(folder)):
            self.context.gateway.notices.tell(
                "files:full",
                lambda _to: _(
                    "The disk with the files of {agent} is nearly full, so I write no more files: "
                    "make room there."
                ).format(agent=inline_code(turn.agent)),
            )

    async def find_effect(
        self, context: ToolContext, *, path: str, source: str = "", **_: object
    ) -> Effect:
        """Return what a file does that is written there: others than those of the place may read
        it.

        `source`: file of which it is a copy. It is not read, and all the same what may be told
        counts as in view.
        """
        view = await self.context.files.view(context, path)
        area, _parts = view.find_file(path)
        if area.directory == view.own.directory:
            return OWN
        if source:
            context.request.label |= Label(readers=view.find_file(source)[0].label.readers)
        return OUT._replace(
            what=f"a file in {area.name(())}", audience=Visibility(scope=area.scope)
        )

    @tool(
        "Read a text file. Each line is shown behind its number and a tab; other places' files are "
        "in /files.",
        ALLOW_MEMBERS,
        effect=OWN,
        parallel=True,
    )
    async def read_file(
        self,
        context: ToolContext,
        *,
        path: Annotated[str, Field(description="E.g. notes/today.md.")],
        offset: Annotated[int, Field(ge=1, description="First line.")] = 1,
        limit: Annotated[int, Field(ge=1, le=MAX_LINES, description="Most lines.")] = 2_000,
    ) -> ToolOutput:
        area, parts = (await self.context.files.view(context, path)).find_file(path)
        name = area.name(parts)

        def render() -> tuple[str, int]:
            data = area.root.read(parts)
            _require_text(name, data)
            return render_lines(name, data, offset, limit)

        text, last = await run_in_thread(lambda _: render())
        origin = f"{name}, lines {offset}-{last}" if last else name
        return ToolOutput(text=text, origin=origin, is_untrusted=True, label=area.label)

    @tool(
        "Create a file, or replace all of it. To change a part, use edit_file.",
        ALLOW_ADMINS,
        effect=find_effect,
    )
    async def write_file(
        self,
        context: ToolContext,
        *,
        path: str,
        text: str,
    ) -> str:
        area, parts = (await self.context.files.view(context, path)).find_file(path)
        before, size = await self._write(context, area, parts, lambda: encode_text(text))
        what = "Made" if before is None else f"Replaced {before:,} bytes in"
        return f"{what} {area.name(parts)}: {size:,} bytes, {text.count(chr(10)):,} line ends."

    async def _write(
        self, context: ToolContext, area: FilesArea, parts: PathParts, content: Callable[[], bytes]
    ) -> tuple[int | None, int]:
        """Return the bytes before, as `WorkspaceRoot.write`, and those now."""

        def write() -> tuple[int | None, int]:
            data = content()
            keep_files(self.context.files.undo_directory(context.agent), context.turn, area, parts)
            return area.root.write(parts, data), len(data)

        return await run_in_thread(lambda _: write())

    @tool(
        "Replace a piece of text in a file. The changed lines are shown.",
        ALLOW_ADMINS,
        effect=find_effect,
    )
    async def edit_file(
        self,
        context: ToolContext,
        *,
        path: str,
        old: Annotated[
            str,
            Field(min_length=1, description="Exactly as in the file, without line numbers."),
        ],
        new: str,
        all: Annotated[  # noqa: A002 - the model's word
            bool, Field(description="Replace all. Default: it must occur once.")
        ] = False,
    ) -> ToolOutput:
        area, parts = (await self.context.files.view(context, path)).find_file(path)
        name, text = area.name(parts), ""

        def change(data: bytes) -> bytes:
            nonlocal text
            _require_text(name, data)
            data, text = replace_text(
                name, data, old, new, everywhere=all, max_bytes=area.root.max_bytes
            )
            return data

        def edit() -> None:
            keep_files(self.context.files.undo_directory(context.agent), context.turn, area, parts)
            area.root.edit(parts, change)

        await run_in_thread(lambda _: edit())
        return ToolOutput(text=text, origin=name, is_untrusted=True, label=area.label)

    @tool(
        "Copy a file, also to where others read it. /files/public is for everybody, "
        "/files/places/CHANNEL/ROOM for a room.",
        ALLOW_ADMINS,
        effect=find_effect,
    )
    async def copy_file(
        self,
        context: ToolContext,
        *,
        source: str,
        path: str,
    ) -> str:
        view = await self.context.files.view(context, path)
        from_area, from_parts = view.find_file(source)
        area, parts = view.find_file(path)
        _, size = await self._write(context, area, parts, lambda: from_area.root.read(from_parts))
        return f"Copied {size:,} bytes from {from_area.name(from_parts)} to {area.name(parts)}."

    @tool(
        "List files by pattern. `*` stays in one directory, `**` goes through all.",
        ALLOW_MEMBERS,
        effect=OWN,
        parallel=True,
    )
    async def glob(
        self,
        context: ToolContext,
        *,
        pattern: Annotated[
            str,
            Field(
                max_length=MAX_PATTERN_CHARS,
                description="E.g. `**/*.{py,toml}` or `/files/**/*.md`.",
            ),
        ],
    ) -> ToolOutput:
        areas, parsed = find_all(await self.context.files.view(context), pattern)

        def search(stopped: Callable[[], bool]) -> str:
            return list_paths(areas, parsed, SearchLimits(stopped))

        async with self._search_slots[context.agent]:
            text = await run_in_thread(search)
        return _found(text, f"names of files, {display_path(pattern)}", areas)

    @tool(
        "Search files for a regular expression. Line by line.",
        ALLOW_MEMBERS,
        effect=OWN,
        parallel=True,
    )
    async def grep(
        self,
        turn: ToolContext,
        *,
        pattern: Annotated[
            str,
            Field(min_length=1, max_length=MAX_PATTERN_CHARS),
        ],
        path: Annotated[
            str, Field(description="File or directory. Default: all of this place.")
        ] = "",
        glob: Annotated[
            str, Field(max_length=MAX_PATTERN_CHARS, description="Only these files, e.g. `*.md`.")
        ] = "",
        ignore_case: bool = False,
        context: Annotated[int, Field(ge=0, le=20, description="Lines around each match.")] = 0,
    ) -> ToolOutput:
        view = await self.context.files.view(turn, path)
        if path.rstrip("/") == FILES_PREFIX:
            areas, top = find_all(view, f"{FILES_PREFIX}/**")[0], PathParts()
        else:
            area, top = view.find(path)
            areas = (area,)

        def search(stopped: Callable[[], bool]) -> str:
            limits = SearchLimits(stopped)
            return search_text(
                areas,
                pattern,
                limits,
                top=top,
                files=glob,
                ignore_case=ignore_case,
                context_lines=context,
            )

        async with self._search_slots[turn.agent]:
            text = await run_in_thread(search)
        return _found(text, f"lines of files, {display_path(pattern)}", areas)

    @tool(
        "Look at an image file.",
        ALLOW_MEMBERS,
        effect=OWN,
        parallel=True,
    )
    async def view_image(self, context: ToolContext, *, path: str) -> ToolOutput:
        area, parts = (await self.context.files.view(context, path)).find_file(path)
        name, data = area.name(parts), await run_in_thread(lambda _: area.root.read(parts))
        image = await prepare_image(self.context.media, data, name)
        text = f"{image[0].about} is shown below."
        return ToolOutput(
            text=text, origin=name, is_untrusted=True, label=area.label, images=(image,)
        )

    undo = command(
        "files",
        "Bring back files that I changed or deleted here in the last day.",
        group="this conversation",
        role="admin",
        allowed_in_own_chat=True,
        needs_gateway=True,
        default_sub="undo",
    )

    @command(
        "files undo",
        "Undo what my last turn did to the files here. Again: the turn before it.",
        private=False,
    )
    async def undo_turn(self, call: CommandCall) -> CommandEffect:
        turn = await build_tool_context(call, self.context.gateway.places)
        area = (await self.context.files.view(turn)).own
        folder = self.context.files.undo_directory(turn.agent)
        now = self.context.gateway.clock.now()
        try:
            found = await run_in_thread(lambda _: undo_files(folder, area, now))
        except (OSError, ToolCallRefused) as error:
            return refuse(
                _("The files cannot be read: {error}").format(error=inline_code(str(error)))
            )
        if found is None:
            return refuse(_("In the last day I changed no file of this conversation."))
        began, restored, failed = found
        lines = [
            f"{title} {', '.join(inline_code(area.name(parts)) for parts in some[:MAX_NAMES])}"
            + (
                _(" and {count} more").format(count=len(some) - MAX_NAMES)
                if len(some) > MAX_NAMES
                else ""
            )
            for title, some in ((_("Brought back:"), restored), (_("Not brought back:"), failed))
            if some
        ]
        words = _("What I changed in my turn of {time:%Y-%m-%d %H:%M} UTC is undone.").format(
            time=began
        )
        return done("\n".join([words, *(lines or [_("No file has another content now.")])]))


def _found(text: str, origin: str, areas: Iterable[FilesArea]) -> ToolOutput:
    return ToolOutput(
        text=text, origin=origin, is_untrusted=True, label=join(area.label for area in areas)
    )


def _require_text(name: str, data: bytes) -> None:
    if what := describe_binary(data):
        raise ToolCallRefused(f"{name} is no text but {what}; it has {len(data):,} bytes.")


MAX_READ_CHARS: Final = 200_000
MAX_LINE_CHARS: Final = 20_000
"""Characters of one line: generated files may have everything on one."""
MAX_REPLACEMENTS: Final = 100_000
MAX_OLD_BYTES: Final = 100_000
"""Bytes of the text to replace."""
_HEAD_BYTES: Final = 8_192
"""Bytes that are searched for a NUL, as git does: text has none."""
_SHOWN_LINES: Final = 30
"""Lines of the first place that was changed."""
_CONTEXT_LINES: Final = 2
"""Lines before and behind it."""
_BOM: Final = b"\xef\xbb\xbf"
_REPLACEMENT_CHAR: Final = "\ufffd"
_KINDS: Final = (
    (b"%PDF-", "a PDF document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xff\xfe", "a text in UTF-16, and only UTF-8 can be read"),
    (b"\xfe\xff", "a text in UTF-16, and only UTF-8 can be read"),
)
"""Beginnings of binary files that may have no NUL there."""
_BINARY_KINDS: Final = (
    (b"PK\x03\x04", "a ZIP archive (or an office document)"),
    (b"\x7fELF", "a program"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
)
_LINE_END: Final = rb"(?:\r\n|(?<!\r)\n)"
"""Matches a line end, never half of one."""
_NUMBERED_LINE: Final = re.compile(r"\s*\d+\t")


def describe_binary(data: bytes) -> str:
    """Return the kind of a file that is not text, with a hint. Empty: it is text."""
    if known := next((what for magic, what in _KINDS if data.startswith(magic)), ""):
        return known
    if b"\0" not in data[:_HEAD_BYTES]:
        return ""
    if identify_image(data):
        return "a picture: look at it with view_image"
    if sound_suffix(data) != ".bin":
        return "a sound"
    return next((what for magic, what in _BINARY_KINDS if data.startswith(magic)), "binary data")


def decode_text(data: bytes) -> tuple[Sequence[str], str]:
    """Decode a file as text, whatever is in it. Returns its lines, without line ends (one at the
    end of the file begins no line), and facts that they do not show.
    """
    bom = data.startswith(_BOM)
    text = (
        data[len(_BOM) if bom else 0 :].decode("utf-8", "replace").replace("\0", _REPLACEMENT_CHAR)
    )
    lost = text.count(_REPLACEMENT_CHAR) - data.count(_REPLACEMENT_CHAR.encode())
    crlf, ends = text.count("\r\n"), text.count("\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if crlf:
        lines = [line.removesuffix("\r") for line in lines]
    notes = (
        "begins with a byte order mark" if bom else "",
        ""
        if not crlf
        else "lines end with CRLF"
        if crlf == ends
        else f"{crlf} of its lines end with CRLF",
        f"{lost} bytes that are no text in UTF-8 are shown as {_REPLACEMENT_CHAR}" if lost else "",
    )
    return lines, "; ".join(note for note in notes if note)


def render_lines(name: str, data: bytes, offset: int, limit: int) -> tuple[str, int]:
    """Return `limit` numbered lines from `offset` on (1: the first), and the number of the last.

    Raises ToolCallRefused.
    """
    lines, facts = decode_text(data)
    total, notes = len(lines), f"; {facts}" if facts else ""
    if not total:
        return f"{name} is empty{notes}.", 0
    if offset > total:
        raise ToolCallRefused(f"{name} has {total:,} lines: offset can be 1 to {total}.")
    rendered, chars, last = list[str](), 0, offset - 1
    for number, line in enumerate(lines[offset - 1 : offset - 1 + limit], start=offset):
        numbered = number_line(number, line)
        chars += len(numbered) + 1
        if rendered and chars > MAX_READ_CHARS:
            break
        rendered.append(numbered)
        last = number
    part = "" if (offset, last) == (1, total) else f", here {offset} to {last}"
    more = f" (go on with offset={last + 1})" if last < total else ""
    return "\n".join(
        [f"{name}, {total} {'line' if total == 1 else 'lines'}{part}{more}{notes}", *rendered]
    ), last


def number_line(number: int, line: str) -> str:
    """Return a line in the format of `cat -n`."""
    beyond = len(line) - MAX_LINE_CHARS
    cut = (
        f"{line[:MAX_LINE_CHARS]}... [{beyond:,} more characters in this line]"
        if beyond > 0
        else line
    )
    return f"{number:6}\t{cut}"


def encode_text(text: str) -> bytes:
    """Encode as UTF-8. Raises ToolCallRefused for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolCallRefused(
            "The text has half a surrogate pair in it, which is no character: write the whole one."
        ) from None


def replace_text(
    name: str, data: bytes, old: str, new: str, *, everywhere: bool, max_bytes: int
) -> tuple[bytes, str]:
    """Return the file with `new` for `old`, and the first place that was changed with some lines
    around it, for the model. Line ends become those of the file.

    Raises ToolCallRefused, also if the file gets too large.

    Unless `everywhere`, `old` must occur exactly once. The error quotes nothing of the file.
    """
    old_bytes = encode_text(old.replace("\r\n", "\n"))
    new_bytes = encode_text(new.replace("\r\n", "\n"))
    if len(old_bytes) > MAX_OLD_BYTES:
        raise ToolCallRefused(
            f"`old` has at most {MAX_OLD_BYTES:,} bytes: name less of the file, or write all of it "
            "anew."
        )
    pattern = re.compile(_LINE_END.join(map(re.escape, old_bytes.split(b"\n"))))
    crlf = data.count(b"\r\n") * 2 > data.count(b"\n")
    matches = list[re.Match[bytes]]()
    for match in pattern.finditer(data):
        matches.append(match)
        if len(matches) > MAX_REPLACEMENTS:
            raise ToolCallRefused(
                f"That stands in {name} more than {MAX_REPLACEMENTS:,} times: change it with the "
                "shell."
            )
    if not matches:
        raise ToolCallRefused(_explain_not_found(name, data, old_bytes))
    again = pattern.search(data, matches[0].start() + 1)  # it may overlap the first
    if again and not everywhere:
        found = matches if len(matches) > 1 else [matches[0], again]
        lines = _format_line_numbers(data, [match.start() for match in found])
        raise ToolCallRefused(
            f"`old` stands in {name} {len(found)} times ({lines}): add lines around it until it "
            "stands there once, or set `all` to replace every one."
        )
    if (
        len(data) + len(matches) * (2 * len(new_bytes) - len(old_bytes)) > 2 * max_bytes
    ):  # line ends are two bytes at most
        raise ToolCallRefused(
            f"{name} would have more than the {max_bytes:,} bytes that a file may have."
        )

    def render(match: re.Match[bytes]) -> bytes:
        takes_crlf = b"\r\n" in match[0] or (crlf and b"\n" not in match[0])
        return new_bytes.replace(b"\n", b"\r\n") if takes_crlf else new_bytes

    changed = pattern.sub(render, data)
    if changed == data:
        raise ToolCallRefused(f"That would change nothing in {name}: `old` and `new` are the same.")
    start, length = matches[0].start(), len(render(matches[0]))
    shown_lines, _notes = decode_text(changed)
    line = changed.count(b"\n", 0, start) + 1
    height = changed.count(b"\n", start, start + max(0, length - 1))
    last = min(line + min(height, _SHOWN_LINES) + _CONTEXT_LINES, len(shown_lines))
    shown = range(max(line - _CONTEXT_LINES, 1), last + 1)
    places = "1 place changed" if len(matches) == 1 else f"{len(matches)} places changed, the first"
    head = f"{name}, {len(shown_lines)} lines; {places}:"
    return changed, "\n".join([head, *(number_line(at, shown_lines[at - 1]) for at in shown)])


def _explain_not_found(name: str, data: bytes, old_bytes: bytes) -> str:
    why = f"`old` does not stand in {name}"
    lines = [line for line in old_bytes.decode().split("\n") if line.strip()]
    if lines and all(map(_NUMBERED_LINE.match, lines)):
        return f"{why}: leave out the line numbers and the tabs behind them."
    words = old_bytes.split()
    loose = re.search(rb"\s+".join(map(re.escape, words)), data) if words else None
    if loose:
        return (
            f"{why}, but with other blanks or line ends in "
            f"{_format_line_numbers(data, [loose.start()])}: "
            "copy it exactly."
        )
    return f"{why}: read the file again, and copy it exactly."


def _format_line_numbers(data: bytes, starts: Sequence[int]) -> str:
    numbers = [str(data.count(b"\n", 0, start) + 1) for start in starts[:5]]
    more = " and more" if len(starts) > len(numbers) else ""
    return f"{'line' if len(starts) == 1 else 'lines'} {', '.join(numbers)}{more}"


MAX_MATCHES: Final = 500
MAX_SHOWN_CHARS: Final = 400
"""Characters of one line."""
MAX_OUTPUT_CHARS: Final = 200_000
MAX_SEARCHED_CHARS: Final = 100_000
"""Characters of one line that are searched, from its beginning: a pattern takes memory for each."""
LINE_TIMEOUT_S: Final = 0.5
"""Seconds for one line. A pattern that takes longer would never end."""
_BEFORE_CHARS: Final = 100
"""Characters before the match, in a long line."""


def search_text(
    areas: Iterable[FilesArea],
    pattern: str,
    limits: SearchLimits,
    *,
    top: PathParts = (),
    files: str = "",
    ignore_case: bool = False,
    context_lines: int = 0,
) -> str:
    """Return matching lines as `path:number:line`, and lines around them as `path-number-line`.

    `context_lines`: on each side of a match. `top`: a file, or the directory to search. `files`: a
    glob that may begin in any directory. Raises ToolCallRefused.
    """
    try:
        regex = compile_regex(pattern, ignore_case=ignore_case)
    except ValueError as error:
        raise ToolCallRefused(f"The pattern is refused: {error}.") from None
    glob, lines, counts = GlobPattern(files or "**", anywhere=True), list[str](), Counter[str]()
    for area, found in _text_files(areas, top, glob, limits, counts):
        text, name = decode_text(found[1])[0], area.name(found[0])
        spans = dict[int, tuple[int, int]]()
        for number, line in enumerate(text, start=1):
            if limits.cut_reason == _TOO_MANY or (number % 1_000 == 0 and limits.is_late()):
                break
            if (span := _find_match(regex, line, f"line {number} of {name}", limits)) is not None:
                if counts["match"] == MAX_MATCHES:
                    limits.cut_reason = _TOO_MANY
                else:
                    spans[number] = span
                    counts["match"] += 1
        counts["file"] += bool(spans)
        more = _render_matches(name, text, spans, context_lines)
        lines += ["--"] * bool(lines and more and context_lines) + more
        if sum(map(len, lines)) > MAX_OUTPUT_CHARS:
            limits.cut_reason = _TOO_MANY
    cut = (
        f"; there may be more, but {limits.cut_reason}: look for less" if limits.cut_reason else ""
    )
    cut += "".join(
        f"; {_format_count(counts[why], 'file')} left out ({why})"
        for why in (_UNREADABLE, _BINARY)
        if counts[why]
    )
    cut += f"; {limits.unopened} directories could not be opened" if limits.unopened else ""
    searched = f"of {_format_count(counts['searched'], 'file')} searched{cut}"
    if not lines:
        return f"No line matches, {searched}."
    found_in = (
        f"{_format_count(counts['match'], 'line')} in {_format_count(counts['file'], 'file')}"
    )
    return "\n".join([f"{found_in}, {searched}:", *lines])


_REGEX_SOURCE_CHARS: Final = 500
_MAX_REPEATS: Final = 1_000
"""Same limit as RE2 (https://github.com/google/re2/wiki/Syntax): `a{99999999}` alone exhausts the
memory."""


def compile_regex(source: str, *, ignore_case: bool = False) -> Any:  # noqa: ANN401 - the library has no types
    """Compile with the `regex` library: pass a `timeout` to each search. Raises ValueError, with a
    reason for people, if the source is no expression or too large.
    """
    import regex  # noqa: PLC0415 - takes 3 MB, and few configurations have an expression

    if len(source) > _REGEX_SOURCE_CHARS:
        raise ValueError(f"longer than {_REGEX_SOURCE_CHARS} characters")
    repeats = 1
    for count in re.finditer(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}", source):
        repeats *= max([1, *(int(number[:9]) for number in count.groups() if number)])
        if repeats > 100 * _MAX_REPEATS or any(
            int(number[:9]) > _MAX_REPEATS for number in count.groups() if number
        ):
            raise ValueError(
                f"repeats something more often than {_MAX_REPEATS:,} times, or "
                f"{100 * _MAX_REPEATS:,} times all in all"
            )
    try:
        return regex.compile(source, regex.IGNORECASE if ignore_case else 0)
    except (regex.error, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None


_TOO_MANY: Final = "so many match"
_UNREADABLE: Final = "too large or not to be opened"
_BINARY: Final = "binary"


def _text_files(
    areas: Iterable[FilesArea],
    top: PathParts,
    glob: GlobPattern,
    limits: SearchLimits,
    counts: Counter[str],
) -> Iterator[tuple[FilesArea, tuple[PathParts, bytes]]]:
    for area in areas:
        with contextlib.closing(walk(area, top, glob, limits)) as found:
            for one in found:
                if one.kind != "file" or is_partial_file(one.parts[-1]):
                    continue
                try:
                    data = area.root.read_at(one.parent_fd, one.parts)
                except (OSError, ToolCallRefused):
                    counts[_UNREADABLE] += 1
                    continue
                if (
                    limits.cut_reason == _TOO_MANY
                    or not limits.spend(read=len(data))
                    or limits.is_late()
                ):
                    return
                if describe_binary(data):
                    counts[_BINARY] += 1
                    continue
                counts["searched"] += 1
                yield area, (one.parts, data)


def _find_match(regex: Any, line: str, where: str, limits: SearchLimits) -> tuple[int, int] | None:  # noqa: ANN401 - the library has no types
    """Return the begin and end of the match in the line; None: no match. Raises ToolCallRefused for
    a slow pattern.
    """
    if len(line) > MAX_SEARCHED_CHARS:
        line = line[:MAX_SEARCHED_CHARS]
        limits.cut_reason = (
            limits.cut_reason or f"lines are searched up to their character {MAX_SEARCHED_CHARS:,}"
        )
    try:
        match = regex.search(line, timeout=LINE_TIMEOUT_S, concurrent=True)
    except (TimeoutError, MemoryError):
        raise ToolCallRefused(
            f"The pattern takes too long on {where}: write it without one repetition in another."
        ) from None
    return None if match is None else match.span()


def _render_matches(
    name: str, lines: Sequence[str], spans: Mapping[int, tuple[int, int]], context_lines: int
) -> list[str]:
    around = range(-context_lines, context_lines + 1)
    shown = sorted(
        {number + step for number in spans for step in around} & {*range(1, len(lines) + 1)}
    )
    rendered, last = list[str](), 0
    for number in shown:
        if last and number > last + 1 and context_lines:
            rendered.append("--")
        mark = ":" if number in spans else "-"
        rendered.append(
            f"{name}{mark}{number}{mark}{_clip_line(lines[number - 1], spans.get(number, (0, 0)))}"
        )
        last = number
    return rendered


def _clip_line(line: str, span: tuple[int, int]) -> str:
    if len(line) <= MAX_SHOWN_CHARS:
        return line
    start = max(0, span[0] - _BEFORE_CHARS)
    end = start + MAX_SHOWN_CHARS
    return f"{'...' if start else ''}{line[start:end]}{'...' if end < len(line) else ''}"


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
