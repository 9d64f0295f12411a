"""How many requests a model takes at the same time, and whose is next."""

import asyncio

from agent.models.base import ModelBusy
from agent.models.client import RequestLimit
from gateway.core.events import ConversationId


def refusal() -> ModelBusy:
    error = ModelBusy("too many", retry_after_s=1.0)
    error.status = 429
    return error


class Provider:
    """Takes so many requests at the same time, and refuses more. An answer takes one step."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.refused = 0
        self.answered: list[str] = []
        self._running = 0
        self._step = asyncio.Event()

    async def answer(self, room: str) -> None:
        if self._running >= self.most:
            self.refused += 1
            raise refusal()
        self._running += 1
        await self._step.wait()
        self._running -= 1
        self.answered.append(room)

    async def step(self) -> None:
        step, self._step = self._step, asyncio.Event()
        step.set()
        for _ in range(50):
            await asyncio.sleep(0)


async def ask(limit: RequestLimit, provider: Provider, room: str) -> None:
    while True:
        try:
            async with limit.holding(ConversationId(room)):
                return await provider.answer(room)
        except ModelBusy:
            await asyncio.sleep(0)


async def test_a_model_that_refuses_nothing_is_asked_for_all_at_once() -> None:
    limit, provider = RequestLimit(), Provider(100)
    async with asyncio.TaskGroup() as asking:
        for number in range(100):
            asking.create_task(ask(limit, provider, f"irc/{number}"))
        await provider.step()
        await provider.step()
    assert (len(provider.answered), provider.refused) == (100, 0)


async def test_refusals_teach_how_many_and_answers_try_for_more() -> None:
    limit, provider = RequestLimit(), Provider(8)
    async with asyncio.TaskGroup() as asking:
        for number in range(100):
            asking.create_task(ask(limit, provider, f"irc/{number}"))
        await provider.step()
        first = provider.refused
        steps = 1
        while len(provider.answered) < 100:
            await provider.step()
            steps += 1
    assert first < 100, "each is refused once at most, in the first moment"
    assert provider.refused - first < 30, "then about one for each time that it tries for more"
    assert steps <= 16, "13 would be the least"


async def test_the_room_with_the_fewest_under_way_is_next() -> None:
    limit, provider = RequestLimit(3), Provider(3)
    rooms = ["irc/busy/1", "irc/busy/2", "irc/busy/3", "irc/busy/4", "irc/a", "irc/b"]
    async with asyncio.TaskGroup() as asking:
        for room in rooms:
            asking.create_task(ask(limit, provider, room))
        for _ in range(3):
            await provider.step()
    assert provider.answered[3:] == ["irc/a", "irc/b", "irc/busy/4"]


async def test_who_stops_waiting_or_is_cut_off_leaves_its_place_to_others() -> None:
    limit, provider = RequestLimit(1), Provider(1)
    under_way, waiting, last = (
        asyncio.create_task(ask(limit, provider, f"irc/{name}")) for name in "abc"
    )
    await asyncio.sleep(0)
    waiting.cancel()
    under_way.cancel()
    await asyncio.gather(under_way, waiting, return_exceptions=True)
    await provider.step()
    assert not last.done()
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    async with asyncio.timeout(5), limit.holding(ConversationId("irc/d")):
        pass


async def test_none_begins_while_the_provider_has_asked_for_a_pause() -> None:
    limit = RequestLimit()
    with limit.pausing():
        asked = asyncio.create_task(ask(limit, provider := Provider(1), "irc/a"))
        await provider.step()
        assert provider.answered == []
    await provider.step()
    await provider.step()
    await asked
    assert provider.answered == ["irc/a"]
