"""What is done to messages and rooms, and files that are sent: which, whose, recorded before and
after."""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from channels.base import RateLimited, Rejected, SendError, Uncertain, Unreachable
from gateway.core.events import (
    Address,
    Alarm,
    EventId,
    MessageDeleted,
    MessageId,
    PlaceNames,
    PlaceRenamed,
    Post,
    PostFile,
    PostKey,
    RoomId,
)
from gateway.core.facts import AttentionThresholdSet, PlatformAction, PostQueued, RoomAttended
from gateway.core.labels import Label
from gateway.core.tool import ToolOutput
from gateway.core.tool_spec import ToolCall, ToolCallRefused
from gateway.plugins.messaging import MAX_ATTENDS_PER_HOUR
from gateway.store import NewEntry
from reverie.testing.channels import story
from tests.kits.messaging import (
    ANN,
    OTHER,
    OWN,
    OWNER,
    PEER,
    ROOM,
    STAFF,
    Deaf,
    Stage,
    Stagehands,
    at,
    stagehands,
)
from tests.kits.store import NOW, turn
from tests.kits.tools import dispatcher


def done(kit: Stagehands) -> list[tuple[str, ...]]:
    assert isinstance(kit.stage, Stage)
    return kit.stage.done


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Stagehands]:
    async with stagehands(tmp_path) as made:
        yield made


async def test_a_reaction_is_put_on_what_is_answered_and_taken_off(kit: Stagehands) -> None:
    await kit.say(1, "old", fate="context")
    await kit.say(2, "new")
    where = at(ROOM, "ann")
    assert await kit.hand("react", where, message="last", reaction="👍") == "The reaction is set."
    assert (
        await kit.hand("react", where, message="`LAST`", reaction="👍", remove=True)
        == "The reaction is removed."
    )
    assert done(kit) == [("react", "#room", "2", "👍"), ("unreact", "#room", "2", "👍")]
    assert await kit.acted() == [
        ("react", "begun"),
        ("react", "done"),
        ("unreact", "begun"),
        ("unreact", "done"),
    ]
    (first, *_) = [one for one in await kit.facts("acted") if isinstance(one, PlatformAction)]
    assert (first.turn, first.agent, first.at, first.message) == ("t", "reverie", ROOM, "2")


async def test_where_nothing_is_new_last_is_what_was_heard_last(kit: Stagehands) -> None:
    with pytest.raises(ToolCallRefused, match="Nobody has said anything here"):
        await kit.hand("react", at(ROOM), message="last", reaction="x")
    await kit.say(1, "heard")
    await kit.say(2, "refused", fate="refused")
    await kit.post("an answer")
    await kit.hand("react", at(ROOM), message="last", reaction="x")
    assert done(kit) == [("react", "#room", "1", "x")]


async def test_a_message_is_named_by_its_handle_whatever_recall_found_of_it(
    kit: Stagehands,
) -> None:
    said = await kit.say(1, "hello")
    post = await kit.post("answer")
    cause = (await kit.store.entry(post)) or pytest.fail("no post")
    for handle in (f"m{said}", f"M{post}", f"m{cause.cause}"):
        await kit.hand("react", at(ROOM, "ann"), message=handle, reaction="x")
    assert [what[2] for what in done(kit)] == ["1", "p1", "p1"]


@pytest.mark.parametrize(
    "handle", ["m0", "m999", "m", "e1", "n1", "1", "m1.1", "m" + "9" * 30, "-1", "latest"]
)
async def test_a_forged_handle_names_nothing(kit: Stagehands, handle: str) -> None:
    await kit.say(1, "hello", fate="refused")
    with pytest.raises(ToolCallRefused, match="no message with that handle"):
        await kit.hand("react", at(ROOM, "ann"), message=handle, reaction="x")
    assert done(kit) == []


async def test_another_room_is_out_of_reach_but_for_an_owner_alone(kit: Stagehands) -> None:
    said = await kit.say(1, "hello", OTHER)
    theirs = await kit.say(2, "hello", PEER)
    with pytest.raises(ToolCallRefused, match="Only an owner, in a direct chat"):
        await kit.hand("react", at(ROOM, "olga"), message=f"m{said}", reaction="x")
    with pytest.raises(ToolCallRefused, match="not in that place"):
        await kit.hand("react", at(OWNER, "olga"), message=f"m{theirs}", reaction="x")
    await kit.hand("react", at(OWNER, "olga"), message=f"m{said}", reaction="y")
    assert done(kit) == [("react", "#other", "1", "y")]


async def test_a_closed_room_is_named_with_its_sign_and_not_by_a_word_in_passing(
    kit: Stagehands,
) -> None:
    (post,) = [one for one in kit.tools if one.spec.name == "send_message"]
    given = json.dumps({"address": STAFF.conversation, "text": "x"})
    call, found = ToolCall(id="1", name="send_message", arguments=given), list[bool]()
    for number, text in enumerate(("is this page about staff?", "tell #Staff, please"), 1):
        await kit.say(number, text, OWNER, who="olga")
        found.append((await post.find_effect(call, at(OWNER, "olga"))).is_named)
    assert found == [False, True]


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("send_message", {"address": OTHER.conversation, "text": "x"}),
        ("react", {"message": "m1", "reaction": "x"}),
        ("edit_own", {"message": "m3", "text": "x"}),
        ("delete_own", {"message": "m3"}),
        ("set_topic", {"topic": "x"}),
        ("send_file", {"path": "a.txt"}),
    ],
)
async def test_from_inside_nothing_is_done_in_a_room(
    kit: Stagehands, name: str, asked: dict[str, str]
) -> None:
    assert await kit.say(1, "hello", OTHER) == 1
    await kit.post("answer", OTHER)
    kit.put("a.txt", b"x")
    before = await kit.facts("acted", "post")
    with pytest.raises(
        ToolCallRefused, match=r"you can do nothing in a room|by yourself|Only rooms"
    ):
        await kit.hand(name, at(OWN), **asked)
    assert (done(kit), await kit.facts("acted", "post")) == ([], before)


async def shown(kit: Stagehands, *rooms: Address) -> None:
    """Something waits in these rooms, and a digest shows it."""
    for room in rooms:
        number = len(await kit.store.entries()) + 1
        await kit.say(number, f"who can help with {number}?", room, fate="due", urgency=2)
    assert await kit.digests.build(plain=False) is not None
    assert kit.digests.rooms == {one.conversation for one in rooms}


async def test_a_room_is_attended_once_by_an_alarm_that_says_nothing_of_other_rooms(
    kit: Stagehands,
) -> None:
    await shown(kit, ROOM, OTHER)
    inner = at(OWN)
    inner.request.label |= Label("guest", (OTHER.conversation,), "m3")
    asked = {"room": ROOM.conversation, "reason": "they say\nmarzipan in #other"}
    assert await kit.hand("attend", inner, **asked) == "Its turn is taken."
    (attended,) = await kit.facts("attended")
    assert attended == RoomAttended(
        turn=inner.turn,
        at=ROOM,
        reason="they say marzipan in #other",
        label=inner.request.label,
    )
    (alarm,) = await kit.store.entries(kinds=["alarm"])
    assert alarm.conversation == ROOM.conversation
    assert isinstance(alarm.fact, Alarm)
    assert re.fullmatch(r"the line of Ann at \d\d:\d\d", alarm.fact.text)
    assert await kit.store.due_conversations(1) == [
        (OTHER.conversation, 2),
        (ROOM.conversation, 2),
    ]
    with pytest.raises(ToolCallRefused, match=f"something pending: {OTHER.conversation}"):
        await kit.hand("attend", inner, **asked)
    digest = await kit.digests.build(plain=False)
    assert digest is not None
    assert [place for place, _ in digest.looked] == [
        OTHER.conversation
    ]  # a turn is due in the other one


async def test_only_what_was_shown_is_attended_and_only_from_inside(kit: Stagehands) -> None:
    await shown(kit, ROOM)
    await kit.say(50, "hello", ANN)
    for room in (
        OTHER.conversation,
        STAFF.conversation,
        ANN.conversation,
        OWN.conversation,
        "nowhere",
        "",
    ):
        with pytest.raises(ToolCallRefused, match="Nothing that you were shown is pending there"):
            await kit.hand("attend", at(OWN), room=room)
    for where in (at(ROOM, "olga"), at(OWNER, "olga")):
        with pytest.raises(ToolCallRefused, match="by yourself"):
            await kit.hand("attend", where, room=ROOM.conversation)
    async with kit.locks.lock_for(ROOM.conversation):
        with pytest.raises(ToolCallRefused, match="turn runs there"):
            await kit.hand("attend", at(OWN), room=ROOM.conversation)
    assert await kit.facts("attended", "alarm") == []
    await kit.post("answered there")  # what was shown is dealt with
    with pytest.raises(ToolCallRefused, match="something pending: none"):
        await kit.hand("attend", at(OWN), room=ROOM.conversation)


@story
async def test_a_title_names_a_room_and_two_rooms_with_one_title_are_asked_about(
    tmp_path: Path,
) -> None:
    twin = replace(OTHER, room=RoomId("-1"))
    async with stagehands(tmp_path) as kit:
        for place, title in ((ROOM, "Garden"), (OTHER, "Kitchen"), (twin, "Kitchen")):
            names = PlaceNames(room=title)
            kit.titles.learn(
                PlaceRenamed(id=EventId(title), at=place, names=names, sent=NOW, role="")
            )
        await shown(kit, ROOM, OTHER, twin)
        with pytest.raises(
            ToolCallRefused, match=r"Several places are called so: .*#other.*-1|-1.*#other"
        ):
            await kit.hand("attend", at(OWN), room="kitchen")
        await kit.hand("attend", at(OWN), room="garden")
        await kit.hand("attend", at(OWN), room=f'"Kitchen" ({twin.conversation})')
        places = [one.at for one in await kit.facts("attended") if isinstance(one, RoomAttended)]
        assert places == [ROOM, twin]


async def test_a_room_is_attended_so_often_within_an_hour_and_no_other_pays_for_it(
    kit: Stagehands,
) -> None:
    async def attend(room: Address, number: int) -> str | ToolOutput:
        await shown(kit, room)
        told = await kit.hand("attend", at(OWN, turn_id=f"t{number}"), room=room.conversation)
        await kit.post(f"answer {number}", room)
        return told

    for number in range(MAX_ATTENDS_PER_HOUR):
        await attend(ROOM, number)
        kit.clock.advance(60)
    with pytest.raises(ToolCallRefused, match=f"{MAX_ATTENDS_PER_HOUR} times within an hour"):
        await attend(ROOM, 50)
    await kit.post("left", ROOM)
    await attend(OTHER, 51)
    kit.clock.advance(3600 - 60 * MAX_ATTENDS_PER_HOUR + 1)  # the first is an hour ago
    await attend(ROOM, 52)
    with pytest.raises(ToolCallRefused, match="times within an hour"):
        await attend(ROOM, 53)


async def test_what_an_operator_holds_back_is_not_attended(kit: Stagehands) -> None:
    await shown(kit, ROOM)
    held = AttentionThresholdSet(type=f"{ROOM.channel}.alarm", value=3, by="olga")
    await kit.store.append([NewEntry(fact=held, at=NOW)])
    with pytest.raises(ToolCallRefused, match=r"Not now: .*alarm.* is 3"):
        await kit.hand("attend", at(OWN), room=ROOM.conversation)
    assert await kit.facts("attended", "alarm") == []


async def test_an_own_post_is_edited_and_then_deleted(kit: Stagehands) -> None:
    await kit.say(1, "hello")
    await kit.post("first")
    await kit.post("secnod")
    where = at(ROOM, "mia")
    told = await kit.hand("edit_own", where, message="mine", text="second")
    assert "still shows you the old text" in str(told)
    lines = await kit.read(where)
    assert [line.split("] ", 1)[1] for line in lines] == [
        "Ann (guest): hello",
        "you (agent): first",
        "you (agent) (edited): second",
    ]
    await kit.hand("delete_own", where, message="mine")
    await kit.hand("delete_own", where, message="mine")
    assert done(kit) == [
        ("edit", "#room", "p2", "second"),
        ("delete", "#room", "p2"),
        ("delete", "#room", "p1"),
    ]
    assert len(await kit.read(where)) == 1
    with pytest.raises(ToolCallRefused, match="no recent post"):
        await kit.hand("delete_own", where, message="mine")


async def test_only_own_messages_are_changed(kit: Stagehands) -> None:
    said = await kit.say(1, "hello")
    peers = await kit.post("from another agent", agent="peer")
    answer = await kit.queue(Post(key=PostKey("c"), to=ROOM, text="the answer to a command"))
    whose = {
        f"m{said}": "somebody else",
        f"m{peers}": "somebody else",
        f"m{answer}": "no message",
    }
    for handle, why in whose.items():
        with pytest.raises(ToolCallRefused, match=why):
            await kit.hand("edit_own", at(ROOM, "mia"), message=handle, text="x")
        with pytest.raises(ToolCallRefused, match=why):
            await kit.hand("delete_own", at(ROOM, "mia"), message=handle)
    with pytest.raises(ToolCallRefused, match="no recent post"):
        await kit.hand("delete_own", at(ROOM, "mia"), message="mine")
    assert done(kit) == []
    assert await kit.acted() == []


async def test_an_answer_in_pieces_is_not_edited_but_deleted_whole_from_its_end(
    kit: Stagehands,
) -> None:
    await kit.post("one|two|three")
    with pytest.raises(ToolCallRefused, match="3 pieces"):
        await kit.hand("edit_own", at(ROOM, "mia"), message="mine", text="x")
    await kit.hand("delete_own", at(ROOM, "mia"), message="mine")
    assert done(kit) == [
        ("delete", "#room", "p3"),
        ("delete", "#room", "p2"),
        ("delete", "#room", "p1"),
    ]


async def test_what_somebody_else_deleted_is_not_there_any_more(kit: Stagehands) -> None:
    said, post = await kit.say(1, "hello"), await kit.post("answer")
    for message in ("1", "p1"):
        await kit.happen(
            MessageDeleted(id=EventId(f"d{message}"), at=ROOM, message=MessageId(message), sent=NOW)
        )
    for seq in (said, post):
        with pytest.raises(ToolCallRefused, match="no message with that handle"):
            await kit.hand("react", at(ROOM), message=f"m{seq}", reaction="x")
    assert await kit.read(at(ROOM)) == []


@pytest.mark.parametrize(
    ("error", "told", "ends"),
    [
        (
            Rejected("it is \x1b[2J too old\n"),
            "It was not done: it is .2J too old",
            ["begun", "failed"],
        ),
        (Unreachable("no link"), "It was not done: no link", ["begun", "failed"]),
        (
            RateLimited("slowly", retry_after_s=7),
            "It was not done: slowly. Try again in 7 s",
            ["begun", "failed"],
        ),
        (Uncertain("cut"), "It may or may not have been done: cut", ["begun"]),
    ],
)
async def test_a_failure_is_told_and_written_down(
    tmp_path: Path, error: SendError, told: str, ends: list[str]
) -> None:
    stage = Stage()
    stage.fails = error

    async with stagehands(tmp_path, stage) as kit:
        await kit.post("answer")
        with pytest.raises(ToolCallRefused, match=told):
            await kit.hand("edit_own", at(ROOM, "mia"), message="mine", text="x")
        assert [state for _, state in await kit.acted()] == ends
        assert (await kit.read(at(ROOM)))[0].endswith("you (agent): answer")


@story
async def test_cut_off_in_between_the_log_says_that_it_may_have_been_done(tmp_path: Path) -> None:
    stage = Stage()
    stage.hold = asyncio.Event()
    async with stagehands(tmp_path, stage) as kit:
        await kit.say(1, "hello")
        doing = asyncio.create_task(
            kit.hand("react", at(ROOM, "ann"), message="last", reaction="x")
        )
        while not stage.done:
            await asyncio.sleep(0)
        doing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doing
        assert await kit.acted() == [("react", "begun")]
        assert stage.done == [("begun", "react", "#room", "1", "x")]


@pytest.mark.parametrize("stage", [Stage, Deaf])
async def test_what_no_channel_can_do_is_not_offered(
    stage: type[Stage | Deaf], tmp_path: Path
) -> None:
    needs_channel = {"react", "edit_own", "delete_own", "set_topic"}
    async with stagehands(tmp_path, stage()) as kit:
        offered = {spec.name for spec in dispatcher(kit.tools).specs}
    assert offered & needs_channel == (needs_channel if stage is Stage else set())
    assert "send_file" in offered


async def test_a_topic_is_set_in_the_room_of_the_turn_alone(kit: Stagehands) -> None:
    await kit.say(1, "hello")
    await kit.say(2, "hello", ANN)
    told = await kit.hand("set_topic", at(ROOM), topic=" News\r\nof\x00 today ")
    assert told == "The topic is changed."
    assert done(kit) == [("topic", "#room", "News of today")]
    for where in (at(ANN, "ann"), at(OWN)):
        with pytest.raises(ToolCallRefused, match="Only rooms"):
            await kit.hand("set_topic", where, topic="x")


@story
async def test_a_platform_that_cannot_says_so(tmp_path: Path) -> None:
    async with stagehands(tmp_path, Deaf()) as kit:
        await kit.say(1, "hello")
        await kit.post("answer")
        for name, asked in (
            ("react", {"message": "last", "reaction": "x"}),
            ("edit_own", {"message": "mine", "text": "x"}),
            ("delete_own", {"message": "mine"}),
            ("set_topic", {"topic": "x"}),
        ):
            with pytest.raises(ToolCallRefused, match="Deaf"):
                await kit.hand(name, at(ROOM, "mia"), **asked)
        assert await kit.acted() == []


@pytest.mark.parametrize(
    ("name", "arguments", "asker", "allowed"),
    [
        ("react", '{"message":"last","reaction":"x"}', "ann", True),
        ("read_room", "{}", "ann", True),
        ("who", "{}", "ann", True),
        ("edit_own", '{"message":"mine","text":"x"}', "ann", False),
        ("edit_own", '{"message":"mine","text":"x"}', "mia", True),
        ("delete_own", '{"message":"mine"}', "ann", False),
        ("send_file", '{"path":"a"}', "ann", False),
        ("set_topic", '{"topic":"x"}', "mia", False),
        ("set_topic", '{"topic":"x"}', "olga", True),
    ],
)
async def test_who_may_have_it_done(
    kit: Stagehands, name: str, arguments: str, asker: str, *, allowed: bool
) -> None:
    await kit.say(1, "hello")
    await kit.post("answer")
    result = await kit.hands.call(ToolCall(id="c", name=name, arguments=arguments), at(ROOM, asker))
    assert result.is_error is not allowed, result.text
    assert ("is for the role" in result.text) is not allowed


DATA = b"one,two\n"


async def send(
    kit: Stagehands, path: str = "out/table.csv", *, turn_id: str = "t", text: str = ""
) -> object:
    if not (kit.files / path).exists():
        kit.put(path, DATA)
    told = await kit.hand("send_file", at(ROOM, "mia", turn_id=turn_id), path=path, text=text)
    await kit.delivered()
    return told


def sent(kit: Stagehands) -> list[tuple[str, str, str, bytes]]:
    assert isinstance(kit.stage, Stage)
    return [
        (part.body, part.file.name, part.file.content_type, part.file.data)
        for part in kit.stage.sent
        if part.file
    ]


async def test_a_file_is_posted_with_its_name_and_text(tmp_path: Path, kit: Stagehands) -> None:
    assert await send(kit) == "It is posted."
    assert await send(kit, "a.unknown", text="the rest") == "It is posted."
    assert sent(kit) == [
        ("table.csv", "table.csv", "text/csv", DATA),
        ("the rest", "a.unknown", "application/octet-stream", DATA),
    ]
    (first, _) = [one for one in await kit.facts("post") if isinstance(one, PostQueued)]
    assert first.post.file == PostFile(
        name="table.csv",
        content_type="text/csv",
        sha256=hashlib.sha256(DATA).hexdigest(),
        size_bytes=len(DATA),
    )
    (acted, _) = [one for one in await kit.facts("acted") if isinstance(one, PlatformAction)]
    assert (acted.what, acted.state, acted.text) == ("file", "done", "table.csv")
    assert list((tmp_path / "outfiles").iterdir()) == []
    assert [line.split(": ", 1)[1] for line in await kit.read(at(ROOM))] == [
        "table.csv [file table.csv]",
        "the rest [file a.unknown]",
    ]


async def test_a_path_that_no_file_can_have_is_refused(kit: Stagehands) -> None:
    for path in ("../../etc/passwd", "a\x1b[2J\r\nX-Evil: 1.txt"):
        with pytest.raises(ToolCallRefused):
            await kit.hand("send_file", at(ROOM, "mia"), path=path)
    assert sent(kit) == []


async def test_it_is_an_own_post_like_any_other(kit: Stagehands) -> None:
    await send(kit, text="look")
    await kit.hand("edit_own", at(ROOM, "mia"), message="mine", text="see")
    assert isinstance(kit.stage, Stage)
    assert kit.stage.done == [("edit", "#room", "p1", "see")]


@pytest.mark.parametrize("name", ["a\\b\\c.txt", "  .txt", "e" * 250])
async def test_a_name_is_one_line_and_no_path(kit: Stagehands, name: str) -> None:
    await send(kit, f"out/{name}")
    ((_, told, _, _),) = sent(kit)
    assert told.isprintable()
    assert not set("/\\") & set(told)
    assert 0 < len(told) <= 100


@pytest.mark.parametrize(
    ("size", "why"),
    [(1_001, "That file has 1,001 bytes; 1,000 is the most"), (0, "is empty")],
)
async def test_what_is_too_large_or_empty_is_refused(kit: Stagehands, size: int, why: str) -> None:
    kit.put("x", b"x" * size)
    with pytest.raises(ToolCallRefused, match=why):
        await send(kit, "x")
    with pytest.raises(ToolCallRefused, match="no such file"):
        await kit.hand("send_file", at(ROOM, "mia"), path="y")
    assert await kit.facts("post", "acted") == []


@story
async def test_where_no_file_can_be_sent_it_is_refused(tmp_path: Path) -> None:
    async with stagehands(tmp_path, Deaf()) as kit:
        with pytest.raises(ToolCallRefused, match="No files can be sent here"):
            await send(kit)
        with pytest.raises(ToolCallRefused, match="by yourself"):
            await kit.hand("send_file", at(OWN), path="out/table.csv")


@story
async def test_a_turn_that_is_taken_again_after_a_crash_sends_it_once(tmp_path: Path) -> None:
    async with stagehands(tmp_path) as kit:
        await send(kit, turn_id="first")
    async with stagehands(tmp_path) as kit:
        assert "not posted again" in str(await send(kit, turn_id="second"))
        assert await send(kit, turn_id="second", text="other words") == "It is posted."
        await kit.store.append([turn(ROOM.conversation, upto=1)])
        assert await send(kit, turn_id="third") == "It is posted."
        assert [body for body, *_ in sent(kit)] == ["other words", "table.csv"]


@story
async def test_what_was_queued_before_a_crash_is_delivered_by_the_next_process_once(
    tmp_path: Path,
) -> None:
    async with stagehands(tmp_path) as kit:
        kit.link(up=False)
        kit.put("a.png", DATA)
        await kit.hand("send_file", at(ROOM, "mia"), path="a.png")
    for _ in range(2):
        async with stagehands(tmp_path, stage := Stage()) as kit:
            await kit.delivered()
            if stage.sent:
                assert sent(kit) == [("a.png", "a.png", "image/png", DATA)]
                break
    async with stagehands(tmp_path, stage := Stage()) as kit:
        await kit.delivered()
        assert stage.sent == []
    assert list((tmp_path / "outfiles").iterdir()) == []


async def test_cut_off_while_it_is_written_down_it_is_posted_all_the_same(
    tmp_path: Path, kit: Stagehands
) -> None:
    kit.put("a.png", DATA)
    sending = asyncio.create_task(kit.hand("send_file", at(ROOM, "mia"), path="a.png"))
    while not (tmp_path / "outfiles").exists():  # from here on it is being made durable
        await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await kit.delivered()
    assert [body for body, *_ in sent(kit)] == ["a.png"]
