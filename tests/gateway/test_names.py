"""What places are called reaches whoever is told of them: one whole gateway on three platforms, over real sockets."""

import re
from pathlib import Path

from gateway.events import Named
from tests.channels.kit import story
from tests.gateway.everywhere_kit import Town, town
from tests.gateway.everywhere_seats import DISCORD, IRC, TELEGRAM

NUMBER = re.compile(r"\d{5,}")


async def asked(it: Town, platform: str, where: str = "room", who: str = "olga", text: str = "hello there") -> str:
    """Somebody says something to the bot, which answers; the request that the model was sent."""
    seat, count = it.seat(platform, who, where), len(it.model.seen)  # type: ignore[arg-type]
    since = len(seat.shown())
    seat.say(text, to_bot=True)
    await it.heard(seat, since, "so much for that")
    assert len(it.model.seen) > count
    return str(it.model.seen[-1].body)


def card(request: str) -> list[str]:
    """The lines of the channel card in a request."""
    found = re.search(r"# Where you are(.*?)(?:'[,}]|\"[,}])", request.replace("\\n", "\n"), re.DOTALL)
    assert found is not None, request
    return found[1].strip().splitlines()


@story
async def test_cards_name_places_as_people_do(tmp_path: Path) -> None:
    async with town(tmp_path) as it:
        it.lounge.title = "Garden friends"
        it.discord.world.channels[it.discord.room] |= {"name": "help", "topic": "Questions only"}
        it.discord.world.guilds[it.discord.guild]["name"] = "Rust Users"
        await it.begin()
        telegram, discord, irc = [card(await asked(it, one)) for one in (TELEGRAM, DISCORD, IRC)]
        assert telegram[:3] == [
            "Platform: Telegram (telegram.main)",
            'Place: the room "Garden friends"',
            "You are @reverie_bot here.",
        ]
        assert discord[:3] == [
            'Platform: Discord (discord.main), server "Rust Users"',
            'Place: the room "#help"',
            "You are @reverie here.",
        ]
        assert discord[4] == 'Topic, in the words of people there: "Questions only"'
        assert irc[:3] == [
            'Platform: IRC (irc.main), network "Fakenet"',
            "Place: the room #room",
            "You are reverie here.",
        ]
        assert not NUMBER.search("\n".join([*telegram, *discord, *irc]))
        private = card(await asked(it, TELEGRAM, "alone"))
        assert private[1] == "Place: a direct chat with Olga (@olga)"
        named = {fact.at.conversation for fact in await it.facts("named") if isinstance(fact, Named)}
        assert len(named) == 4
