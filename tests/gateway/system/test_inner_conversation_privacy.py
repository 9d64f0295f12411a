"""What was said in private does not reach a room through the agent's inner conversation, in a whole
gateway.

Each story is told again with the filter taken out, and the secret must then come through: so the
filter kept it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from gateway.access.policy import ConversationBinding
from gateway.context.conversation import ConversationReader
from gateway.context.digest import DigestBuilder
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.scopes import PUBLIC
from gateway.store import Store
from gateway.stream.media import MediaStore
from gateway.stream.routing import BindingPattern, Bindings, PrivacyCache
from reverie.testing.channels import story
from tests.kits.agent import digests_of
from tests.kits.handle import handle_of
from tests.kits.places import privacy
from tests.kits.settings import live_settings
from tests.kits.store import heard, judged, opened, said

SECRET = "marzipan"
NORMAL: Final = 2
RULES = [{"type": "console.direct", "urgency": "normal"}]


@contextmanager
def nothing_is_private() -> Iterator[None]:
    async def no(*_: object) -> bool:
        return False

    async def public(*_: object) -> str:
        return PUBLIC

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivacyCache, "is_private", no)
        patch.setattr(PrivacyCache, "scope", public)
        yield


def told_twice(
    tmp: Path, run: Callable[[Path], None], mutation: Callable[[], AbstractContextManager[None]]
) -> None:
    """As it is, and then with the mutation: that must fail."""
    run(tmp / "kept")
    with mutation(), pytest.raises(AssertionError, match="it leaks"):
        run(tmp / "leaking")


def public_digests(store: Store, folder: Path, bindings: Bindings) -> DigestBuilder:
    who = identity.AccessPolicy(dm_policy="open", roles={}, open_rooms={})
    media = MediaStore(live_settings(), folder, {}, ManualClock())
    reader = ConversationReader(handle_of(store, ManualClock(), people=who), media)
    places = privacy(store, bindings)
    return digests_of("reverie", reader, store=store, clock=ManualClock(), places=places)


def test_a_digest_shows_nothing_of_a_direct_chat_or_a_private_room(tmp_path: Path) -> None:
    private = ConversationBinding(listen="ambient", agent="reverie", private=True)
    bindings = Bindings(
        [
            BindingPattern(channel="*", room="#staff", thread=None, binding=private),
            BindingPattern(
                channel="*",
                room="*",
                thread=None,
                binding=ConversationBinding(listen="ambient", agent="reverie", private=False),
            ),
        ]
    )

    def run(tmp: Path) -> None:
        tmp.mkdir()

        @story
        async def told() -> None:
            async with await opened(tmp / "s.db") as store:
                direct = said(1, f"it is {SECRET}", room="ann", kind="direct")
                await store.append([direct, judged(direct, NORMAL)])
                await store.append(heard(2, f"we say {SECRET}", room="#staff", urgency=NORMAL))
                await store.append(heard(3, "an outage", room="#lobby", urgency=NORMAL))
                digests = public_digests(store, tmp, bindings)
                digest = await digests.build(plain=False)
                assert digest is not None
                assert "an outage" in digest.text
                assert SECRET not in digest.text, "it leaks"

        told()

    told_twice(tmp_path, run, nothing_is_private)
