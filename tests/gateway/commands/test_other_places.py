"""`why` and `usage` about other places show no more than the sender may see."""

from pathlib import Path
from typing import Any

from gateway.core.clock import ManualClock
from gateway.core.events import Address
from gateway.core.facts import DmnStateSaved, NoteWritten, inner_conversation
from gateway.store import NewEntry, Store
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding
from tests.gateway.commands.handler_kit import Counter
from tests.kits.commands import command_context
from tests.kits.places import privacy
from tests.kits.store import NOW, account, opened, place, run, said, spent

OPEN = Bindings(
    [BindingPattern(channel="*", room="*", thread=None, binding=ConversationBinding(listen="all", private=False))]
)
ROOM, ALONE, BOBS = place("#a"), place("ann"), place("bob")
UNSEEN = "is of a conversation that you may not see."


def counter(store: Store, at: Address = ALONE, **more: Any) -> Counter:
    clock = ManualClock(NOW)
    context = command_context(store, clock, places=privacy(store, OPEN))
    asked: dict[str, Any] = {"role": "admin", "direct": True} | more
    return Counter(store=store, clock=clock, context=context, at=at, **asked)


def test_an_entry_is_told_to_who_may_see_where_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            noted = NoteWritten(agent="a", scope=BOBS.conversation, title="of bob", text="bob's", lasting=True)
            saved = DmnStateSaved(state=f'{{"pending": {{"{BOBS.conversation}": 1}}}}', agent="a")
            room, own, bobs, note, state = await store.append(
                [
                    said(1, "for all"),
                    said(2, "mine alone", "ann", "direct"),
                    said(3, "bob's own words", "bob", "direct"),
                    NewEntry(fact=noted, at=NOW, conversation=inner_conversation("a")),
                    NewEntry(fact=saved, at=NOW, conversation=inner_conversation("a")),
                ]
            )

            async def told(one: int, **more: Any) -> str:
                return await counter(store, **more).says("why", entry=str(one))

            assert "for all" in await told(room.seq)
            assert "mine alone" in await told(own.seq)
            for one in (bobs, note):
                assert await told(one.seq) == f"Entry {one.seq} {UNSEEN}"
                assert "bob's" in await told(one.seq, role="owner")
                assert await told(one.seq, at=ROOM, role="owner", direct=False) == (
                    f"Entry {one.seq} is not of this conversation: ask me in a direct chat."
                )
            assert "for all" in await told(room.seq, at=ROOM, direct=False, everywhere="guest")
            # Who is an admin of this chat alone, or of one agent, is none of the room.
            assert await told(room.seq, everywhere="guest") == f"Entry {room.seq} {UNSEEN}"
            assert "mine alone" in await told(own.seq, everywhere="guest")
            assert await told(state.seq) == f"Entry {state.seq} {UNSEEN}", "it names every place"
            assert BOBS.conversation in await told(state.seq, role="owner")
            assert await told(999) == "There is no entry 999."

    run(story())


def test_where_money_went_is_told_to_who_administers_everywhere_without_private_names(tmp_path: Path) -> None:
    async def story() -> None:
        async with await opened(tmp_path / "s.db") as store:
            await store.append([said(1, "for all"), said(2, "alone", "bob", "direct")])
            await store.append([spent(at.conversation, account(plain=100, cost=2.0), at=NOW) for at in (ROOM, BOBS)])
            admin = await counter(store).says("usage")
            assert ROOM.conversation in admin
            assert BOBS.conversation not in admin
            assert "$4.00" in admin
            assert BOBS.conversation in await counter(store, role="owner").says("usage")
            scoped = await counter(store, everywhere="guest").says("usage")
            assert scoped == "- Here today: no request to a model."

    run(story())
