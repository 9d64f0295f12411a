"""Which places are private: one look at the log, then remembered."""

from collections import OrderedDict
from typing import Final

from gateway.bindings import Bindings
from gateway.events import Address, ConversationId, Message
from gateway.records import MESSAGES, is_inner
from gateway.scopes import scope_of
from gateway.store import Reader

_KEPT: Final = 10_000


class Places:
    """Every place that the agents know."""

    def __init__(self, reader: Reader, bindings: Bindings) -> None:
        self._reader = reader
        self._bindings = bindings
        self._direct: OrderedDict[ConversationId, bool] = OrderedDict()

    def heard(self, conversation: ConversationId, *, direct: bool) -> None:
        """The platform says what kind of place it is."""
        self._direct[conversation] = direct
        self._direct.move_to_end(conversation)
        if len(self._direct) > _KEPT:
            self._direct.popitem(last=False)

    async def direct(self, conversation: ConversationId) -> bool | None:
        """Whether it is a direct chat. None: nothing was ever said there."""
        known = self._direct.get(conversation)
        if known is None:
            said = await self.newest(conversation)
            if said is None:
                return None
            known = said.kind == "direct"
            self.heard(conversation, direct=known)
        return known

    def known_direct(self, conversation: ConversationId) -> bool:
        """The same, of what was heard lately: False for a place that nobody has asked about."""
        return self._direct.get(conversation, False)

    async def newest(self, conversation: ConversationId) -> Message | None:
        """What was said there last; None: nothing ever was."""
        said = await self._reader.newest(1, kinds=MESSAGES, conversation=conversation)
        return said[0].fact if said and isinstance(said[0].fact, Message) else None

    async def private(self, conversation: ConversationId) -> bool:
        """Whether what is said there is told nowhere else. Closed unless opened: so is a place that nobody knows."""
        if is_inner(conversation):
            return False
        if self._bindings.of(Address.parse(conversation)).private:
            return True
        return await self.direct(conversation) is not False

    async def scope(self, conversation: ConversationId) -> str:
        """Whose what is said there is: see `gateway.scopes`."""
        return scope_of(conversation, private=await self.private(conversation))
