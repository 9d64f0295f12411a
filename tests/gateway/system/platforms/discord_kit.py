"""A town around the gateway on Discord: the loopback Discord, a model, people who talk, and a
judge.

As `telegram_kit`: each line of a person carries a token (`t17z`), the model names each token of the
new lines once, and the judge is that of the kill test. Inside this process time goes by twenty
times as fast.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from gateway.core.clock import Clock
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from tests.channels.discord.faults_kit import Hurried
from tests.kits.delivery_judge import TOKEN, Evidence, Shown, Verdict, fair, judge
from tests.kits.gateway_process import Program

NAME = "discord.test"
HURRIED = 20


class Town(Program):
    """All of it. Use as `async with town(directory) as it`."""

    def __init__(
        self, directory: Path, api: DiscordApi, model: ModelApi, seed: int, discord: Json
    ) -> None:
        here = {
            "platform": "discord",
            "token": api.token,
            "api_url": api.api_url,
            "gateway_url": api.gateway_url,
        }
        mine = {"rooms": [api.guild], "request_timeout": 1, "typing": False}
        super().__init__(directory, model, seed, {NAME: here | mine | discord})
        self.api = api
        self.tokens: list[str] = []
        """All that were said and have to be answered."""
        self.slow_s = 0.0
        self.direct = api.world.dm(api.ben)
        model.default = self._answer

    def say(self, room: str = "", *, ago_s: float = 0.0) -> str:
        """A line with a new token to the bot, mentioning it where it has to be; the token."""
        token, room = self.token(), room or self.api.room
        direct = room == self.direct
        head = "" if direct else f"<@{self.api.bot}> "
        if not ago_s:
            self.tokens.append(token)
        self.api.says(
            room,
            self.api.ben if direct else self.api.ann,
            f"{head}what about {token}?",
            ago_s=ago_s,
        )
        return token

    def _answer(self, body: Json) -> Answer:
        tokens = self.tokens_of(body)
        text = f"r{len(self.asked)}.1 {' '.join(tokens)} so much for that"
        return Answer(text=text, delay_s=self.random.uniform(0, self.slow_s))

    @property
    def rooms(self) -> list[str]:
        return [self.api.room, self.api.other, self.direct]

    def heard(self, token: str) -> int:
        """In how many visible messages of the bot it stands."""
        return sum(
            token in TOKEN.findall(text)
            for room in self.api.world.channels
            for text in self.api.texts(room)
        )

    async def answered(self, *tokens: str, limit_s: float = 60.0) -> None:
        """Return once people can read each."""
        await self.api.until(lambda: all(self.heard(token) for token in tokens), limit_s)

    def clock(self) -> Clock:
        return Hurried(HURRIED)

    async def verdict(self) -> Verdict:
        """All that was said against all that happened."""
        wire = [
            Shown(place.get("parent_id") or room, text)  # as `Address.room`
            for room, place in self.api.world.channels.items()
            for text in self.api.texts(room)
        ]
        return judge(Evidence(entries=await self.entries(), wire=wire, asked=self.asked))

    async def fair(self) -> Verdict:
        """Each line is answered once or recorded as uncertain; nothing is lost or doubled. Else
        AssertionError."""
        found = await self.verdict()
        lost = [token for token in self.tokens if not self.heard(token)]
        assert found.accepted == len(self.tokens), f"{len(self.tokens)} were said; unseen: {lost}"
        fair(found)
        assert self.api.offences == []
        for kept in (self.store, Path(f"{self.store}-wal")):
            assert not kept.exists() or self.api.token.encode() not in kept.read_bytes()
        return found


@contextlib.asynccontextmanager
async def town(
    directory: Path, seed: int = 1, options: Options | None = None, **discord: Any
) -> AsyncIterator[Town]:
    """Servers up; nothing that was started outlives this. `discord`: changes to the channel's
    settings."""
    async with DiscordApi(options) as api, ModelApi() as model:
        it = Town(directory, api, model, seed, discord)
        try:
            yield it
        finally:
            await it.close()
