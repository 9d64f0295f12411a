"""The way from a workspace's `skills` to what is known of them. Blocks on the disk: not for the event loop's thread.

Links may stand there, but none that leads out of what it stands in is followed: a skill's folder stays in `skills`, a
file in its skill.

Skills as text. Pure: equal files give equal bytes.

A skill is a folder with a `SKILL.md`, as of https://agentskills.io/specification: YAML with `name` (the folder's) and
`description` between two lines `---`, then Markdown. Only names and descriptions stand in every prompt.
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
"""Of `SKILL.md`: it is read as a whole into a conversation."""
MAX_FRONT_CHARS: Final = 8_000
MAX_CATALOGUE_CHARS: Final = 20_000
"""It is in every prompt."""
SKILLS_HEADING: Final = (
    "# Skills\n\nInstructions for certain tasks. Before you do such a task, read its skill with load_skill."
)
_FRONT_MATTER: Final = re.compile(r"---[ \t]*\n(.*?)(?:\n)?^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)


class InvalidSkill(ValueError):
    """It cannot be used. The text says why, for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """What is known of a skill before it is needed."""

    name: str
    description: str
    """One line."""


def read_skill(folder: str, content: bytes) -> tuple[Skill, str]:
    """A `SKILL.md` and what it says behind its front matter. `folder`: what it lies in. Raises BadSkill."""
    if len(content) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"it has more than {MAX_SKILL_BYTES} bytes")
    if len(folder) > MAX_NAME_CHARS or not SKILL_NAME.fullmatch(folder):
        raise InvalidSkill(
            f"a skill's folder is named with a-z, 0-9 and hyphens between them, at most {MAX_NAME_CHARS}"
        )
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSkill(f"it is not UTF-8 at byte {error.start}") from None
    text = decode_text(content)
    front = _FRONT_MATTER.match(text[: MAX_FRONT_CHARS + 1])
    if front is None:
        raise InvalidSkill("it does not begin with name and description between two lines ---")
    told = _parse_yaml(front[1])
    if told.get("name") != folder:
        raise InvalidSkill(f"its name must be that of its folder, {folder}")
    description = told.get("description")
    description = " ".join(description.split()) if isinstance(description, str) else ""
    if not description or len(description) > MAX_DESCRIPTION_CHARS:
        raise InvalidSkill(f"its description must be a text of 1 to {MAX_DESCRIPTION_CHARS} characters")
    return Skill(name=folder, description=description), text[front.end() :].strip()


def render_skills(skills: Iterable[Skill]) -> tuple[str, tuple[str, ...]]:
    """What every prompt says of them, and the names of those that are left out because it would become too long.

    Empty: there are none.
    """
    lines, left_out, chars = [SKILLS_HEADING, ""], list[str](), len(SKILLS_HEADING)
    for skill in sorted(skills, key=lambda one: one.name):
        line = f"- {skill.name}: {skill.description}"
        if chars + len(line) > MAX_CATALOGUE_CHARS:
            left_out.append(skill.name)
            continue
        chars += len(line) + 1
        lines.append(line)
    return "\n".join(lines) if len(lines) > len([SKILLS_HEADING, ""]) else "", tuple(left_out)


def _parse_yaml(text: str) -> dict[object, object]:
    try:
        told = yaml.safe_load(text)
    except RecursionError:
        raise InvalidSkill("its front matter is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 2}" if mark is not None else ""
        raise InvalidSkill(f"its front matter is not YAML{where}") from None
    if not isinstance(told, dict):
        raise InvalidSkill("its front matter is not a list of keys with values")
    return told


SKILLS_FOLDER: Final = "skills"
"""In a workspace."""
MAX_SKILLS: Final = 200
MAX_FILE_BYTES: Final = 1_000_000
"""Of a file beside `SKILL.md`."""
MAX_LISTED: Final = 200

SkillMarks = tuple[tuple[str, tuple[int, ...] | None], ...]
"""What tells one state of all `SKILL.md` from another without reading them. None: it is no folder."""


class SkillFileNotFound(Exception):
    """There is no such text in that skill. The text says why, in words that stand behind a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillCatalogue:
    """One look at all skills."""

    text: str = ""
    """For every prompt. Empty: there are none."""
    skills: Mapping[str, Skill] = field(default_factory=dict)
    """By name; those that `text` names."""
    notes: tuple[str, ...] = ()
    """What the operator should be told, with paths."""


class SkillLibrary:
    """Those of one workspace, read again once one has come, gone or changed. For one thread at a time."""

    def __init__(self, workspace: Path) -> None:
        self._root = workspace / SKILLS_FOLDER
        self._catalogue = SkillCatalogue()
        self._marks: SkillMarks | None = None

    def refresh(self) -> SkillCatalogue:
        """What is known of them now. Of what cannot be read at present, what was read before goes on."""
        before = self._read_marks()
        if before != self._marks:
            self._marks = before
            self._catalogue = self._read_skills([name for name, mark in before if mark is not None])
        return self._catalogue

    def paths(self) -> tuple[Path, ...]:
        """The folders of those that can be used, each named as its skill."""
        return tuple(self._root / name for name in self.refresh().skills)

    def read_text(self, name: str, file: str = SKILL_FILE) -> str:
        """A file of a known skill, `SKILL.md` without its front matter; of a folder, what is in it.

        Raises NoFile, also for a path that leads out of the skill.
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
        def of(folder: Path) -> tuple[int, ...] | None:
            try:
                seen = (folder / SKILL_FILE).stat()
            except OSError:
                return () if folder.is_dir() else None
            return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns

        try:
            folders = sorted(self._root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            return self._marks or ()
        return tuple((folder.name, of(folder)) for folder in folders if not folder.name.startswith("."))

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
                self._marks = None  # so the next look tries again
        if len(names) > MAX_SKILLS:
            notes.append(f"{self._root} has more than {MAX_SKILLS} skills; the others are left out")
        text, left_out = render_skills(found.values())
        notes += [f"{self._root / name} is left out: the catalogue would become too long" for name in left_out]
        return SkillCatalogue(
            text=text, skills={n: s for n, s in found.items() if n not in left_out}, notes=tuple(notes)
        )


def _list_folder(folder: Path, about: str) -> str:
    """What is in a folder, one name a line; folders end with a slash."""
    names = sorted(f"{one.name}/" if one.is_dir() else one.name for one in folder.iterdir() if one.name.isprintable())
    more = [f"and {len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return "\n".join([f"In {about}:" if about != "." else "In this skill:", *names[:MAX_LISTED], *more])


def _read_content(real: Path, most: int) -> bytes:
    """All of a file. Raises NoFile; OSError for one that is there and cannot be read."""
    # The resolved path holds no link, so one that is met now was put there meanwhile; a pipe must not make us wait.
    handle = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise SkillFileNotFound("is not a file")
        content = opened.read(most + 1)
    if len(content) > most:
        raise SkillFileNotFound(f"has more than {most:,} bytes")
    return content
