"""What is said goes out once, harmlessly, and what became of it is told truly."""

import contextlib

import pytest

from channels.base import (
    CanDownload,
    CanPreview,
    CanType,
    Channel,
    CommandArg,
    CommandSpec,
    HasSpaces,
    OutgoingFile,
    PostPart,
    Rejected,
    Uncertain,
)
from channels.discord.channel import DiscordPreviewChannel, create_channel
from channels.discord.config import DiscordConfig
from channels.discord.ids import message_nonce
from channels.discord.rest import check_url
from gateway.core.clock import SystemClock
from gateway.core.events import (
    Address,
    Attachment,
    Message,
    MessageDeleted,
    MessageId,
    Post,
    PostKey,
    RoomId,
    Sender,
    SenderId,
)
from reverie.testing.servers.discord_api import DiscordApi
from tests.channels.discord.channel_kit import NAME, Running, part, place

COMMANDS = (
    CommandSpec(name="status", summary="Show how it goes"),
    CommandSpec(
        name="log",
        summary="Show the log",
        args=(CommandArg(name="entry", summary="Which"),),
        private=True,
    ),
)


async def test_a_message_is_harmless_and_can_be_sent_again(api: DiscordApi, run: Running) -> None:
    said = api.says(api.room, api.ann, "well?")
    gone: list[int] = []

    async def going() -> None:
        gone.append(len(api.made("POST .*/messages")))

    sent = await run.channel.send(part("@everyone <@1> ok", api.room, reply_to=said), going)
    again = await run.channel.send(part("@everyone <@1> ok", api.room, reply_to=said))
    assert sent == again
    assert gone == [0]
    (shown,) = api.visible(api.room)
    assert shown["message_reference"]["message_id"] == said
    body = api.made("POST .*/messages")[0].body
    assert body["allowed_mentions"] == {"parse": [], "users": [], "replied_user": True}
    assert (body["flags"], body["enforce_nonce"]) == (4, True)
    assert api.offences == []


async def test_only_who_is_answered_or_reminded_is_notified(api: DiscordApi, run: Running) -> None:
    ann, ben = (
        Sender(id=SenderId(user), name=name) for user, name in ((api.ann, "ann"), (api.ben, "ben"))
    )
    await run.until(lambda: run.channel.space(RoomId(api.room)) is not None)
    to, direct = place(api.room), place(api.world.dm(api.ann))

    def bodies(
        text: str, *people: Sender, at: Address = to, reply_to: str | None = None
    ) -> tuple[str, ...]:
        reply = MessageId(reply_to) if reply_to else None
        return run.channel.split(
            Post(key=PostKey("p"), to=at, text=text, notify=people, reply_to=reply)
        )

    assert bodies("Your tea is ready.", ann) == (f"<@{api.ann}> Your tea is ready.",)
    assert bodies("@Ann: your tea", ann) == (f"<@{api.ann}>: your tea",)
    assert bodies("- tea", ann, ben) == (f"<@{api.ann}> <@{api.ben}>\n- tea",)
    assert (
        bodies("tea", ann, at=direct)
        == bodies("tea", ann, reply_to="1")
        == bodies("tea")
        == ("tea",)
    )
    await run.channel.send(part(f"<@{api.ann}> and <@{api.ben}>, tea!", api.room, notify=(ann,)))
    mentions = api.made("POST .*/messages")[0].body["allowed_mentions"]
    assert mentions == {"parse": [], "users": [api.ann], "replied_user": True}


@pytest.mark.channel(link_previews=True)
async def test_a_notice_is_silent_and_link_previews_can_be_asked_for(
    api: DiscordApi, run: Running
) -> None:
    await run.channel.send(part("restarting", api.room, style="notice"))
    assert api.made("POST .*/messages")[0].body["flags"] == 1 << 12


def test_a_nonce_is_short_and_depends_on_the_key_alone() -> None:
    assert message_nonce("01ABC#0") == message_nonce("01ABC#0")
    assert len({message_nonce(f"01ABC#{number}") for number in range(1000)}) == 1000
    assert all(
        len(message_nonce("x" * length)) <= 25 and message_nonce("x" * length).isalnum()
        for length in range(50)
    )


async def test_a_reply_to_what_is_gone_is_said_without_it(api: DiscordApi, run: Running) -> None:
    await run.channel.send(part("hello", api.room, reply_to="123456789012345678"))
    assert api.texts(api.room) == ["hello"]


def _config(**changes: object) -> DiscordConfig:
    return DiscordConfig.model_validate({"platform": "discord", "token": "t"} | changes)


def test_abilities_are_those_of_the_configuration() -> None:
    plain = create_channel(NAME, _config(), SystemClock())
    previewing = create_channel(NAME, _config(preview="all"), SystemClock())
    channel: Channel = plain
    for ability in (CanType, CanDownload, HasSpaces):
        assert isinstance(channel, ability)
    assert not isinstance(plain, CanPreview)
    assert isinstance(previewing, CanPreview)


@pytest.mark.channel(preview="all")
async def test_a_preview_grows_and_goes_without_a_word(api: DiscordApi, run: Running) -> None:
    channel = run.channel
    assert isinstance(channel, DiscordPreviewChannel)
    shown = await channel.preview(place(api.room), "I thi", None)
    assert shown is not None
    assert await channel.preview(place(api.room), "I think `x", shown) == shown
    assert api.texts(api.room) == ["I think `x"]
    await channel.delete_preview(place(api.room), shown)
    await channel.delete_preview(place(api.room), shown)
    api.says(api.room, api.ann, "next")
    await run.one(Message)
    assert (api.texts(api.room), run.all(MessageDeleted), api.offences) == ([], [], [])


@pytest.mark.channel(preview="all")
async def test_a_preview_becomes_the_answer_by_an_edit_that_may_be_repeated(
    api: DiscordApi, run: Running
) -> None:
    channel = run.channel
    assert isinstance(channel, DiscordPreviewChannel)
    shown = await channel.preview(place(api.room), "I thi", None)
    assert shown is not None
    (body,) = channel.split(Post(key=PostKey("k"), to=place(api.room), text="I think so."))
    part = PostPart(key="k#0", to=place(api.room), body=body, finishes=shown)
    for _ in range(2):
        assert (await channel.send(part)).ids == (shown,)
    assert api.texts(api.room) == ["I think so."]
    await channel.delete_preview(place(api.room), shown)
    assert (await channel.send(part)).ids != (shown,)
    assert (api.texts(api.room), api.offences) == (["I think so."], [])


async def test_a_file_is_bounded_and_comes_from_discord_only(api: DiscordApi, run: Running) -> None:
    said = api.says(
        api.room, api.ann, "", files=[("a.bin", b"x" * 1000, "application/octet-stream")]
    )
    (file,) = (await run.message()).attachments
    with pytest.raises(Rejected, match="larger"):
        await run.channel.download(place(api.room), file, limit_bytes=999)
    api.world.messages[api.room][said]["attachments"][0]["url"] = "http://127.0.0.2:1/secret"
    with pytest.raises(Rejected, match="own hosts"):
        await run.channel.download(place(api.room), file, limit_bytes=1000)
    with pytest.raises(Rejected, match="not an attachment"):
        await run.channel.download(
            place(api.room), Attachment(id="1/../2", form="file"), limit_bytes=10
        )


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://cdn.discordapp.com/attachments/1/2/a.png?ex=1", True),
        ("http://cdn.discordapp.com/a", False),
        ("https://cdn.discordapp.com:22/a", False),
        ("https://cdn.discordapp.com@evil.example/a", False),
        ("https://evil.example/cdn.discordapp.com", False),
        ("file:///etc/passwd", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_only_discords_own_hosts_are_asked(url: str, fine: bool) -> None:
    with contextlib.nullcontext() if fine else pytest.raises(Rejected):
        check_url(url, "https://discord.com/api/v10")


@pytest.mark.channel(commands=COMMANDS)
async def test_a_command_is_acknowledged_before_anything_else_and_answered_once(
    api: DiscordApi, run: Running
) -> None:
    await api.until(lambda: bool(api.made("PUT /applications")))
    run.open.clear()
    asked = api.slash(api.room, api.ann, "status")
    await api.until(
        lambda: bool(api.made("POST /interactions"))
    )  # although nothing can be written down
    run.open.set()
    command = await run.command()
    assert (command.name, command.origin, command.at, command.sender.id) == (
        "status",
        "native",
        place(api.room),
        api.ann,
    )
    for _ in range(2):
        await run.channel.send(part("all is well", api.room, key="p#0", reply_to=command.id))
    await run.channel.send(part("and more", api.room, key="p#1"))
    assert api.told(asked) == ["all is well"]
    assert "and more" in api.texts(api.room)


@pytest.mark.channel(commands=COMMANDS)
async def test_a_private_answer_never_becomes_a_public_one(api: DiscordApi, run: Running) -> None:
    await api.until(lambda: bool(api.made("PUT /applications")))
    asked = api.slash(api.room, api.ann, "log", entry="17")
    command = await run.command()
    assert command.args == "17"
    await run.channel.send(part("one", api.room, key="p#0", reply_to=command.id, private=True))
    api.faults.add("POST /webhooks", "500 after")
    with pytest.raises(Uncertain):
        await run.channel.send(part("two", api.room, key="p#1", private=True))
    with pytest.raises(Uncertain):  # follow-ups have no nonce
        await run.channel.send(part("two", api.room, key="p#1", private=True))
    assert api.told(asked) == ["one", "two"]
    later = api.slash(api.room, api.ann, "log")
    second = await run.command(2)
    later.made_s -= 16 * 60
    with pytest.raises(Rejected):
        await run.channel.send(part("late", api.room, key="q#0", reply_to=second.id, private=True))
    with pytest.raises(Rejected, match="too old"):  # as after a restart: the token is gone
        await run.channel.send(
            part("x", api.room, key="r#0", reply_to="interaction:5", private=True)
        )
    assert api.texts(api.room) == []


@pytest.mark.channel(commands=COMMANDS)
async def test_a_private_answer_in_a_direct_chat_that_comes_too_late_is_a_message(
    api: DiscordApi, run: Running
) -> None:
    await api.until(lambda: bool(api.made("PUT /applications")))
    direct = api.world.dm(api.ann)
    api.slash(direct, api.ann, "log").made_s -= 16 * 60
    command = await run.command()
    await run.channel.send(part("late", direct, key="p#0", reply_to=command.id, private=True))
    # as after a restart: the token is gone
    await run.channel.send(part("lost", direct, key="q#0", reply_to="interaction:5", private=True))
    await run.channel.send(part("more", direct, key="q#1", private=True))
    assert (api.texts(direct), api.offences) == (["late", "lost", "more"], [])
    api.dispatch("CHANNEL_UPDATE", api.world.channels[direct] | {"type": 3})  # of several people
    api.slash(direct, api.ann, "log")
    await run.command(2)
    for there in (direct, "99"):  # the other one is not known yet
        late = part("x", there, key="r#0", reply_to="interaction:6", private=True)
        with pytest.raises(Rejected, match="too old"):
            await run.channel.send(late)


@pytest.mark.channel(commands=COMMANDS)
async def test_the_token_of_a_command_is_in_no_log_line(
    caplog: pytest.LogCaptureFixture, api: DiscordApi, run: Running
) -> None:
    await api.until(lambda: bool(api.made("PUT /applications")))
    asked = api.slash(api.room, api.ann, "log")
    command = await run.command()
    api.faults.add("PATCH /webhooks", "429")
    await run.channel.send(part("one", api.room, reply_to=command.id, private=True))
    assert "We are being rate limited" in caplog.text
    assert asked.token not in caplog.text


@pytest.mark.channel(commands=COMMANDS)
async def test_a_public_answer_that_comes_too_late_is_a_message(
    api: DiscordApi, run: Running
) -> None:
    await api.until(lambda: bool(api.made("PUT /applications")))
    asked = api.slash(api.room, api.ann, "status")
    command = await run.command()
    asked.made_s -= 16 * 60
    gone: list[int] = []

    async def going() -> None:
        gone.append(1)

    await run.channel.send(part("late", api.room, reply_to=command.id), going)
    await run.channel.send(part("later", api.room, key="q#0", reply_to="interaction:5"))
    assert api.texts(api.room) == ["late", "later"]
    assert gone == [1]


DATA = bytes(range(256)) * 8
FILE = OutgoingFile(name="a b.pdf", content_type="application/pdf", data=DATA)
SAY = r"POST /channels/\d+/messages"


async def test_a_file_is_sent_with_its_text_and_the_nonce(api: DiscordApi, run: Running) -> None:
    asked = api.says(api.room, api.ann, "the file?")
    sent = part("**here** @everyone", api.room, file=FILE, reply_to=asked)
    receipts = [await run.channel.send(sent) for _ in range(2)]
    (shown,) = api.visible(api.room)
    (told,) = shown["attachments"]
    assert [receipt.ids for receipt in receipts] == [(shown["id"],)] * 2
    assert (shown["content"], shown["message_reference"]["message_id"]) == (
        "**here** @everyone",
        asked,
    )
    assert (told["filename"], told["content_type"], told["size"]) == (
        "a b.pdf",
        "application/pdf",
        len(DATA),
    )
    assert api.world.files[told["url"].partition("/cdn/")[2]][0] == DATA
    assert not api.offences


async def test_no_name_becomes_a_header(api: DiscordApi, run: Running) -> None:
    odd = OutgoingFile(
        name='a"; name="payload_json"\r\n\r\n{}.txt',
        content_type="text/plain\r\nX-Bad: 1",
        data=DATA,
    )
    await run.channel.send(part("x", api.room, file=odd))
    (shown,) = api.visible(api.room)
    assert shown["content"] == "x"
    assert shown["attachments"][0]["content_type"] == "application/octet-stream"
    assert "\r" not in shown["attachments"][0]["filename"]
