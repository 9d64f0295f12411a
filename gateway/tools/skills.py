"""An agent's skills: what every prompt says of them, and the hand that reads one."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from agent.journal import to_single_line
from agent.tools.schema import ToolCallRefused
from agent.tools.skills import LOAD_SKILL, MAX_SKILL_PATH_CHARS, LoadSkillArgs
from agent.workspace.skill_text import MAX_NAME_CHARS, SKILL_FILE
from agent.workspace.skills import SkillCatalogue, SkillFileNotFound, SkillLibrary
from gateway.events import Address
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.tools.permits import ALLOW_ANYBODY
from gateway.tools.threads import run_in_thread

logger = logging.getLogger("reverie.workspace")


class SkillTools:
    """The skills of one agent. They are the operator's words, so they are told as such."""

    def __init__(
        self, workspace: Path, allowed: Callable[[Address], Collection[str] | None], *, scripts: Callable[[], str] = str
    ) -> None:
        """`allowed`: the names of those that are for a place; None: all. `scripts`: where the shell has them by now.

        Empty: there is no shell that has them.
        """
        self._skills = SkillLibrary(workspace)
        self._allowed_names = allowed
        self._scripts_path = scripts
        self._lock = asyncio.Lock()
        self._logged_notes: tuple[str, ...] = ()
        self.tools: Sequence[Tool] = (Tool.create(LOAD_SKILL, LoadSkillArgs, self._load, ALLOW_ANYBODY),)

    async def render_catalogue(self) -> str:
        """For the prompt's block `skills`: the same bytes in every place until a skill comes, goes or changes.

        Costs a few `stat` calls. What the operator should know of broken ones is logged, once.
        """
        async with self._lock:
            known = await asyncio.to_thread(self._skills.refresh)
        self._log_notes(known)
        return known.text

    async def paths(self) -> tuple[Path, ...]:
        """The folders of all, each named as its skill: for the shell to read."""
        async with self._lock:
            return await asyncio.to_thread(self._skills.paths)

    async def _load(self, asked: LoadSkillArgs, where: ToolContext) -> ToolOutput:
        file = asked.file.strip() or SKILL_FILE
        allowed = self._allowed_names(where.at)
        async with self._lock:
            known, text = await run_in_thread(lambda _: self._read(asked.name, file, allowed))
        self._log_notes(known)
        return ToolOutput(text=text, kind="skill", origin=f"skills/{asked.name}/{file}")

    def _read(self, name: str, file: str, allowed: Collection[str] | None) -> tuple[SkillCatalogue, str]:
        """Raises Refused."""
        known = self._skills.refresh()
        if name not in known.skills:
            names = ", ".join(known.skills) or "none"
            raise ToolCallRefused(f"There is no skill {to_single_line(name, MAX_NAME_CHARS)!r}; there are: {names}.")
        if allowed is not None and name not in allowed:
            raise ToolCallRefused(
                f"The skill {name} is not for this place: do without it, or say that you cannot do this here."
            )
        try:
            text = self._skills.read_text(name, file)
            more = self._skills.read_text(name, ".").split("\n")[1:] if file == SKILL_FILE else []
        except SkillFileNotFound as no:
            said = to_single_line(file, MAX_SKILL_PATH_CHARS)
            raise ToolCallRefused(
                f"{said!r} in the skill {name} {no}; load it with file '.' to see what it has."
            ) from None
        except OSError as error:
            raise ToolCallRefused(
                f"The skill {name} cannot be read now ({error.strerror}); try it again later."
            ) from None
        beside = [one for one in more if one != SKILL_FILE]
        if not beside:
            return known, text
        scripts = self._scripts_path()
        shell = f" In the shell they are in {scripts}/{name}/." if scripts else ""
        return known, f"{text}\n\n(Beside it, for load_skill: {', '.join(beside)}.{shell})"

    def _log_notes(self, known: SkillCatalogue) -> None:
        """Log what is new; the same at every turn would be noise."""
        for note in known.notes:
            if note not in self._logged_notes:
                logger.warning("%s", note)
        self._logged_notes = known.notes
