"""Skills as text. Pure: equal files give equal bytes.

A skill is a folder with a `SKILL.md`, as of https://agentskills.io/specification: YAML with `name` (the folder's) and
`description` between two lines `---`, then Markdown. Only names and descriptions stand in every prompt.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import yaml

from agent.workspace.text import decode_text

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
