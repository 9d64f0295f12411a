"""`reverie context new|retry|rewind|compact CONVERSATION`: what an agent sees of a conversation, changed from outside.

Asks the running gateway. Where none runs, the log is written by the same function, so that it holds from the next start
on; only `compact` needs a running one, whose model may be asked. Exit codes: 0 done, 1 it was not carried out (the
answer says why), 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from gateway.cli_reading import ResolveSettings, current_user, print_answer, report_failure
from gateway.clock import SystemClock
from gateway.control import ControlError, GatewayNotRunning, SocketPathTooLong, send_control_request, socket_path
from gateway.events import ConversationId
from gateway.orders import ContextRequest, ControlResponse
from gateway.rewinding import MOST_EXCHANGES, RewindAction, parse_count
from gateway.settings import Settings
from gateway.store import Store, StoreError

CONTEXT_HELP: dict[RewindAction, str] = {
    "new": "begin afresh: nothing of what was said there until now is seen any more",
    "retry": "answer once more what was answered last there",
    "rewind": "take back the newest exchanges there",
    "compact": "make what is seen of it smaller, now",
}


def add_context_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `context` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("context", help="change what an agent sees of a conversation")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for what, text in CONTEXT_HELP.items():
        made: argparse.ArgumentParser = commands.add_parser(what, help=text, description=text)
        made.add_argument("conversation", metavar="CONVERSATION", help="as the log has it, e.g. irc.libera/#python")
        if what == "rewind":
            made.add_argument("count", nargs="?", default="1", metavar="N", help="how many (default 1)")
        made.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        made.set_defaults(handler=context_command, resolve_settings=resolve_settings)


def context_command(args: argparse.Namespace) -> int:
    """Handler of all of them."""
    settings: Settings = args.resolve_settings(args.config)
    count = parse_count(getattr(args, "count", "1"))
    if count is None:
        return report_failure("context", ValueError(f"N is a number from 1 to {MOST_EXCHANGES}"))
    place = ConversationId(args.conversation)
    try:
        if not settings.store.path.exists():  # or one would be made
            return report_failure("context", FileNotFoundError(f"there is no store at {settings.store.path}"))
        order = ContextRequest(
            what=args.what, conversation=place, by=f"{current_user()} at the command line", count=count
        )
        answer = asyncio.run(_send_context_order(settings.store.path, order))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return report_failure("context", error)
    return print_answer(answer)


async def _send_context_order(store: Path, order: ContextRequest) -> ControlResponse:
    try:
        return await send_control_request(socket_path(store), order)
    except (GatewayNotRunning, SocketPathTooLong):
        pass
    if order.what == "compact":
        return ControlResponse(ok=False, lines=("no gateway is running, and only a running one folds: start it",))
    return await _apply_context_order(store, order)


async def _apply_context_order(path: Path, order: ContextRequest) -> ControlResponse:
    """Write it down under the store's lock."""
    from gateway.acting import ConversationLocks  # noqa: PLC0415 - the other commands start faster without it
    from gateway.rewinds import Rewinder  # noqa: PLC0415 - the same

    async with await Store.open(path, SystemClock()) as store:
        rewinds = Rewinder(
            store=store,
            clock=SystemClock(),
            doors=ConversationLocks(),
            minds=_NoRunningAgents(),
            post=lambda _: None,
            spawn=asyncio.ensure_future,
        )
        answer = await rewinds.handle_order(order)
    if not answer.ok:
        return answer
    return answer.model_copy(update={"lines": (*answer.lines, "no gateway is running: this holds from its next start")})


class _NoRunningAgents:
    """No agent runs: the next start reads the log, and takes up what is unread."""

    def forget_view(self, conversation: ConversationId) -> None:
        """Nothing is kept."""

    def notice(self, arrival: object) -> None:
        """The next start does."""

    async def compact(self, conversation: ConversationId) -> str:
        raise NotImplementedError(conversation)
