"""What is said about people, codes and rooms. Pure. Names and ids are others' words, and stand in code."""

from collections.abc import Mapping
from typing import Final

from gateway.events import ChannelName, ConversationId
from gateway.ops.report import format_time
from gateway.records import CodeIssued
from gateway.roster.codes import CODE_LIFETIME, format_code
from gateway.roster.groups import is_verifiable
from gateway.store.lines import hide_second_half
from gateway.tools.consent import inline_code

ID_CHARS: Final = 160
"""An IRC mask: nick, user and a host of 63 characters. A person is shown whole, or who they are is not shown."""
NAME_CHARS: Final = 64

UNKNOWN_CODE_TEXT: Final = "No code like that is waiting. Codes hold for an hour, and each is good once."
TRY_LATER_TEXT: Final = "Too many wrong codes. Try again in ten minutes."
BEING_DECIDED_TEXT: Final = "Somebody else is deciding about that in this moment."


def format_person(person: str, name: str = "") -> str:
    """Somebody, by id and by what they call themselves."""
    shown = inline_code(person, ID_CHARS)
    return f"{shown} ({inline_code(name, NAME_CHARS)})" if name.strip() and not person.endswith(f":{name}") else shown


def format_room(conversation: ConversationId | str, about: str = "") -> str:
    """A room, by what it calls itself and by id."""
    shown = inline_code(conversation, ID_CHARS)
    told = about.strip() and not conversation.endswith(f"/{about}")  # on some platforms the id is the name
    return f"{inline_code(about, NAME_CHARS)} ({shown})" if told else shown


def describe_verification(person: str, platforms: Mapping[ChannelName, str]) -> str:
    """Whether a platform vouches for that id, and which."""
    channel = ChannelName(person.partition(":")[0])
    platform = platforms.get(channel, "its platform")
    return (
        f"vouched for by {platform}" if is_verifiable(person) else f"a mask on {platform}: tomorrow anybody may have it"
    )


def render_unknown_request(written: str, prefix: str, what: str) -> str:
    """To an admin: what they wrote is no code and no id of a request. `what`: the command that lists them."""
    return (
        f"No code or id like {inline_code(hide_second_half(written), NAME_CHARS)} is waiting. "
        f"`{prefix}{what} list` shows who "
        "waits; a code is valid for an hour, and only once."
    )


def render_pairing_prompt(minted: str, prefix: str) -> str:
    """To a stranger who is shown a code."""
    return (
        f"Hi, I'm a bot. My operator has to approve you first. Send them this code (valid 1 hour): "
        f"`{format_code(minted)}`. They approve it with `{prefix}pair approve {format_code(minted)}`. If I "
        "know you already on "
        f"another platform, write `{prefix}link` to me there instead."
    )


def render_pairing_reminder(request: CodeIssued) -> str:
    """To a stranger who was shown a code and is not approved yet."""
    return (
        "I'm a bot, and I can answer you only after my operator has approved you. Send them the code that I showed "
        f"you; it is valid until {format_time(request.until)}."
    )


def render_not_approved() -> str:
    """To a stranger who asks for help and for whom there is no code at the moment."""
    return "I'm a bot, and I can answer you only after my operator has approved you. Ask them for that."


def render_login_needed(channel: str, platform: str) -> str:
    """To a stranger of whom nobody knows who it is."""
    login = " (with most networks: `/msg NickServ IDENTIFY` and your password)" if platform.lower() == "irc" else ""
    return (
        f"I am a bot, and answer here only people whom I can tell from others. On {inline_code(channel)} that takes an "
        f"account: log in to the network's services{login}, then write to me again."
    )


def render_room_request(minted: str, prefix: str, asker: str) -> str:
    """In a room that is not open, or to who invites there."""
    return (
        f"I am a bot, and this room is not open for me yet; {asker} asked for it. One of my admins opens it with "
        f"`{prefix}room approve {format_code(minted)}`, said to me anywhere. It holds for an hour."
    )


def render_invite_request(minted: str, prefix: str, room: str) -> str:
    """To who invites into a room where we are not."""
    return (
        f"I am a bot, and {room} is not open for me yet, so I do not come. One of my admins opens it with "
        f"`{prefix}room approve {format_code(minted)}`, said to me anywhere. It holds for an hour."
    )


def render_link_code(minted: str, prefix: str) -> str:
    """To who begins to link."""
    return (
        f"Your code is `{format_code(minted)}`. Say `{prefix}link {format_code(minted)}` to me where you are "
        "known by another "
        "name. I show you a second code there, and you hand that in here. Give neither to anybody: whoever is linked "
        "with you may do what you may do. It holds for an hour."
    )


def render_link_confirmation(minted: str, prefix: str, other: str, role: str) -> str:
    """To who handed the first code in: who that would be."""
    return (
        f"{other} would be the same person as you: whoever uses that account then may do here whatever you may "
        f"(you are {role}). **Somebody who asked you to write that code wants to be you: then stop here, and nothing "
        f"happens.** If both are yours, say `{prefix}link {format_code(minted)}` to me there. It holds for an hour."
    )


def format_request(request: CodeIssued) -> str:
    """A code that somebody was shown, without the code."""
    who = format_person(request.person, request.name)
    where = f" for {format_room(request.room.conversation, request.about)}" if request.room is not None else ""
    since = format_time(request.until - CODE_LIFETIME)
    return f"`{request.request}`: {who}{where}, since {since}, until {format_time(request.until)}"


def format_approve_command(request: CodeIssued, prefix: str) -> str:
    """What an admin writes to approve it: as code, by the name of the request."""
    return f"`{prefix}{'pair' if request.room is None else 'room'} approve {request.request}`"


def render_request_for_owners(request: CodeIssued, prefix: str) -> str:
    """For owners: somebody was shown a code."""
    what = "to speak to me alone" if request.room is None else "to have a room opened for me"
    return (
        f"Somebody asks {what}: {format_request(request)}. To approve it, write "
        f"{format_approve_command(request, prefix)}; to refuse it, "
        f"write `{prefix}pair revoke {request.request}`."
    )
