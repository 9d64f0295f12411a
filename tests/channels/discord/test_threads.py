"""Answers in threads of their own, where the operator wants them."""

import dataclasses
from typing import Any

import pytest

from channels.base import MayNotPost, Rejected, Unreachable, no_announcement
from channels.discord.channel import DiscordPreviewChannel
from gateway.core.events import Message
from reverie.testing.servers.discord_api import DiscordApi
from tests.channels.discord.channel_kit import Running, part, place, running

CHAT_COMMANDS = "how do I install it on a Mac?"
MAKES = "POST .*/threads"


async def asked(
    api: DiscordApi, run: Running, text: str = CHAT_COMMANDS, *, number: int = 1, **more: Any
) -> Message:
    api.says(api.room, api.ann, f"<@{api.bot}> {text}", **more)
    return await run.message(number)


async def answer(run: Running, message: Message, body: str = "so", **more: Any) -> None:
    await run.channel.send(
        dataclasses.replace(part(body, message.at.room, **more), to=message.at, reply_to=message.id)
    )


@pytest.mark.channel(threads=["*"])
async def test_a_question_is_answered_in_a_thread_that_is_made_of_it_and_the_talk_goes_on_there(
    api: DiscordApi, run: Running
) -> None:
    message = await asked(api, run)
    assert (message.at, message.kind, message.opens_thread) == (
        place(api.room, message.id),
        "mention",
        True,
    )
    assert run.channel.audience(message.at) == run.channel.audience(place(api.room)) == "space"
    await run.channel.typing(message.at, active=True)
    assert api.typings == [api.room]  # there is no thread to type in yet
    await answer(run, message, "Like this.", key="a#0")
    await answer(run, message, "And that.", key="a#1")
    assert (api.texts(message.id), api.texts(api.room)) == (["Like this.", "And that."], [])
    assert api.world.channels[message.id]["name"] == "how do I install it on a Mac?"
    assert len(api.made(MAKES)) == 1
    assert (
        "message_reference" not in api.made("POST .*/messages")[-1].body
    )  # it stands above anyway
    await run.channel.typing(message.at, active=True)
    assert api.typings == [api.room, message.id]
    api.says(message.id, api.ann, "and on Linux?")
    api.says(message.id, api.ben, f"<@{api.ann}> easy")
    api.says(api.room, api.ben, "nice weather")
    said = [await run.message(number) for number in (2, 3, 4)]
    assert [(one.at, one.kind) for one in said] == [
        (message.at, "reply"),
        (message.at, "room"),
        (place(api.room), "room"),
    ]
    assert api.offences == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("nice weather", "room"),
        ("<@BOT> /help", "mention"),
        ("<@BOT> !help", "mention"),
        ("@everyone", "room"),
    ],
)
@pytest.mark.channel(threads=["*"])
async def test_what_is_no_question_opens_no_thread(
    text: str, kind: str, api: DiscordApi, run: Running
) -> None:
    api.says(api.room, api.ann, text.replace("BOT", api.bot))
    message = await run.message(1)
    assert (message.at, message.kind, message.opens_thread) == (place(api.room), kind, False)


async def test_only_configured_rooms_open_threads_and_no_reply_to_what_the_bot_said(
    api: DiscordApi,
) -> None:
    async with running(api, threads=[api.other]) as run:
        await run.up()
        assert (await asked(api, run)).at == place(api.room)
        api.says(api.other, api.ann, f"<@{api.bot}> hello")
        assert (await run.message(2)).opens_thread
        (said,) = (await run.channel.send(part("as I said", api.other))).ids
        api.says(api.other, api.ann, f"<@{api.bot}> why?", reply_to=said)
        assert (await run.message(3)).at == place(api.other)
        api.says(api.world.dm(api.ann), api.ann, f"<@{api.bot}> hello")
        assert (await run.message(4)).at.thread is None
        thread = api.threads(api.other, api.ann, "aside")
        api.says(thread, api.ann, f"<@{api.bot}> hello")
        assert (await run.message(5)).at == place(api.other, thread)


@pytest.mark.parametrize(
    ("text", "given", "title"),
    [
        ("<@BEN> said **this** `works` in C# @everyone", "", "ben said this works in C# everyone"),
        ("word " * 30, "", "word " * 11 + "word…"),
        ("x" * 200, "", "x" * 60 + "…"),
        (CHAT_COMMANDS, "Install it on\na Mac", "Install it on a Mac"),
        (CHAT_COMMANDS, "<@1> " * 30 + "@here " * 30, ("here " * 30)[:100].strip()),
        (CHAT_COMMANDS, "🐈" * 100, "🐈" * 50),
    ],
)
@pytest.mark.channel(threads=["*"])
async def test_the_title_is_the_models_or_the_first_words_bounded_and_without_mentions(
    text: str, given: str, title: str, api: DiscordApi, run: Running
) -> None:
    message = await asked(api, run, text.replace("BEN", api.ben))
    await answer(run, message, thread_title=given)
    assert api.made(MAKES)[0].body["name"].strip() == title


@pytest.mark.parametrize("fault", ["reset after", "reset before"])
async def test_a_bot_that_dies_between_thread_and_answer_says_it_once_there(
    fault: Any, api: DiscordApi
) -> None:
    async with running(api, threads=["*"]) as run:
        await run.up()
        message = await asked(api, run)
        api.faults.add(MAKES, fault, times=10)
        with pytest.raises(Unreachable):  # surely not sent: it is handed over again
            await answer(run, message)
    api.faults.rest.clear()
    async with running(api, threads=["*"], cursor=run.cursor) as run:
        await run.up()
        await answer(run, message)
        await answer(run, message)  # the same part once more
    assert (api.texts(message.id), api.texts(api.room)) == (["so"], [])


async def test_a_thread_of_an_earlier_process_is_gone_on_in_also_if_it_is_archived(
    api: DiscordApi,
) -> None:
    async with running(api, threads=["*"]) as run:
        await run.up()
        message = await asked(api, run)
        await answer(run, message)
    api.world.channels[message.id]["thread_metadata"]["archived"] = True
    scratch = api.threads(api.room, api.ben, "from scratch")
    api.world.channels[scratch]["thread_metadata"]["archived"] = True
    async with running(api, threads=["*"], cursor=run.cursor) as run:
        await run.up()
        await answer(run, message, "more", key="b#0")
        await run.channel.send(part("here", api.room, thread=scratch, key="c#0"))
        assert (api.texts(message.id), api.texts(scratch), api.texts(api.room)) == (
            ["so", "more"],
            ["here"],
            [],
        )
        api.says(message.id, api.ann, "thanks, and then?")
        await run.until(lambda: bool(run.messages) and run.messages[-1].text == "thanks, and then?")
        assert (run.messages[-1].at, run.messages[-1].kind) == (message.at, "reply")
        again = {one.id for one in run.messages if one.at == message.at}
        assert again <= {
            message.id,
            run.messages[-1].id,
        }  # what it is made of does not come twice


@pytest.mark.channel(threads=["*"], preview="all")
async def test_a_refused_thread_is_answered_in_the_channel_and_told_the_operator_once(
    caplog: pytest.LogCaptureFixture, api: DiscordApi, run: Running
) -> None:
    api.world.threadless.add(api.room)
    first, channel = await asked(api, run), run.channel
    assert isinstance(channel, DiscordPreviewChannel)
    grown = await channel.preview(first.at, "s", None, reply_to=first.id, announce=no_announcement)
    await answer(run, first, finishes=grown)
    (shown,) = api.visible(api.room)
    assert (shown["content"], shown["message_reference"]["message_id"]) == ("so", first.id)
    assert (await asked(api, run, number=2)).at == place(api.room)
    warned = [record.message for record in caplog.records if "threads" in record.message]
    assert len(warned) == 1
    assert "#general" in warned[0] or "general" in warned[0]
    assert "Create Public Threads" in warned[0]
    api.world.threadless.clear()
    api.dispatch("CHANNEL_UPDATE", api.world.channels[api.room])
    third = await asked(api, run, number=3)
    await answer(run, third, key="c#0")
    assert api.texts(third.id) == ["so"]


@pytest.mark.channel(threads=["*"], preview="all")
async def test_a_growing_answer_grows_in_its_thread(api: DiscordApi, run: Running) -> None:
    message, channel = await asked(api, run), run.channel
    assert isinstance(channel, DiscordPreviewChannel)
    grown = await channel.preview(message.at, "Like", None, reply_to=message.id)
    assert grown is not None
    await channel.preview(message.at, "Like th", grown)
    await answer(run, message, "Like this.", finishes=grown)
    assert (api.texts(message.id), api.texts(api.room)) == (["Like this."], [])


@pytest.mark.channel(preview="all")
async def test_a_growing_answer_is_finished_in_a_thread_that_is_archived_meanwhile(
    api: DiscordApi, run: Running
) -> None:
    thread, channel = api.threads(api.room, api.ben, "a post"), run.channel
    assert isinstance(channel, DiscordPreviewChannel)
    grown = await channel.preview(place(api.room, thread), "Like", None)
    assert grown is not None
    state = api.world.channels[thread]["thread_metadata"]
    state |= {"archived": True, "locked": True}
    whole = part("Like this.", api.room, thread=thread, finishes=grown)
    with pytest.raises(MayNotPost, match="archived"):
        await run.channel.send(whole)
    state["locked"] = False
    await run.channel.send(whole)
    assert (api.texts(thread), api.texts(api.room), state["archived"]) == (
        ["Like this."],
        [],
        False,
    )


@pytest.mark.channel(threads=["*"])
async def test_a_question_that_is_deleted_meanwhile_gets_no_thread(
    api: DiscordApi, run: Running
) -> None:
    message = await asked(api, run)
    api.deletes(api.room, message.id)
    with pytest.raises(Rejected):
        await answer(run, message)
    assert (api.texts(api.room), message.id in api.world.channels) == ([], False)
