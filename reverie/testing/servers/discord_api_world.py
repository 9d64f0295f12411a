"""What exists on the loopback Discord: people, guilds, channels, threads, messages. No sockets
here.

Ids are real snowflakes (https://discord.com/developers/docs/reference#snowflakes): they grow, and
tell the time. Every object is the JSON that the API shows.
"""

import itertools
import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Json = dict[str, Any]

EPOCH_MS: Final = 1420070400000
TEXT, DM, NEWS, FORUM, POST, PRIVATE_THREAD = 0, 1, 5, 15, 11, 12
"""Channel types; a forum post is a public thread."""
DEFAULT, REPLY, SLASH, STARTER = 0, 19, 20, 21
"""Message types."""
EPHEMERAL: Final = 1 << 6
MENTION = re.compile(r"<@!?(\d+)>")
PERMISSIONS: Final = str((1 << 47) - 1 & ~(1 << 3 | 1 << 34))
"""All, without ADMINISTRATOR and MANAGE_THREADS; what the bot must not do is said by `World.muted`
and `hidden`."""


class Snowflakes:
    """Ids that grow."""

    def __init__(self) -> None:
        self._last = 0

    def new(self, ago_s: float = 0.0) -> str:
        """An id of now, or of `ago_s` seconds ago (those do not grow beyond the ones of now)."""
        made = (int((time.time() - ago_s) * 1000) - EPOCH_MS) << 22
        if not ago_s:
            made = self._last = max(made, self._last + 1)
        return str(made)


def when(snowflake: str) -> str:
    """The time of an id, as the API writes it."""
    return (
        datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=(int(snowflake) >> 22) + EPOCH_MS)
    ).isoformat()


class World:
    """All of it, with one guild, two rooms and two people to begin with."""

    def __init__(self) -> None:
        self.ids = Snowflakes()
        self.users: dict[str, Json] = {}
        self.guilds: dict[str, Json] = {}
        self.channels: dict[str, Json] = {}
        self.messages: dict[str, dict[str, Json]] = {}
        """Channel -> id -> message, oldest first; deleted ones are gone."""
        self.files: dict[str, tuple[bytes, str]] = {}
        """Path below `/cdn/` -> bytes and content type."""
        self.muted: set[str] = set()
        """Channels where the bot must not write (50013)."""
        self.banned_words: set[str] = set()
        """What AutoMod lets nobody say (200000)."""
        self.threadless: set[str] = set()
        """Channels where the bot must not open threads (50013), although its roles say that it
        may."""
        self.hidden: set[str] = set()
        """Channels that the bot cannot see (50001)."""
        self.unread: set[str] = set()
        """Channels whose history the bot cannot see (50001), and where it cannot reply (160002)."""
        self.left: set[str] = set()
        """Threads that the bot has left."""
        self.gone: set[str] = set()
        """People who are no members of any guild any more."""
        self.nicks: dict[str, str] = {}
        """Person -> their name in the guilds, which moderators may have given them."""
        self.roles: dict[str, list[str]] = {}
        """Person -> their roles."""
        self.added: set[tuple[str, str]] = set()
        """(thread, person) who was added to it."""
        self._past = itertools.count()
        self.bot = self.add_user("reverie", bot=True)
        self.guild = self.add_guild("home")
        self.room = self.add_channel("general")
        self.other = self.add_channel("other")
        self.ann, self.ben = self.add_user("ann"), self.add_user("ben")

    def add_user(self, name: str, *, bot: bool = False) -> str:
        """Somebody new -> their id."""
        made = {
            "id": self.ids.new(),
            "username": name,
            "global_name": None,
            "discriminator": "0",
            "avatar": None,
        }
        self.users[made["id"] or ""] = {**made, "bot": bot, "public_flags": 0}
        return str(made["id"])

    def add_guild(self, name: str) -> str:
        """A guild where everybody is -> its id."""
        number = self.ids.new()
        everyone = {
            "id": number,
            "name": "@everyone",
            "permissions": PERMISSIONS,
            "position": 0,
            "color": 0,
        }
        everyone |= {"hoist": False, "managed": False, "mentionable": False, "flags": 0}
        self.guilds[number] = {
            "id": number,
            "name": name,
            "owner_id": self.bot,
            "roles": [everyone],
            "emojis": [],
            "stickers": [],
            "features": [],
            "afk_timeout": 300,
            "verification_level": 0,
            "default_message_notifications": 0,
            "explicit_content_filter": 0,
            "mfa_level": 0,
            "nsfw_level": 0,
            "premium_tier": 0,
            "premium_progress_bar_enabled": False,
            "system_channel_flags": 0,
            "preferred_locale": "en-US",
        }
        return number

    def add_role(self, name: str, permissions: int = 0) -> Json:
        """A role of the guild, which nobody has yet."""
        made = self.guilds[self.guild]["roles"][0] | {
            "id": self.ids.new(),
            "name": name,
            "permissions": str(permissions),
        }
        self.guilds[self.guild]["roles"].append(made)
        return dict(made)

    def may(self, guild: str, permission: int) -> bool:
        """Whether the bot has it everywhere there: by owning the guild, or by a role."""
        return self.guilds[guild]["owner_id"] == self.bot or bool(
            self.permissions(guild) & (permission | 1 << 3)
        )

    def permissions(self, guild: str) -> int:
        """Of the bot, by its roles."""
        roles = {guild, *self.roles.get(self.bot, [])}
        granted = 0
        for role in self.guilds[guild]["roles"]:
            granted |= int(role["permissions"]) if role["id"] in roles else 0
        return granted

    def add_emoji(self, name: str) -> str:
        """A custom emoji of the guild -> `name:id`."""
        made = {
            "id": self.ids.new(),
            "name": name,
            "roles": [],
            "animated": False,
            "available": True,
        }
        self.guilds[self.guild]["emojis"].append(made)
        return f"{name}:{made['id']}"

    def add_channel(self, name: str, *, guild: str | None = None, kind: int = TEXT) -> str:
        """A channel of a guild -> its id."""
        made = self._channel(kind, name)
        made |= {"guild_id": guild or self.guild, "position": 0, "nsfw": False}
        made |= {
            "permission_overwrites": [],
            "topic": None,
            "parent_id": None,
            "rate_limit_per_user": 0,
        }
        if kind == FORUM:
            made |= {
                "available_tags": [],
                "default_reaction_emoji": None,
                "default_sort_order": None,
            }
            made |= {"default_forum_layout": 0, "flags": 0}
        return str(made["id"])

    def add_thread(
        self, parent: str, name: str, owner: str, *, at: str | None = None, kind: int = POST
    ) -> Json:
        """A thread or forum post; `at`: the id, which is that of the message it begins at."""
        made = self._channel(kind, name, at)
        self.added.add((made["id"], owner))
        made |= {
            "guild_id": self.channels[parent]["guild_id"],
            "parent_id": parent,
            "owner_id": owner,
            "message_count": 0,
            "member_count": 1,
            "rate_limit_per_user": 0,
            "thread_metadata": {"archived": False, "locked": False, "auto_archive_duration": 1440},
        }
        made["thread_metadata"]["archive_timestamp"] = when(made["id"])
        return made

    def dm(self, user: str) -> str:
        """The direct channel between the bot and somebody -> its id."""
        for channel in self.channels.values():
            if channel["type"] == DM and channel["recipients"][0]["id"] == user:
                return str(channel["id"])
        made = self._channel(DM, None)
        made["recipients"] = [self.users[user]]
        return str(made["id"])

    def _channel(self, kind: int, name: str | None, number: str | None = None) -> Json:
        made: Json = {
            "id": number or self.ids.new(),
            "type": kind,
            "name": name,
            "last_message_id": None,
        }
        self.channels[made["id"]] = made
        self.messages.setdefault(made["id"], {})
        return made

    def member(self, user: str) -> Json:
        """Somebody as a member of a guild, without the user."""
        return {
            "roles": self.roles.get(user, []),
            "joined_at": when(user),
            "deaf": False,
            "mute": False,
            "flags": 0,
            "nick": self.nicks.get(user),
        }

    def guild_create(self, guild: str) -> Json:
        """What GUILD_CREATE tells."""
        inside = [c for c in self.channels.values() if c.get("guild_id") == guild]
        return self.guilds[guild] | {
            "channels": [
                c for c in inside if "thread_metadata" not in c and c["id"] not in self.hidden
            ],
            "threads": [
                c for c in inside if "thread_metadata" in c and not c["thread_metadata"]["archived"]
            ],
            "members": [self.member(self.bot) | {"user": self.users[self.bot]}],
            "joined_at": when(guild),
            "member_count": len(self.users),
            "large": False,
            "unavailable": False,
            "presences": [],
            "voice_states": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
            "soundboard_sounds": [],
        }

    def add_message(
        self, channel: str, author: str, text: str, *, ago_s: float = 0.0, **more: Any
    ) -> Json:
        """Somebody (or the bot, or a webhook) has said something; kept in order of ids."""
        number = self.ids.new(ago_s)
        if ago_s:
            number = str(int(number) + next(self._past))
        mentioned = [
            self.users[user] for user in dict.fromkeys(MENTION.findall(text)) if user in self.users
        ]
        made: Json = {
            "id": number,
            "channel_id": channel,
            "author": self.users.get(
                author, {"id": author, "username": "hook", "discriminator": "0000", "bot": True}
            ),
            "content": text,
            "timestamp": when(number),
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": mentioned,
            "mention_roles": [],
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "type": DEFAULT,
            "flags": 0,
            "components": [],
        } | more
        kept = self.messages[channel]
        kept[number] = made
        if ago_s:
            self.messages[channel] = dict(sorted(kept.items(), key=lambda item: int(item[0])))
        self.channels[channel]["last_message_id"] = number
        return made

    def seen_live(self, message: Json) -> Json:
        """A message as MESSAGE_CREATE and MESSAGE_UPDATE show it."""
        guild = self.channels[message["channel_id"]].get("guild_id")
        if guild is None:
            return message
        author = message["author"]["id"]
        member = {} if "webhook_id" in message else {"member": self.member(author)}
        mentions = [user | {"member": self.member(user["id"])} for user in message["mentions"]]
        return message | {"guild_id": guild, "mentions": mentions} | member

    def history(
        self, channel: str, *, limit: int, after: int | None, before: int | None
    ) -> list[Json]:
        """Newest first; `after` alone gives the oldest ones behind it, as Discord does."""
        found = [
            m
            for n, m in self.messages[channel].items()
            if (after or 0) < int(n) < (before or 1 << 64)
        ]
        found = [m for m in found if not m["flags"] & EPHEMERAL]
        chosen = found[:limit] if after is not None else found[-limit:]
        return chosen[::-1]
