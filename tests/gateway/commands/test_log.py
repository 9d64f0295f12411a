"""`log tail` and `why` show no secrets, and no more of other places than the sender may
see."""

from typing import Any

from gateway.access.policy import ConversationBinding
from gateway.commands.info import MAX_LOG_ENTRY_CHARS
from gateway.core.clock import ManualClock
from gateway.core.events import Address
from gateway.core.facts import DmnStateSaved, LimitReached, NoteWritten, inner_conversation
from gateway.core.redaction import Redactor
from gateway.plugins.mcp import McpToolApproved
from gateway.plugins.trace import Trace
from gateway.store import NewEntry, Store
from gateway.stream.routing import BindingPattern, Bindings
from tests.gateway.commands.commands_kit import Counter
from tests.kits.commands import command_context
from tests.kits.handle import handle_of
from tests.kits.places import privacy
from tests.kits.plugins import plugins_of
from tests.kits.store import NOW, place, said

# `log tail` in a channel: without secrets, and without other people's private conversations

OPEN = Bindings(
    [
        BindingPattern(
            channel="*",
            room="*",
            thread=None,
            binding=ConversationBinding(listen="all", private=False),
        )
    ]
)
ROOM, ALONE, OTHER = place("#a"), place("ann"), place("bob")


def asking(store: Store, at: Address = ALONE, **more: Any) -> Counter:
    clock = ManualClock(NOW)
    places = privacy(store, OPEN)
    plugins = plugins_of(Trace, gateway=handle_of(store, clock, places=places))
    redactor = Redactor(["swordfish pie"])
    context = command_context(store, clock, places=places, plugins=plugins, redactor=redactor)
    asked: dict[str, Any] = {"role": "admin", "direct": True} | more
    return Counter(store=store, clock=clock, context=context, at=at, **asked)


async def test_an_admin_sees_rooms_and_their_own_chat_without_secrets(store: Store) -> None:
    await store.append(
        [
            said(1, "the pie is swordfish pie\x1b[2J `"),
            said(2, "password=hunter2-9 ```"),
            said(3, "mine alone", "ann", "direct"),
            said(4, "bob's own words", "bob", "direct"),
            NewEntry(
                fact=DmnStateSaved(state=f'{{"running": ["{OTHER.conversation}"]}}', agent="a"),
                at=NOW,
            ),
            NewEntry(
                fact=LimitReached(
                    limit="rate", whose="room", subject=OTHER.conversation, rule="access.rates"
                ),
                at=NOW,
            ),
            NewEntry(
                fact=NoteWritten(
                    agent="a", scope=OTHER.conversation, title="of bob", text="bob's", lasting=True
                ),
                at=NOW,
                conversation=inner_conversation("a"),
            ),
        ]
    )
    text = await asking(store, ALONE).says("log tail")
    assert "the pie is [redacted]\\u001b[2J '" in text
    assert "password=[redacted] '''" in text
    assert "mine alone" in text
    assert "bob" not in text
    assert text.endswith("3 more entries are from private conversations. Only owners can see them.")
    told = await asking(store, ALONE, role="owner").says("log tail", n="50")
    assert "bob's own words" in told
    assert "swordfish" not in told
    assert "not shown" not in told
    assert "running" not in told


async def test_an_owner_who_is_not_alone_sees_what_an_admin_sees(store: Store) -> None:
    await store.append([said(1, "bob's own words", "bob", "direct")])
    text = await asking(store, ROOM, role="owner", direct=False).says("log tail")
    assert text == "1 more entry is from a private conversation. Only owners can see it."


async def test_an_empty_log_says_so_and_a_long_entry_is_cut_after_it_was_redacted(
    store: Store,
) -> None:
    assert await asking(store, ROOM).says("log tail") == "Nothing has happened yet."
    head = "x" * (MAX_LOG_ENTRY_CHARS - 70)
    await store.append([said(1, f"{head} swordfish pie and {'y' * MAX_LOG_ENTRY_CHARS}")])
    text = await asking(store, ROOM).says("log tail", n="1")
    assert "sword" not in await asking(store, ROOM).says("log tail", n="2")
    assert all(len(line) <= MAX_LOG_ENTRY_CHARS + 100 for line in text.split("\n"))


async def test_facts_of_plugins_are_told_as_well(store: Store) -> None:
    fact = McpToolApproved(server="files", tool="mcp_files_read", definition="Reads.", by="")
    await store.append([NewEntry(fact=fact, at=NOW)])
    [current] = await store.current_facts("mcp_tool_approved")
    assert current.fact == fact
    assert "mcp_files_read of the MCP server" in await asking(store, ROOM).says("log tail")
    await store.append([NewEntry(fact=fact, at=NOW, conversation=inner_conversation("a"))])
    told = await asking(store, ROOM).says("log tail")
    assert (told.count("mcp_files_read"), "1 more entry" in told) == (1, True)
    told = await asking(store, ALONE, role="owner").says("log tail")
    assert told.count("mcp_files_read") == 2


# `why` about other places shows no more than the sender may see

UNSEEN = "You may not see the conversation of entry"


async def test_an_entry_is_told_to_who_may_see_where_it_is(store: Store) -> None:
    noted = NoteWritten(
        agent="a", scope=OTHER.conversation, title="of bob", text="bob's", lasting=True
    )
    saved = DmnStateSaved(state=f'{{"pending": {{"{OTHER.conversation}": 1}}}}', agent="a")
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
        return await asking(store, **more).says("why", entry=str(one))

    assert "for all" in await told(room.seq)
    assert "mine alone" in await told(own.seq)
    for one in (bobs, note):
        assert await told(one.seq) == f"{UNSEEN} {one.seq}."
        assert "bob's" in await told(one.seq, role="owner")
        assert await told(one.seq, at=ROOM, role="owner", direct=False) == (
            f"Entry {one.seq} is from another conversation. Ask me in a direct chat."
        )
    assert "for all" in await told(room.seq, at=ROOM, direct=False, everywhere="guest")
    # Who is an admin of this chat alone, or of one agent, is none of the room.
    assert await told(room.seq, everywhere="guest") == f"{UNSEEN} {room.seq}."
    assert "mine alone" in await told(own.seq, everywhere="guest")
    assert await told(state.seq) == f"{UNSEEN} {state.seq}.", "it names every place"
    assert OTHER.conversation in await told(state.seq, role="owner")
    assert await told(999) == "There is no entry 999."
