"""The least bot that answers on IRC, to measure against: `python naive_bot.py PORT NICK ROOM URL`.

On the libraries that the gateway uses (`irc`, `httpx`), it asks the model when its name is said, with all
that was said to it before, and posts the answer. It has no log, no access rules and no second try.
"""

import asyncio
import json
import sys

import httpx
from irc.client import Event, ServerConnection
from irc.client_aio import AioReactor

PORT, NICK, ROOM, URL = sys.argv[1:]
SYSTEM = "You are a helpful person in a chat room. Answer in one sentence."


class NaiveBot:
    """One connection, one room, one model."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient()
        self._said = [{"role": "system", "content": SYSTEM}]
        self._lock, self._tasks = asyncio.Lock(), set[asyncio.Task[None]]()

    def welcome(self, connection: ServerConnection, _: Event) -> None:
        connection.join(ROOM)
        print("it is up: joined", file=sys.stderr, flush=True)

    def hear(self, connection: ServerConnection, event: Event) -> None:
        text = event.arguments[0]
        if text.startswith(f"{NICK}:"):
            task = asyncio.create_task(self._answer(connection, event.target, text))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, connection: ServerConnection, room: str, text: str) -> None:
        async with self._lock:
            self._said.append({"role": "user", "content": text})
            body = {"model": "bench", "stream": True, "messages": self._said}
            answer = ""
            async with self._http.stream("POST", f"{URL}/chat/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            answer += choice["delta"].get("content") or ""
            self._said.append({"role": "assistant", "content": answer})
            connection.privmsg(room, answer)
            connection.ping(NICK)


async def main() -> None:
    reactor, bot = AioReactor(loop=asyncio.get_running_loop()), NaiveBot()
    reactor.add_global_handler("welcome", bot.welcome)
    reactor.add_global_handler("pubmsg", bot.hear)
    await reactor.server().connect("127.0.0.1", int(PORT), NICK)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
