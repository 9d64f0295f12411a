"""What requests name: channels and messages of Discord in our words, and back. Pure."""

from channels.base import Rejected
from channels.discord.ids import as_id, snowflake
from gateway.events import Address, MessageId, Receipt


def channel_of(to: Address) -> str:
    """The Discord channel behind an address: a thread is one of its own. Raises `Rejected`."""
    found = as_id(to.thread or to.room)
    if not found:
        raise Rejected(f"{to.thread or to.room!r} is not a channel of Discord")
    return found


def message_of(message: MessageId) -> str:
    """Its number. Raises `Rejected`: answers to commands have names, too, but cannot be touched."""
    found = as_id(message)
    if not found:
        raise Rejected(f"{message!r} is not a message of Discord")
    return found


def receipt(answer: object) -> Receipt:
    """For the message object that Discord answers with."""
    found = snowflake(answer, "id")
    return Receipt(ids=(MessageId(found),) if found else ())
