"""What people think of an answer: a reaction to it is told to the model, and starts no turn unless
a rule says so."""

import re
from pathlib import Path
from typing import Any

from gateway.core.events import ReactionChanged
from tests.gateway.system.platforms import discord_kit, telegram_kit
from tests.kits.channels import story
from tests.kits.gateway_process import Program
from tests.kits.waiting import until
from tests.servers.model_api import Json

URGENT: dict[str, Any] = {"rules": [{"type": "*.reaction.*", "urgency": "urgent"}]}


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


async def answered(it: discord_kit.Town, token: str) -> Json:
    """The answer, once it is in the log that it was sent."""
    await it.answered(token)
    await it.calm()
    return next(one for one in it.api.visible(it.api.room) if token in one["content"])


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


@story
async def test_a_rule_of_the_operator_makes_a_reaction_a_reason_for_a_turn(tmp_path: Path) -> None:
    async with discord_kit.town(tmp_path) as it:
        it.config["attention"] |= URGENT
        bodies = bodies_of(it)
        async with it.inside():
            await it.api.connected()
            answer = await answered(it, it.say())
            theirs = it.api.says(it.api.room, it.api.ann, "nice weather")
            it.api.reacts(it.api.room, theirs, it.api.ben, "👍")
            await reacted(it, 1)
            await it.calm()
            assert len(bodies) == 1  # it is not what the agent said
            it.api.reacts(it.api.room, answer["id"], it.api.ben, "👎")
            await until(lambda: len(bodies) == 2)
            await it.calm()
            assert "(ben reacted with 👎 to your message" in str(bodies[-1]["messages"])
            it.api.reacts(it.api.room, answer["id"], it.api.ben, "👎", added=False)
            await reacted(it, 3)
            await it.calm()
            assert len(bodies) == 2
