"""What people do on Telegram, as notifications, through real sockets."""

from gateway.events import Command, Edited, Membership, Message, Reacted
from tests.channels.telegram_kit import at, running, story
from tests.servers.bot_api import BotApi


@story
async def test_people_and_rooms_are_told_apart() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann, lounge = api.person("Ann", username="ann", language="de"), api.group("lounge")
        api.private_says(ann, "hi")
        api.group_says(lounge, ann, "all")
        api.mentions(lounge, ann, "you")
        number = api.commands(lounge, ann, "/why 3")
        await run.some(Command)
        assert [(m.text, m.kind, m.at) for m in run.all(Message)] == [
            ("hi", "direct", at(ann)),
            ("all", "room", at(lounge)),
            ("@reverie_bot you", "mention", at(lounge)),
        ]
        sender = run.all(Message)[0].sender
        assert (sender.id, sender.name, sender.verified, sender.is_bot) == (str(ann.id), "Ann", True, False)
        assert run.all(Message)[0].language == "de"
        command = run.all(Command)[0]
        assert (command.id, command.name, command.args, command.origin) == (str(number), "why", "3", "native")


@story
async def test_an_answer_goes_out_and_its_reply_comes_back_as_one() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        ann, lounge = api.person("Ann"), api.group("lounge")
        asked = api.group_says(lounge, ann, "hm?")
        await run.message()
        (said,) = await run.tell("**yes** 😀 `x`", at(lounge), reply_to=str(asked))
        shown = api.shown(lounge)[-1]
        assert shown.text == "yes 😀 x"
        api.group_says(lounge, ann, "why?", reply_to=int(said))
        message = await run.message(2)
        assert (message.kind, message.reply_to) == ("reply", said)
        api.edits(lounge, asked, "hm!")
        api.reacts(lounge, ann, int(said), ["👎"], ["👍"])
        (edited,), reacted = await run.some(Edited), await run.some(Reacted, 2)
        assert (edited.message, edited.text) == (str(asked), "hm!")
        assert [(r.message, r.reaction, r.added) for r in reacted] == [(said, "👎", False), (said, "👍", True)]
        api.joins(lounge, api.person("Ben"))
        (joined,) = await run.some(Membership)
        assert (joined.change, joined.sender.name) == ("join", "Ben")
