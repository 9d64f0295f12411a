"""What is left of an approval where words, time, cuts and ids meet."""

import asyncio
import secrets
from pathlib import Path

import pytest

from gateway.access.approval_texts import Approver
from gateway.core.clock import ManualClock
from gateway.core.facts import ApprovalEnded, ApprovalRequested, PostQueued
from gateway.store import NewEntry, Store, rebuild
from tests.gateway.system.crash.cut_kit import Steps, cutting
from tests.kits.approvals import DONE, GUS, LOBBY, ROOT, TIMEOUT_S, House, house, story


@story
async def test_an_id_that_was_used_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def choice(alphabet: str) -> str:
        drawn.append(alphabet)
        return alphabet[0] if len(drawn) <= 4 * 8 else alphabet[len(drawn) % 7]

    monkeypatch.setattr(secrets, "choice", choice)
    async with house(tmp_path) as it:
        for number in range(3):
            it.call(ROOT, GUS, turn=f"t{number}")
        names = [one.approval for one in await it.asked(3)]
        assert len(set(names)) == 3
        assert len(await it.log("post")) == 3, "none is asked for twice"


@story
async def test_what_is_decided_just_as_its_time_ends_is_what_the_log_says(tmp_path: Path) -> None:
    """A word that is being written down when the time is over counts; one that could not be written does not."""
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.sleeping()
        change = await it.approvals.decide(_root(), asked.approval, "once")
        assert "just being decided" in (await it.approvals.decide(_root(), asked.approval, "denied")).answer
        it.clock.advance(TIMEOUT_S)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not call.done()
        change.settle(None)
        assert "within 2 min" in (await call).text
        assert await it.verdicts() == [("bash", "expired", "")]


@story
async def test_a_word_that_was_written_though_nobody_was_told_so_counts(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.sleeping()
        change = await it.approvals.decide(_root(), asked.approval, "once")
        (made,) = change.facts
        await it.store.append([NewEntry(fact=made.fact, at=it.clock.now(), conversation=made.place, key=made.key)])
        change.settle(None)
        it.clock.advance(TIMEOUT_S)
        assert (await call).text == DONE
        assert await it.verdicts() == [("bash", "once", "here:root")]


def _root() -> Approver:
    return Approver(at=LOBBY, sender=ROOT.id, role="admin", is_direct=False, global_role="admin")


@story
async def test_a_crash_between_asking_and_answering_leaves_nobody_waiting(tmp_path: Path) -> None:
    """After each durable step: what was asked is over, it is asked once at most, and a word comes too late."""
    verdicts = set[str]()
    for cut in range(1, 9):
        folder, clock, steps = tmp_path / str(cut), ManualClock(), Steps([cut])
        folder.mkdir()
        await _cut(folder, clock, steps)
        async with house(folder, clock=clock) as it:
            assert await it.store.undecided() == []
            for one in await it.log("approval_asked"):
                assert isinstance(one, ApprovalRequested)
                assert "Too late" in await it.say(f"!approve {one.approval}")
            ended = [one for one in await it.log("approval_ended") if isinstance(one, ApprovalEnded)]
            assert len(ended) == len(await it.log("approval_asked"))
            verdicts |= {one.verdict for one in ended}
            assert it.approvals.pending == []
            posts = [one.post.text for one in await it.log("post") if isinstance(one, PostQueued)]
            assert sum("May `reverie`" in text for text in posts) <= 1
        assert await rebuild(folder / "reverie.db") == []
    assert verdicts == {"dropped", "always"}, "it was cut before the word was durable, and behind it"


async def _cut(folder: Path, clock: ManualClock, steps: Steps) -> None:
    store = await cutting(steps).open(folder / "reverie.db", clock)
    it = House(store, clock, folder)

    async def tell() -> None:
        await it.__aenter__()
        it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.say(f"!approve {asked.approval} always")
        await asyncio.Event().wait()

    telling = asyncio.ensure_future(tell())
    await steps.cut.wait()
    telling.cancel()
    steps.dead.set()
    await it.kill()
    for task in it.approvals._tasks:
        task.cancel()
    await Store.close(store)


@story
async def test_a_word_that_is_being_written_down_stands_over_the_end_of_the_time(tmp_path: Path) -> None:
    async with house(tmp_path) as it:
        call = it.call(ROOT, GUS)
        (asked,) = await it.asked()
        await it.sleeping()
        change = await it.approvals.decide(_root(), asked.approval, "denied")
        it.clock.advance(TIMEOUT_S)
        for _ in range(50):
            await asyncio.sleep(0.001)  # so that whoever would write something has written it
        assert await it.verdicts() == []
        (made,) = change.facts
        entry = NewEntry(fact=made.fact, at=it.clock.now(), conversation=made.place, key=made.key)
        (became,) = await it.store.append([entry])
        change.settle(became)
        assert "denied" in (await call).text
