"""What was said in private is told nowhere else. Each test is also run with the filter taken out,
and must then fail.

`SECRET` is said, written down and remembered in a private place; then everything that a turn
elsewhere can be told is looked through for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.workspace.cache import WorkspaceCache
from gateway.core.events import Address
from gateway.core.facts import MemoryConsolidated, NoteWritten, Seq
from gateway.core.labels import TRUSTED_LABEL
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import ToolContext
from gateway.plugins.memory.journal_file import parse_journal
from gateway.plugins.memory.memory_file import find_newest_dream
from gateway.plugins.recall import RecallSettings
from tests.kits.examples import examples
from tests.kits.journal import (
    ANN,
    BOB,
    OWN,
    OWNER,
    PLACES,
    PRIVATE,
    ROOM,
    STAFF,
    Papers,
    at,
    papers,
)
from tests.kits.store import turn

SECRET = "marzipan"
"""A word that nothing else here holds."""


@contextmanager
def without_the_filter() -> Iterator[None]:
    """The mutation: everybody sees everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Visibility, "can_see", lambda *_: True)
        yield


async def confide(kit: Papers, place: Address, secret: str = SECRET) -> None:
    """All that can become of a secret: it is said, answered, written down in every way, and dreamt
    of."""
    await kit.say(1, f"My secret is {secret}", place)
    await kit.store.append([turn(place.conversation, 1, text=f"I keep it: {secret}")])
    await kit.write_entry(at(place), secret, "in the title")
    await kit.write_entry(at(place), "in the text", f"The secret is {secret}")
    await kit.remember(at(place), f"It is {secret}")
    with kit.journal.open("a") as journal:
        journal.write(
            f"\n## 2026-03-04 07:00 - by hand\n{'scope: public' if place == ROOM else ''}\nIt is "
            f"{secret}\n"
        )
    newest = (await kit.store.newest_entries(1, kinds=["noted"]))[0].seq
    await kit.memory.file.rewrite(
        "reverie", before="", after=f"- {secret}\n", upto=newest, reason="dreamt"
    )
    await kit.append(
        OWN,
        MemoryConsolidated(
            agent="reverie", before=secret, after=secret, upto=Seq(newest), reason="dreamt"
        ),
    )


async def ambient(kit: Papers, where: ToolContext, *lines: str) -> str:
    return (await kit.recalled(where, *lines, config=RecallSettings(ambient_tokens=2_000))).text


async def gather(kit: Papers, place: Address) -> str:
    """Everything that a turn there can be told of it."""
    where = at(place)
    told = [
        await ambient(kit, where, "tell me", line)
        for line in (SECRET, "my secret", "the title and the text")
    ]
    told += [
        await kit.recall(where, query)
        for query in (SECRET, "secret", "my secret", "title", "it", "keep", "in")
    ]
    told.append(await kit.write_entry(where, "t", "x"))
    told.append(await kit.remember(where, "x"))
    told.append(f"{kit.material_tokens}")
    return "\n".join(told)


@pytest.mark.parametrize("asked", PLACES)
@pytest.mark.parametrize("said", PRIVATE)
async def test_a_secret_is_told_where_it_was_said_and_to_the_owner_alone(
    said: Address, asked: Address, kit: Papers
) -> None:
    await confide(kit, said)
    told = await gather(kit, asked)
    if asked in (said, OWNER):
        assert told.count(SECRET) >= 5, "it is not lost either"
    else:
        assert SECRET not in told
    assert ("[MEMORY.md]" in told) == (asked == OWNER)
    with without_the_filter():
        assert SECRET in await gather(kit, asked)
        assert "[MEMORY.md]" in await gather(kit, asked), "it is the filter that kept it"


@pytest.mark.parametrize("asked", PLACES)
async def test_what_was_said_in_public_is_told_everywhere(asked: Address, kit: Papers) -> None:
    await confide(kit, ROOM)
    assert (await gather(kit, asked)).count(SECRET) >= 5


async def test_a_place_that_nobody_knows_is_private(kit: Papers) -> None:
    await kit.store.append(
        [turn(ANN.conversation, upto=1, text=SECRET)]
    )  # no message tells what kind it is
    for asked in (ROOM, OWN, BOB, STAFF):
        assert SECRET not in await gather(kit, asked)
    assert SECRET in await gather(kit, OWNER)


async def test_memory_is_in_nobodys_prompt_but_the_owners(tmp_path: Path, kit: Papers) -> None:
    await confide(kit, ANN)
    root = tmp_path / "everybody's"
    root.mkdir()
    (root / "IDENTITY.md").write_text("I am")
    cache = WorkspaceCache(kit.clock)
    public = await cache.get(root, scope="public", family="x", own=kit.directory)
    private = await cache.get(root, scope="private", family="x", own=kit.directory)
    assert (public.identity, public.private) == ("# IDENTITY.md\n\nI am", "")
    assert private.identity == public.identity
    assert SECRET in private.private


async def test_the_journal_says_of_each_entry_whose_it_is(kit: Papers) -> None:
    for place in PLACES:
        await kit.remember(at(place), f"{SECRET} of {place.conversation}")
    for entry in parse_journal(kit.journal.read_text()):
        whence = Address.parse(entry.text.removeprefix(f"{SECRET} of "))
        assert entry.scope == (whence.conversation if whence in PRIVATE else PUBLIC)


async def test_what_a_dream_made_of_secrets_is_found_by_nobody_else(kit: Papers) -> None:
    await confide(kit, ANN)
    assert await find_newest_dream(kit.store, "reverie") is not None
    hits = await kit.store.newest_entries(100, match=SECRET)
    assert {one.kind for one in hits} == {"direct", "turn_ended", "noted"}, (
        "no dream is in the search index"
    )


scopes = st.sampled_from([PUBLIC, *(place.conversation for place in PRIVATE)])
sights = st.builds(Visibility, scope=scopes, sees_everything=st.booleans())
pieces = st.lists(
    st.tuples(scopes, st.sampled_from(["noted", "said", "answered"])), min_size=1, max_size=8
)


@given(pieces=pieces, sight=sights, place=st.sampled_from(PLACES))
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_of_any_pieces_exactly_those_of_ones_sight_are_told(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[tuple[str, str]],
    sight: Visibility,
    place: Address,
) -> None:
    """Ten hits at most are told, so there are at most eight pieces."""

    async with papers(tmp_path_factory.mktemp("x")) as kit:
        for number, (scope, how) in enumerate(pieces):
            text = f"{SECRET} piece{number}x"
            there = ROOM if scope == PUBLIC else Address.parse(scope)
            await kit.say(900 + number, "so that it is known what kind of place it is", there)
            if how == "noted":
                noted = NoteWritten(
                    agent="reverie",
                    scope=scope,
                    title="",
                    text=text,
                    lasting=False,
                    label=TRUSTED_LABEL,
                )
                await kit.append(there, noted)
            elif how == "said":
                await kit.say(number, text, there)
            await kit.store.append(
                [turn(there.conversation, upto=9_999, text=text if how == "answered" else "no")]
            )
        where = replace(at(place), visibility=sight)
        told = await kit.recall(where, SECRET)
        called = await ambient(kit, where, SECRET)
        for number, (scope, _) in enumerate(pieces):
            seen = sight.sees_everything or scope in (PUBLIC, sight.scope)
            assert (f"piece{number}x" in told) == (f"piece{number}x" in called) == seen, (
                number,
                scope,
                sight,
            )
