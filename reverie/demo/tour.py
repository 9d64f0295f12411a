"""The tour: seven steps that show a real gateway. Each message that is shown was said over IRC, and
what is told of the log was read from it.
"""

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.facts import PartSendEnded
from gateway.store.overview import EventOutcome, OverviewReader
from reverie.demo.stage import BOT, ROOM, Person, Stage
from reverie.demo.stand_in import StandIn
from reverie.demo.terminal import Terminal

STEP_S: Final = 30.0
"""Longest wait in seconds for an answer of the stand-in."""
_DONE: Final = {EventOutcome.ANSWERED, EventOutcome.COMMAND}
_NOT_MEANT: Final = {EventOutcome.NOTED, EventOutcome.REFUSED}


class StepFailed(Exception):
    """A step did not show what it should, though the proposed line was said."""


class Tour:
    """Shows the steps. May be shown again: each time another stranger comes."""

    def __init__(
        self,
        stage: Stage,
        stand_in: StandIn,
        you: Person,
        terminal: Terminal,
        type_line: Callable[[str], Awaitable[str]],
    ) -> None:
        """`type_line(proposal)` returns the line that the person says."""
        self._stage, self._stand_in, self._you = stage, stand_in, you
        self._terminal, self._type_line = terminal, type_line
        self._strangers = itertools.chain(
            ("mia", "noah", "zoe"), (f"guest{n}" for n in itertools.count(1))
        )

    async def show(self) -> None:
        """Show all steps. Raises StepFailed."""
        steps = (
            ("A mention is answered", self._mention),
            ("A reminder rings", self._reminder),
            ("A stranger asks to be let in", self._stranger),
            ("A tool call asks you", self._approval),
            ("The process is killed, and nothing is lost", self._kill),
            ("`!why` tells what happened", self._why),
            ("The dashboard shows all of it", self._dashboard),
        )
        for number, (title, step) in enumerate(steps, 1):
            self._terminal.show_head(f"{number}/{len(steps)}  {title}")
            try:
                await step()
            except TimeoutError:
                raise StepFailed(f"nothing came within {STEP_S:.0f} s in step {number}") from None

    async def _mention(self) -> None:
        self._terminal.tell(
            f"You are in the room {ROOM} of an IRC server on this machine. {BOT} is a bot there, "
            "and you are its owner. Enter sends what stands in brackets; or write something else."
        )
        await self._say(f"{BOT}: hello", f"^{BOT}: ")

    async def _reminder(self) -> None:
        self._terminal.tell("It is kept on disk, so it also rings after a restart.")
        since = len(self._you.heard)
        await self._say(f"{BOT}: remind me in 3 seconds to drink tea", f"^{BOT}: Reminder ")
        await self._hear(f"^{BOT}: Time to ", since)

    async def _stranger(self) -> None:
        name = next(self._strangers)
        self._terminal.tell(
            f"{name.capitalize()} comes to the server and writes to {BOT} in private. No model is "
            "asked until you agree."
        )
        self._guest = guest = await self._stage.enter(name, self._overhear)
        since = len(self._you.heard)
        self._say_as_guest("Hello, may I talk to you?", BOT)
        code = await self._hear(r"!pair approve (\w+)", since)
        await self._say(f"!pair approve {code[1]}", f"^{BOT}: Approved: ")
        await guest.hear(f"^{BOT}: Of course", 0, STEP_S)

    async def _approval(self) -> None:
        name = self._guest.name
        self._terminal.tell(
            f"{name.capitalize()} is a member now, and may have some tools used, but not the one "
            "that changes the topic."
        )
        self._guest.join()
        since = len(self._you.heard)
        self._say_as_guest(f"{BOT}: set the topic to: tea at five")
        await self._hear(f"^{BOT}: ", since)
        self._terminal.tell(
            f"You may. But the words are {name.capitalize()}'s and not yours, so the call waits "
            "until you approve exactly this one."
        )
        since = len(self._you.heard)
        asked = await self._say(f"{BOT}: set the topic as {name} asked", r"`!approve (\w+)`")
        await self._say(f"!approve {asked[1]}", f"^{BOT}: Approved")
        await self._hear(f"^{BOT} topic: ", since)
        await self._hear(f"^{BOT}: Done", since)
        self._terminal.tell(f"The IRC server says that {BOT} has changed the topic.")

    async def _kill(self) -> None:
        self._terminal.tell(
            "The model takes its time for the next answer. Meanwhile the gateway gets `kill -9`."
        )
        self._stand_in.hold()
        since, question = len(self._you.heard), await self._type_line(f"{BOT}: what is 6 times 7?")
        self._you.say(question)
        async with asyncio.timeout(STEP_S):
            await self._stand_in.held.wait()
        await self._stage.kill()
        self._terminal.tell("The model had been asked. The gateway and its process group are dead.")
        pid = await self._stage.start()
        self._terminal.tell(f"Started again, as process {pid}.")
        await self._hear(f"^{BOT}: ", since)
        self._terminal.tell(await self._describe_log())

    async def _describe_log(self) -> str:
        async with await OverviewReader.open(self._stage.store) as reader:
            rows = await reader.notifications(1_000)
            parts = await reader.entries(kinds=["part"])
        meant = [row for row in rows if row.fate not in _NOT_MEANT]
        sent = Counter(
            (one.fact.post, one.fact.part)
            for one in parts
            if isinstance(one.fact, PartSendEnded) and one.fact.state == "sent"
        )
        lost = sum(row.fate not in _DONE for row in meant)
        doubled = sum(sent.values()) - len(sent)
        return (
            f"The log so far: {len(meant)} messages to {BOT}, {lost} lost; {len(sent)} lines of "
            f"{BOT}, {doubled} doubled."
        )

    async def _why(self) -> None:
        self._terminal.tell("Each message and each decision about it is in the log.")
        told = await self._say("!why", r"`!why (\d+)`")
        await self._say(f"!why {told[1]}", f"^{BOT}: ")

    async def _dashboard(self) -> None:
        self._terminal.tell("Open it in a browser; the part after # is its key.")
        self._terminal.show_link(self._stage.dashboard)

    def _overhear(self, sender: str, text: str, private: str) -> None:
        """Show what a stranger reads alone; the rest, you read yourself."""
        if private:
            self._terminal.show_message(sender, text, private)

    def _say_as_guest(self, text: str, to: str = ROOM) -> None:
        if to != ROOM:
            self._terminal.show_message(self._guest.name, text, to)
        self._guest.say(text, to)

    async def _hear(self, pattern: str, since: int) -> re.Match[str]:
        return await self._you.hear(pattern, since, STEP_S)

    async def _say(self, proposal: str, pattern: str) -> re.Match[str]:
        """Have the person say something until the bot answers with a match."""
        while True:
            since, typed = len(self._you.heard), await self._type_line(proposal)
            self._you.say(typed)
            if typed == proposal:
                return await self._hear(pattern, since)
            await self._hear(f"^{BOT}: ", since)
            if found := self._you.find(pattern, since):
                return found
            self._terminal.tell("To go on, press Enter; /skip leaves the tour.")
