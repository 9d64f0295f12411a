"""Who does something on Discord, as its events say. Pure."""

from channels.discord.ids import get_snowflake, get_snowflakes
from channels.discord.text import display_name
from channels.payload import Json, get_bool, get_int, get_object
from gateway.events import Sender, SenderId

_PRIVATE_CONTEXT = 2
"""Where a command was given: in a chat outside of guilds that is not ours
(https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-interaction-context-types).
"""


def interaction_sender(data: Json) -> Sender | None:
    """Who gave or is writing a command: Discord vouches for whoever uses an interaction."""
    member = get_object(data, "member")
    user = get_object(member, "user") or get_object(data, "user")
    who = get_snowflake(user, "id")
    if not who:
        return None
    name = display_name(user, member) or who
    return Sender(id=SenderId(who), name=name, is_bot=get_bool(user, "bot"), verified=True, ranks=member_ranks(data))


def is_direct_interaction(data: Json) -> bool:
    """Whether an interaction is in a direct chat with us."""
    return not get_snowflake(data, "guild_id") and get_int(data, "context") != _PRIVATE_CONTEXT


def member_ranks(data: Json) -> tuple[str, ...]:
    """The roles that somebody has in the guild where it happened, as the event itself tells; none where it does not.

    https://discord.com/developers/docs/resources/guild#guild-member-object
    """
    return tuple(f"role:{role}" for role in get_snowflakes(get_object(data, "member"), "roles"))
