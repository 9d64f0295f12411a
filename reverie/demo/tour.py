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
        """Show all steps. Raises StepFailed where nobody sits at the terminal; a person may have
        written something else, so then the next step follows.
        """
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
                missed = f"Step {number} has not ended within {STEP_S:.0f} s."
                if not self._terminal.is_interactive:
                    raise StepFailed(missed) from None
                self._terminal.tell(f"{missed} The next one follows.")

    async def _mention(self) -> None:
        self._terminal.tell(
            f"You are in the chat room {ROOM}. {BOT} is the bot there, and you are its owner. "
            "Press Enter to send the line in brackets, or write another one."
        )
        await self._say(f"{BOT}: hello", f"^{BOT}: ")

    async def _reminder(self) -> None:
        self._terminal.tell("A reminder is kept on disk: it also rings after a crash.")
        since = len(self._you.heard)
        await self._say(f"{BOT}: remind me in 3 seconds to drink tea", f"^{BOT}: I will remind you")
        await self._hear(f"^{BOT}: Time to ", since)

    async def _stranger(self) -> None:
        name = next(self._strangers)
        self._terminal.tell(
            f"{name.capitalize()}, a stranger, writes to {BOT} in private. Until you agree, the "
            "model is not asked, so strangers cost nothing."
        )
        self._guest = guest = await self._stage.enter(name, self._overhear)
        since = len(self._you.heard)
        self._say_as_guest("Hello, may I talk to you?", BOT)
        code = await self._hear(r"!pair approve (\w+)", since)
        told = await self._say(f"!pair approve {code[1]}", f"^{BOT}: (Approved: )?")
        if told[1]:
            await guest.hear(f"^{BOT}: Of course", 0, STEP_S)

    async def _approval(self) -> None:
        name = self._guest.name
        self._terminal.tell(f"{name.capitalize()} may talk now, but not change the room's topic.")
        self._guest.join()
        since = len(self._you.heard)
        self._say_as_guest(f"{BOT}: set the topic to: tea at five")
        await self._hear(f"^{BOT}: ", since)
        self._terminal.tell(
            f"You may. But these are {name.capitalize()}'s words, not yours, so {BOT} asks you to "
            "approve exactly this call."
        )
        since = len(self._you.heard)
        asked = await self._say(f"{BOT}: set the topic as {name} asked", r"`!approve (\w+)`")
        told = await self._say(f"!approve {asked[1]}", f"^{BOT}: (Approved)?")
        if told[1]:
            await self._hear(f"^{BOT} topic: ", since)
            await self._hear(f"^{BOT}: Done", since)
            self._terminal.tell(f"The IRC server confirms that {BOT} has changed the topic.")

    async def _kill(self) -> None:
        self._terminal.tell(
            "Ask something. While the model works on it, the gateway is killed with `kill -9`, "
            "which no program can notice or delay."
        )
        question, since = await self._type_line(f"{BOT}: what is 6 times 7?"), len(self._you.heard)
        with self._stand_in.holding() as held:
            self._you.say(question)
            async with asyncio.timeout(STEP_S):
                await held.wait()
        self._terminal.tell(f"Killed: process {await self._stage.kill()}.")
        self._terminal.tell(
            f"Started again: process {await self._stage.start()}. It finds the question in its log."
        )
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
            f"The log of the tour: {len(meant)} messages to {BOT}, {lost} lost; {len(sent)} lines "
            f"from {BOT}, {doubled} doubled."
        )

    async def _why(self) -> None:
        self._terminal.tell(f"Each message and each decision is in the log. {BOT} explains them.")
        told = await self._say("!why", r"`!why (\d+)`")
        await self._say(f"!why {told[1]}", f"^{BOT}: ")

    async def _dashboard(self) -> None:
        self._terminal.tell("Open this address in a browser. The part after # is the key.")
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
            self._terminal.tell("The tour goes on with Enter; /skip leaves it.")
