"""Tools by which an agent manages itself: `rest_until`, `go_quiet` and `load_skill`."""

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from agent.journal import to_single_line
from agent.signals import Directive
from agent.workspace.skills import MAX_NAME_CHARS, SKILL_FILE, SkillCatalogue, SkillFileNotFound, SkillLibrary
from gateway.context.schedule import ScheduleError, SpokenTime, parse_spoken_time
from gateway.core.clock import Clock
from gateway.core.events import Address
from gateway.core.facts import DmnDirective, is_inner
from gateway.core.identity import ADMIN_ROLES
from gateway.core.tool import ToolContext, ToolOutput, run_in_thread, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import NewEntry, Store

logger = logging.getLogger("reverie.workspace")

MAX_QUIET: Final = timedelta(days=1)


class RestTools:
    """`rest_until` and `go_quiet` of one agent."""

    def __init__(
        self, *, agent: str, store: Store, clock: Clock, timezone: Callable[[], str], send: Callable[[Directive], None]
    ) -> None:
        """`timezone`: the zone of times that name none. `send` passes a directive to the agent's DMN."""
        self._agent = agent
        self._store = store
        self._clock = clock
        self._timezone = timezone
        self._send_directive = send

    @tool("Begin nothing by yourself until then. Who speaks to you is still answered.")
    async def rest_until(
        self,
        context: ToolContext,
        *,
        time: Annotated[
            str | None, Field(description="ISO 8601, or like `in 2h` or `18:30`. Left out: until something comes.")
        ] = None,
        events: Annotated[
            tuple[str, ...],
            Field(max_length=10, description="Types of notifications that wake you earlier, e.g. `irc.libera.room`."),
        ] = (),
    ) -> str:
        """Let the agent begin nothing unasked until then. Raises ToolCallRefused."""
        _require_trusted(context)
        until = self._parse_time(time) if time is not None else None
        await self._record_directive("store", until, context)
        self._send_directive(Directive(at=self._clock.now(), order="store", until=until, on=events))
        woken = [f"at {until:%Y-%m-%d %H:%M} UTC"] if until is not None else []
        woken += [f"by {kind}" for kind in events]
        return f"You rest now; you are woken {', '.join([*woken, 'when somebody speaks to you'])}."

    @tool("Let nothing below urgent disturb anybody until then.")
    async def go_quiet(
        self,
        context: ToolContext,
        *,
        time: Annotated[str, Field(description="Until when: ISO 8601, or like `in 2h` or `18:30`. At most a day.")],
    ) -> str:
        """Let nothing below urgent start a turn until then. Raises ToolCallRefused."""
        _require_trusted(context)
        until = self._parse_time(time)
        if until - self._clock.now() > MAX_QUIET:
            raise ToolCallRefused("At most a day: for longer, an operator has to say so.")
        await self._record_directive("quiet", until, context)
        self._send_directive(Directive(at=self._clock.now(), order="quiet", until=until))
        return f"Quiet until {until:%Y-%m-%d %H:%M} UTC."

    def _parse_time(self, text: str) -> datetime:
        try:
            return parse_spoken_time(SpokenTime(at=text), self._clock.now(), self._timezone())[1]
        except ScheduleError as error:
            raise ToolCallRefused(str(error)) from None

    async def _record_directive(self, what: str, until: datetime | None, context: ToolContext) -> None:
        fact = DmnDirective(agent=self._agent, what=what, by=f"the agent itself, in turn {context.turn}", until=until)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now())])


def _require_trusted(context: ToolContext) -> None:
    """Allow the agent itself, owners and admins; refuse everybody else."""
    trusted = context.requesters and all(asker.verified and asker.role in ADMIN_ROLES for asker in context.requesters)
    if not is_inner(context.at.conversation) and not trusted:
        raise ToolCallRefused(
            "Only an owner or admin may ask for that. If you have nothing more to do, call yield_to_user."
        )


MAX_SKILL_PATH_CHARS: Final = 400


class SkillTools:
    """Skills of one agent. They are the operator's text, and the model receives them as such."""

    def __init__(
        self, workspace: Path, allowed: Callable[[Address], Collection[str] | None], *, scripts: Callable[[], str] = str
    ) -> None:
        """`allowed`: the names of the skills for a place; None: all. `scripts`: the path of the skills in the shell.

        An empty path: the agent has no shell with skills.
        """
        self._skills = SkillLibrary(workspace)
        self._allowed_names = allowed
        self._scripts_path = scripts
        self._lock = asyncio.Lock()
        self._logged_notes: tuple[str, ...] = ()

    async def render_catalogue(self) -> str:
        """Render the prompt's block `skills`: the same bytes in every place until a skill comes, goes or changes.

        Costs a few `stat` calls. Problems with skills are logged once, for the operator.
        """
        async with self._lock:
            known = await asyncio.to_thread(self._skills.refresh)
        self._log_notes(known)
        return known.text

    async def paths(self) -> tuple[Path, ...]:
        """Return the folders of all skills, each named as its skill, for the shell."""
        async with self._lock:
            return await asyncio.to_thread(self._skills.paths)

    @tool("Read a skill: the instructions for a task, or another of its files.", parallel=True)
    async def load_skill(
        self,
        context: ToolContext,
        *,
        name: Annotated[str, Field(min_length=1, max_length=64, description="As the catalogue of skills names it.")],
        file: Annotated[
            str,
            Field(
                max_length=MAX_SKILL_PATH_CHARS, description="Another file or folder of the skill, e.g. examples/a.md."
            ),
        ] = "",
    ) -> ToolOutput:
        file = file.strip() or SKILL_FILE
        allowed = self._allowed_names(context.at)
        async with self._lock:
            known, text = await run_in_thread(lambda _: self._read(name, file, allowed))
        self._log_notes(known)
        return ToolOutput(text=text, kind="skill", origin=f"skills/{name}/{file}")

    def _read(self, name: str, file: str, allowed: Collection[str] | None) -> tuple[SkillCatalogue, str]:
        """Read a file of a skill. Raises ToolCallRefused."""
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
            shown_file = to_single_line(file, MAX_SKILL_PATH_CHARS)
            raise ToolCallRefused(
                f"{shown_file!r} in the skill {name} {no}; load it with file '.' to see what it has."
            ) from None
        except OSError as error:
            raise ToolCallRefused(
                f"The skill {name} cannot be read now ({error.strerror}); try it again later."
            ) from None
        beside = [other for other in more if other != SKILL_FILE]
        if not beside:
            return known, text
        scripts = self._scripts_path()
        shell = f" In the shell they are in {scripts}/{name}/." if scripts else ""
        return known, f"{text}\n\n(Beside it, for load_skill: {', '.join(beside)}.{shell})"

    def _log_notes(self, known: SkillCatalogue) -> None:
        """Log new notes only; all of them at every turn would be noise."""
        for note in known.notes:
            if note not in self._logged_notes:
                logger.warning("%s", note)
        self._logged_notes = known.notes
