"""The tools by which the agent rests: `rest_until` and `go_quiet`."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from agent.signals import Directive
from agent.tools.mind import GoQuietArgs, RestUntilArgs
from agent.tools.schema import ToolCallRefused
from gateway.clock import Clock
from gateway.hands import ToolContext
from gateway.records import DmnDirective, is_inner
from gateway.schedules import ScheduleError
from gateway.spoken import SpokenTime, parse_spoken_time
from gateway.store import NewEntry, Store

MAX_QUIET: Final = timedelta(days=1)
TRUSTED_ROLES: Final = frozenset({"owner", "admin"})


class RestTools:
    """One agent's."""

    def __init__(
        self, *, agent: str, store: Store, clock: Clock, timezone: Callable[[], str], send: Callable[[Directive], None]
    ) -> None:
        """`timezone`: of times that name none, by now. `send` hands a directive to the agent's DMN."""
        self._agent = agent
        self._store = store
        self._clock = clock
        self._timezone = timezone
        self._send_directive = send

    async def rest_until(self, asked: RestUntilArgs, where: ToolContext) -> str:
        """Begin nothing unasked. Raises Refused."""
        _require_trusted(where)
        until = self._parse_time(asked.time) if asked.time is not None else None
        await self._record_directive("store", until, where)
        self._send_directive(Directive(at=self._clock.now(), order="store", until=until, on=asked.events))
        woken = [f"at {until:%Y-%m-%d %H:%M} UTC"] if until is not None else []
        woken += [f"by {kind}" for kind in asked.events]
        return f"You rest now; you are woken {', '.join([*woken, 'when somebody speaks to you'])}."

    async def go_quiet(self, asked: GoQuietArgs, where: ToolContext) -> str:
        """Disturb nobody. Raises Refused."""
        _require_trusted(where)
        until = self._parse_time(asked.time)
        if until - self._clock.now() > MAX_QUIET:
            raise ToolCallRefused("At most a day: for longer, an operator has to say so.")
        await self._record_directive("quiet", until, where)
        self._send_directive(Directive(at=self._clock.now(), order="quiet", until=until))
        return f"Quiet until {until:%Y-%m-%d %H:%M} UTC."

    def _parse_time(self, text: str) -> datetime:
        try:
            return parse_spoken_time(SpokenTime(at=text), self._clock.now(), self._timezone())[1]
        except ScheduleError as error:
            raise ToolCallRefused(str(error)) from None

    async def _record_directive(self, what: str, until: datetime | None, where: ToolContext) -> None:
        fact = DmnDirective(agent=self._agent, what=what, by=f"the agent itself, in turn {where.turn}", until=until)
        await self._store.append([NewEntry(fact=fact, at=self._clock.now())])


def _require_trusted(where: ToolContext) -> None:
    """The agent by itself, or an owner or admin: nobody else can put it to rest."""
    trusted = where.requesters and all(asker.verified and asker.role in TRUSTED_ROLES for asker in where.requesters)
    if not is_inner(where.at.conversation) and not trusted:
        raise ToolCallRefused(
            "Only an owner or admin may ask for that. If you have nothing more to do, call yield_to_user."
        )
