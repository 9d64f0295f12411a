"""`reverie context new|retry|rewind|compact CONVERSATION`: what an agent sees of a conversation, changed from outside.

Asks the running gateway. Where none runs, the log is written by the same function, so that it holds from the next start
on; only `compact` needs a running one, whose model may be asked. Exit codes: 0 done, 1 it was not carried out (the
answer says why), 2 nothing could be done (the reason stands on stderr).
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from gateway.cli_reading import ResolveSettings, answered, refused, user
from gateway.clock import SystemClock
from gateway.control import ControlError, NotRunning, PathTooLong, ask, socket_path
from gateway.events import ConversationId
from gateway.orders import Answer, ContextOrder
from gateway.rewinding import MOST_EXCHANGES, What, counted
from gateway.settings import Settings
from gateway.store import Store, StoreError

HELP: dict[What, str] = {
    "new": "begin afresh: nothing of what was said there until now is seen any more",
    "retry": "answer once more what was answered last there",
    "rewind": "take back the newest exchanges there",
    "compact": "make what is seen of it smaller, now",
}


def add_parser(subparsers: Any, resolve_settings: ResolveSettings) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `context` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    parser = subparsers.add_parser("context", help="change what an agent sees of a conversation")
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for what, text in HELP.items():
        made: argparse.ArgumentParser = commands.add_parser(what, help=text, description=text)
        made.add_argument("conversation", metavar="CONVERSATION", help="as the log has it, e.g. irc.libera/#python")
        if what == "rewind":
            made.add_argument("count", nargs="?", default="1", metavar="N", help="how many (default 1)")
        made.add_argument("--config", type=Path, required=True, metavar="DIR", help="the configuration directory")
        made.set_defaults(handler=context_command, resolve_settings=resolve_settings)


def context_command(args: argparse.Namespace) -> int:
    """Handler of all of them."""
    settings: Settings = args.resolve_settings(args.config)
    count = counted(getattr(args, "count", "1"))
    if count is None:
        return refused("context", ValueError(f"N is a number from 1 to {MOST_EXCHANGES}"))
    place = ConversationId(args.conversation)
    try:
        if not settings.store.path.exists():  # or one would be made
            return refused("context", FileNotFoundError(f"there is no store at {settings.store.path}"))
        order = ContextOrder(what=args.what, conversation=place, by=f"{user()} at the command line", count=count)
        answer = asyncio.run(_answer(settings.store.path, order))
    except (ControlError, StoreError, OSError, ValueError) as error:
        return refused("context", error)
    return answered(answer)


async def _answer(store: Path, order: ContextOrder) -> Answer:
    try:
        return await ask(socket_path(store), order)
    except (NotRunning, PathTooLong):
        pass
    if order.what == "compact":
        return Answer(ok=False, lines=("no gateway is running, and only a running one folds: start it",))
    return await _written(store, order)


async def _written(path: Path, order: ContextOrder) -> Answer:
    """Write it down under the store's lock."""
    from gateway.acting import Rooms  # noqa: PLC0415 - the other commands start faster without it
    from gateway.rewinds import Rewinds  # noqa: PLC0415 - the same

    async with await Store.open(path, SystemClock()) as store:
        rewinds = Rewinds(
            store=store,
            clock=SystemClock(),
            doors=Rooms(),
            minds=_Nobody(),
            post=lambda _: None,
            spawn=asyncio.ensure_future,
        )
        answer = await rewinds.handle_order(order)
    if not answer.ok:
        return answer
    return answer.model_copy(update={"lines": (*answer.lines, "no gateway is running: this holds from its next start")})


class _Nobody:
    """No agent runs: the next start reads the log, and takes up what is unread."""

    def forget_view(self, conversation: ConversationId) -> None:
        """Nothing is kept."""

    def notice(self, arrival: object) -> None:
        """The next start does."""

    async def compact(self, conversation: ConversationId) -> str:
        raise NotImplementedError(conversation)
