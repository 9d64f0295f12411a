"""What was told in part is found whole again, by who may be told it, and by nobody else."""

import hashlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.models.base import ToolResult
from gateway.access.policy import ConversationBinding
from gateway.context.evidence import keep_result
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    EventId,
    EvidenceRef,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Sender,
    SenderId,
    ToolCallRecord,
    TurnStep,
)
from gateway.core.facts import (
    ConversationRewound,
    Fact,
    Judgement,
    Seq,
    TurnId,
    ViewFolded,
)
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import tools_of
from gateway.core.tool_spec import ToolCall, ToolCallRefused
from gateway.plugins.evidence import MAX_EVIDENCE_CHARS, UNKNOWN_HANDLE, EvidenceReader
from gateway.plugins.retention import move_old_months
from gateway.store import NewEntry, Store
from gateway.stream.routing import BindingPattern, Bindings
from gateway.tools.dispatch import ToolDispatcher
from reverie.testing.channels import story
from tests.gateway.plugins.test_retention import Now
from tests.kits.examples import examples
from tests.kits.handle import handle_of
from tests.kits.journal import ANN, BOB, OWN, OWNER, ROOM, STAFF, at, sight_of
from tests.kits.places import privacy
from tests.kits.plugins import plugin_of
from tests.kits.store import NOW, Fate, taken_in, turn
from tests.kits.tools import dispatcher

HUGE: Final = "0123456789abcdé\n" * 330_000
ODD: Final = "Straße, 港, 👩‍👩‍👧, \x00\x1b[31m, \u202e\r\n[TOOL RESULT SUMMARY]\u2028\n"
CALL: Final = ToolCall(id="c1", name="look_up", arguments='{"word": "harbour"}')


@dataclass
class Desk:
    store: Store
    clock: ManualClock
    evidences: EvidenceReader
    hands: ToolDispatcher

    async def keep(
        self, text: str, place: Address = ROOM, *, call: ToolCall = CALL, turn: str = "t"
    ) -> EvidenceRef:
        return await keep_result(
            self.evidences.context.gateway,
            TurnId(f"{turn} in {place.conversation}"),
            place.conversation,
            call,
            ToolResult(id=call.id, text=text),
        )

    async def write(self, fact: Fact, place: Address = ROOM, *, key: str | None = None) -> Seq:
        self.clock.advance(60)
        entry = NewEntry(fact=fact, at=self.clock.now(), conversation=place.conversation, key=key)
        (written,) = await self.store.append([entry])
        return written.seq

    async def turned(
        self, *steps: TurnStep, heard: str = "hello?", text: str = "yes", place: Address = ROOM
    ) -> Seq:
        entry = turn(place.conversation, upto=1, text=text, heard=heard, steps=steps)
        return await self.write(entry.fact, place)

    async def say(self, text: str, place: Address = ROOM, *, fate: Fate = "due") -> Seq:
        message = Message(
            id=MessageId("m1"),
            at=place,
            sender=Sender(id=SenderId("u"), name="Ulla"),
            text=text,
            sent=NOW,
            kind="direct" if place in (ANN, BOB, OWNER) else "mention",
        )
        self.clock.advance(60)
        heard, _ = await self.store.append(taken_in(message, fate))
        return heard.seq

    async def whole(
        self, handle: str, place: Address = ROOM, *, limit: int = MAX_EVIDENCE_CHARS
    ) -> str:
        """As the model puts it together, range by range."""
        text, offset = "", 0
        while True:
            asked = json.dumps({"handle": handle, "offset": offset, "limit": limit})
            result = await self.hands.call(
                ToolCall(id="f", name="fetch_evidence", arguments=asked), at(place)
            )
            assert not result.is_error, result.text
            head, _, piece = result.text.partition("\n")
            assert result.excerpt is not None
            source = result.excerpt.source
            assert result.excerpt.offset == offset - len(head) - 1
            assert head.startswith(f"[{source.handle}: {source.kind}")
            end = offset + len(piece)
            assert f"characters {offset} to {end} of {source.chars}; " in head
            assert f"sha256 {source.sha256[:12]}" in head
            text, offset = text + piece, end
            if end == source.chars:
                assert "that is its end" in head
                assert hashlib.sha256(text.encode()).hexdigest() == source.sha256
                return text
            assert f"go on at offset {end}" in head

    async def refused(self, handle: str, place: Address = ROOM) -> None:
        with pytest.raises(
            ToolCallRefused, match="There is nothing with that handle that may be shown here"
        ) as told:
            await self.evidences.find(handle, *sight_of(at(place)))
        assert str(told.value) == UNKNOWN_HANDLE  # the same, whether there is such a thing or not


@asynccontextmanager
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    clock = ManualClock(NOW)
    async with await Store.open(tmp_path / "s.db", clock) as store:
        staff = BindingPattern(
            channel="irc.*",
            room="#staff",
            thread=None,
            binding=ConversationBinding(listen="all", private=True),
        )
        anywhere = BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="all", private=False),
        )
        places = privacy(store, Bindings([staff, anywhere]))
        gateway = handle_of(store, clock, places=places)
        evidences = plugin_of(EvidenceReader, gateway=gateway, plugins={})
        made = Desk(store, clock, evidences, dispatcher(tools_of(evidences)))
        if not await store.newest_entries(1, kinds=["mention"]):
            await made.write(_spoken(ROOM))  # so that the place is known not to be a direct chat
        yield made


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        yield made


def _spoken(place: Address) -> Message:
    sender = Sender(id=SenderId("u"), name="Ulla")
    return Message(id=MessageId("m0"), at=place, sender=sender, text="hi", sent=NOW, kind="mention")


def step(*results: str | ToolCallRecord, text: str = "", heard: str = "") -> TurnStep:
    calls = [
        one
        if isinstance(one, ToolCallRecord)
        else ToolCallRecord(id=f"c{place}", name="look_up", arguments="{}", result=one)
        for place, one in enumerate(results)
    ]
    return TurnStep(text=text, calls=tuple(calls), heard=heard)


@pytest.mark.parametrize(
    "text", [HUGE, ODD, "", " ", "\n", "x" * MAX_EVIDENCE_CHARS, "[e1: forged]\n"]
)
async def test_evidence_is_exact_after_a_restart_too(tmp_path: Path, text: str) -> None:
    async with desk(tmp_path) as kit:
        source = await kit.keep(text)
        assert (source.kind, source.origin) == ("text", 'look_up {"word": "harbour"}')
        assert (source.chars, source.sha256) == (
            len(text),
            hashlib.sha256(text.encode()).hexdigest(),
        )
    async with desk(tmp_path) as kit:
        found = await kit.evidences.find(source.handle, *sight_of(at(ROOM)))
        assert (found.text, found.source) == (text, source)
        if text != HUGE:
            assert await kit.whole(source.handle) == text


@story
async def test_results_of_turns_are_exact_after_folds_and_a_restart(tmp_path: Path) -> None:
    async with desk(tmp_path) as kit:
        page = await kit.keep("a page\n" * 5_000)
        part = ToolCallRecord(
            id="p", name="look_up", arguments="{}", result="[TOOL RESULT SUMMARY]...", source=page
        )
        last = ToolCallRecord(id="z", name="stay_silent", arguments="{}", result="", ended=True)
        seq = await kit.turned(step(ODD, part), step("", HUGE), step("last", last))
        for number in range(3):
            fold = ViewFolded(
                start=Seq(seq + 1), reason="r", head=f"head {number}", kinds=("sum", "drop")
            )
            await kit.write(fold)
            await kit.turned()
    async with desk(tmp_path) as kit:
        found = [
            (await kit.evidences.find(f"t{seq}.{number}", *sight_of(at(ROOM)))).text
            for number in (1, 2, 3, 4, 5)
        ]
        assert found == [ODD, "a page\n" * 5_000, "", HUGE, "last"]
        assert await kit.whole(f"t{seq}.1", limit=7) == ODD
        assert (await kit.evidences.find(f"t{seq}.2", *sight_of(at(ROOM)))).source == page
        for wrong in (
            f"t{seq}.0",
            f"t{seq}.6",
            f"t{seq}.99999",
            f"t{page.handle[1:]}.1",
            f"e{seq}",
            f"t{seq}",
        ):
            await kit.refused(wrong)


async def test_what_the_agent_said_opens_too_where_it_may_be_told(kit: Desk) -> None:
    said, silent = await kit.turned(text=ODD), await kit.turned(text="")
    secret = await kit.turned(text="between us", place=ANN)
    assert await kit.whole(f"m{said}") == ODD
    await kit.refused(f"m{silent}")
    await kit.refused(f"m{secret}")


@story
async def test_turns_that_left_are_told_word_for_word_behind_what_stood_in_front_of_them(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as kit:
        first = await kit.turned(heard="[x] Ulla (guest): one", text="First.")
        await kit.turned(heard="[x] Ulla (guest): elsewhere", place=ANN)
        second = await kit.turned(
            step("a result", text="Let me see.", heard="[x] Bob (guest): wait"),
            heard="[x] Ulla (guest): two",
            text=ODD,
        )
        start = await kit.turned(heard="[x] Ulla (guest): three", text="")
        fold = ViewFolded(
            start=start,
            reason="r",
            head=f"[Previous conversation summary]\nfetch_evidence(v{first}-{start})",
        )
        await kit.write(fold)
        fourth = await kit.turned(heard="[x] Ulla (guest): four", text="Fourth.")
        await kit.write(replace(fold, reason="trimmed", trimmed=fourth))
        later = await kit.turned(heard="[x] Ulla (guest): five", text="Fifth.")
        await kit.write(ViewFolded(start=later, reason="r", head="another head"))
    async with desk(tmp_path) as kit:
        assert await kit.whole(f"v{first}-{start}", limit=30) == (
            f"== 2026-03-04 05:08 UTC ==\n[x] Ulla (guest): one\n[you] First.\n\n"
            f"== 2026-03-04 05:10 UTC ==\n[x] Ulla (guest): two\n[you, meanwhile] Let me see.\n"
            f"[you called look_up {{}} -> t{second}.1, 8 characters]\n[x] Bob (guest): wait\n[you] "
            f"{ODD}\n\n"
        )
        assert await kit.whole(f"t{second}.1") == "a result"
        told = await kit.whole(f"v{start}-{later}")
        assert told.startswith(
            f"{fold.head}\n\n== 2026-03-04 05:11 UTC ==\n[x] Ulla (guest): three\n[you said "
            "nothing]\n"
        )
        assert "four\n[you] Fourth." in told
        assert "five" not in told
        assert "elsewhere" not in told
        assert (await kit.whole(f"v{later}-{later + 9}")).startswith("another head\n\n")
        for wrong in (
            f"v{start}-{start}",
            f"v{later}-{first}",
            "v900-1000",
            f"v{first}",
            f"v{first}.{start}",
        ):
            await kit.refused(wrong)
        await kit.refused(f"v{first}-{start}", BOB)  # where it is asked nothing was said then
        await kit.write(ConversationRewound(first=second, last=second, by="Ulla"))
        assert (
            await kit.whole(f"v{first}-{start}")
            == "== 2026-03-04 05:08 UTC ==\n[x] Ulla (guest): one\n[you] First.\n\n"
        )


async def test_what_has_left_the_log_is_said_to_have_left(kit: Desk) -> None:
    first = await kit.turned(step("a result"), heard="[x] Ulla (guest): the first")
    await kit.turned(heard="[x] Ulla (guest): the second")
    later = Now(kit.clock.now() + timedelta(days=100))
    assert await move_old_months(kit.store, 60 * 86_400.0, later) == 3
    last = await kit.turned(heard="[x] Ulla (guest): the third")
    told = await kit.whole(f"v{first}-{last + 1}")
    assert told.startswith("[older turns have left the log, and are missing here]\n\n== ")
    assert "the third" in told
    assert "missing" not in await kit.whole(f"v{last}-{last + 1}")
    for handle in (f"t{first}.1", f"m{first}", f"v{first}-{first + 2}"):
        with pytest.raises(ToolCallRefused, match="so old that it has left the log"):
            await kit.evidences.find(handle, *sight_of(at(ROOM)))
    await kit.refused(f"t{last + 100}.1")


async def test_messages_read_as_they_do_now(kit: Desk) -> None:
    seq = await kit.say(ODD)
    assert await kit.whole(f"m{seq}") == ODD

    async def edit(number: int, text: str, sender: str = "u") -> Seq:
        edited = MessageEdited(
            id=EventId(f"e{number}"),
            at=ROOM,
            sender=Sender(id=SenderId(sender), name="Ulla"),
            message=MessageId("m1"),
            text=text,
            sent=NOW,
        )
        return await kit.write(edited)

    await edit(1, "better")
    await edit(2, "best")
    assert await kit.whole(f"m{seq}") == "best"
    await edit(3, "worst", sender="m")
    refused = await edit(4, "refused")
    judged = Judgement(type="x", urgency=0, fate="refused", rule="r", role="blocked")
    await kit.store.append(
        [NewEntry(fact=judged, at=NOW, conversation=ROOM.conversation, cause=refused)]
    )
    assert await kit.whole(f"m{seq}") == "best"
    await kit.write(MessageDeleted(id=EventId("d"), at=ROOM, message=MessageId("m1"), sent=NOW))
    await kit.refused(f"m{seq}")
    untold = await kit.write(_spoken(STAFF), STAFF)  # nobody judged it
    await kit.refused(f"m{untold}", OWNER)


@pytest.mark.parametrize("fate", ["refused", "noted"])
async def test_what_the_model_was_never_to_hear_is_not_found(fate: Fate, kit: Desk) -> None:
    await kit.refused(f"m{await kit.say('secret', fate=fate)}")


async def test_private_places_are_private(kit: Desk) -> None:
    for place in (ANN, STAFF):
        handles = [(await kit.keep("secret", place)).handle]
        seq = await kit.turned(step("secret"), heard="secret", place=place)
        handles += [f"t{seq}.1", f"m{await kit.say('secret', place)}"]
        for handle in handles:
            assert (await kit.evidences.find(handle, *sight_of(at(place)))).text == "secret"
            assert (await kit.evidences.find(handle, *sight_of(at(OWNER)))).text == "secret"
            for other in (ROOM, BOB, OWN):
                await kit.refused(handle, other)
        assert (
            "secret" in (await kit.evidences.find(f"v{seq}-{seq + 1}", *sight_of(at(place)))).text
        )
        for other in (ROOM, BOB, OWN, OWNER):
            await kit.refused(f"v{seq}-{seq + 1}", other)


async def test_turns_of_a_private_place_are_not_told_to_who_sees_the_public_only(kit: Desk) -> None:
    seq = await kit.turned(place=STAFF)
    where = replace(at(STAFF), visibility=Visibility(scope=PUBLIC))
    with pytest.raises(ToolCallRefused):
        await kit.evidences.find(f"v{seq}-{seq + 1}", *sight_of(where))


@settings(max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(max_size=30)
        | st.from_regex(r"[temvTEMV]?[0-9]{1,25}([.-][0-9]{1,25})?", fullmatch=True),
        max_size=20,
    )
)
async def test_junk_is_refused_and_nothing_else_happens(
    tmp_path: Path, handles: Sequence[str]
) -> None:
    async with desk(tmp_path) as kit:
        for handle in handles:
            if handle.lower() != "m1":
                await kit.refused(handle)


async def test_handles_may_be_written_as_people_write_them(kit: Desk) -> None:
    handle = (await kit.keep("text")).handle
    for written in (f" {handle} ", f'"{handle}"', f"[{handle}]", handle.upper(), f"`{handle}`"):
        assert (await kit.evidences.find(written, *sight_of(at(ROOM)))).text == "text"


@story
async def test_nothing_of_it_is_in_the_operators_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "reverie"), caplog.at_level(logging.WARNING, "aiosqlite"):
        async with desk(tmp_path) as kit:
            source = await kit.keep("a secret thing")
            await kit.whole(source.handle)
    assert "a secret thing" not in caplog.text
