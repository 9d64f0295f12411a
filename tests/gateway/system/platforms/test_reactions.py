"""What people think of an answer: a reaction to it is told to the model, and starts none at once unless
a rule says so."""

import re
from pathlib import Path
from typing import Any

from gateway.core.events import ReactionChanged
from reverie.testing.channels import story
from reverie.testing.servers.model_api import Json
from reverie.testing.waiting import until
from tests.gateway.system.platforms import telegram_kit
from tests.kits.gateway_process import Program


def bodies_of(it: Program) -> list[Json]:
    """What the model is asked from now on."""
    plain, bodies = it.model.default, list[Json]()

    def keep(body: Json) -> Any:
        bodies.append(body)
        return plain(body)

    it.model.default = keep
    return bodies


async def reacted(it: Program, count: int) -> None:
    """Return once so many reactions are in the log."""

    async def are_there() -> bool:
        return len(await it.facts(ReactionChanged)) >= count

    await until(are_there)


@story
async def test_on_telegram_a_reaction_is_told_in_the_next_turn(tmp_path: Path) -> None:
    async with telegram_kit.town(tmp_path) as it:
        bodies, ann, lounge = bodies_of(it), it.api.person("Ann"), it.api.group("lounge")
        async with it.inside():
            first = it.say(ann, lounge)
            await it.api.until(lambda: len(it.api.said(lounge)) == 1)
            await it.calm()
            answer = it.api.shown(lounge)[-1]
            it.api.reacts(lounge, ann, answer.id, [], ["👍"])
            it.api.reacts(lounge, ann, answer.id, ["👍"], ["🔥"])
            await reacted(it, 3)
            await it.calm()
            assert len(bodies) == 1
            it.say(ann, lounge)
            await it.api.until(lambda: len(it.api.said(lounge)) == 2)
        (told,) = re.findall(
            r'\(Ann reacted with (\S+) to your message: \\?"([^"\\]*)', str(bodies[-1]["messages"])
        )
        assert told[0] == "🔥"
        assert first in told[1]
