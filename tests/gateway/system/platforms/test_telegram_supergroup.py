"""The whole gateway while a group becomes a supergroup: it is one conversation, and nothing said in
it is lost."""

import json
from pathlib import Path

from reverie.testing.channels import story
from reverie.testing.servers.model_api import Answer
from tests.gateway.system.platforms.telegram_kit import NAME, town


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
