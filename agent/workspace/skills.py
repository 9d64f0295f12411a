"""Skills of a workspace: instructions for certain tasks, which an agent reads when it needs them.

A skill is a folder with a `SKILL.md`, as of https://agentskills.io/specification: YAML with `name`
(the folder's) and `description` between two lines `---`, then Markdown. Only names and descriptions
are part of every prompt.

`read_skill` and `render_skills` are pure: equal files give equal bytes. `SkillLibrary` blocks on
the disk: not for the event loop's thread. Links are allowed, but none that leads out of its
container is followed: a skill's folder stays in `skills`, a file in its skill.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from agent.workspace.character_card import decode_text

SKILL_FILE: Final = "SKILL.md"
SKILL_NAME: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
MAX_NAME_CHARS: Final = 64
MAX_DESCRIPTION_CHARS: Final = 1_024
MAX_SKILL_BYTES: Final = 100_000
"""Limit of `SKILL.md`: it is read as a whole into a conversation."""
MAX_FRONT_CHARS: Final = 8_000
MAX_CATALOGUE_CHARS: Final = 20_000
"""Limit of the catalogue: it is part of every prompt."""
SKILLS_HEADING: Final = (
    "# Skills\n\nInstructions for certain tasks. Before you do such a task, "
    "read its skill with load_skill."
)
_FRONT_MATTER: Final = re.compile(
    r"---[ \t]*\n(.*?)(?:\n)?^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)


class InvalidSkill(ValueError):
    """The skill cannot be used. The text says why, for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Name and description of a skill."""

    name: str
    description: str
    """Description on one line."""


def read_skill(folder: str, content: bytes) -> tuple[Skill, str]:
    """Return a skill and the text of its `SKILL.md` behind the front matter. Raises InvalidSkill.

    `folder`: name of the folder that contains it.
    """
    if len(content) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"it has more than {MAX_SKILL_BYTES} bytes")
    if len(folder) > MAX_NAME_CHARS or not SKILL_NAME.fullmatch(folder):
        raise InvalidSkill(
            "a skill's folder is named with a-z, 0-9 and hyphens between them, at most "
            f"{MAX_NAME_CHARS}"
        )
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSkill(f"it is not UTF-8 at byte {error.start}") from None
    text = decode_text(content)
    front = _FRONT_MATTER.match(text[: MAX_FRONT_CHARS + 1])
    if front is None:
        raise InvalidSkill("it does not begin with name and description between two lines ---")
    header = _parse_yaml(front[1])
    if header.get("name") != folder:
        raise InvalidSkill(f"its name must be that of its folder, {folder}")
    description = header.get("description")
    description = " ".join(description.split()) if isinstance(description, str) else ""
    if not description or len(description) > MAX_DESCRIPTION_CHARS:
        raise InvalidSkill(
            f"its description must be a text of 1 to {MAX_DESCRIPTION_CHARS} characters"
        )
    return Skill(name=folder, description=description), text[front.end() :].strip()


def render_skills(skills: Iterable[Skill]) -> tuple[str, tuple[str, ...]]:
    """Return the catalogue for every prompt, and the names of the skills that do not fit into it.

    Empty: there are no skills.
    """
    lines, left_out, chars = [SKILLS_HEADING, ""], list[str](), len(SKILLS_HEADING)
    for skill in sorted(skills, key=lambda skill: skill.name):
        line = f"- {skill.name}: {skill.description}"
        if chars + len(line) > MAX_CATALOGUE_CHARS:
            left_out.append(skill.name)
            continue
        chars += len(line) + 1
        lines.append(line)
    return "\n".join(lines) if len(lines) > len([SKILLS_HEADING, ""]) else "", tuple(left_out)


def _parse_yaml(text: str) -> dict[object, object]:
    try:
        header = yaml.safe_load(text)
    except RecursionError:
        raise InvalidSkill("its front matter is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 2}" if mark is not None else ""
        raise InvalidSkill(f"its front matter is not YAML{where}") from None
    if not isinstance(header, dict):
        raise InvalidSkill("its front matter is not a list of keys with values")
    return header


SKILLS_FOLDER: Final = "skills"
"""Folder of the skills in a workspace."""
MAX_SKILLS: Final = 200
MAX_FILE_BYTES: Final = 1_000_000
"""Limit of a file beside `SKILL.md`."""
MAX_LISTED: Final = 200

SkillMarks = tuple[tuple[str, tuple[int, ...] | None], ...]
"""Fingerprint of all `SKILL.md` files, taken without reading them. None: not a folder."""


class SkillFileNotFound(Exception):
    """The skill has no such text. The message says why, in words that follow a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillCatalogue:
    """All skills as read at one time."""

    text: str = ""
    """Catalogue for every prompt. Empty: there are no skills."""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """Skills in `text`, by name."""
    notes: tuple[str, ...] = ()
    """Notes for the operator, with paths."""


class SkillLibrary:
    """Skills of one workspace, read again when one was added, removed or changed. For one thread at
    a time.
    """

    def __init__(self, workspace: Path) -> None:
        self._root = workspace / SKILLS_FOLDER
        self._catalogue = SkillCatalogue()
        self._marks: SkillMarks | None = None

    def refresh(self) -> SkillCatalogue:
        """Return the present catalogue. A skill that cannot be read at present stays as it was read
        before.
        """
        before = self._read_marks()
        if before != self._marks:
            self._marks = before
            self._catalogue = self._read_skills([name for name, mark in before if mark is not None])
        return self._catalogue

    def paths(self) -> tuple[Path, ...]:
        """Return the folders of the usable skills, each named like its skill."""
        return tuple(self._root / name for name in self.refresh().skills)

    def read_text(self, name: str, file: str = SKILL_FILE) -> str:
        """Return a file of a skill, `SKILL.md` without its front matter, or the listing of a
        folder.

        Raises SkillFileNotFound, also for a path that leads out of the skill.
        """
        if name not in self.refresh().skills:
            raise SkillFileNotFound("is no skill")
        real = self._resolve_path(name, file)
        if real.is_dir():
            return _list_folder(real, real.relative_to((self._root / name).resolve()).as_posix())
        content = _read_content(real, MAX_SKILL_BYTES if file == SKILL_FILE else MAX_FILE_BYTES)
        try:
            return read_skill(name, content)[1] if file == SKILL_FILE else content.decode("utf-8")
        except UnicodeDecodeError:
            raise SkillFileNotFound(f"is no text; it has {len(content):,} bytes") from None
        except InvalidSkill as bad:
            raise SkillFileNotFound(f"cannot be used now: {bad}") from None

    def _resolve_path(self, name: str, file: str) -> Path:
        parts = file.split("/")
        if "\0" in file or file.startswith("/") or ".." in parts:
            raise SkillFileNotFound("is no path within the skill")
        try:
            root = self._root.resolve(strict=True)
            folder = (root / name).resolve(strict=True)
            real = (folder / file).resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
            raise SkillFileNotFound("is not there") from None
        if not folder.is_relative_to(root) or not real.is_relative_to(folder):
            raise SkillFileNotFound("leads out of the skill")
        return real

    def _read_marks(self) -> SkillMarks:
        def folder_mark(folder: Path) -> tuple[int, ...] | None:
            try:
                status = (folder / SKILL_FILE).stat()
            except OSError:
                return () if folder.is_dir() else None
            return (
                status.st_dev,
                status.st_ino,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )

        try:
            folders = sorted(self._root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            return self._marks or ()
        return tuple(
            (folder.name, folder_mark(folder))
            for folder in folders
            if not folder.name.startswith(".")
        )

    def _read_skills(self, names: list[str]) -> SkillCatalogue:
        found, notes = dict[str, Skill](), list[str]()
        for name in names[:MAX_SKILLS]:
            path = self._root / name / SKILL_FILE
            try:
                content = _read_content(self._resolve_path(name, SKILL_FILE), MAX_SKILL_BYTES)
                found[name] = read_skill(name, content)[0]
            except (SkillFileNotFound, InvalidSkill) as bad:
                notes.append(
                    f"{path} is left out: it {bad}"
                    if isinstance(bad, SkillFileNotFound)
                    else f"{path}: {bad}; left out"
                )
            except OSError as error:
                if name in self._catalogue.skills:
                    found[name] = self._catalogue.skills[name]
                notes.append(f"{path} cannot be read now: {error.strerror}")
                self._marks = None  # so the next refresh tries again
        if len(names) > MAX_SKILLS:
            notes.append(f"{self._root} has more than {MAX_SKILLS} skills; the others are left out")
        text, left_out = render_skills(found.values())
        notes += [
            f"{self._root / name} is left out: the catalogue would become too long"
            for name in left_out
        ]
        return SkillCatalogue(
            text=text,
            skills={n: s for n, s in found.items() if n not in left_out},
            notes=tuple(notes),
        )


def _list_folder(folder: Path, about: str) -> str:
    """Return the names in a folder, one a line; names of folders end with a slash."""
    names = sorted(
        f"{path.name}/" if path.is_dir() else path.name
        for path in folder.iterdir()
        if path.name.isprintable()
    )
    more = [f"and {len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return "\n".join(
        [f"In {about}:" if about != "." else "In this skill:", *names[:MAX_LISTED], *more]
    )


def _read_content(real: Path, most: int) -> bytes:
    """Return all of a file. Raises SkillFileNotFound; OSError for a file that exists and cannot be
    read.
    """
    # The resolved path holds no link, so a link found now was created meanwhile. Opening a pipe
    # must not block.
    handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SkillFileNotFound("is not a file")
        content = opened.read(most + 1)
    if len(content) > most:
        raise SkillFileNotFound(f"has more than {most:,} bytes")
    return content
