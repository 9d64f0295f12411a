"""A world around the real program: an IRC server, a model, people who talk, and a hand that kills.

Everything but the program runs in this process, so what the people saw and what the model was asked
survives every kill. The program runs as `reverie run` does, on one store, started again right after
each kill.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from reverie.testing.servers.ircd import Client, Ircd
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from tests.kits.delivery_judge import Evidence, Shown
from tests.kits.gateway_process import Program, so

ROOMS = ("#one", "#two")
PEOPLE = {
    "ann": "#one",
    "ben": "#one",
    "cat": "#two",
    "dan": "reverie",
    "eve": "reverie",
    "fay": "reverie",
}
"""Nick -> whom they talk to: a room, or the bot in private."""
MOMENTS = ("launch", "registration", "ingest", "asked", "sending", "unconfirmed", "busy")
"""When to kill; see `World.moment`."""
LINE_TOKENS = 6
"""At most so many tokens in one line of a reply, so that it is one IRC line."""


class World(Program):
    """All of it. Use as `async with world(directory, seed) as it`."""

    def __init__(
        self, directory: Path, ircd: Ircd, model: ModelApi, seed: int, sabotage: str
    ) -> None:
        here = {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": ircd.port,
            "tls": False,
            "nick": "reverie",
            "rooms": list(ROOMS),
            "page_lines": 0,
            "flood": {
                "burst": 12,
                "per_s": 120,
            },  # so that a kill finds lines waiting to be written
        }
        super().__init__(directory, model, seed, {"irc.test": here}, sabotage=sabotage)
        self.ircd = ircd
        self.said = 0
        """Lines that were said to the bot, whether it was there or not."""
        self.talking = True
        self.kills: Counter[str] = Counter()
        model.default = self._answer

    def _answer(self, body: Json) -> Answer:
        """Each token of the newest message in exactly one line; sometimes long, sometimes slow."""
        tokens = self.tokens_of(body)
        number, roll = len(self.asked), self.random
        count = max(roll.choice((1, 1, 2, 4, 7, 12)), -(-len(tokens) // LINE_TOKENS))
        text = "\n".join(
            f"r{number}.{i + 1} {' '.join(tokens[i::count])} so much for that" for i in range(count)
        )
        return Answer(text=text, delay_s=roll.choice((0.0, 0.0, 0.02, roll.uniform(0, 0.4))))

    async def round(self) -> None:
        """Run the gateway until a random moment."""
        seen = len(self.ircd.clients)
        await self.start()
        moment = self.random.choices(MOMENTS, weights=(2, 2, 3, 4, 5, 2, 2))[0]
        await self.moment(moment, seen)
        self.kills[moment] += 1
        await self.kill()
        self.ircd.release_pongs()

    async def moment(self, name: str, clients: int) -> None:
        """Wait for it. `clients`: how many connections the server had seen before the launch."""
        within = self.random.uniform
        if name == "launch":  # anywhere from the interpreter's first step on
            await asyncio.sleep(within(0.005, 1.5))
            return
        if not await so(lambda: len(self.ircd.clients) > clients):
            return
        bot = self.ircd.clients[clients]
        if name == "registration":
            await asyncio.sleep(within(0, 0.03))
            return
        # Whatever comes first after the start would always be what the last process left.
        asked, sent = (
            len(self.asked) + self.random.randrange(3),
            len(_shown(bot)) + self.random.randrange(8),
        )
        said = self.said + 1
        match name:
            case "ingest":
                await so(lambda: self.here(bot) and self.said > said)
                await asyncio.sleep(within(0, 0.03))
            case "asked":
                await so(lambda: len(self.asked) > asked)
                await asyncio.sleep(within(0, 0.3))
            case "sending":
                await so(lambda: len(_shown(bot)) > sent)
                await asyncio.sleep(self.random.choice((0, 0, within(0, 0.004), within(0, 0.03))))
            case "unconfirmed":
                self.ircd.faults.hold_pongs = True
                await so(lambda: len(_shown(bot)) > 0)
                await asyncio.sleep(within(0, 0.1))
            case _:
                await so(lambda: self.here(bot))
                await asyncio.sleep(within(0.05, 1.5))

    def here(self, bot: Client) -> bool:
        return all(bot in self.ircd.rooms.get(room, []) for room in ROOMS)

    async def drain(self) -> None:
        """Run the gateway, let people fall silent, wait until all is dealt with; then it has to end
        well."""
        await self.start()
        assert await so(lambda: self.here(self.ircd.clients[-1]), 20)
        said = self.said
        await so(lambda: self.said > said + len(PEOPLE))
        self.talking = False
        await self.calm()
        await self.end()

    def taken_in(self) -> bool:
        return self.here(self.ircd.clients[-1])

    async def rebuild(self) -> int:
        """`reverie log rebuild`: 0 if every table matches the log."""
        return await (await self.launch("log", "rebuild", "--config", str(self.directory))).wait()

    async def evidence(self) -> Evidence:
        bots = [client for client in self.ircd.clients if client.user == "reverie"]
        return Evidence(
            entries=await self.entries(),
            wire=[part for bot in bots for part in _shown(bot)],
            asked=self.asked,
        )

    async def person(self, nick: str, target: str) -> None:
        """Talk, with a token in each line; then stay and listen."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ircd.port)
        rooms = [f"JOIN {target}"] if target.startswith("#") else []
        writer.writelines(
            f"{line}\r\n".encode() for line in (f"NICK {nick}", f"USER {nick} 0 * :{nick}", *rooms)
        )
        hearing = asyncio.create_task(_hear(reader))
        try:
            while True:
                await asyncio.sleep(self.random.uniform(0.05, 0.4))
                if not self.talking:
                    continue
                aside = target.startswith("#") and self.random.random() < 0.2
                address = "reverie: " if target.startswith("#") and not aside else ""
                writer.write(f"PRIVMSG {target} :{address}what about {self.token()}?\r\n".encode())
                self.said += not aside
        finally:
            hearing.cancel()
            writer.close()


@contextlib.asynccontextmanager
async def world(directory: Path, seed: int, sabotage: str = "") -> AsyncIterator[World]:
    """Servers up and people there; nothing that was started outlives this.

    `sabotage`: Python that the program runs before its own first step.
    """
    async with Ircd() as ircd, ModelApi() as model:
        it = World(directory, ircd, model, seed, sabotage)
        people = [asyncio.create_task(it.person(nick, target)) for nick, target in PEOPLE.items()]
        try:
            yield it
            assert not any(person.done() for person in people)
        finally:
            for person in people:
                person.cancel()
            await asyncio.gather(*people, return_exceptions=True)
            await it.close()


def _shown(bot: Client) -> list[Shown]:
    lines = list(bot.lines)
    cut = (line.split(" ", 2) for line in lines if line.startswith("PRIVMSG "))
    return [Shown(target, text.removeprefix(":")) for _, target, text in cut]


async def _hear(reader: asyncio.StreamReader) -> None:
    while await reader.read(2**16):
        pass
