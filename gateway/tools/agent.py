"""Tools by which an agent manages itself: `continue_task`, `rest_until`, `go_quiet` and
`load_skill`.
"""

import asyncio
import logging
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from agent.journal import to_single_line
from agent.workspace import default_workspace
from agent.workspace.skills import (
    MAX_NAME_CHARS,
    SKILL_FILE,
    SKILLS_FOLDER,
    SkillCatalogue,
    SkillFileNotFound,
    SkillLibrary,
)
from gateway.config.reload import LiveSettings
from gateway.context.schedule import ScheduleError, SpokenTime, parse_spoken_time
from gateway.core.clock import Clock
from gateway.core.facts import DmnDirective, is_inner
from gateway.core.identity import ADMIN_ROLES
from gateway.core.permissions import OWN
from gateway.core.tool import ToolContext, ToolOutput, run_in_thread, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.store import NewEntry, Store
from gateway.stream.routing import Bindings
from gateway.tools.sandbox import SKILLS_PATH

logger = logging.getLogger("reverie.workspace")

MAX_QUIET: Final = timedelta(days=1)


class RestTools:
    """`continue_task`, `rest_until` and `go_quiet` of one agent."""

    def __init__(self, agent: str, store: Store, clock: Clock, live: LiveSettings) -> None:
        self._agent = agent
        self._store = store
        self._clock = clock
        self._live = live

    @tool("Go on with this task by yourself after this answer.", effect=OWN)
    async def continue_task(
        self,
        _: ToolContext,
        *,
        next: Annotated[  # noqa: A002 - the model's word
            str, Field(min_length=1, description="The next step in one line.")
        ],
    ) -> str:
        """Only recorded: `agent.tools.find_next_step` reads it once the turn has ended."""
        return f"Now write your answer. After it you go on by yourself: {to_single_line(next, 200)}"

    @tool(
        "By yourself, or for an owner or admin: rest, and begin nothing until a time. You still "
        "answer people.",
        effect=OWN,
    )
    async def rest_until(
        self,
        context: ToolContext,
        *,
        time: Annotated[
            str | None,
            Field(description="E.g. `in 2h` or `18:30`. Default: until something comes."),
        ] = None,
        events: Annotated[
            tuple[str, ...],
            Field(
                max_length=10,
                description="What wakes you earlier, e.g. `irc.libera.room`.",
            ),
        ] = (),
    ) -> str:
        _require_trusted(context)
        until = self._parse_time(time) if time is not None else None
        await self._record_directive("store", until, context, events)
        woken = [f"at {until:%Y-%m-%d %H:%M} UTC"] if until is not None else []
        woken += [f"by {kind}" for kind in events]
        return f"You rest now; you are woken {', '.join([*woken, 'when somebody speaks to you'])}."

    @tool(
        "By yourself, or for an owner or admin: be quiet until a time. Only urgent things may "
        "disturb people.",
        effect=OWN,
    )
    async def go_quiet(
        self,
        context: ToolContext,
        *,
        time: Annotated[str, Field(description="As for rest_until, at most a day.")],
    ) -> str:
        _require_trusted(context)
        until = self._parse_time(time)
        if until - self._clock.now() > MAX_QUIET:
            raise ToolCallRefused("At most a day: for longer, an operator has to say so.")
        await self._record_directive("quiet", until, context)
        return f"Quiet until {until:%Y-%m-%d %H:%M} UTC."

    def _parse_time(self, text: str) -> datetime:
        try:
            return parse_spoken_time(
                SpokenTime(at=text), self._clock.now(), self._live.settings.dmn.timezone
            )[1]
        except ScheduleError as error:
            raise ToolCallRefused(str(error)) from None

    async def _record_directive(
        self, what: str, until: datetime | None, context: ToolContext, on: tuple[str, ...] = ()
    ) -> None:
        by = f"the agent itself, in turn {context.turn}"
        fact = DmnDirective(agent=self._agent, what=what, by=by, until=until, on=on)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now())])


def _require_trusted(context: ToolContext) -> None:
    """Allow the agent itself, owners and admins; refuse everybody else."""
    trusted = context.requesters and all(
        asker.verified and asker.role in ADMIN_ROLES for asker in context.requesters
    )
    if not is_inner(context.at.conversation) and not trusted:
        raise ToolCallRefused(
            "Only an owner or admin may ask for that. If you have nothing more to do, call "
            "yield_to_user."
        )


MAX_SKILL_PATH_CHARS: Final = 400


class SkillTools:
    """Skills of all agents. They are the operator's text, and the model receives them as such."""

    def __init__(self, live: LiveSettings, bindings: Bindings) -> None:
        self._live = live
        self._bindings = bindings
        self._libraries: dict[str, SkillLibrary] = {}
        self._lock = asyncio.Lock()
        self._logged_notes: dict[str, tuple[str, ...]] = {}

    async def render_catalogue(self, agent: str) -> str:
        """Render the prompt's block `skills`: the same bytes in every place until a skill comes,
        goes or changes.

        Costs a few `stat` calls. Problems with skills are logged once, for the operator.
        """
        async with self._lock:
            known = self._library(agent).refresh()  # a thread costs more than that
        self._log_notes(agent, known)
        return known.text

    async def paths(self, agent: str) -> tuple[Path, ...]:
        """Return the folders of all skills, each named as its skill, for the shell."""
        async with self._lock:
            return await asyncio.to_thread(self._library(agent).paths)

    def _library(self, agent: str) -> SkillLibrary:
        if agent not in self._libraries:
            self._libraries[agent] = SkillLibrary(self._workspace(agent))
        return self._libraries[agent]

    def _workspace(self, agent: str) -> Path:
        return self._live.agent_config(agent).workspace or default_workspace()

    @tool(
        "Read a skill: instructions for a task, or another of its files.", effect=OWN, parallel=True
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
            known, text = await run_in_thread(
                lambda _: self._read(context.agent, name, file, allowed)
            )
        self._log_notes(context.agent, known)
        return ToolOutput(text=text, kind="skill", origin=f"skills/{name}/{file}")

    def _read(
        self, agent: str, name: str, file: str, allowed: Collection[str] | None
    ) -> tuple[SkillCatalogue, str]:
        skills = self._library(agent)
        known = skills.refresh()
        if name not in known.skills:
            names = ", ".join(known.skills) or "none"
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
        beside = [other for other in more if other != SKILL_FILE]
        if not beside:
            return known, text
        is_boxed = self._live.settings.tools.bash.sandbox == "bubblewrap"
        scripts = SKILLS_PATH if is_boxed else str(self._workspace(agent) / SKILLS_FOLDER)
        shell = f" In the shell they are in {scripts}/{name}/."
        return known, f"{text}\n\n(Beside it, for load_skill: {', '.join(beside)}.{shell})"

    def _log_notes(self, agent: str, known: SkillCatalogue) -> None:
        """Log new notes only; all of them at every turn would be noise."""
        for note in known.notes:
            if note not in self._logged_notes.get(agent, ()):
                logger.warning("%s", note)
        self._logged_notes[agent] = known.notes
