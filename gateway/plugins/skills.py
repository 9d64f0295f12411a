"""Skills: instructions for certain tasks, which an agent reads when it needs them.

A skill is a folder with a `SKILL.md` in the folder `skills` of a workspace, as of
https://agentskills.io/specification: YAML with `name` (the folder's) and `description` between two
lines `---`, then Markdown. Only names and descriptions are part of every prompt. They are the
operator's text, and the model receives them as such.

`read_skill` and `render_skills` are pure: equal files give equal bytes. `SkillLibrary` blocks on
the disk: not for the event loop's thread. Links are allowed, but none that leads out of its
container is followed: a skill's folder stays in `skills`, a file in its skill.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import Field

from agent.workspace.character_card import decode_text
from agent.workspace.persona import DEFAULT_WORKSPACE, read_regular
from gateway.config.check_registry import CheckContext, check
from gateway.core.findings import Finding, ok, warning
from gateway.core.frozen import frozen
from gateway.core.permissions import OWN
from gateway.core.route import route
from gateway.core.text_safety import to_single_line
from gateway.core.tool import ToolContext, ToolOutput, run_in_thread, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin, PluginContext, hook

logger = logging.getLogger("reverie.skills")

SKILL_FILE: Final = "SKILL.md"
SPECIFICATION: Final = "https://agentskills.io/specification"
MAX_NAME_CHARS: Final = 64
MAX_DESCRIPTION_CHARS: Final = 1_024
MAX_SKILL_BYTES: Final = 100_000
"""Limit of `SKILL.md`: it is read as a whole into a conversation."""
MAX_SKILLS: Final = 200
MAX_FRONT_CHARS: Final = 8_000
MAX_CATALOGUE_CHARS: Final = 20_000
"""Limit of the catalogue: it is part of every prompt."""
SKILLS_HEADING: Final = "# Skills\n\nBefore you do such a task, read its skill with load_skill."
_FRONT_MATTER: Final = re.compile(
    r"---[ \t]*\n(.*?)(?:\n)?^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
MAX_FILE_BYTES: Final = 1_000_000
"""Limit of a file beside `SKILL.md`."""
MAX_LISTED: Final = 200
MAX_SKILL_PATH_CHARS: Final = 400
SKILLS_PATH: Final = "/skills"
"""Where commands see the skills."""


class Skills(Plugin):
    """Skills of all agents."""

    name = "skills"
    summary = "instructions for certain tasks, by the tool load_skill"
    family = "itself"
    checks = "gateway.plugins.skills"

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._live = context.gateway.live
        self._bindings = context.gateway.places.bindings
        self._libraries = dict[str, SkillLibrary]()
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Find out whether there are any: else `load_skill` is not offered."""
        async with self._lock:
            for agent in self._live.agents:
                await asyncio.to_thread(self._library(agent).refresh)

    @hook
    async def skills(self, agent: str, tools: Collection[str]) -> str:
        """Problems with skills are logged once, for the operator."""
        if "load_skill" not in tools:
            return ""
        async with self._lock:
            return (await asyncio.to_thread(self._library(agent).refresh)).text

    def _note(self) -> str | None:
        return "" if any(one.catalogue.skills for one in self._libraries.values()) else None

    @tool(
        "Read a skill, or another of its files.",
        effect=OWN,
        parallel=True,
        note=_note,
        offer="described",
    )
    async def load_skill(
        self,
        context: ToolContext,
        *,
        name: Annotated[
            str,
            Field(min_length=1, max_length=64),
        ],
        file: Annotated[
            str,
            Field(
                max_length=MAX_SKILL_PATH_CHARS,
                description="E.g. examples/a.md.",
            ),
        ] = "",
    ) -> ToolOutput:
        file = file.strip() or SKILL_FILE
        allowed = self._bindings.find(context.at).skills
        async with self._lock:
            text = await run_in_thread(lambda _: self._read(context.agent, name, file, allowed))
        return ToolOutput(text=text, kind="skill", origin=f"skills/{name}/{file}")

    @route("GET", "list", panel="Skills")
    async def list_skills(self) -> list[dict[str, object]]:
        """Return the skills of all agents, and what is wrong with others."""
        rows = list[dict[str, object]]()
        for agent in self._live.agents:
            async with self._lock:
                found = await asyncio.to_thread(self._library(agent).refresh)
            for name, text in sorted(found.skills.items()):
                rows.append({"agent": agent, "skill": name, "description": text})
            rows += [{"agent": agent, "skill": "", "description": one} for one in found.notes]
        return rows

    async def paths(self, agent: str) -> tuple[Path, ...]:
        """Return the folders of all skills, each named as its skill, for the shell."""
        async with self._lock:
            library = self._library(agent)
            return tuple(
                library.root / name for name in (await asyncio.to_thread(library.refresh)).skills
            )

    def _library(self, agent: str) -> "SkillLibrary":
        if agent not in self._libraries:
            workspace = self._live.agents[agent].workspace or DEFAULT_WORKSPACE
            self._libraries[agent] = SkillLibrary(workspace)
        return self._libraries[agent]

    def _read(self, agent: str, name: str, file: str, allowed: Collection[str] | None) -> str:
        skills = self._library(agent)
        known = skills.refresh().skills
        if name not in known:
            names = ", ".join(known) or "none"
            raise ToolCallRefused(
                f"There is no skill {to_single_line(name, MAX_NAME_CHARS)!r}; there are: {names}."
            )
        if allowed is not None and name not in allowed:
            raise ToolCallRefused(
                f"The skill {name} is not for this place: do without it, or say that you cannot do "
                "this here."
            )
        try:
            text = skills.read_text(name, file)
            more = skills.read_text(name, ".").split("\n")[1:] if file == SKILL_FILE else []
        except SkillFileNotFound as no:
            shown_file = to_single_line(file, MAX_SKILL_PATH_CHARS)
            raise ToolCallRefused(
                f"{shown_file!r} in the skill {name} {no}; load it with file '.' to see what it "
                "has."
            ) from None
        except OSError as error:
            raise ToolCallRefused(
                f"The skill {name} cannot be read now ({error.strerror}); try it again later."
            ) from None
        if not (beside := [other for other in more if other != SKILL_FILE]):
            return text
        is_boxed = self._live.settings.tools.bash.sandbox == "bubblewrap"
        scripts = SKILLS_PATH if is_boxed else skills.root
        shell = f" In the shell they are in {scripts}/{name}/."
        return f"{text}\n\n(Beside it, for load_skill: {', '.join(beside)}.{shell})"


@check("skills", each=lambda settings: [one.id for one in settings.agents])
def check_skills(context: CheckContext, agent: str) -> Iterator[Finding]:
    """Check whether an agent's skills can be used."""
    (settings,) = (one for one in context.settings.agents if one.id == agent)
    found = SkillLibrary(settings.workspace or DEFAULT_WORKSPACE).refresh()
    wanted = {name for one in settings.bindings for name in one.skills or ()}
    where = f"agents.{agent}.workspace"
    missing = [f"there is no skill {one}" for one in sorted(wanted - found.skills.keys())]
    for note in (*found.notes, *missing):
        yield warning("files.skill", note, f"correct it, as of {SPECIFICATION}", where)
    yield ok("files.skill", f"{len(found.skills)} skills can be used", where)


class InvalidSkill(ValueError):
    """The skill cannot be used. The text says why, for the operator."""


@lru_cache(maxsize=MAX_SKILLS)
def read_skill(folder: str, content: bytes) -> tuple[str, str]:
    """Return the description of a skill, on one line, and the text of its `SKILL.md` behind the
    front matter. Raises InvalidSkill.

    `folder`: name of the folder that contains it.
    """
    if len(content) > MAX_SKILL_BYTES:
        raise InvalidSkill(f"it has more than {MAX_SKILL_BYTES} bytes")
    if len(folder) > MAX_NAME_CHARS or not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", folder):
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
    return description, text[front.end() :].strip()


def render_skills(skills: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the catalogue for every prompt, and the names of the skills that do not fit into it.

    `skills`: descriptions by name. Empty: there are no skills.
    """
    lines, left_out, chars = [SKILLS_HEADING, ""], list[str](), len(SKILLS_HEADING)
    for name, description in sorted(skills.items()):
        line = f"- {name}: {description}"
        if chars + len(line) > MAX_CATALOGUE_CHARS:
            left_out.append(name)
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


class SkillFileNotFound(Exception):
    """The skill has no such text. The message says why, in words that follow a path."""


@frozen
class SkillCatalogue:
    """All skills as read at one time."""

    text: str = ""
    """Catalogue for every prompt. Empty: there are no skills."""
    skills: Mapping[str, str] = field(default_factory=dict)
    """Descriptions of the skills in `text`, by name."""
    notes: tuple[str, ...] = ()
    """Notes for the operator, with paths."""


class SkillLibrary:
    """Skills of one workspace. For one thread at a time."""

    def __init__(self, workspace: Path) -> None:
        self.root = workspace / "skills"
        """Its folder, which may be missing."""
        self.catalogue = SkillCatalogue()
        """As it was read last."""

    def refresh(self) -> SkillCatalogue:
        """Return the present catalogue. What cannot be read at present stays as it was read
        before. New notes are logged.
        """
        try:
            folders = sorted(self.root.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            folders = []
        except OSError:
            return self.catalogue
        before = self.catalogue.notes
        self.catalogue = self._read_skills(
            [one.name for one in folders if not one.name.startswith(".") and one.is_dir()]
        )
        for note in self.catalogue.notes:
            if note not in before:
                logger.warning("%s", note)
        return self.catalogue

    def read_text(self, name: str, file: str = SKILL_FILE) -> str:
        """Return a file of a skill, `SKILL.md` without its front matter, or the listing of a
        folder.

        Raises SkillFileNotFound, also for a path that leads out of the skill.
        """
        if name not in self.refresh().skills:
            raise SkillFileNotFound("is no skill")
        real = self._resolve_path(name, file)
        if real.is_dir():
            return _list_folder(real, real.relative_to((self.root / name).resolve()).as_posix())
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
            root = self.root.resolve(strict=True)
            folder = (root / name).resolve(strict=True)
            real = (folder / file).resolve(strict=True)
        except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
            raise SkillFileNotFound("is not there") from None
        if not folder.is_relative_to(root) or not real.is_relative_to(folder):
            raise SkillFileNotFound("leads out of the skill")
        return real

    def _read_skills(self, names: list[str]) -> SkillCatalogue:
        found, notes = dict[str, str](), list[str]()
        for name in names[:MAX_SKILLS]:
            path = self.root / name / SKILL_FILE
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
                if name in self.catalogue.skills:
                    found[name] = self.catalogue.skills[name]
                notes.append(f"{path} cannot be read now: {error.strerror}")
        if len(names) > MAX_SKILLS:
            notes.append(f"{self.root} has more than {MAX_SKILLS} skills; the others are left out")
        text, left_out = render_skills(found)
        notes += [
            f"{self.root / name} is left out: the catalogue would become too long"
            for name in left_out
        ]
        return SkillCatalogue(
            text=text,
            skills={n: s for n, s in found.items() if n not in left_out},
            notes=tuple(notes),
        )


def _list_folder(folder: Path, about: str) -> str:
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
    if (content := read_regular(real, most + 1)) is None:
        raise SkillFileNotFound("is not a file")
    if len(content) > most:
        raise SkillFileNotFound(f"has more than {most:,} bytes")
    return content
