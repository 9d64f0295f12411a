"""What requests name: channels and messages of Discord in our words, and back. Pure."""

from channels.base import Rejected
from channels.discord.ids import get_snowflake, parse_id
from gateway.events import Address, MessageId, Receipt


def parse_channel_id(to: Address) -> str:
    """The Discord channel behind an address: a thread is one of its own. Raises `Rejected`."""
    found = parse_id(to.thread or to.room)
    if not found:
        raise Rejected(f"{to.thread or to.room!r} is not a channel of Discord")
    return found


def parse_message_id(message: MessageId) -> str:
    """Its number. Raises `Rejected`: answers to commands have names, too, but cannot be touched."""
    found = parse_id(message)
    if not found:
        raise Rejected(f"{message!r} is not a message of Discord")
    return found


def build_receipt(answer: object) -> Receipt:
    """For the message object that Discord answers with."""
    found = get_snowflake(answer, "id")
    return Receipt(ids=(MessageId(found),) if found else ())
