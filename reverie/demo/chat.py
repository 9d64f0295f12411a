"""The chat of the demo, and what starts and ends everything."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Final, Literal

from agent.models.base import ModelUnusable
from agent.models.local import EMBEDDED_LABEL, find_weights
from gateway.core.events import ConversationId
from gateway.core.facts import TurnRecord
from gateway.plugins import find_providers
from gateway.store import Store
from reverie.demo.stage import (
    ANSWER_S,
    BOT,
    CHANNEL,
    OWNER,
    ROOM,
    GatewayEnded,
    Person,
    Stage,
    choose_model,
)
from reverie.demo.stand_in import StandIn
from reverie.demo.terminal import Terminal
from reverie.demo.tour import StepFailed, Tour

DONE, FAILED = 0, 1
"""Exit codes. With `--once` the first one means that an answer came."""
PROMPT_S: Final = 2.0
"""Seconds after a line until the next one may be typed; a later answer is shown above it."""
_PREFIX: Final = "reverie-demo-"
_CHOSEN = Literal["stand-in", "embedded"]


class Left(Exception):
    """The person leaves the demo."""


class TourLeft(Exception):
    """The person leaves the tour."""


class TourWanted(Exception):
    """The person wants the tour, from its beginning."""


def run_demo(*, once: str | None, model: _CHOSEN | None, port: int, env: Mapping[str, str]) -> int:
    """Run the demo and return its exit code. `model` None: by the keys in the environment."""
    try:
        _remove_left()
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
            held = os.open(directory, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_EX)
            try:
                return asyncio.run(_run(Path(directory), once, model, port, env))
            finally:
                os.close(held)
    except (GatewayEnded, StepFailed, ModelUnusable) as error:
        sys.stdout.write(f"The demo cannot go on: {error}\n")
        return FAILED
    except FileNotFoundError as error:  # of `tempfile`: it found no directory to write into
        sys.stdout.write(f"The demo cannot start: {error.strerror}\n")
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        return DONE if once is None else FAILED


def _remove_left() -> None:
    """Remove the directories of demos that were killed: nobody holds a lock on them."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is held, or another user's, or gone meanwhile
            held = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
            finally:
                os.close(held)


async def _run(
    directory: Path, once: str | None, model: _CHOSEN | None, port: int, env: Mapping[str, str]
) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    stand_in, terminal = None, Terminal()
    provider: dict[str, object] = {"kind": "local"}
    named: dict[str, object] = {}
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(terminal.opened())
        if model == "embedded":
            find_weights()  # raises ModelUnusable
            note = f"Model: {EMBEDDED_LABEL}."
        elif model is None and (found := choose_model(env)):
            provider, named = found
            note = f"Model: {named['name']}."
        else:
            stand_in = await stack.enter_async_context(StandIn())
            provider = {"kind": "openai", "base_url": stand_in.url, "api_key": "none"}
            named, note = {"name": "stand-in"}, _describe_stand_in()
        stage = Stage(directory, provider, named)
        await stack.enter_async_context(stage.opened(port))
        you = await stage.enter(OWNER, terminal.show_message)
        chat = Chat(stage, stand_in, you, terminal)
        return await _watch(stage, chat.run(note) if once is None else chat.say_once(once, note))


async def _watch(stage: Stage, work: Coroutine[None, None, int]) -> int:
    """Return what the work returns. Raises GatewayEnded."""
    tasks = asyncio.create_task(work), asyncio.create_task(stage.watch())
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _describe_stand_in() -> str:
    *others, last = (f"{one.demo[0]}_API_KEY" for one in find_providers().values() if one.demo[0])
    return (
        "No language model answers here, but a stand-in with a few rules. Set "
        f"{', '.join(others)} or {last} to talk to a model."
    )


class Chat:
    """The person's side: lines go to the room, `/` marks words for the demo itself."""

    def __init__(
        self, stage: Stage, stand_in: StandIn | None, you: Person, terminal: Terminal
    ) -> None:
        self._stage, self._stand_in, self._you, self._terminal = stage, stand_in, you, terminal
        self._tour = stand_in and Tour(stage, stand_in, you, terminal, self._type_line)

    async def run(self, note: str) -> int:
        """Show the tour if there is a stand-in, then chat until the person leaves."""
        self._terminal.tell(
            "An IRC server, a gateway and an IRC client start on this machine, and all end with "
            f"this program. {note} /help explains, /quit or Ctrl-C ends everything."
        )
        await self._enter()
        is_touring = self._tour is not None
        if not is_touring:
            self._terminal.tell(
                f"You are in the chat room {ROOM}. {BOT} is the bot there, and you are its owner. "
                "Write to it. Its dashboard:"
            )
            self._terminal.show_link(self._stage.dashboard)
        while True:
            try:
                if is_touring and self._tour:
                    await self._tour.show()
                    self._terminal.show_head("That was the tour")
                    self._terminal.tell(
                        f"You are still in {ROOM}: write to {BOT}. /help explains, /tour shows "
                        "the tour again, /quit ends everything. `reverie setup` makes a bot of "
                        "your own."
                    )
                await self._talk()
            except TourWanted:
                is_touring = True
            except TourLeft:
                is_touring = False
            except Left:
                return DONE

    async def say_once(self, line: str, note: str) -> int:
        """Say one line, and return whether it was answered, as an exit code."""
        self._terminal.tell(note)
        await self._enter()
        self._terminal.show_message(OWNER, line)
        self._you.say(line)
        try:
            await self._you.hear(f"^{BOT}: ", 0)
        except TimeoutError:
            self._terminal.tell(f"No answer came within {ANSWER_S:.0f} s.")
            return FAILED
        async with await Store.open_readonly(self._stage.store) as log:
            room = ConversationId(f"{CHANNEL}/{ROOM}")
            turns = await log.newest_entries(1, kinds=["turn_ended"], conversation=room)
        for turn in turns:  # none: a command was answered
            if isinstance(turn.fact, TurnRecord) and turn.fact.outcome != "replied":
                self._terminal.tell(f"The model gave no answer: {turn.fact.reason}")
                return FAILED
        return DONE

    async def _enter(self) -> None:
        self._you.join()
        await self._stage.start()

    async def _talk(self) -> None:
        limit_s = PROMPT_S if self._terminal.is_interactive else ANSWER_S
        while True:
            line, since = await self._type_line(), len(self._you.heard)
            self._you.say(line)
            with contextlib.suppress(TimeoutError):
                await self._you.hear(f"^{BOT}: ", since, limit_s)

    async def _type_line(self, proposal: str = "") -> str:
        """Return a line that is for the room. Raises Left, TourLeft and TourWanted."""
        while True:
            typed = await self._terminal.ask(proposal)
            match typed and typed.lower():
                case None | "/quit" | "/exit":
                    raise Left
                case "/tour" if self._tour:
                    raise TourWanted
                case "/tour":
                    self._terminal.tell("Start `reverie demo --model stand-in` for the tour.")
                case "/skip":
                    raise TourLeft
                case "/help":
                    self._terminal.tell(self._describe_help())
                case str(word) if word.startswith("/"):
                    self._terminal.tell(
                        f"There is no {word.split()[0]} here: /help lists what there is. Commands "
                        "of the bot begin with !, as in !help."
                    )
                case "":
                    pass
                case _:
                    assert typed is not None
                    return typed

    def _describe_help(self) -> str:
        known = (
            "hello; what time is it; what is 3 + 4; remind me in 10 seconds to stretch; set the "
            "topic to: tea"
        )
        lines = (
            *(["/tour shows the tour again, /skip leaves it."] if self._tour else ()),
            "/quit ends everything, as Ctrl-C does.",
            "!help lists the commands of the bot, such as !status, !why, !intentions.",
            f"Everything else is said in {ROOM}.",
            *([f"The stand-in for a model has rules for: {known}."] if self._stand_in else ()),
            f"Dashboard: {self._stage.dashboard}",
            f"IRC programs join {ROOM} as guests: 127.0.0.1:{self._stage.server.port}, no TLS.",
            f"Configuration and log, until the end: {self._stage.directory}",
        )
        return "\n".join(lines)
