"""The whole gateway on Telegram: whatever breaks, each update is handled once and each reply is
visible once.

Or else the log says that nobody knows, and why. Over real sockets, a real store and, where
something is killed, the real program. Run the slow ones with `-s` to see the figures.
"""

import asyncio
import json
import re
from pathlib import Path

from gateway.core.facts import IdentityLinked
from reverie.testing.channels import story
from reverie.testing.servers.bot_api_world import Person
from reverie.testing.servers.model_api import Answer
from tests.gateway.system.platforms.telegram_kit import NAME, Town, town
from tests.kits.delivery_judge import fair

CODE = re.compile(r"\b[A-Z0-9]{4}-[A-Z0-9]{4}\b")


def people(it: Town, count: int) -> list[Person]:
    return [it.api.person(f"p{number}") for number in range(count)]


@story
async def test_a_storm_of_everything_at_once_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with town(tmp_path, seed=6) as it:
        faults, everybody, roll = it.api.faults, people(it, 20), it.random.random
        storms = [
            faults.fail(
                "sendMessage", 429, retry_after=1, times=None, where=lambda _: roll() < 0.3
            ),
            faults.drop("sendMessage", times=None, where=lambda _: roll() < 0.1),
            faults.drop("sendMessage", after=True, times=None, where=lambda _: roll() < 0.1),
            faults.fail("sendMessage", 500, after=True, times=None, where=lambda _: roll() < 0.1),
            faults.hang_up("*", times=None, where=lambda _: roll() < 0.2),
            faults.drop("getUpdates", after=True, times=None, where=lambda _: roll() < 0.1),
        ]
        async with it.inside():
            said = 0
            while said < 100 or not all(
                storm.met for storm in storms
            ):  # how many calls there are, time decides
                it.say(it.random.choice(everybody))
                said += 1
                await asyncio.sleep(0.02)
            await it.calm()
        fair(await it.verdict())


@story
async def test_a_link_to_the_bot_hands_in_a_code_or_a_word(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, ben = people(it, 2)
        it.model.default = lambda _: Answer(text="Hello.")
        async with it.inside():
            it.api.commands(ann, ann, "/start ref_12345")
            await it.api.until(lambda: len(it.api.said(ann)) == 1)
            assert not it.model.seen, "nothing begins by it"
            it.api.private_says(ann, "what now?")
            await it.api.until(lambda: "Hello." in it.api.said(ann))
            assert (
                'p0 opened this chat through a link with the word: "ref_12345"'
                in it.model.seen[-1].body["messages"][-1]["content"]
            )
            it.api.commands(ann, ann, "/link")
            await it.api.until(lambda: len(it.api.said(ann)) == 3)
            code, *_ = CODE.findall(it.api.said(ann)[-1])
            it.api.commands(ben, ben, f"/start {code}")
            await it.api.until(lambda: len(it.api.said(ben)) == 1 and len(it.api.said(ann)) == 4)
            second, *_ = CODE.findall(it.api.said(ben)[0])
            it.api.commands(ann, ann, f"/start {second}")
            await it.api.until(lambda: len(it.api.said(ben)) == 2)
            it.api.commands(ben, ben, f"/start {second}")
            await it.api.until(lambda: len(it.api.said(ben)) == 3)
        assert len(await it.facts(IdentityLinked)) == 1
        assert it.api.said(ben)[2].startswith("I do not know this code.")


@story
async def test_who_adds_a_mention_by_an_edit_is_answered_once(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        (ann,), lounge = people(it, 1), it.api.group()
        it.config["channels"][NAME]["rooms"] = [str(lounge.id)]
        it.model.default = lambda _: Answer(text="Noon.")
        async with it.inside():
            said, at = it.api.group_says(lounge, ann, "what time is it?"), it.api.world.bot.username
            to_us = [{"type": "mention", "offset": 0, "length": len(f"@{at}")}]
            for text in (f"@{at} what tim?", f"@{at} what time?"):
                it.api.edits(lounge, said, text, entities=to_us)
                await it.calm()
            (answer,) = [one.body for one in lounge.shown.values() if one.text == "Noon."]
            assert answer["reply_to_message"]["message_id"] == said


@story
async def test_what_was_granted_in_a_group_holds_where_it_moves_to(tmp_path: Path) -> None:
    """The opened room, a role there, the binding's prompt and language, and what was said."""
    async with town(tmp_path, rooms=[]) as it:
        olga, ann, old = (
            it.api.person("Olga"),
            it.api.person("Ann"),
            it.api.group("lounge", basic=True),
        )
        it.config["access"]["roles"] = {"owner": [f"{NAME}:{olga.id}"]}
        it.config["agents"][0]["bindings"] = [
            {
                "match": {"room": str(old.id)},
                "listen": "all",
                "prompt": "Talk like a pirate.",
                "language": "es",
            },
            {"match": {}},
        ]
        it.write()
        it.model.default = lambda _: Answer(text="Arr.")

        async with it.inside():
            it.api.commands(old, olga, "/room approve")
            it.api.commands(old, olga, f"/role set {NAME}:{ann.id} admin here")
            await it.api.until(lambda: len(it.api.said(old)) == 2)
            it.api.mentions(old, ann, "make it")
            await it.api.until(lambda: "Arr." in it.api.said(old))
            new = it.api.migrates(old, ann)
            it.api.group_says(new, ann, "and once more, make it")
            await it.api.until(lambda: "Arr." in it.api.said(new))
            it.api.commands(new, ann, "/approve")
            await it.api.until(lambda: len(it.api.said(new)) == 2)
            await it.calm()
        body = json.dumps(it.model.seen[-1].body)
        assert "Talk like a pirate." in body
        assert body.count("make it") >= 2, "what was said before the move is still in view"
        assert it.api.said(new)[1] == "Aquí no hay nada pendiente de aprobación.", (
            "she is an admin there, too"
        )
