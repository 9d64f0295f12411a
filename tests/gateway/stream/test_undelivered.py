"""Reports of undelivered posts: in the conversation of the post, in the same append, and nowhere else."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from channels.base import Part, Rejected, SendError, Uncertain
from channels.console import ConsoleChannel
from gateway.core.events import Address, Command, DeliveryReport, EventId, Post, PostKey, RoomId, Sender, SenderId
from gateway.core.facts import Judgement, PostQueued
from gateway.store import NewEntry, rebuild
from gateway.stream.inbox import ReadyConversation
from tests.gateway.stream.outbox_kit import NAME, Postman, office, play
from tests.kits.gateway import CONSOLE, Screen, running
from tests.kits.store import NOW, turn

AT = Address(channel=NAME, room=RoomId("#a"))
ANN = Sender(id=SenderId("ann"), name="ann")
POST = Post(key=PostKey("p"), to=AT, text="hello")


TURN = turn(AT.conversation)
COMMAND = NewEntry(
    fact=Command(id=EventId("c"), at=AT, sender=ANN, name="help", args="", sent=NOW, origin="text"), at=NOW
)


@pytest.mark.parametrize(
    ("end", "post", "cause", "state", "told"),
    [
        (Rejected("no such nick"), POST, TURN, "failed", True),
        (Uncertain("cut"), POST, TURN, "uncertain", True),
        (None, POST, TURN, "sent", False),
        (Rejected("no such nick"), POST, COMMAND, "failed", False),
        (Rejected("too old"), replace(POST, private=True), COMMAND, "failed", False),
        (Rejected("no such nick"), replace(POST, style="notice"), None, "failed", False),
    ],
)
def test_what_did_not_go_well_is_unread_where_a_turn_said_it(  # noqa: PLR0917 - a table
    tmp_path: Path, end: SendError | None, post: Post, cause: NewEntry | None, state: str, told: bool
) -> None:
    postman, arrived = Postman(*([end] if end else [])), list[ReadyConversation]()

    async def story() -> None:
        async with office(tmp_path, postman, told=arrived) as work:
            now, place = work.clock.now(), post.to.conversation
            queued = NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key="post:p", cause=cause)
            await work.store.append([*([cause] if cause else []), queued])
            (delivery,) = await work.ended(1)
            assert delivery.state == state
            await work.outbox.drain(1)
            await work.outbox.close()
            (stored,) = await work.store.entries(kinds=["delivery"])
            judged = [one.fact for one in await work.store.caused_by(stored.seq)]
            unread = await work.store.unread_entries(place, most=9)
            if told:
                kind = f"{post.to.channel}.delivery.#a"
                rule = "a delivery report is low"
                assert judged == [Judgement(type=kind, urgency=1, fate="due", rule=rule, role="guest")]
                assert arrived == [ReadyConversation(conversation=place, urgency=1, type=kind)]
                assert [one.seq for one in unread.messages] == [stored.seq]
                assert isinstance(unread.messages[0].fact, DeliveryReport)
            else:
                assert all(isinstance(one, Judgement) and one.fate == "noted" for one in judged)
                assert (arrived, unread.messages) == ([], ())
        assert await rebuild(tmp_path / "s.db") == []

    play(story)


class Deaf(Screen):
    """Cannot show the first answer."""

    def show(self, part: Part) -> None:
        super().show(part)
        if len(self.parts) == 1:
            raise Rejected("no such nick")


def test_the_next_turn_there_is_told_which_of_its_answers_nobody_got(tmp_path: Path) -> None:
    async def story() -> None:
        screen = Deaf()
        console = ConsoleChannel(CONSOLE, screen.show)
        async with running(tmp_path, channels={CONSOLE: console}) as gateway:
            await console.receive_message("hello", sender="ann")
            while not await gateway.log("delivery"):
                await asyncio.sleep(0.005)
            await console.receive_message("are you there?", sender="ann")
            await screen.until(2)
        first, second = await gateway.turns()
        failed, question = second.heard.splitlines()
        assert failed.endswith(
            f'] (your message "{first.text[:80]}" could not be delivered: "part 1 of 1: no such nick")'
        )
        assert question.endswith("ann (guest): are you there?")
        assert (len(second.covers), second.senders) == (2, ("", "ann"))

    asyncio.run(story())
