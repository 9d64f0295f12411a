"""Health of a gateway: `/health`, `/ready`, `reverie health` (`program`), and outages that a
channel's link does not show.

Configured rooms that cannot be entered, places where the bot may not post, people whose posts wait
until they are seen and models that do not answer are reported as problems in `GatewayStats`, so
`/ready` and `reverie health` show them. Owners are notified once when an outage begins, and when a
model answers again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from agent.cache.prompt_cache import describe_cut_prompt
from agent.models.config import fallback_chain
from channels.aio import with_timeout
from channels.base import Channel, KnowsAccountProblem, KnowsJoinRefusals
from gateway import __version__
from gateway.cluster.cluster import UPKEEP, channel_lease
from gateway.core.events import Address, ChannelName, ConversationId, RoomId
from gateway.core.facts import REPEATED_TURN, TurnRecord, has_trouble
from gateway.core.format import describe_problem
from gateway.core.frozen import frozen
from gateway.core.i18n import N_, _
from gateway.core.metrics import GatewayStats
from gateway.core.redaction import Redactor
from gateway.plugin import Plugin, PluginContext
from gateway.plugins.http import Http, HttpRoute
from gateway.store import LogEntry

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.commands.services import Services

CHECK_INTERVAL_S: Final = 5.0
MODEL_FAILURES: Final = ("overloaded", "unreachable", "misconfigured", "budget")
"""Failures of a turn that are caused by the provider, not by the request."""
FAILURE_REMEDIES: Final[Mapping[str, str]] = {
    "overloaded": N_(
        "I try again by myself. With a model of another provider in its `fallbacks`, I could "
        "answer meanwhile."
    ),
    "unreachable": N_(
        "Check that its server runs and that `base_url` is right: `reverie doctor` tries it."
    ),
    "misconfigured": N_(
        "Correct its key, `base_url` or name in `llm`: `reverie doctor` shows what is wrong."
    ),
    "budget": N_(
        "Add credit at the provider, or add a model of another provider to its `fallbacks`."
    ),
    "tools": N_(
        "Its model called tools again and again. A model that follows instructions better, or a "
        "higher `tools.max_rounds`, may help."
    ),
    "nothing": N_(
        "Its answers were empty. If that happens again, choose another model in `llm.models`."
    ),
    "cut": N_(
        "It was cut off. Raise `max_output_tokens` of its model in `llm.models`, or lower its "
        "`effort`."
    ),
    "too_long": N_(
        "The request was too long for its model. If the message was not long, correct "
        "`context_tokens` in `llm.models`, or turn off tools that you do not need."
    ),
    "conversation": N_(
        "Its model answers elsewhere, so what stands in that conversation makes the model's server "
        "fail. The server's log may say why."
    ),
    "broken": N_(
        "This is an error in the program: please report it, with the lines of the log about it."
    ),
}
"""What owners can do, by the cause of a failed turn. None for `refused`: it is about what was
asked."""
FALLBACK_REMEDIES: Final[Mapping[str, str]] = {
    "overloaded": N_(
        "I try again by myself. I asked its fallbacks as well ({models}), and none of them "
        "answered."
    ),
    "budget": N_(
        "Add credit at the provider. I asked its fallbacks as well ({models}), and none of them "
        "answered."
    ),
}
"""The same for a model with fallbacks, where it is another text."""
_TROUBLES: Final = ("workspace:", "room:", "mute:", "account:", "absent:", "window:")
"""How the names of the problems begin that `OutageMonitor.look` finds."""


@frozen
class _Trouble:
    what: str
    reason: str
    notice: Callable[[Address | None], str] | None = None
    """What owners are told. None: nothing."""
    since: datetime | None = None
    """None: since it was found."""


def _render(text: str, _to: Address | None, **values: str) -> str:
    return _(text).format(**values)


def _render_failure(
    text: str, turn: TurnRecord, where: str, fallbacks: str, _to: Address | None
) -> str:
    tried = FALLBACK_REMEDIES.get(turn.failure, "") if fallbacks else ""
    remedy = _(tried).format(models=fallbacks) if tried else _(FAILURE_REMEDIES[turn.failure])
    return _(text).format(agent=turn.agent, room=where, reason=turn.reason, remedy=remedy)


class Health(Plugin):
    """Answers `/health` and `/ready`, and reports outages of rooms and models.

    It hears of the turns that fail; while something is wrong, of all.
    """

    name = "health"
    summary = "tells whether the gateway does its work: /health, /ready, notices of outages"
    requires = ("http",)
    checks = "gateway.plugins.health.program"
    subcommands: ClassVar = {
        "health": (
            "show whether the gateway runs and is connected",
            "gateway.plugins.health.program:add_arguments",
        )
    }

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self._cluster, self._titles = gateway.channels.cluster, gateway.places.titles
        self._stats, self._clock, self._store = gateway.stats, gateway.clock, gateway.store
        self._notices, self._live_settings = gateway.notices, gateway.live
        self._channels: Mapping[ChannelName, Channel] = gateway.channels
        self._services: Services | None = None
        self._waiting: dict[str, set[ConversationId | None]] = {}
        """By agent, the conversations in which somebody waits for a model."""
        self._unanswered = set[str]()
        """Agents that no model answered, and owners may have been told of it."""
        self._hears_all = False
        self._unsubscribe = self._store.subscribe(self._on_ended, TurnRecord, where=has_trouble)
        context.get(Http).add(partial(list_routes, self._stats, gateway.redactor))

    def on_built(self, services: "Services") -> None:
        self._services = services

    async def run(self) -> None:
        """Look for what does not work, every few seconds and after each change of a state."""
        changed = asyncio.Event()
        self._stats.listeners.append(changed.set)
        while True:
            self.look()
            changed.clear()
            with contextlib.suppress(TimeoutError):
                await with_timeout(self._clock, CHECK_INTERVAL_S, changed.wait())

    def look(self) -> None:
        """Look for what does not work, tell owners of it, and forget what is over."""
        found = {one.what: one for one in self._find_troubles()}
        for what, one in found.items():
            is_new = self._stats.report_problem(
                what, one.reason, one.since or self._clock.now(), partial=True
            )
            if is_new and one.notice is not None:
                self._notices.tell(what, one.notice)
        for what in self._stats.problem_names(_TROUBLES):
            if what not in found:
                self._stats.clear_problem(what)

    def _find_troubles(self) -> Iterator["_Trouble"]:
        """Yield what does not work at present, and does not keep the gateway from its work."""
        for agent in self._live_settings.settings.agents:
            if agent.workspace is not None and not agent.workspace.is_dir():
                told = N_("{agent} answers without its persona: there is no directory {path}.")
                yield _Trouble(
                    what=f"workspace:{agent.id}",
                    reason=f"{agent.id} has no persona: there is no directory {agent.workspace}",
                    notice=partial(_render, told, agent=agent.id, path=str(agent.workspace)),
                )
        for name, channel in self._channels.items():
            yield from self._find_channel_troubles(name, channel)
        assert self._services is not None
        for mute in self._services.mute.places.values():
            if mute.at.channel in self._channels and self._cluster.holds(
                channel_lease(mute.at.channel)
            ):
                room = self._titles.label(mute.at.conversation)
                reason = f"cannot post in {room}: {mute.reason}"
                yield _Trouble(what=f"mute:{mute.at.conversation}", reason=reason, since=mute.since)
        for model in self._services.models.pool.caches:
            if model.cut_prompt is not None:
                reason = "; ".join(describe_cut_prompt(model.label, *model.cut_prompt))
                yield _Trouble(what=f"window:{model.name}", reason=reason)

    def _find_channel_troubles(self, name: ChannelName, channel: Channel) -> Iterator["_Trouble"]:
        if isinstance(channel, KnowsAccountProblem) and (problem := channel.account_problem()):
            told = N_("{channel} is connected, but {reason}.")
            notice = partial(_render, told, channel=name, reason=problem)
            yield _Trouble(what=f"account:{name}", reason=f"{name}: {problem}", notice=notice)
        assert self._services is not None
        if count := self._services.outbox.count_absent(name):
            whom = "1 person is" if count == 1 else f"{count} people are"
            yield _Trouble(
                what=f"absent:{name}", reason=f"{name}: posts wait until {whom} online there"
            )
        if isinstance(channel, KnowsJoinRefusals):
            config = self._live_settings.settings.channels.get(name)
            for place in [RoomId(room) for room in getattr(config, "rooms", ()) if room != "*"]:
                if why := channel.join_refusal(place):
                    at = Address(channel=name, room=place).conversation
                    room, told = self._titles.label(at), N_("I cannot enter {room}: {reason}.")
                    notice = partial(_render, told, room=room, reason=why)
                    yield _Trouble(
                        what=f"room:{at}", reason=f"cannot enter {room}: {why}", notice=notice
                    )

    def _on_ended(self, entries: Sequence[LogEntry]) -> None:
        """Update the state of the models from the turns that ended."""
        for entry in entries:
            if isinstance(turn := entry.fact, TurnRecord):
                place = entry.conversation
                waiting = self._waiting.setdefault(turn.agent, set())
                waiting.discard(place)
                if turn.failure and turn.outcome == "interrupted" and not turn.autonomous:
                    waiting.add(place)
                where = self._titles.label(place) if place is not None else ""
                self._on_turn_ended(turn, where, is_over=not waiting)
        is_wrong = bool(self._unanswered) or any(self._waiting.values())
        if is_wrong is not self._hears_all:
            self._hears_all = is_wrong
            self._unsubscribe()
            self._unsubscribe = self._store.subscribe(
                self._on_ended, TurnRecord, where=None if is_wrong else has_trouble
            )

    def _on_turn_ended(self, turn: TurnRecord, where: str, *, is_over: bool) -> None:
        """Tell owners. `is_over`: nobody waits for a model any more."""
        what, remedy = f"model:{turn.agent}", FAILURE_REMEDIES.get(turn.failure, "")
        tells = self._cluster.holds(UPKEEP)
        fallbacks = self._list_fallbacks(turn.agent) if turn.failure else ""
        if turn.failure in MODEL_FAILURES:
            self._unanswered.add(turn.agent)
            text = f"No model answers {turn.agent}: {turn.reason}"
            self._stats.report_problem(what, text, self._clock.now())
            told = N_(
                "No model answers {agent} (in {room}): {reason}. {remedy} I tell people who ask, "
                "and I tell you when a "
                "model answers again."
            )
            if turn.outcome == "interrupted":  # perhaps it fails there alone
                told = N_(
                    "{agent} has got no answer from its model in {room} so far: {reason}. {remedy} "
                    "I told whoever waits, and I tell you when nobody waits any more."
                )
            if tells:
                notice = partial(_render_failure, told, turn, where, fallbacks)
                self._notices.tell(f"{what}:{turn.failure}", notice, "begins")
            return
        if remedy:
            told = N_("{agent} gave no answer in {room}. {remedy}")
            if turn.outcome != "failed":
                told = N_("{agent} gave half an answer in {room}. {remedy}")
            key = f"turn:{turn.agent}:{turn.failure}"
            if tells:
                self._notices.tell(key, partial(_render_failure, told, turn, where, fallbacks))
        if turn.reason == REPEATED_TURN and tells:
            told = N_(
                "{agent} did the same three times in a row in {room}, so I ended its work there."
            )
            self._notices.tell(
                f"repeats:{where}", partial(_render, told, agent=turn.agent, room=where)
            )
        is_answering = turn.failure == "conversation" or (
            turn.requests and turn.outcome != "failed"
        )
        if is_answering:
            self._stats.clear_problem(what)
        if is_answering and is_over:
            self._unanswered.discard(turn.agent)
            again = N_("A model answers {agent} again.")
            self._notices.tell(f"{what}:", partial(_render, again, agent=turn.agent), "ends")

    def _list_fallbacks(self, agent_id: str) -> str:
        """Return the fallbacks of an agent's configured model. Empty: there are none."""
        settings = self._live_settings.settings
        models = [agent.model for agent in settings.agents if agent.id == agent_id]
        return ", ".join(fallback_chain(models[0], settings.llm.models)[1:]) if models else ""


def list_routes(stats: GatewayStats, redactor: Redactor) -> list[HttpRoute]:
    """Return the paths for process monitors. They contain no secrets, and are called by any
    name.
    """
    from starlette.responses import JSONResponse  # noqa: PLC0415 - most gateways are never asked

    async def health(_request: "Request") -> "Response":
        """The process lives."""
        started = stats.snapshot().started.isoformat()
        return JSONResponse({"status": "ok", "version": __version__, "started": started})

    async def ready(_request: "Request") -> "Response":
        """The gateway is connected."""
        now = stats.snapshot()
        reasons = [describe_problem(one) for one in now.problems]
        for one in now.channels:
            if one.state != "up":
                why = " ".join(one.reason.split())  # untrusted: it may quote the platform
                reasons.append(f"{one.channel} is {one.state}{f': {why}' if why else ''}")
        return JSONResponse(
            {
                "ready": now.is_ready,
                "channels": {one.channel: one.state for one in now.channels},
                "reasons": [redactor(one) for one in reasons],
            },
            status_code=200 if now.is_ready else 503,
        )

    return [HttpRoute("/health", health, "anybody"), HttpRoute("/ready", ready, "anybody")]
