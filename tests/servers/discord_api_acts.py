"""What the loopback Discord's HTTP API does with reactions, topics and members.

https://discord.com/developers/docs/resources/message#create-reaction, /resources/channel#modify-channel,
/resources/guild#list-guild-members
"""

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tests.servers.discord_api_rest import Call, Rest, refuse
from tests.servers.discord_api_world import DM, POST, Json

if TYPE_CHECKING:
    from tests.servers.discord_api import DiscordApi


KNOWN = frozenset({"👍", "🔥", "🎉", "❤️", "☃️", "👩‍💻", "🇩🇪", "1️⃣", "😀"})
"""Of the emoji that Discord knows, each in its one spelling."""
MOST_REACTIONS = 20
TOPIC_CHARACTERS, NAME_CHARACTERS = 1024, 100


class Acts:
    """Handlers; each is named by what it does."""

    def __init__(self, api: "DiscordApi", rest: Rest) -> None:
        self.api, self.world = api, api.world
        channel, message = r"/channels/(\d+)", r"/channels/(\d+)/messages/(\d+)"
        rest.route(f"(PUT|DELETE) {message}/reactions/([^/]+)/@me", self._react)
        rest.route(f"PATCH {channel}", self._modify)
        rest.route(f"GET {channel}/thread-members", self._in_thread)
        rest.route(f"DELETE {channel}/thread-members/@me", self._leave)
        rest.route(r"GET /guilds/(\d+)/members", self._members)
        rest.route(r"GET /guilds/(\d+)/emojis", lambda _, at: self._guild(at[1])["emojis"])
        rest.route(r"GET /guilds/(\d+)", self._counted)

    def _guild(self, number: str) -> Json:
        return self.world.guilds.get(number) or refuse(404, 10004, "Unknown Guild")

    def _react(self, call: Call, at: re.Match[str]) -> None:
        emoji, me, added = unquote(at[4]), self.world.bot, call.method == "PUT"
        message = self.api.talk.message(at[2], at[3])
        custom = {f"{one['name']}:{one['id']}" for guild in self.world.guilds.values() for one in guild["emojis"]}
        if emoji not in KNOWN | custom:
            refuse(400, 10014, "Unknown Emoji")
        there: list[str] = message.setdefault("bots_reactions", [])
        if added is (emoji in there):
            return
        if added and at[2] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        if added and len(there) >= MOST_REACTIONS:
            refuse(400, 30010, "Maximum number of reactions reached (20)")
        (there.append if added else there.remove)(emoji)
        self.api.reacts(at[2], at[3], me, emoji, added=added)

    def _modify(self, call: Call, at: re.Match[str]) -> Json:
        channel, body = self.api.talk.channel(at[1]), call.body
        if channel["type"] == DM:
            refuse(403, 50003, "Cannot execute action on this channel type")
        if channel["id"] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        if len(body.get("topic") or "") > TOPIC_CHARACTERS or not 1 <= len(body.get("name", "x")) <= NAME_CHARACTERS:
            refuse(400, 50035, "Invalid Form Body")
        thread = channel["type"] == POST
        if thread and "topic" in body:
            refuse(400, 50035, "Invalid Form Body")
        if thread and "name" in body and channel["thread_metadata"]["archived"]:
            refuse(400, 50083, "Thread is archived")
        if thread:
            channel["thread_metadata"] |= {name: body[name] for name in ("archived", "locked") if name in body}
        channel |= {name: body[name] for name in ("topic", "name") if name in body}
        self.api.dispatch("THREAD_UPDATE" if thread else "CHANNEL_UPDATE", channel)
        return channel

    def _members(self, call: Call, at: re.Match[str]) -> list[Json]:
        self._guild(at[1])
        return self._listed(call, sorted(self.world.users, key=int), 1000)

    def _in_thread(self, call: Call, at: re.Match[str]) -> list[Json]:
        channel = self.api.talk.channel(at[1])
        said = {message["author"]["id"] for message in self.world.messages[channel["id"]].values()}
        found = self._listed(call, sorted(said | {channel["owner_id"]}, key=int), 100)
        return [{"id": channel["id"], "user_id": one["user"]["id"], "flags": 0, "member": one} for one in found]

    def _leave(self, _: Call, at: re.Match[str]) -> None:
        """https://discord.com/developers/docs/resources/channel#leave-thread"""
        thread = self.api.talk.channel(at[1])
        if thread["type"] != POST:
            refuse(400, 50024, "Cannot execute action on this channel type")
        if thread["thread_metadata"]["archived"]:
            refuse(400, 50083, "Thread is archived")
        self.world.left.add(thread["id"])

    def _listed(self, call: Call, users: list[str], most: int) -> list[Json]:
        if not self.api.options.members:
            refuse(403, 50001, "Missing Access")
        limit = int(call.query.get("limit", "1"))
        if not 1 <= limit <= most:
            refuse(400, 50035, "Invalid Form Body")
        return [self.world.member(user) | {"user": self.world.users[user]} for user in users[:limit]]

    def _counted(self, call: Call, at: re.Match[str]) -> Json:
        more = {"approximate_member_count": len(self.world.users)} if call.query.get("with_counts") == "true" else {}
        return self._guild(at[1]) | more
