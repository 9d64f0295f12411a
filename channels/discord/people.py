"""Who does something on Discord, as its events say. Pure."""

from channels.discord.ids import snowflake, snowflakes
from channels.discord.text import display_name
from channels.payload import Json, flag, obj, whole
from gateway.events import Sender, SenderId

_BETWEEN_OTHERS = 2
"""Where a command was given: in a chat outside of guilds that is not ours
(https://discord.com/developers/docs/interactions/receiving-and-responding#interaction-object-interaction-context-types).
"""


def asker(data: Json) -> Sender | None:
    """Who gave or is writing a command: Discord vouches for whoever uses an interaction."""
    member = obj(data, "member")
    user = obj(member, "user") or obj(data, "user")
    who = snowflake(user, "id")
    if not who:
        return None
    name = display_name(user, member) or who
    return Sender(id=SenderId(who), name=name, is_bot=flag(user, "bot"), verified=True, ranks=member_ranks(data))


def alone(data: Json) -> bool:
    """Whether an interaction is in a direct chat with us."""
    return not snowflake(data, "guild_id") and whole(data, "context") != _BETWEEN_OTHERS


def member_ranks(data: Json) -> tuple[str, ...]:
    """The roles that somebody has in the guild where it happened, as the event itself tells; none where it does not.

    https://discord.com/developers/docs/resources/guild#guild-member-object
    """
    return tuple(f"role:{role}" for role in snowflakes(obj(data, "member"), "roles"))
