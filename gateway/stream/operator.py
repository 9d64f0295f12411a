"""The operator's own channel: messages and commands from the holders of `ops.token` and
`ops.tokens`.

Nobody else can use it, so no other proof of identity is needed. It has no remote side, so it is up
while the gateway runs.
"""

import re
from typing import Final

from channels.console import LocalChannel
from gateway.core.clock import Clock, new_id
from gateway.core.control_messages import OPERATOR
from gateway.core.events import (
    Address,
    Command,
    EventId,
    Message,
    MessageId,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import OPERATOR_CHANNEL, Seq, dedup_key
from gateway.core.route import ClientRole
from gateway.store import Store

_COMMAND: Final = re.compile(r"/([A-Za-z][A-Za-z0-9_]{0,31})(?:\s+(.*))?", re.DOTALL)


class OperatorChannel(LocalChannel):
    """Channel of the operator. Posts to it need no delivery: clients read them from the log."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(OPERATOR_CHANNEL, lambda _part: None, now=clock.now)

    async def receive(self, text: str, store: Store, name: str, role: ClientRole) -> Seq:
        """Accept what the holder of a token wrote. Return its position in the log, once it is
        durable. `name`: of the token. `role`: not `read`.
        """
        event = self._parse_input(text, name, role)
        await self.receive_events(event)
        found = await store.entry_by_key(dedup_key(event))
        assert found is not None
        return found.seq

    def _parse_input(self, text: str, token: str, role: ClientRole) -> Message | Command:
        now, name = self._now(), new_id(self._now())
        at = Address(channel=self.name, room=RoomId(OPERATOR))
        person = SenderId(OPERATOR if role == "own" else f"token:{token}")
        sender = Sender(id=person, name=token, verified=True)
        command = _COMMAND.fullmatch(text.strip())
        if command is not None:
            return Command(
                id=EventId(name),
                at=at,
                sender=sender,
                name=command[1].lower(),
                args=(command[2] or "").strip(),
                sent=now,
                origin="native",
                direct=True,
            )
        return Message(id=MessageId(name), at=at, sender=sender, text=text, sent=now, kind="direct")
