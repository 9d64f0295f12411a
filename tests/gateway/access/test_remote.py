"""Abilities of channels that another process holds."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import get_protocol_members, is_protocol

from channels import base
from channels.base import (
    Channel,
    Emit,
    Part,
    RoomMembers,
    SendError,
    no_before_send,
    provisional_id,
)
from channels.discord.errors import DiscordRefused
from gateway.access.channels import Channels
from gateway.access.remote import (
    ABILITIES,
    ANSWER_AGE_S,
    ASK_TIMEOUT_S,
    HOLDER_ONLY,
    QUESTIONS,
    RemoteChannel,
    build_remote_channel,
    remote_methods,
    serve_channels,
)
from gateway.cluster.cluster import CallFailed, channel_lease
from gateway.core.clock import ManualClock, SystemClock
from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MessageId,
    Post,
    PostKey,
    Receipt,
    RoomId,
    Sender,
    SenderId,
    ThreadId,
)
from gateway.core.scopes import PUBLIC, space_scope
from tests.channels.conformance import actions, lifecycle
from tests.channels.conformance.platforms.base import Bench, Kit, bench
from tests.channels.conformance.platforms.console import ConsoleKit
from tests.channels.conformance.platforms.discord import DiscordKit
from tests.channels.conformance.platforms.irc import ScriptedIrcKit
from tests.channels.conformance.platforms.telegram import TelegramKit
from tests.kits.cluster import ManualCluster
from tests.kits.far_channel import FarChannel
from tests.kits.settings import live_settings
from tests.kits.store import NOW
from tests.kits.waiting import until

KITS: Sequence[type[Kit]] = (ConsoleKit, ScriptedIrcKit, TelegramKit, DiscordKit)
NAME = ChannelName("far")
ROOM = Address(channel=NAME, room=RoomId("#room"), thread=ThreadId("7"))
ANN = Sender(id=SenderId("1"), name="Ann", account="ann", verified=True, ranks=("role:7", "op"))
PINNED_AT_ONCE = frozenset({
    "typing_interval_s", "preview_interval_s", "page_count", "line_count", "place_names", "nick", "direct_room",
    "position", "learn", "set_completer", "apply_config", "join_refusal", "dropped_count", "account_problem",
})  # fmt: skip
"""What is answered by an adapter that is not connected: it follows from the settings, or only the holder needs it."""


class _Held(RemoteChannel):
    """A remote channel in a test that also runs it: that part is the adapter's own."""

    async def run(self, emit: Emit) -> None:
        await self._adapter.run(emit)

    async def send(self, part: Part, before_send: base.BeforeSend = no_before_send) -> Receipt:
        return await self._adapter.send(part, before_send)

    async def end_told(self) -> None:
        assert isinstance(self._cluster, ManualCluster)
        await self._cluster.end_told()


def held_elsewhere(adapter: Channel) -> Channel:
    """Return the channel as another process sees it that has the adapter's answers at once."""
    peers = list[ManualCluster]()
    holder, worker = ManualCluster(peers, channel_lease(adapter.name)), ManualCluster(peers)
    serve_channels(holder, {adapter.name: adapter})
    abilities = type(build_remote_channel(adapter, worker, SystemClock()))
    far: RemoteChannel = type("Held", (_Held, abilities), {})(adapter, worker, SystemClock())
    serve_channels(worker, {adapter.name: far})
    return far


def _checks() -> Iterator[object]:
    for kit in KITS:
        for check in (*actions.CHECKS, *lifecycle.HONEST):
            if check.__name__ not in kit.lacks and check.__name__ != "it_sends_files":
                yield pytest.param(kit, check, id=f"{kit.label}-{check.__name__}")


@pytest.mark.parametrize(("kit", "check"), [*_checks()])
async def test_abilities_of_every_platform_work_from_another_process(
    kit: type[Kit], check: Callable[[Bench], Any]
) -> None:
    async with asyncio.timeout(60), bench(kit(), held_elsewhere) as ready:
        assert isinstance(ready.channel, _Held)
        await check(ready)
        await ready.channel.end_told()


@pytest.mark.parametrize("kit", KITS)
async def test_a_remote_channel_has_exactly_the_abilities_of_its_adapter(kit: type[Kit]) -> None:
    adapter = kit().make()
    far = build_remote_channel(adapter, ManualCluster([]), ManualClock(NOW))
    assert {one for one in ABILITIES if isinstance(far, one)} == {one for one in ABILITIES if isinstance(adapter, one)}
    assert (far.name, far.capabilities) == (adapter.name, adapter.capabilities)


def test_every_method_of_every_ability_is_forwarded_or_known_to_be_answered_here() -> None:
    declared = {one for one in vars(base).values() if inspect.isclass(one) and is_protocol(one)} - {Channel, Emit}
    protocols = {one for one in declared if one.__module__ == base.__name__}
    assert protocols == {*ABILITIES}
    for name in (name for ability in ABILITIES for name in get_protocol_members(ability)):
        kinds = [name in remote_methods(), name in PINNED_AT_ONCE, name in HOLDER_ONLY]
        assert sum(kinds) == 1, f"{name}: say whether it needs the connection"
    assert remote_methods().keys() >= QUESTIONS


class Pair:
    """A process that holds a channel, and one that does not."""

    def __init__(self) -> None:
        peers = list[ManualCluster]()
        self.holder, self.worker = ManualCluster(peers, channel_lease(NAME)), ManualCluster(peers)
        self.adapter, self.clock = FarChannel(NAME), ManualClock(NOW)
        self.far: Any = build_remote_channel(FarChannel(NAME), self.worker, self.clock)
        self.held: dict[ChannelName, Channel] = {NAME: self.adapter}
        self.channels = Channels(live_settings(), {NAME: self.far})
        serve_channels(self.holder, self.held)
        serve_channels(self.worker, self.channels)


@pytest.fixture
async def pair() -> Pair:
    return Pair()


ID = MessageId("7:9")
PHOTO = Attachment(id="x", form="image", name="../ä\u202e.png", size_bytes=3, duration_s=2)
CALLS: Mapping[str, tuple[tuple[object, ...], dict[str, object], object]] = {
    "typing": ((ROOM,), {"active": True}, None),
    "delete_preview": ((ROOM, ID), {}, None),
    "download": ((ROOM, PHOTO), {"limit_bytes": 99}, bytes(range(256))),
    "membership": ((ROOM, ANN.id), {}, "reads_new"),
    "set_command_menus": (([(ANN, "admin"), (replace(ANN, id=SenderId("2")), "owner")],), {}, None),
    "open_direct": ((ANN,), {}, RoomId("7")),
    "leave": ((ROOM,), {}, None),
    "join": ((replace(ROOM, thread=None),), {}, None),
    "react": ((ROOM, ID, "👍🏽"), {"add": False}, None),
    "edit": ((ROOM, ID, "a\0\r\n\u2028{0} %s"), {}, None),
    "delete": ((ROOM, ID), {}, None),
    "set_topic": ((ROOM, ""), {}, None),
    "list_members": ((ROOM,), {"most": 5}, RoomMembers(members=(ANN,), total=2, note="x")),
}


async def test_arguments_and_results_arrive_as_they_were(pair: Pair) -> None:
    assert CALLS.keys() == remote_methods().keys() - QUESTIONS - {"preview"}
    for name, (args, kwargs, answer) in CALLS.items():
        pair.adapter.answers[name] = answer
        assert await getattr(pair.far, name)(*args, **kwargs) == answer
        await until(lambda: pair.adapter.done)  # nobody waits for the end of `typing`
        assert pair.adapter.done.pop() == (name, *args, *kwargs.values())


@pytest.mark.parametrize("answer", [None, "everybody", "space", "room", "thread"])
async def test_the_audience_is_asked_of_the_holder(pair: Pair, answer: base.Audience | None) -> None:
    pair.adapter.answers |= {"audience": answer, "space": RoomId("9")}
    room = replace(ROOM, thread=None).conversation
    scopes = {"everybody": PUBLIC, "space": space_scope(NAME, RoomId("9")), "room": room, "thread": ROOM.conversation}
    assert await pair.channels.scope_of(ROOM) == (scopes[answer] if answer else None)


async def test_an_answer_is_used_again_for_a_moment(pair: Pair) -> None:
    for audience in ("everybody", "room"):
        pair.adapter.answers["audience"] = audience
        assert await pair.channels.scope_of(ROOM) == PUBLIC
    pair.clock.advance(ANSWER_AGE_S)
    assert await pair.channels.scope_of(ROOM) == replace(ROOM, thread=None).conversation
    assert pair.adapter.done == [("audience", ROOM)] * 2


async def test_the_space_of_a_room_is_asked_once(pair: Pair) -> None:
    assert pair.channels.space_of(ROOM) is None, "nobody has told yet, and this must not wait"
    pair.adapter.answers["space"] = RoomId("9")
    await pair.channels.learn_space(ROOM)
    await pair.channels.learn_space(ROOM)
    assert pair.channels.space_of(ROOM) == "9"
    assert pair.adapter.done == [("space", ROOM.room)]


@pytest.mark.parametrize(
    "error",
    [
        base.SendError("x"),
        base.Denied("no", retry_after_s=60),
        base.Unreachable("down"),
        base.RateLimited("wait", retry_after_s=1.5),
        base.RecipientAway("away"),
        base.Rejected("§ {reason}"),
        base.Uncertain("cut"),
        base.Unsettled("cut"),
    ],
)
async def test_errors_arrive_as_what_they_are(pair: Pair, error: SendError) -> None:
    pair.adapter.error = error
    with pytest.raises(SendError) as caught:
        await pair.far.join(ROOM)
    assert (type(caught.value), vars(caught.value)) == (type(error), vars(error))
    await pair.far.typing(ROOM, active=True)
    assert await pair.far.membership(ROOM, ANN.id) is None


async def test_every_error_of_the_contract_is_known(pair: Pair) -> None:
    def below(kind: type[SendError]) -> list[type[SendError]]:
        return [
            kind,
            *(more for one in kind.__subclasses__() if one.__module__ == base.__name__ for more in below(one)),
        ]

    for kind in below(SendError):
        needed = {"retry_after_s": 1.0} if kind is base.RateLimited else {}
        pair.adapter.error = kind("why", **needed)
        with pytest.raises(SendError) as caught:
            await pair.far.join(ROOM)
        assert type(caught.value) is kind


async def test_an_error_of_an_adapter_arrives_as_that_of_the_contract(pair: Pair) -> None:
    pair.adapter.error = DiscordRefused("missing permissions", status=403)
    with pytest.raises(base.Rejected, match="missing permissions"):
        await pair.far.join(ROOM)


async def test_a_bug_of_an_adapter_leaves_it_uncertain_what_was_done(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.adapter.error = ZeroDivisionError("x")
    with pytest.raises(base.Uncertain):
        await pair.far.join(ROOM)
    assert "far: join broke" in caplog.text


async def test_text_that_is_none_is_refused_here(pair: Pair) -> None:
    with pytest.raises(base.Rejected):
        await pair.far.edit(ROOM, ID, "\ud800")
    assert pair.adapter.done == []


async def test_a_preview_is_recorded_before_it_is_shown(pair: Pair) -> None:
    recorded = list[tuple[MessageId, int]]()

    async def announce(message: MessageId) -> None:
        recorded.append((message, len(pair.adapter.done)))

    pair.adapter.answers["preview"] = "5"
    shown = await pair.far.preview(ROOM, "He", None, reply_to=ID, announce=announce)
    assert shown == "5"
    assert recorded == [(provisional_id("hint"), 0)], "nothing was done yet"
    assert pair.adapter.done == [("preview", ROOM, "He", None, ID)]
    assert await pair.far.preview(ROOM, "Hello", shown) == "5"
    assert len(recorded) == 1


async def test_a_preview_that_cannot_be_recorded_is_not_shown(pair: Pair) -> None:
    async def announce(_message: MessageId) -> None:
        raise OSError("the log cannot be written")

    with pytest.raises(base.Unreachable):
        await pair.far.preview(ROOM, "He", None, announce=announce)
    assert pair.adapter.done == []


async def test_a_preview_that_nobody_waits_for_is_not_recorded_or_shown(pair: Pair) -> None:
    """Its caller was cancelled, or this process holds the channel itself by now."""
    pair.channels[NAME] = pair.adapter

    async def announce(_message: MessageId) -> None:
        raise AssertionError("never called")

    with pytest.raises(base.Unreachable):
        await pair.far.preview(ROOM, "He", None, announce=announce)
    assert pair.adapter.done == []


async def test_what_is_cancelled_here_ends_there(pair: Pair) -> None:
    pair.adapter.block.clear()
    joining = asyncio.create_task(pair.far.join(ROOM))
    await pair.adapter.blocked.wait()
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    await asyncio.sleep(0)
    assert pair.adapter.is_cancelled


async def test_a_holder_that_is_gone_meanwhile_leaves_it_uncertain(pair: Pair) -> None:
    pair.adapter.block.clear()
    joining = asyncio.create_task(pair.far.join(ROOM))
    await pair.adapter.blocked.wait()
    pair.holder.kill()
    with pytest.raises(base.Uncertain, match="is gone"):
        await joining


async def _assert_nothing_is_done(pair: Pair) -> None:
    with pytest.raises(base.Unreachable, match="far"):
        await pair.far.join(ROOM)
    await pair.far.typing(ROOM, active=True)
    assert await pair.channels.membership(ROOM, ANN.id) is None
    assert await pair.channels.scope_of(ROOM) is None
    assert pair.adapter.done == []


async def test_nothing_is_done_while_nobody_holds_the_channel(pair: Pair) -> None:
    pair.holder.leases.clear()
    await _assert_nothing_is_done(pair)


async def test_nothing_is_done_by_a_process_that_does_not_run_the_channel_yet(pair: Pair) -> None:
    pair.held[NAME] = build_remote_channel(FarChannel(NAME), pair.holder, pair.clock)
    await _assert_nothing_is_done(pair)
    pair.held.clear()
    await _assert_nothing_is_done(pair)


async def test_nothing_is_done_by_a_process_that_has_lost_the_lease(pair: Pair) -> None:
    class Late(ManualCluster):
        def holds(self, lease: str) -> bool:  # noqa: ARG002 - the contract
            return False

    peers = list[ManualCluster]()
    holder, worker = Late(peers, channel_lease(NAME)), ManualCluster(peers)
    serve_channels(holder, pair.held)
    pair.far = build_remote_channel(FarChannel(NAME), worker, pair.clock)
    pair.channels[NAME] = pair.far
    await _assert_nothing_is_done(pair)


async def test_the_process_that_holds_the_channel_may_be_this_one(pair: Pair) -> None:
    """Just before the adapter is put in the place of the stand-in."""
    pair.holder.leases.clear()
    pair.worker.leases.add(channel_lease(NAME))
    await _assert_nothing_is_done(pair)


async def test_an_ability_that_the_adapter_at_the_holder_lacks_is_refused(pair: Pair) -> None:
    pair.held[NAME] = TelegramKit().make()
    with pytest.raises(base.Unreachable, match="cannot do that"):
        await pair.far.join(ROOM)


async def test_a_silent_holder_is_not_waited_for_again_and_again(pair: Pair) -> None:
    """Its deadline passes in real time; the next questions are not asked at all."""

    class Silent(ManualCluster):
        asked = 0

        async def call(self, to: int, method: str, arguments: Any, *, timeout_s: float) -> Any:  # noqa: ARG002 - the contract
            self.asked += 1
            assert timeout_s == ASK_TIMEOUT_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await asyncio.Event().wait()
            raise CallFailed("no answer")

    silent = Silent([], channel_lease(NAME))
    channels = Channels(live_settings(), {NAME: build_remote_channel(FarChannel(NAME), silent, pair.clock)})
    for number in range(50):
        assert await channels.scope_of(replace(ROOM, thread=ThreadId(f"{number}"))) is None
    assert silent.asked == 1
    pair.clock.advance(ASK_TIMEOUT_S)
    assert await channels.scope_of(ROOM) is None
    assert silent.asked == 2


async def test_what_follows_from_the_settings_is_answered_here(pair: Pair) -> None:
    pair.holder.kill()
    post = Post(key=PostKey("1"), to=ROOM, text="hello")
    far = pair.far
    assert (far.split(post), far.page_count(post), far.line_count(post)) == (("hello",), 1, 1)
    assert (far.typing_interval_s, far.preview_interval_s, far.nick, far.dropped_count) == (3.0, 1.5, "rev", 0)
    assert pair.channels.private_address(ROOM, ANN).room == "dm:1"
    assert (far.audience(ROOM), far.space(ROOM.room), far.is_joined(ROOM.room)) == (None, None, None)


async def test_only_the_holder_runs_a_channel_and_sends(pair: Pair) -> None:
    with pytest.raises(AssertionError, match="far"):
        await pair.far.send(Part(key="1", to=ROOM, body="x"))
    with pytest.raises(AssertionError, match="far"):
        await pair.far.run(None)
