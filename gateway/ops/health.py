"""Health of a gateway, seen from outside its process, and outages that a channel's link does not
show.

`reverie health` asks the running gateway for its `GatewaySnapshot` on its control socket. No port
is needed, and a process that hangs is detected: it does not answer.

`OutageMonitor` reports configured rooms that cannot be entered, places where the bot may not post,
people whose posts wait until they are seen and models that do not answer as problems in
`GatewayStats`, so `/ready` and `reverie health` show them. Owners are notified
once when an outage begins, and when a model answers again.

`gateway.ops.server.OpsService` runs the control socket and the HTTP server of one gateway.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.cache.prompt_cache import describe_cut_prompt
from agent.models.config import fallback_chain
from channels.base import Channel, CountsDropped, KnowsAccountProblem, KnowsJoinRefusals
from gateway.cluster.cluster import UPKEEP, Cluster, MemberStatus, channel_lease
from gateway.config.reload import LiveSettings, ReloadResult
from gateway.core.clock import Clock
from gateway.core.control_socket import (
    GatewayNotAnswering,
    GatewayNotRunning,
    ask_state,
    socket_path,
)
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    ConversationId,
    RoomId,
)
from gateway.core.facts import REPEATED_TURN, TurnRecord, has_trouble
from gateway.core.format import (
    describe_problem,
    format_time,
)
from gateway.core.i18n import N_, _, ngettext
from gateway.core.metrics import (
    ChannelStats,
    GatewaySnapshot,
    GatewayState,
    GatewayStats,
    HealthProblem,
)
from gateway.core.process_files import list_process_paths, lock_file, process_name, process_path
from gateway.store import (
    LogEntry,
    Store,
    StoreError,
    StoreLocation,
    StoreOutage,
    local_path,
)

if TYPE_CHECKING:
    from gateway.access.place_names import PlaceTitles
    from gateway.runtime.models import ModelPool
    from gateway.stream.mute import MutePlaces
    from gateway.stream.notices import Notices
    from gateway.stream.outbox import Outbox

logger = logging.getLogger("reverie.health")

CHECK_INTERVAL_S = 5.0
ANSWER_S = 5.0
"""Seconds in which a gateway answers on its control socket, longer than any pause of a healthy
process."""
HUNG_REMEDY: Final = "if it hangs, stop it (kill PID, after a minute kill -9) and start it again"


async def find_gateway_state(store: Path, name: str = "") -> GatewayState:
    """Ask the processes on this host that use the store for their state. `name`: one of them.

    Of several it is what those that answer say together.
    """
    paths = list_process_paths(process_path(store, name))
    states = dict(
        zip(
            (process_name(one, store) for one in paths),
            await asyncio.gather(*map(_ask, paths)),
            strict=True,
        )
    )
    alive = {name: one for name, one in states.items() if one.is_alive}
    if len(alive) <= 1:
        return next(iter(alive.values()), max(states.values(), key=lambda one: one.kind == "died"))
    running = {name: one.snapshot for name, one in alive.items() if one.snapshot is not None}
    if not running:
        return next(iter(alive.values()))
    hung = {name: one.reason for name, one in alive.items() if one.snapshot is None}
    return GatewayState(kind="running", snapshot=_merge_snapshots(running, hung))


async def _ask(process: Path) -> GatewayState:
    path = socket_path(process)
    try:
        if not path.is_socket():
            return GatewayState(kind="stopped")
        return GatewayState(kind="running", snapshot=await ask_state(path, ANSWER_S))
    except GatewayNotRunning:
        return GatewayState(kind="died")
    except OSError:  # the store's own check reports closed directories
        return GatewayState(kind="stopped")
    except GatewayNotAnswering as error:
        return GatewayState(kind="hangs", reason=str(error))


UNSEEN_S: Final = 120.0
"""Seconds after its start in which the lock of a process is seen: a network file system may show a
new file a minute late."""


def find_unseen(statuses: Iterable[MemberStatus], store: Path, now: datetime) -> str:
    """Say which processes are connected to the database, and have no lock beside the store.

    The remedy stands behind a semicolon. Empty: none. Blocks for a system call each.
    """
    found = [
        f"{one.member.name} on {one.host}"
        for one in statuses
        if one.has_session
        and (now - one.member.started).total_seconds() > UNSEEN_S
        and not os.path.lexists(lock_file(process_path(store, one.member.name)))
    ]
    if not found:
        return ""
    return (
        f"{store.parent} has no lock of {', '.join(found)}: another directory is used there; let "
        "every process see one "
        "writable directory there, e.g. a volume that all machines mount"
    )


def _merge_snapshots(
    alive: Mapping[str, GatewaySnapshot], hung: Mapping[str, str]
) -> GatewaySnapshot:
    """Return what several processes say together. `hung`: what was seen of those that do not
    answer.

    What keeps some from their work, and not all, is a problem in part.
    """
    channels = dict[ChannelName, ChannelStats]()
    for name, snapshot in alive.items():
        for channel in snapshot.channels:
            if channel.holder is None:
                channels[channel.channel] = replace(channel, holder=name)
            else:
                channels.setdefault(channel.channel, channel)
    # As the gateway as a whole sees them: what nobody holds is a channel of its own that is down.
    channels = {
        name: one if one.holder else replace(one, holder=None) for name, one in channels.items()
    }
    is_working = any(
        all(problem.partial for problem in snapshot.problems) for snapshot in alive.values()
    )
    problems = [
        replace(
            problem,
            what=f"{name}:{problem.what}",
            reason=f"{name}: {problem.reason}",
            partial=problem.partial or is_working,
        )
        for name, snapshot in alive.items()
        for problem in snapshot.problems
    ]
    since = min(one.started for one in alive.values())
    problems += [
        HealthProblem(
            what=f"{name}:process", since=since, reason=f"{reason}: {HUNG_REMEDY}", partial=True
        )
        for name, reason in hung.items()
    ]
    return GatewaySnapshot(
        started=since,
        channels=tuple(channels.values()),
        read=min((one.read for one in alive.values() if one.read is not None), default=None),
        later=tuple(sorted({key for one in alive.values() for key in one.later})),
        broken=any(one.broken for one in alive.values()),
        problems=tuple(sorted(problems, key=lambda one: one.since)),
        is_shared=True,
    )


async def judge_gateway(
    location: StoreLocation, channels: Collection[ChannelName], now: datetime, name: str = ""
) -> tuple[bool, list[str]]:
    """Return whether the gateway that uses this store does its work, and one line each: what keeps
    it, else what is up; what it lacks. `channels`: those of the configuration.

    `name`: of one of its processes.
    """
    store = local_path(location)
    state = await find_gateway_state(store, name)
    bad, less = list[str](), list[str]()
    try:
        async with await Store.open_readonly(location) as reader:
            growth = await reader.growth(now)
        storage = growth.describe(now, shutil.disk_usage(store.parent).free)
        less.append(f"the store has {storage}")
    except StoreError as error:
        bad.append(str(error))
    if state.kind == "hangs":
        return False, [f"{state.reason}: {HUNG_REMEDY}"]
    if state.snapshot is None:
        whom = f"process named {name}" if name else "gateway"
        killed = ": the last one was killed or crashed" if state.kind == "died" else ""
        why = f" ({bad[0]})" if bad else ""
        return False, [f"no {whom} is running with the store {store}{killed}{why}"]
    known = {one.channel: one for one in state.snapshot.channels}
    for place, channel in enumerate(channels):
        if (one := known.get(channel)) is None or one.state == "connecting":
            bad.insert(place, f"{channel} has not connected yet")
        elif one.state != "up":
            bad.insert(place, f"{channel} is {one.state}: {one.reason}")
    problems = state.snapshot.problems
    bad = [*(describe_problem(one) for one in problems if not one.partial), *bad]
    less = [*(describe_problem(one) for one in problems if one.partial), *less]
    return not bad, [*(bad or [f"{one} is up" for one in channels]), *less]


STORE_OUTAGE_TOLD_S: Final = 10.0
"""Seconds after which owners are told of an outage of the log while it lasts; of a shorter one
afterwards."""
STORE_FAILED_S: Final = 5.0
"""Seconds in which owners are told, before the process ends, that the log cannot be used."""
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
        "A model that follows instructions better, or a higher `tools.max_rounds`, may help."
    ),
    "nothing": N_(
        "Its answers were empty. If that happens again, choose another model in `llm.models`."
    ),
    "cut": N_("Raise `max_output_tokens` of this model in `llm.models`, or lower its `effort`."),
    "too_long": N_(
        "If the message was not long, correct `context_tokens` in `llm.models`, or turn off tools "
        "that you do not need."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    what: str
    reason: str
    notice: Callable[[Address | None], str] | None = None
    """What owners are told. None: nothing."""
    since: datetime | None = None
    """None: since it was found."""


def _render(text: str, _to: Address | None, **values: str) -> str:
    """Return a notice to owners."""
    return _(text).format(**values)


def _render_failure(
    text: str, turn: TurnRecord, where: str, fallbacks: str, _to: Address | None
) -> str:
    tried = FALLBACK_REMEDIES.get(turn.failure, "") if fallbacks else ""
    remedy = _(tried).format(models=fallbacks) if tried else _(FAILURE_REMEDIES[turn.failure])
    return _(text).format(agent=turn.agent, room=where, reason=turn.reason, remedy=remedy)


class OutageMonitor:
    """Reports outages of rooms and models of one gateway.

    It hears of the turns that fail; while something is wrong, of all.
    """

    def __init__(
        self,
        live: LiveSettings,
        channels: Mapping[ChannelName, Channel],
        stats: GatewayStats,
        clock: Clock,
        *,
        outbox: "Outbox",
        notices: "Notices",
        titles: "PlaceTitles",
        mute: "MutePlaces",
        store: Store,
        room_language: Callable[[Address], str | None],
        pool: "ModelPool | None" = None,
        cluster: Cluster | None = None,
    ) -> None:
        """`room_language`: returns the tag of the language that is set for a place. None: none is
        set.

        `pool`: the models in use. None: there are none. `cluster`: of several processes, which all
        see what is wrong, the one that cares for the store tells owners. None: this is the only
        one.
        """
        self._cluster = cluster or Cluster()
        self._pool = pool
        self._room_language = room_language
        self._store = store
        self._live_settings, self._channels, self._stats, self._clock = live, channels, stats, clock
        self._outbox, self._notices, self._titles, self._mute = outbox, notices, titles, mute
        self._store_outage: tuple[StoreOutage, dict[ChannelName, int]] | None = None
        """The outage of the log, and what each channel had dropped before it. None: the log can be
        written."""
        self._is_store_outage_told = False
        """True if owners were told of the outage while it lasts."""
        self._waiting: dict[str, set[ConversationId | None]] = {}
        """By agent, the conversations in which somebody waits for a model."""
        self._unanswered = set[str]()
        """Agents that no model answered, and owners may have been told of it."""
        self._hears_all = False
        store.subscribe(self._on_links, ConnectionChanged, own=True)
        self._unsubscribe = store.subscribe(self._on_ended, TurnRecord, where=has_trouble)
        self.store_given_up = asyncio.Event()
        """Set once the log could not be written for `store.exit_after`."""

    def on_reloaded(self, result: ReloadResult) -> None:
        """Record a reload of the configuration."""
        is_broken = bool(result.problems or result.read_error)
        self._stats.record_reload(result.after_restart, self._clock.now(), broken=is_broken)

    def on_store_outage(self, outage: StoreOutage | None) -> None:
        """Report that the log cannot be written, or that it can again. Meanwhile nothing is
        received or posted.
        """
        dropped = {
            name: one.dropped_count
            for name, one in self._channels.items()
            if isinstance(one, CountsDropped)
        }
        if outage is not None:
            logger.error(
                "the log cannot be written: %s; it is tried again and again", outage.reason
            )
            self._stats.report_problem(
                "store", f"the log cannot be written: {outage.reason}", outage.since
            )
            self._store_outage = outage, self._store_outage[1] if self._store_outage else dropped
            return
        self._stats.clear_problem("store")
        if self._store_outage is None:
            return
        (began, before), self._store_outage = self._store_outage, None
        losses = {
            name: count - before.get(name, 0)
            for name, count in dropped.items()
            if count > before.get(name, 0)
        }
        # Of a short one in which nothing was lost the cause is told once a day.
        cause = began.since.isoformat() if self._is_store_outage_told or losses else began.reason
        self._is_store_outage_told = False
        until = self._clock.now()

        def text(_to: Address | None) -> str:
            texts = [
                _(
                    "I could not write my log from {since} to {until} ({reason}). In that time I "
                    "read and answered nothing; now I work again."
                ).format(
                    since=format_time(began.since), until=format_time(until), reason=began.reason
                )
            ]
            for name, lost in losses.items():
                more = ngettext(
                    "I lost {count} message on {channel} in that time.",
                    "I lost {count} messages on {channel} in that time.",
                    lost,
                )
                texts.append(more.format(count=lost, channel=name))
            return " ".join(texts)

        if losses or self._cluster.holds(UPKEEP):
            self._notices.tell(f"store:{cause}", text)

    async def tell_store_failed(self, error: StoreError) -> None:
        """Tell owners, past the log, that the process ends because its log cannot be used. Returns
        in bounded time.
        """
        reason = str(error)
        told = self._notices.tell(
            "store:failed",
            lambda _to: _(
                "I stop now, because my log cannot be used: {reason}. Until that is repaired I "
                "read and answer nothing."
            ).format(reason=reason),
            "unrecorded",
        )
        await asyncio.wait([told], timeout=STORE_FAILED_S)

    async def check_store(self) -> None:
        """Look after the store's files, tell owners of an outage that lasts, and give the log up in
        time.
        """
        self._store.check_files()
        if self._store_outage is None:
            return
        outage = self._store_outage[0]
        age_s = (self._clock.now() - outage.since).total_seconds()
        if age_s >= STORE_OUTAGE_TOLD_S and not self._is_store_outage_told:
            self._is_store_outage_told = True
            self._notices.tell(
                "store:outage",
                lambda _to: _(
                    "I cannot write my log: {reason}. Until that works again, I read and answer "
                    "nothing. I keep trying, and tell you when it works."
                ).format(reason=outage.reason),
                "unrecorded",
            )
        limit_s = self._live_settings.settings.store.exit_after
        if limit_s is not None and age_s >= limit_s:
            self.store_given_up.set()

    async def look(self) -> None:
        """Look for what does not work, tell owners of it, and forget what is over. Call it every
        few seconds.
        """
        await self.check_store()
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
        for mute in self._mute.places.values():
            if mute.at.channel in self._channels and self._cluster.holds(
                channel_lease(mute.at.channel)
            ):
                room = self._titles.label(mute.at.conversation)
                reason = f"cannot post in {room}: {mute.reason}"
                yield _Trouble(what=f"mute:{mute.at.conversation}", reason=reason, since=mute.since)
        for model in self._pool.caches if self._pool is not None else ():
            if model.cut_prompt is not None:
                reason = "; ".join(describe_cut_prompt(model.label, *model.cut_prompt))
                yield _Trouble(what=f"window:{model.name}", reason=reason)

    def _find_channel_troubles(self, name: ChannelName, channel: Channel) -> Iterator["_Trouble"]:
        if isinstance(channel, KnowsAccountProblem) and (problem := channel.account_problem()):
            told = N_("{channel} is connected, but {reason}.")
            notice = partial(_render, told, channel=name, reason=problem)
            yield _Trouble(what=f"account:{name}", reason=f"{name}: {problem}", notice=notice)
        if count := self._outbox.count_absent(name):
            whom = "1 person is" if count == 1 else f"{count} people are"
            yield _Trouble(
                what=f"absent:{name}", reason=f"{name}: posts wait until {whom} online there"
            )
        if isinstance(channel, KnowsJoinRefusals):
            for place in self._configured_rooms(name):
                if why := channel.join_refusal(place):
                    at = Address(channel=name, room=place).conversation
                    room, told = self._titles.label(at), N_("I cannot enter {room}: {reason}.")
                    notice = partial(_render, told, room=room, reason=why)
                    yield _Trouble(
                        what=f"room:{at}", reason=f"cannot enter {room}: {why}", notice=notice
                    )

    def _on_links(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if isinstance(entry.fact, ConnectionChanged):
                self._stats.record_link(entry.fact, entry.at)

    def _on_ended(self, entries: Sequence[LogEntry]) -> None:
        """Update the state of the models from the turns that ended."""
        for entry in entries:
            if isinstance(entry.fact, TurnRecord):
                where = (
                    self._titles.label(entry.conversation) if entry.conversation is not None else ""
                )
                waiting = self._waiting.setdefault(entry.fact.agent, set())
                if (
                    entry.fact.failure
                    and entry.fact.outcome == "interrupted"
                    and not entry.fact.autonomous
                ):
                    waiting.add(entry.conversation)
                else:
                    waiting.discard(entry.conversation)
                self._on_turn_ended(entry.fact, where, is_over=not waiting)
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
            told = N_("{agent} gave no answer in {room}: {reason}. {remedy}")
            if turn.outcome != "failed":
                told = N_("{agent} gave half an answer in {room}: {reason}. {remedy}")
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

    def _configured_rooms(self, name: ChannelName) -> Sequence[RoomId]:
        config = self._live_settings.settings.channels.get(name)
        return [RoomId(room) for room in getattr(config, "rooms", ()) if room != "*"]
