"""kill -9 at random points leaves nobody without an answer who writes to the bot on Discord for the first time.

Discord lists no direct chats: only the session that ran when somebody wrote first knows of theirs. People who are new
each time write while the real program is started and killed again and again, and while sessions cannot be resumed for a
moment. Of a session that is lost nobody learns until its people write again; then all that they said is answered.
"""

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.core.events import ChannelName
from gateway.store import Store
from tests.kits.delivery_judge import TOKEN
from tests.kits.gateway_process import Program, so
from tests.servers.discord_api import DiscordApi
from tests.servers.model_api import Answer, Json, ModelApi

SPEED = 20.0
FAST = f"""
import asyncio, time
from datetime import UTC, datetime
import gateway.app

class Fast:
    def now(self):
        return datetime.now(UTC)

    def monotonic(self):
        return time.monotonic() * {SPEED}

    async def sleep(self, delay_s):
        await asyncio.sleep(max(0.0, delay_s) / {SPEED})

gateway.app.SystemClock = Fast
"""
"""What the program runs before its own first step: back-off without the waiting. Ids of Discord tell the real time."""
PATIENCE_S = 120.0
MOMENTS = ("launch", "identified", "resumed", "asked", "busy")
"""When to kill; see `Newcomers.round`."""


class Newcomers(Program):
    """People who are new to the bot write to it. Use as `async with newcomers(directory, seed) as it`."""

    def __init__(self, directory: Path, discord: DiscordApi, model: ModelApi, seed: int) -> None:
        channel: Json = {
            "platform": "discord",
            "token": discord.token,
            "api_url": discord.api_url,
            "gateway_url": discord.gateway_url,
            "typing": False,
        }
        super().__init__(directory, model, seed, {"discord.test": channel}, sabotage=FAST)
        self.discord = discord
        self.said: dict[str, list[str]] = defaultdict(list)
        """Person -> the tokens of their lines."""
        self.sessions_before: dict[str, int] = {}
        """Token -> how many sessions had begun when it was said."""
        self.lost: set[str] = set()
        """Tokens that may have been said into a session that was lost."""
        self.is_lost = False
        """Whether no session is known to be stored since one was lost."""
        self.is_talking = True
        model.default = self._answer

    def _answer(self, body: Json) -> Answer:
        return Answer(text=f"{' '.join(self.tokens_of(body))} so much for that", delay_s=self.random.choice((0.0, 0.1)))

    def says(self, user: str) -> None:
        self.said[user].append(token := self.token())
        self.sessions_before[token] = len(self.discord.sessions)
        self.discord.says(self.discord.world.dm(user), user, f"what about {token}?")

    async def talk(self) -> None:
        """New people write one line each; some of them another one later."""
        roll = random.Random(self.random.random())
        while True:
            await asyncio.sleep(roll.uniform(0.05, 0.6))
            if self.is_talking and self.discord.sessions:  # before the first session nobody can know of them
                again = roll.random() < 0.2 and bool(self.said)
                self.says(roll.choice(list(self.said)) if again else self.discord.world.add_user("somebody"))

    async def round(self, moment: str, fault: str) -> None:
        """Run the gateway until a moment; then kill it."""
        faults, api, roll = self.discord.faults, self.discord, self.random
        match fault:
            case "refused":
                faults.refused_resumes, faults.refusal = roll.randint(1, 2), roll.choice((0, 4000, 4008))
            case "cut":
                faults.cut_replays = roll.randint(1, 2)
            case "invalid for now":
                faults.invalid_sessions, faults.resumable = 1, True
            case "lost":
                api.forget()
        asked, seen = len(self.asked), (len(api.identifies), len(api.resumes))
        await self.start()
        match moment:
            case "launch":
                await asyncio.sleep(roll.uniform(0.3, 1.5))
            case "identified":
                await so(lambda: len(api.identifies) > seen[0], PATIENCE_S)
            case "resumed":
                await so(lambda: len(api.resumes) > seen[1], PATIENCE_S)
            case "asked":
                await so(lambda: len(self.asked) > asked, PATIENCE_S)
            case _:
                await so(lambda: len(self.asked) > asked + 5, PATIENCE_S)
        await asyncio.sleep(roll.choice((0.0, roll.uniform(0, 0.02), roll.uniform(0, 0.3))))
        self.is_lost = self.is_lost or fault == "lost"
        await self.note_lost()
        await self.kill()
        faults.refused_resumes = faults.cut_replays = faults.invalid_sessions = 0

    async def note_lost(self) -> None:
        """If a session was lost and one that Discord knows is stored now: note what was said before that one began."""
        if not self.is_lost:
            return
        async with await Store.open_readonly(self.location) as reader:
            stored = await reader.saved_cursor(ChannelName("discord.test")) or ""
        known = [at for at, one in enumerate(self.discord.sessions) if one.valid and f'"{one.id}"' in stored]
        if known:
            self.lost |= {token for token in self.unanswered() if self.sessions_before[token] <= known[0]}
            self.is_lost = False

    def answers(self) -> list[str]:
        """Every token in what people were shown, as often as it was."""
        return [token for user in self.said for text in self.shown(user) for token in TOKEN.findall(text)]

    def shown(self, user: str) -> list[str]:
        return self.discord.texts(self.discord.world.dm(user))

    def unanswered(self) -> set[str]:
        return {token for tokens in self.said.values() for token in tokens}.difference(self.answers())

    async def drain(self) -> None:
        """Run the gateway until nobody waits but those whose session was lost; then have these write again."""
        self.is_talking = True
        await self.start()
        assert await so(lambda: bool(self.discord.live), PATIENCE_S), self.log[-3000:]
        self.is_talking = False
        while self.is_lost:
            await self.note_lost()
            await asyncio.sleep(0.05)
        await self.answered(self.lost)
        waiting = self.unanswered()
        for user in [user for user, tokens in self.said.items() if waiting.intersection(tokens)]:
            self.says(user)
        await self.answered(set())
        await self.calm()
        await self.end()

    async def answered(self, but: set[str]) -> None:
        """Wait until all but these are answered, for as long as it goes on."""
        last_s, left = time.monotonic(), self.unanswered()
        while left - but:
            await asyncio.sleep(0.2)  # the servers run in this process, and need its time
            left, before = self.unanswered(), left
            last_s = time.monotonic() if left != before else last_s
            assert time.monotonic() - last_s < PATIENCE_S, self._explain()

    def _explain(self) -> str:
        missing = self.unanswered() - self.lost or self.unanswered()
        return f"{len(missing)} of {sum(map(len, self.said.values()))} were never answered: {sorted(missing)}"


@contextlib.asynccontextmanager
async def newcomers(directory: Path, seed: int) -> AsyncIterator[Newcomers]:
    """Servers up and people there; nothing that was started outlives this."""
    async with DiscordApi() as discord, ModelApi() as model:
        it = Newcomers(directory, discord, model, seed)
        talking = asyncio.create_task(it.talk())
        try:
            yield it
            assert not talking.done()
        finally:
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
            await it.close()


async def _prove(directory: Path, rounds: list[tuple[str, str]], seed: int) -> None:
    async with newcomers(directory, seed) as it:
        for moment, fault in rounds:
            await it.round(moment, fault)
        await it.drain()
        answers = it.answers()
        print(f"\n{len(rounds)} kills, {len(answers)} lines, {len(it.lost)} perhaps lost with their session")
        assert len(answers) == len(set(answers))
        assert not it.discord.offences
        assert "Traceback" not in it.log


def test_first_contacts_of_sessions_that_can_be_resumed_are_answered(tmp_path: Path) -> None:
    rounds = [("asked", ""), ("resumed", ""), ("identified", "cut"), ("asked", "refused"), ("busy", "")]
    asyncio.run(_prove(tmp_path, rounds, seed=1))


def test_first_contacts_of_a_lost_session_are_answered_once_their_people_write_again(tmp_path: Path) -> None:
    asyncio.run(_prove(tmp_path, [("asked", ""), ("identified", "lost"), ("asked", "")], seed=2))


@pytest.mark.soak
def test_first_contacts_survive_eighty_kills(tmp_path: Path) -> None:
    roll = random.Random(3)
    faults = ("", "", "refused", "cut", "invalid for now", "lost")
    rounds = [("asked", ""), *((roll.choice(MOMENTS), roll.choice(faults)) for _ in range(79))]
    asyncio.run(_prove(tmp_path, rounds, seed=3))
