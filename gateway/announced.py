"""What nobody said, put as something that is told in its place among what people said. Pure."""

from gateway.events import Address, MembershipChanged, Message, MessageId, RoomId, Sender, SenderId
from gateway.happened import SystemEvent
from gateway.records import INNER_CHANNEL, address_of

NOBODY = Sender(id=SenderId(""), name="")
NOWHERE = Address(channel=INNER_CHANNEL, room=RoomId("nowhere"))


def topic_change_as_message(change: MembershipChanged) -> Message:
    """A changed topic as something said in the room, so that it is told in its place."""
    return Message(
        id=MessageId(change.id),
        at=change.at,
        sender=change.sender,
        text=change.text or "",
        sent=change.sent,
        kind="room",
    )


def event_as_message(event: SystemEvent, *, addressed: bool) -> Message:
    """What nobody said, put as something that nobody said. `addressed`: it was said to the agent."""
    return Message(
        id=MessageId(event.id),
        at=address_of(event) or NOWHERE,
        sender=NOBODY,
        text="",
        sent=event.sent,
        kind="mention" if addressed else "room",
    )
