"""`reverie dmn status|pause|wake|sleep|quiet|rest|off|presence|debug`: the Default Mode Networks, seen and steered.

Asks the running gateway. Where none runs, `status` and `debug` tell what was saved, and the others change that, so that
it holds from the next start on. Exit codes: 0 done, 1 it was not carried out (the answer says why), 2 nothing could be
done (the reason stands on stderr).
"""

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from zoneinfo import ZoneInfo

from agent import signals
from agent.signals import PresenceLevel
from gateway import mindctl, policies
from gateway.cli_reading import ResolveSettings, current_user, print_answer, report_failure
from gateway.clock import SystemClock
from gateway.control import ControlError, GatewayNotRunning, SocketPathTooLong, send_control_request, socket_path
from gateway.mindctl import SavedDmn
from gateway.notifications import URGENCY_WORDS
from gateway.ops.health import STALE_HEARTBEAT_S, read_heartbeat
from gateway.ops.report import format_duration
from gateway.orders import ControlResponse, DmnAction, DmnRequest
from gateway.records import NORMAL, inner_conversation
from gateway.restored import load_dmn_states
from gateway.settings import Settings
from gateway.store import NewEntry, Store, StoreError, StoreMissing, StoreReader

DMN_HELP: dict[DmnAction, str] = {
    "status": "what each agent is doing, and what it may still do today",
    "pause": "no autonomous turns, until an owner or admin speaks to the agent, or it is woken",
    "wake": "end rest, pause, quiet and off",
    "sleep": "rest until a time, or until it is woken",
    "quiet": "start nothing below urgent for a time (default 1h)",
    "rest": "leave off what it is doing by itself",
    "off": "no autonomous turns, also after a restart, until it is woken",
    "presence": "how near the people are, whatever their words show, until auto or the end of the process",
    "debug": "what would start next, and what it is blocked by",
}


def add_dmn_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `dmn` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("dmn", help="see and steer what the agents do by themselves")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for what in get_args(DmnAction):
        made: argparse.ArgumentParser = commands.add_parser(what, help=DMN_HELP[what], description=DMN_HELP[what])
        if what in ("sleep", "quiet"):
            text = "how long (45m, 2h), or until when (until 07:00, in dmn.timezone)"
            made.add_argument("when", nargs="*", metavar="WHEN", help=text)
        if what == "sleep":
            text = "a type of notifications that wakes it, too, e.g. telegram.main.room (repeatable)"
            made.add_argument("--on", action="append", default=[], metavar="TYPE", help=text)
        if what == "presence":
            made.add_argument("level", choices=(*get_args(PresenceLevel), "auto"), help="auto: as their words show")
        else:
            made.add_argument("--agent", metavar="ID", help="this one only (default: all)")
        made.add_argument("--json", action="store_true", help="for programs")
        made.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        made.set_defaults(handler=dmn_command, resolve_settings=resolve_settings)


def dmn_command(args: argparse.Namespace) -> int:
    """Handler of all of them."""
    settings: Settings = args.resolve_settings(args.config)
    now = datetime.now(UTC)
    try:
        order = DmnRequest(
            what=args.what,
            by=f"{current_user()} at the command line",
            agent=getattr(args, "agent", None),
            until=mindctl.parse_until(" ".join(getattr(args, "when", ())), now, ZoneInfo(settings.dmn.timezone)),
            on=tuple(getattr(args, "on", ())),
            level=getattr(args, "level", "auto"),
        )
        answer = asyncio.run(_send_dmn_order(settings, order, now))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return report_failure("dmn", error)
    return print_answer(answer, as_json=args.json)


async def _send_dmn_order(settings: Settings, order: DmnRequest, now: datetime) -> ControlResponse:
    path = settings.store.path
    try:
        return await send_control_request(socket_path(path), order)
    except (GatewayNotRunning, SocketPathTooLong):
        pass
    if order.what == "presence":
        return ControlResponse(
            ok=False, lines=("no gateway is running, and who is near is told to a running one: start it",)
        )
    if order.what in mindctl.QUERY_ORDERS:
        return await _read_dmn_states(settings, order, now)
    return await _apply_dmn_order(settings, order, now)


async def _read_dmn_states(settings: Settings, order: DmnRequest, now: datetime) -> ControlResponse:
    """As the store has it. What waits is not part of it: the next start notices that anew."""
    path = settings.store.path
    try:
        async with await Store.open_readonly(path) as reader:
            minds = await _load_dmn_states(settings, reader, now)
            waits = [f"{place} ({URGENCY_WORDS[urgency]})" for place, urgency in await reader.due_conversations(NORMAL)]
    except StoreMissing:
        minds, waits = await _load_dmn_states(settings, None, now), []
    answer, _ = mindctl.answer_order(order, minds, now)
    sign, head = read_heartbeat(path, now), f"no gateway is running with the store {path}; this was saved"
    if sign is not None and sign.age_s < STALE_HEARTBEAT_S:  # it was killed just now, or it could not make its socket
        head = f"no gateway answers, though one gave a sign of life {format_duration(sign.age_s)} ago; this was saved"
    unread = [f"unread, for the next start: {', '.join(waits)}"] if waits else []
    lines = (head, *answer.lines, *unread) if answer.ok else answer.lines
    return answer.model_copy(update={"lines": lines})


async def _apply_dmn_order(settings: Settings, order: DmnRequest, now: datetime) -> ControlResponse:
    """Change what was saved, by the same function as a running gateway, under the store's lock."""
    async with await Store.open(settings.store.path, SystemClock()) as store:
        minds = {mind.agent: mind for mind in await _load_dmn_states(settings, store, now)}
        answer, told = mindctl.answer_order(order, list(minds.values()), now)
        entries = list[NewEntry]()
        for agent, directive, directed in told:
            record, saved = mindctl.build_directive_facts(minds[agent], directive, directed)
            entries += [
                NewEntry(fact=record, at=now, conversation=inner_conversation(agent)),
                NewEntry(fact=saved, at=now),
            ]
        await store.append(entries)
    if not told:
        return answer
    return answer.model_copy(update={"lines": (*answer.lines, "no gateway is running: this holds from its next start")})


async def _load_dmn_states(settings: Settings, reader: StoreReader | None, now: datetime) -> list[SavedDmn]:
    ids = [agent.id for agent in settings.agents]
    states = await load_dmn_states(reader, ids, now) if reader is not None else {}
    return [
        SavedDmn(
            agent=agent, state=states.get(agent, signals.DmnState()), policy=policies.build_dmn_policy(settings, agent)
        )
        for agent in ids
    ]
