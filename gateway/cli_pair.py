"""`reverie pair list|approve|revoke|seed`: who may speak to the agents.

Asks the running gateway. Where none runs, it works on the store itself, so that it holds from the next start on. Exit
codes: 0 done, 1 it was not carried out (the answer says why), 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.cli_reading import ResolveSettings, current_user, print_answer, report_failure
from gateway.clock import SystemClock
from gateway.control import ControlError, GatewayNotRunning, SocketPathTooLong, send_control_request, socket_path
from gateway.events import ChannelName
from gateway.orders import ControlResponse, PairingRequest
from gateway.pairs import PairingAdmin
from gateway.roster.deskless import list_access
from gateway.roster.finding import explain_invalid_id
from gateway.settings import Settings
from gateway.store import Store, StoreError, StoreMissing


def add_pair_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `pair` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("pair", help="who may speak to the agents")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")

    def command(what: str, text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(what, help=text, description=text)
        made.add_argument("--json", action="store_true", help="for programs")
        made.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        made.set_defaults(handler=pair_command, resolve_settings=resolve_settings)
        return made

    command("list", "who asks to be let in, which rooms wait, and who was let in")
    let_in = command("approve", "let in whoever asks, or open the room that somebody asks for")
    let_in.add_argument("who", metavar="WHO", help="the code, or an id that `pair list` shows")
    let_go = command("revoke", "let somebody in no more, or make a code good no more")
    let_go.add_argument("who", metavar="WHO", help="channel:id, or the name of a request, as `pair list` shows them")
    seed = command("seed", "let somebody in who never asked")
    seed.add_argument("who", metavar="PERSON", help="channel:id, as `whoami` shows it, e.g. telegram.main:1001")
    seed.add_argument("--role", choices=("owner", "admin", "member"), default="member", help="(default: member)")


def pair_command(args: argparse.Namespace) -> int:
    """Handler of all of them."""
    settings: Settings = args.resolve_settings(args.config)
    if args.what == "seed" and (wrong := _invalid_person_reason(settings, args.who)):
        return report_failure("pair", ValueError(wrong))
    try:
        order = PairingRequest(
            what=args.what,
            by=f"{current_user()} at the command line",
            who=getattr(args, "who", ""),
            role=getattr(args, "role", "member"),
        )
        answer = asyncio.run(_send_pair_order(settings.store.path, order))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return report_failure("pair", error)
    return print_answer(answer, as_json=args.json)


def _invalid_person_reason(settings: Settings, who: str) -> str:
    """Why that is nobody by the configuration; empty: it may be somebody."""
    name = who.partition(":")[0]
    channel = settings.channels.get(ChannelName(name))
    if channel is not None:
        return explain_invalid_id(who, channel.platform)
    names = ", ".join(settings.channels) or "none"
    return f"`{who}` is nobody: there is no channel `{name}`; in channels: {names}" if ":" in who else ""


async def _send_pair_order(path: Path, order: PairingRequest) -> ControlResponse:
    try:
        return await send_control_request(socket_path(path), order)
    except (GatewayNotRunning, SocketPathTooLong):
        pass
    if order.what == "list":
        return await _list_from_store(path)
    async with await Store.open(path, SystemClock()) as store:
        answer = await PairingAdmin(store, SystemClock()).execute(order)
    if not answer.ok:
        return answer
    return answer.model_copy(update={"lines": (*answer.lines, "no gateway is running: this holds from its next start")})


async def _list_from_store(path: Path) -> ControlResponse:
    """Reads only: also where nothing may be written, and where a gateway runs that has no socket."""
    try:
        async with await Store.open_readonly(path) as reader:
            lines = await list_access(reader, datetime.now(UTC))
    except StoreMissing:
        lines = []
    return ControlResponse(ok=True, lines=tuple(lines) or ("nobody asks, and nobody was let in",))
