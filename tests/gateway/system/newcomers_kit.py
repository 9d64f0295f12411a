"""A scene with people on three platforms, told as they see it."""

import asyncio
import re
import sys
from asyncio import subprocess
from collections.abc import Callable
from typing import Final

from gateway.core.facts import Judgement
from tests.kits.gateway_process import CHECKOUT, MAIN
from tests.kits.platform_users import DISCORD, IRC, TELEGRAM, WAIT_S, Seat
from tests.kits.three_platforms import DEN, Town

PLATFORM: Final = {TELEGRAM: "Telegram", DISCORD: "Discord", IRC: "IRC"}
PLACES: Final = {
    TELEGRAM: ("private chat", "group lounge", "group den"),
    DISCORD: ("direct messages", "#general", "#other"),
    IRC: ("query", "#room", DEN),
}
"""Alone with the bot, in the room that is open, and in the one that is not yet."""


class Scene:
    """What happens, printed as it happens."""

    def __init__(self, it: Town, title: str) -> None:
        self.it = it
        self.codes: list[str] = []
        """All that were shown."""
        print(f"\n## {title}\n")

    async def writes(self, seat: Seat, text: str, says: str) -> re.Match[str]:
        """They write to the bot, and are shown that."""
        return await self._shown(seat, seat, text, lambda: seat.say(text, to_bot=True), says)

    async def uses(self, seat: Seat, command: str, says: str, **given: str) -> re.Match[str]:
        """They use a command, and are shown that."""
        name, _, sub = command.partition(" ")
        written = " ".join(
            ["!" if seat.platform == IRC else "/", command, *given.values()]
        ).replace(" ", "", 1)
        return await self._shown(seat, seat, written, lambda: seat.give(name, sub, given), says)

    async def asks_in(self, seat: Seat, says: str) -> re.Match[str]:
        """They want the bot in a room, and somebody there is shown that."""
        texts = {TELEGRAM: "(takes the bot into the group)", IRC: f"/invite reverie {DEN}"}
        read = self.it.seat(IRC, seat.name, "alone") if seat.platform == IRC else seat
        return await self._shown(
            seat, read, texts.get(seat.platform, "@reverie come in"), seat.asks_in, says
        )

    async def in_vain(self, seat: Seat, text: str) -> None:
        """They write to the bot, and are shown nothing: nobody asks the model."""
        asked, since, refused = len(self.it.model.seen), len(seat.shown()), await self._refused()
        self._line(seat, seat.name.lower(), text)
        seat.say(text, to_bot=True)
        async with asyncio.timeout(WAIT_S):
            while await self._refused() == refused:
                await asyncio.sleep(0.005)
        await self.it.delivered()
        await seat.settled()
        assert seat.shown()[since:] == []
        assert len(self.it.model.seen) == asked
        print("    (no answer)")

    async def told(self, seat: Seat, since: int, says: str) -> re.Match[str]:
        """They are shown something that they did not just ask for."""
        found = await self.it.heard(seat, since, says)
        self._bot(seat, found.string)
        return found

    async def program(self, *arguments: str) -> str:
        """The operator's command line, beside the gateway; what it says."""
        print(f"operator$ reverie {' '.join(arguments)}")
        command = [sys.executable, "-c", MAIN, *arguments, "--config", str(self.it.directory)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.PIPE, cwd=CHECKOUT
        )
        said = (await process.communicate())[0].decode().rstrip()
        assert process.returncode == 0
        print(*(f"    {line}" for line in said.splitlines()), sep="\n")
        return said

    async def again(self) -> None:
        """The gateway is stopped and started."""
        print("(the gateway is restarted)")
        await self.it.end()
        await self.it.begin()

    async def _shown(
        self, seat: Seat, read: Seat, text: str, act: Callable[[], object], says: str
    ) -> re.Match[str]:
        since = len(read.shown())
        self._line(seat, seat.name.lower(), text)
        act()
        found = await self.it.heard(read, since, says)
        self._bot(read, found.string)
        self.codes += [found["code"]] if "code" in found.groupdict() else []
        return found

    def _bot(self, seat: Seat, text: str) -> None:
        first, *rest = text.splitlines()
        self._line(seat, "reverie", first)
        print(*(f"    {line}" for line in rest), sep="\n", end="\n" if rest else "")

    def _line(self, seat: Seat, who: str, text: str) -> None:
        alone, room, den = PLACES[seat.platform]
        where = (
            alone
            if seat.direct
            else den
            if seat == self.it.seat(seat.platform, seat.name.lower(), "den")
            else room
        )
        print(f"[{PLATFORM[seat.platform]}, {where}] {who}: {text}")

    async def _refused(self) -> int:
        return sum(
            isinstance(one, Judgement) and one.fate == "refused"
            for one in await self.it.facts("judged")
        )
