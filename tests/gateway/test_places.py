"""What is private: closed unless opened."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.bindings import Bindings, Bound, Pattern
from gateway.events import ConversationId
from gateway.places import Places
from gateway.records import inner
from gateway.scopes import PUBLIC, Sight, scope_of
from tests.store.kit import heard, opened, place, run, said

ANY = Bindings([Pattern(channel="*", room="*", thread=None, bound=Bound(listen="ambient"))])


def test_a_room_is_public_a_direct_chat_is_not_and_neither_is_what_nobody_knows(tmp_path: Path) -> None:
    async def look() -> list[tuple[bool, str]]:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(heard(1, room="#room"))
            await store.append([said(2, room="ulla", kind="direct")])
            places = Places(store, ANY)
            asked = [place("#room").conversation, place("ulla").conversation, place("#never").conversation, inner("a")]
            return [(await places.private(one), await places.scope(one)) for one in asked]

    room, ulla, never, itself = run(look())
    assert room == (False, PUBLIC)
    assert ulla == (True, "irc.test/ulla")
    assert never == (True, "irc.test/#never")
    assert itself == (False, PUBLIC)


def test_the_operator_can_make_a_room_private(tmp_path: Path) -> None:
    bindings = Bindings(
        [
            Pattern(channel="*", room="#staff", thread=None, bound=Bound(listen="ambient", private=True)),
            Pattern(channel="*", room="*", thread=None, bound=Bound(listen="ambient")),
        ]
    )

    async def look() -> tuple[bool, bool]:
        async with await opened(tmp_path / "s.db") as store:
            await store.append(heard(1, room="#staff"))
            await store.append(heard(2, room="#room"))
            places = Places(store, bindings)
            return await places.private(place("#staff").conversation), await places.private(place("#room").conversation)

    assert run(look()) == (True, False)


_SCOPES = st.sampled_from([PUBLIC, "irc.test/ulla", "irc.test/vera", "telegram.main/1"])


@given(_SCOPES, _SCOPES, st.booleans())
def test_nothing_private_is_told_anywhere_else_but_to_an_owner(scope: str, here: str, everything: bool) -> None:
    seen = Sight(scope=here, everything=everything).of([scope], lambda one: one)
    assert bool(seen) == (everything or scope in {PUBLIC, here})


@given(st.text(min_size=1), st.booleans())
def test_a_private_place_is_its_own_scope(name: str, private: bool) -> None:
    assert scope_of(ConversationId(name), private=private) == (name if private else PUBLIC)
