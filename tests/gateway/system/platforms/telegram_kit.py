"""A town around the gateway: a Bot API, a model, people who talk, and a judge.

The gateway runs in this process (`Town.inside`) or as the real program that can be killed
(`Town.start`, `.kill`); what the people see and what the model was asked is kept here either way.
Each line of a person carries a token (`t17z`), and the model names each token of the new lines
once; the judge is that of the kill test.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from channels.telegram.render import TelegramText
from gateway.core.events import ChannelName
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.bot_api_world import Chat, Person
from reverie.testing.servers.model_api import Answer, Json, ModelApi
from tests.kits.delivery_judge import TOKEN, Evidence, Shown, Verdict, judge
from tests.kits.gateway_process import Program

NAME = ChannelName("telegram.test")
LONG_CHARS = 3000
"""Of a line of a long reply: two of them need two messages."""


class Town(Program):
    """All of it. Use as `async with town(directory) as it`."""

    def __init__(
        self,
        directory: Path,
        api: BotApi,
        model: ModelApi,
        seed: int,
        telegram: Json,
        *,
        sabotage: str = "",
    ) -> None:
        fast = {"per_chat_s": 0, "group_per_min": 1000, "overall_per_s": 1000}
        here = {
            "platform": "telegram",
            "token": api.token,
            "base_url": api.url,
            "rooms": ["*"],
            "flood": fast,
        }
        channels: Json = {NAME: here | {"poll_timeout": 2, "request_timeout": 1} | telegram}
        super().__init__(
            directory, model, seed, channels, context_tokens=100_000, sabotage=sabotage
        )
        self.api = api
        self.tokens: list[str] = []
        """All that were said, whether anybody was there or not."""
        self.slow_s, self.long = 0.0, False
        model.default = self._answer

    def say(self, who: Person, where: Chat | None = None) -> str:
        """They say a line with a new token to the bot; the token."""
        token = self.token()
        self.tokens.append(token)
        if where is None:
            self.api.private_says(who, f"what about {token}?")
        else:
            self.api.mentions(where, who, f"what about {token}?")
        return token

    def _answer(self, body: Json) -> Answer:
        tokens = self.tokens_of(body)
        count = 2 if self.long and len(tokens) > 1 else 1
        filling = "so much for that " * (LONG_CHARS // 17 if count > 1 else 1)
        lines = [
            f"r{len(self.asked)}.{part + 1} {' '.join(tokens[part::count])} {filling}"
            for part in range(count)
        ]
        return Answer(text="\n\n".join(lines), delay_s=self.random.uniform(0, self.slow_s))

    def heard(self, token: str) -> int:
        """In how many visible messages of the bot it stands."""
        return sum(
            token in TOKEN.findall(text)
            for chat in self.api.world.chats
            for text in self.api.said(chat)
        )

    async def answered(self, *tokens: str) -> None:
        """Return once people can read each."""
        await self.api.until(lambda: all(self.heard(token) for token in tokens))

    def taken_in(self) -> bool:
        return not self.api.updates.pending

    async def verdict(self) -> Verdict:
        """All that was said against all that happened. Raises AssertionError for a line that never
        came in."""
        wire = [
            Shown(str(chat), TelegramText(text=text).to_json())
            for chat in self.api.world.chats
            for text in self.api.said(chat)
        ]
        entries = await self.entries()
        found = judge(Evidence(entries=entries, wire=wire, asked=self.asked))
        assert found.accepted == len(self.tokens), "an update was lost or taken twice"
        return found


@contextlib.asynccontextmanager
async def town(
    directory: Path, seed: int = 1, sabotage: str = "", **telegram: Any
) -> AsyncIterator[Town]:
    """Servers up; nothing that was started outlives this. `sabotage`: Python that a process runs
    before its own first step. `telegram`: changes to the channel's settings.
    """
    async with BotApi() as api, ModelApi() as model:
        it = Town(directory, api, model, seed, telegram, sabotage=sabotage)
        try:
            yield it
        finally:
            await it.close()
