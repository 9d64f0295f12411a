"""Posts to channels that are removed, come back, or are replaced meanwhile."""

import asyncio
from pathlib import Path

from channels.base import Unreachable
from gateway.core.events import ChannelName, Post
from gateway.stream import outbox
from gateway.stream.outbox import Outbox
from tests.gateway.stream.outbox_kit import NAME, Postman, office, play


class Loud(Postman):
    """Sends everything as one part, in capitals."""

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text.upper(),)


async def _a_while() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_what_waits_for_a_channel_that_is_not_there_goes_out_once_it_comes(tmp_path: Path) -> None:
    async def story() -> None:
        postman, late = Postman(), ChannelName("late")
        async with office(tmp_path, postman) as work:
            await work.post("hello", channel=late)
            await work.post("meanwhile")
            await work.ended(1)
            await _a_while()
            assert postman.sent == ["meanwhile"]
            newcomer = Postman()
            newcomer.name = late
            work.channels[late] = newcomer
            await _a_while()
            assert newcomer.attempts == []  # its link is not up
            work.outbox.set_link_up(late, up=True)
            assert [one.state for one in await work.ended(2)] == ["sent", "sent"]
            assert newcomer.sent == ["hello"]

    play(story)


def test_what_has_waited_for_a_day_fails_at_a_start_without_its_channel_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with office(tmp_path, Postman()) as work:
            await work.post("hello", channel="gone")
        async with office(tmp_path, Postman(), later_s=outbox.MAX_AGE_S - 1) as work:
            await _a_while()
            assert len(await work.store.undelivered_posts()) == 1
        async with office(tmp_path, Postman(), later_s=outbox.MAX_AGE_S) as work:
            (delivery,) = await work.ended(1)
            assert (delivery.state, delivery.reason) == ("failed", "no channel gone is configured")

    play(story)


def test_a_channel_that_goes_keeps_what_it_has_not_said_for_its_return(tmp_path: Path) -> None:
    async def story() -> None:
        postman = Postman()
        postman.hold = asyncio.Event()
        async with office(tmp_path, postman) as work:
            await work.post("1\n2")
            while not postman.attempts:
                await asyncio.sleep(0)
            pausing = asyncio.create_task(work.outbox.pause(NAME, 0.05))
            await asyncio.sleep(0.06)
            del work.channels[NAME]
            postman.hold.set()
            await pausing
            await work.post("3")
            await _a_while()
            assert postman.sent == ["1"]
            again = work.channels[NAME] = Postman()
            work.outbox.set_link_up(NAME, up=True)
            assert [one.state for one in await work.ended(2)] == ["sent", "sent"]
            assert again.sent == ["2", "3"]

    play(story)


def test_what_no_part_of_has_gone_is_cut_anew_by_the_channel_that_takes_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with office(tmp_path, Postman(Unreachable("cut"), Unreachable("cut"))) as work:
            stays, changes = work.channels[NAME], Loud()
            await work.post("a\nb", room="#a")
            while len(stays.attempts) < 1:  # type: ignore[attr-defined] # a Postman
                await asyncio.sleep(0)
            await work.outbox.pause(NAME, 0)
            work.channels[NAME] = changes
            await work.post("c\nd", room="#b")
            work.outbox.set_link_up(NAME, up=True)
            assert [one.state for one in await work.ended(2)] == ["sent", "sent"]
            assert sorted(changes.sent) == ["C\nD", "a", "b"]  # what was tried is written down as it was cut

    play(story)


def test_whoever_waits_for_a_channel_that_is_not_there_ends_with_the_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with office(tmp_path, Postman()) as work:
            await work.post("hello", channel="gone")
            await _a_while()
            assert isinstance(work.outbox, Outbox)
            await asyncio.wait_for(asyncio.gather(work.outbox.drain(0), *work.tasks.running), 5)
            await work.post("after", channel="gone")  # nobody takes it any more: the store has it
            assert len(await work.store.undelivered_posts()) == 2

    play(story)
