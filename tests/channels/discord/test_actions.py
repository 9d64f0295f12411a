"""Reactions, edits, deletions, topics and who is there: as Discord allows them, and what is said
where it does not."""

import pytest

from channels.base import RateLimited, Rejected
from gateway.core.events import MessageId, RoomId, SenderId
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.discord_api_world import POST, PRIVATE_THREAD
from tests.channels.discord.channel_kit import Running, both, part, place, running


async def said(api: DiscordApi, run: Running, text: str = "hello", room: str = "") -> MessageId:
    (number,) = (await run.channel.send(part(text, room or api.room, key=text))).ids
    return number


def ours(api: DiscordApi, number: str) -> list[str]:
    return list(api.world.messages[api.room][number].get("bots_reactions", ()))


async def test_emoji_are_put_on_and_taken_off_however_they_are_written(
    api: DiscordApi, run: Running
) -> None:
    number, wave = MessageId(api.says(api.room, api.ann, "look")), api.world.add_emoji("wave")
    at = place(api.room)
    for written, known in (
        ("👍", "👍"),
        ("❤", "❤️"),
        ("❤️", "❤️"),
        (" 🔥\n", "🔥"),
        ("👩‍💻", "👩‍💻"),
        (":wave:", wave),
        (wave, wave),
        (f"<:{wave}>", wave),
        (f"<a:{wave}>", wave),
    ):
        for _ in range(2):
            await run.channel.react(at, number, written, add=True)
            assert ours(api, number) == [known]
        for _ in range(2):
            await run.channel.react(at, number, written, add=False)
            assert ours(api, number) == []


async def test_a_reaction_that_is_not_known_or_not_allowed_is_rejected(
    api: DiscordApi, run: Running
) -> None:
    number, at = MessageId(api.says(api.room, api.ann, "look")), place(api.room)
    for odd in ("🧿", ":nothing:", "yes", "", "wave:123456789012345678", "👍" * 40, "../../@me"):
        with pytest.raises(Rejected):
            await run.channel.react(at, number, odd, add=True)
    for gone in ("999", "interaction:5", "x"):
        with pytest.raises(Rejected):
            await run.channel.react(at, MessageId(gone), "👍", add=True)
    await run.channel.react(at, MessageId("999"), "👍", add=False)
    api.world.muted.add(api.room)
    with pytest.raises(Rejected, match="Missing Permissions"):
        await run.channel.react(at, number, "👍", add=True)


async def test_an_edit_calls_nobody_and_is_formatted_as_a_message_is(
    api: DiscordApi, run: Running
) -> None:
    at, number = place(api.room), await said(api, run)
    for _ in range(2):
        await run.channel.edit(at, number, "#### Now\n@everyone <@1>")
    (shown,) = api.visible(api.room)
    assert shown["content"] == "**Now**\n@everyone <@1>"
    assert not api.offences


async def test_topics_are_changed_twice_in_ten_minutes() -> None:
    limits = ((r"PATCH /channels/\d+$", 2, 600.0), (r".*", 1000, 1.0))
    async with both(options=Options(limits=limits)) as (api, run):
        for topic in ("one", "two"):
            await run.channel.set_topic(place(api.room), topic)
        with pytest.raises(RateLimited) as told:
            await run.channel.set_topic(place(api.room), "three")
        assert 500 < told.value.retry_after_s <= 600
        await said(api, run)
        assert len(api.made(r"PATCH /channels/\d+$")) == 2


async def test_with_the_intent_all_members_are_told() -> None:
    async with both(options=Options(members=True)) as (api, run):
        told = await run.channel.list_members(place(api.room), most=50)
        assert [(one.name, one.id, one.is_bot, one.verified) for one in told.members] == [
            ("ann", api.ann, False, True),
            ("ben", api.ben, False, True),
        ]
        assert (told.total, "whole server" in told.note) == (3, True)
        assert [
            one.name for one in (await run.channel.list_members(place(api.room), most=1)).members
        ] == ["ann"]
        thread = api.threads(api.room, api.ben, "talk", "hi")
        await run.message()
        inside = await run.channel.list_members(place(api.room, thread), most=500)
        assert [one.name for one in inside.members] == ["ben"]


async def test_without_the_intent_who_spoke_there_lately_is_listed(
    api: DiscordApi, run: Running
) -> None:
    thread = api.threads(api.room, api.ben, "talk", "hi")
    api.says(api.room, api.ann, "hello")
    for _ in range(2):
        await run.message()
    told = await run.channel.list_members(place(api.room), most=50)
    assert [(one.name, one.id, one.is_bot, one.verified) for one in told.members] == [
        ("ann", api.ann, False, True),
    ]
    assert (told.total, "spoke here" in told.note) == (3, True)
    inside = await run.channel.list_members(place(api.room, thread), most=500)
    assert ([one.name for one in inside.members], inside.total) == (["ben"], None)


async def test_threads_are_left_and_channels_say_what_can_be_done_instead(
    api: DiscordApi, run: Running
) -> None:
    thread = api.threads(api.room, api.ann, "a thread")
    for _ in range(2):
        await run.channel.leave(place(api.room, thread))
    assert api.world.left == {thread}
    await run.channel.leave(place(api.room, "99"))
    api.world.channels[thread]["thread_metadata"]["archived"] = True
    with pytest.raises(Rejected, match="archived"):
        await run.channel.leave(place(api.room, thread))
    with pytest.raises(Rejected, match="room revoke"):
        await run.channel.leave(place(api.room))
    with pytest.raises(Rejected, match="nothing but threads"):
        await run.channel.leave(place(api.world.dm(api.ann)))
    assert run.channel.is_joined(RoomId(api.room)) is True
    assert run.channel.is_joined(RoomId(api.guild)) is True
    assert run.channel.is_joined(RoomId("99")) is False
    await run.end()
    assert run.channel.is_joined(RoomId(api.room)) is None


ADMINISTRATOR, CHANNEL, HISTORY, MANAGE_THREADS = 1 << 3, 1 << 10, 1 << 16, 1 << 34


async def test_a_member_reads_what_their_permissions_let_them_read(
    api: DiscordApi, run: Running
) -> None:
    world, ann = api.world, api.world.ann

    async def reads(room: str, thread: str | None = None, person: str = ann) -> bool:
        return await run.channel.membership(place(room, thread), SenderId(person)) is not None

    async def told() -> None:
        """An event after the last one, so that those before are read."""
        number = len(run.messages)
        api.says(world.room, world.ben, "hi")
        await run.message(number + 1)

    staff, admins = world.add_role("staff"), world.add_role("admins", ADMINISTRATOR)
    for role in (staff, admins):
        api.dispatch("GUILD_ROLE_CREATE", {"guild_id": api.guild, "role": role})
    room = world.add_channel("closed")

    async def overwritten(*overwrites: tuple[str, int, int], kind: int = 0) -> None:
        world.channels[room]["type"] = kind
        world.channels[room]["permission_overwrites"] = [
            {
                "id": target,
                "type": int(target in world.users),
                "allow": str(allow),
                "deny": str(deny),
            }
            for target, allow, deny in overwrites
        ]
        api.dispatch("CHANNEL_UPDATE", world.channels[room])
        await told()

    await overwritten()
    assert await reads(room)
    hidden = (api.guild, 0, CHANNEL)
    await overwritten(hidden)
    assert not await reads(room)
    await overwritten((api.guild, 0, HISTORY))
    assert not await reads(room), "who came later could not read it"
    await overwritten(hidden, (staff["id"], CHANNEL, 0))
    assert not await reads(room), "not a role of theirs"
    world.roles[ann] = [staff["id"]]
    assert await reads(room)
    await overwritten((staff["id"], CHANNEL, 0), (ann, 0, CHANNEL), hidden)
    assert not await reads(room), "what is said of a person counts more"
    await overwritten(hidden, (ann, CHANNEL, 0))
    assert await reads(room)
    await overwritten((api.guild, 0, 1 << 20), kind=2)
    assert not await reads(room), "the chat of a voice channel that they cannot connect to"
    await overwritten(hidden)
    world.roles[ann] = [admins["id"]]
    assert await reads(room)
    api.dispatch("GUILD_ROLE_DELETE", {"guild_id": api.guild, "role_id": admins["id"]})
    await told()
    assert not await reads(room), "the role is gone"
    world.guilds[api.guild]["owner_id"] = ann
    api.dispatch("GUILD_UPDATE", world.guilds[api.guild])
    await told()
    assert await reads(room), "an owner"
    assert await reads(api.guild), "what everybody there may read"
    world.gone.add(ann)
    assert not await reads(room), "gone a moment ago"
    assert not await reads(api.guild)
    for odd in ("", "x", "²", "0", str(1 << 62)):
        assert not await reads(world.room, person=odd), odd
    assert not await reads(world.dm(world.ben), person=world.ben)
    assert not await reads("1", person=world.ben), "nobody knows it"


async def test_private_threads_are_read_by_who_was_added_to_them(
    api: DiscordApi, run: Running
) -> None:
    world, ben = api.world, api.world.ben

    async def reads(thread: str, room: str = world.room) -> bool:
        return await run.channel.membership(place(room, thread), SenderId(ben)) is not None

    managers = world.add_role("managers", MANAGE_THREADS)
    api.dispatch("GUILD_ROLE_CREATE", {"guild_id": api.guild, "role": managers})
    private, public = (
        world.add_thread(world.room, "talk", world.ann, kind=kind)
        for kind in (PRIVATE_THREAD, POST)
    )
    for thread in (private, public):
        api.dispatch("THREAD_CREATE", thread)
    api.says(world.room, ben, "hi")
    await run.message()
    assert await reads(public["id"])
    assert not await reads(private["id"])
    assert not await reads(public["id"], world.other), "it is elsewhere"
    assert not await reads("1")
    world.roles[ben] = [managers["id"]]
    assert await reads(private["id"])
    world.roles[ben] = []
    world.added.add((private["id"], ben))
    assert await reads(private["id"])


async def test_nobody_is_a_member_while_discord_cannot_be_asked(api: DiscordApi) -> None:
    async with running(api) as run:
        at, ann = place(api.world.room), SenderId(api.world.ann)
        assert await run.channel.membership(at, ann) is None, "not connected"
        await run.up()
        assert await run.channel.membership(at, ann) == "reads_all"
        line = rf"GET /guilds/{api.guild}/members/{ann}"
        for do in ("500 before", "502 before", "429"):
            api.faults.add(line, do, retry_after_s=40)
            assert await run.channel.membership(at, ann) is None, do
