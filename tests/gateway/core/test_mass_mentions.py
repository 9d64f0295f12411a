"""Posts that mention many people: on the wire of each platform they notify few."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from channels.discord import outgoing
from channels.telegram.render import render
from gateway.core.events import Address, Post, PostKey, RoomId
from gateway.core.text_safety import MAX_MENTIONS, WORD_JOINER, break_mentions, break_nicks, mentions_many
from tests.channels.discord.channel_kit import both, part, place
from tests.channels.irc import channel_kit
from tests.channels.telegram.channel_kit import at, running
from tests.kits import channels
from tests.servers.bot_api import BotApi
from tests.servers.ircd import Ircd

PEOPLE = [f"user{number}" for number in range(MAX_MENTIONS + 1)]
NICKS = frozenset(PEOPLE)


def test_a_few_are_called_and_many_are_not() -> None:
    few = " ".join(f"@{one}" for one in PEOPLE[1:])
    assert not mentions_many(few + few)
    assert mentions_many(f"{few} @{PEOPLE[0]}")
    assert not mentions_many(" ".join(f"me@{one}.org t.me/@{one} @@{one}" for one in PEOPLE))
    assert break_nicks(" ".join(PEOPLE[1:]), NICKS, str.lower) == " ".join(PEOPLE[1:])
    assert break_nicks(" ".join(PEOPLE), NICKS, str.lower) == " ".join(f"u{WORD_JOINER}{one[1:]}" for one in PEOPLE)


def test_what_stands_around_a_nick_is_no_way_out() -> None:
    for form in ("`{}`", "[{}]", "{},", "<{}>", "\x02{}\x02", "({})", "@{}", "{}:", "{{{}}}", "^{}", "{}'s"):
        text = " ".join(form.format(one.upper()) for one in PEOPLE)
        calm = break_nicks(text, NICKS, str.lower)
        assert calm.count(WORD_JOINER) == len(PEOPLE), form
        assert calm.replace(WORD_JOINER, "") == text


@given(st.lists(st.sampled_from([*PEOPLE, " ", "`", "@", "\n", "[", "x"]), max_size=60))
def test_nothing_is_lost_and_doing_it_twice_is_doing_it_once(pieces: list[str]) -> None:
    text = "".join(pieces)
    for once in (break_nicks(text, NICKS, str), break_mentions(text)):
        assert once.replace(WORD_JOINER, "") == text
    calm = break_nicks(text, NICKS, str)
    assert break_nicks(calm, NICKS, str) == calm


def test_on_telegram_code_and_links_stay() -> None:
    names = " ".join(f"@{one}" for one in PEOPLE)
    (text,) = render(f"{names} `@ada_l` @**lovelace** [@user0](https://x.org/@user0)")
    assert f"@{WORD_JOINER}user0 " in text.text
    assert "@ada_l" in text.text
    assert f"@{WORD_JOINER}lovelace" in text.text
    assert not mentions_many(text.text.replace("@ada_l", ""))
    assert render("@user1 @user2")[0].text == "@user1 @user2"


@channels.story
async def test_on_irc_a_list_of_who_is_there_highlights_nobody() -> None:
    async with Ircd() as ircd, channel_kit.running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        for one in PEOPLE:
            bot.send(f":{one}!a@h JOIN #room")
        await channel_kit.settled(bot, "here")
        to = Address(channel=channel_kit.NAME, room=RoomId("#room"))
        for text in (" ".join(PEOPLE[1:]), "\n".join(f"- `{one}`" for one in PEOPLE)):
            for body in run.channel.split(Post(key=PostKey("k"), to=to, text=text)):
                await run.channel.send(channel_kit.part(body, key=body))
        said = [line.partition(" :")[2] for line in ircd.lines if line.startswith("PRIVMSG #room")]
        assert said[0] == " ".join(PEOPLE[1:])
        assert said[1:] == [f"• `u{WORD_JOINER}{one[1:]}`" for one in PEOPLE]


@channels.story
async def test_on_telegram_many_names_call_nobody_and_links_show_nothing() -> None:
    async with BotApi() as api, running(api) as run:
        await run.up()
        lounge = api.group("lounge")
        await run.tell(" ".join(f"@{one}" for one in PEOPLE) + " https://x.org", at(lounge))
        call = api.asked("sendMessage")[-1]
        assert f"@{WORD_JOINER}user0" in call["text"]
        assert not mentions_many(call["text"])
        assert _preview(call["link_preview_options"]) is True


def _preview(options: Any) -> object:
    return (json.loads(options) if isinstance(options, str) else options)["is_disabled"]


@channels.story
async def test_on_discord_every_message_says_that_it_calls_nobody() -> None:
    async with both() as (api, run):
        for text in ("@everyone @here <@&50> <@20> https://x.org", "quiet"):
            (body,) = run.channel.split(Post(key=PostKey("k"), to=place(api.room), text=text))
            await run.channel.send(part(body, api.room, key=text))
        posts = [call.body for call in api.made("POST .*/messages")]
        assert [post["allowed_mentions"] for post in posts] == [{"parse": []}] * 2
        assert all(post["flags"] & outgoing.SUPPRESS_EMBEDS for post in posts)


def test_what_turns_lines_around_goes_out_on_no_platform() -> None:
    text = "pay \u202e100\u202c\u200b to \u2066ada\u2069 &#8238;now"
    for shown in (render(text)[0].text, discord_render(text), irc_render(text)):
        assert not set(shown) & set("\u202e\u202c\u200b\u2066\u2069")
        assert "pay 100 to ada" in shown


def discord_render(text: str) -> str:
    from channels.discord.outgoing import render_bodies  # noqa: PLC0415 - of the same name as another

    return render_bodies(text)[0]


def irc_render(text: str) -> str:
    from channels.irc.render import render as rendered  # noqa: PLC0415 - the same

    return rendered(text)[0].text
