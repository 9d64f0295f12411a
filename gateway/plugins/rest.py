"""Tools by which an agent manages itself: `continue_task`, `rest_until` and `go_quiet`."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from pydantic import Field

from gateway.core.facts import DmnDirective, is_inner
from gateway.core.identity import ADMIN_ROLES
from gateway.core.moments import InvalidTime, parse_moment, parse_timezone
from gateway.core.permissions import OWN
from gateway.core.text_safety import to_single_line
from gateway.core.tool import ToolContext, tool
from gateway.core.tool_spec import ToolCallRefused
from gateway.plugin import Plugin
from gateway.store.effects import EffectFact

MAX_QUIET: Final = timedelta(days=1)


class Rest(Plugin):
    """`continue_task`, `rest_until` and `go_quiet` of all agents."""

    name = "rest"
    summary = "lets the agent rest, be quiet, or go on by itself, as its own DMN"
    family = "itself"

    @tool("Go on by yourself after this answer.", effect=OWN)
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
        "Rest until a time. By yourself, or for an owner or admin; you begin nothing, and still "
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
        "Be quiet until a time. By yourself, or for an owner or admin; only urgent things may "
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
        if is_inner(context.at.conversation) and context.least_role not in ADMIN_ROLES:
            raise ToolCallRefused(
                "Words of others are in view, and while you are quiet no owner is told anything: "
                "rest_until only rests."
            )
        until = self._parse_time(time)
        if until - self.context.gateway.clock.now() > MAX_QUIET:
            raise ToolCallRefused("At most a day: for longer, an operator has to say so.")
        await self._record_directive("quiet", until, context)
        return f"Quiet until {until:%Y-%m-%d %H:%M} UTC."

    def _parse_time(self, text: str) -> datetime:
        gateway = self.context.gateway
        try:
            zone = parse_timezone(gateway.live.settings.dmn.timezone)
            return parse_moment(text.strip(), gateway.clock.now(), zone).astimezone(UTC)
        except InvalidTime as error:
            raise ToolCallRefused(str(error)) from None

    async def _record_directive(
        self, what: str, until: datetime | None, context: ToolContext, on: tuple[str, ...] = ()
    ) -> None:
        by = f"the agent itself, in turn {context.turn}"
        fact = DmnDirective(agent=context.agent, what=what, by=by, until=until, on=on)
        await self.context.append(EffectFact(fact))


def _require_trusted(context: ToolContext) -> None:
    trusted = context.requesters and all(
        asker.verified and asker.role in ADMIN_ROLES for asker in context.requesters
    )
    if not is_inner(context.at.conversation) and not trusted:
        raise ToolCallRefused(
            "Only an owner or admin may ask for that. If you have nothing more to do, call "
            "yield_to_user."
        )
