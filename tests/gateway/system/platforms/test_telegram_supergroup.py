"""The whole gateway while a group becomes a supergroup: it is one conversation, and nothing said in
it is lost."""

import json
from pathlib import Path

from channels.telegram.render import TelegramText
from gateway.core.facts import PartSendEnded
from gateway.core.i18n import translations
from tests.gateway.system.platforms.telegram_kit import NAME, Town, town
from tests.kits.channels import story
from tests.kits.delivery_judge import Evidence, Shown, Verdict, fair, judge
from tests.servers.bot_api_world import Chat
from tests.servers.model_api import Answer


async def verdict(it: Town, *chats: Chat) -> Verdict:
    """As the town's, with all of these as one place, known by the first."""
    wire = [
        Shown(str(chats[0].id), TelegramText(text=text).to_json())
        for chat in chats
        for text in it.api.said(chat)
    ]
    return judge(Evidence(entries=await it.entries(), wire=wire, asked=it.asked))


@story
async def test_a_conversation_goes_on_where_its_group_moves_to(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        ann, old = it.api.person("Ann"), it.api.group("lounge", basic=True)
        async with it.inside():
            await it.answered(*[it.say(ann, old) for _ in range(9)])
            new = it.api.migrates(old, ann)
            await it.answered(
                *[it.say(ann, new) for _ in range(9)]
            )  # the numbers of the first nine, again
            await it.calm()
        found = await verdict(it, old, new)
        fair(found)
        assert (found.answered, found.uncertain) == (18, 0)
        ended = [
            one.conversation for one in await it.entries() if isinstance(one.fact, PartSendEnded)
        ]
        assert len(set(ended)) == 1


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
        assert it.api.said(new)[1] in translations("Nothing waits for approval here."), (
            "she is an admin there, too"
        )
