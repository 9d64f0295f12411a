"""What the loopback Discord's HTTP API does with channels and messages."""

import re
import time
from typing import TYPE_CHECKING

from tests.servers.discord_api_rest import Call, Rest, refuse
from tests.servers.discord_api_world import DM, FORUM, Json

if TYPE_CHECKING:
    from tests.servers.discord_api import DiscordApi


CONTENT_CHARACTERS = 2000
MAX_FILE_BYTES = 10 * 2**20


class Talk:
    """Handlers; each is named by what it does."""

    def __init__(self, api: "DiscordApi", rest: Rest) -> None:
        self.api, self.world = api, api.world
        self._nonces: dict[str, tuple[float, Json]] = {}
        channel, message = r"/channels/(\d+)", r"/channels/(\d+)/messages/(\d+)"
        rest.route(r"GET /users/@me", lambda _, __: self.world.users[self.world.bot])
        rest.route(r"GET /users/@me/guilds", lambda _, __: [*self.world.guilds.values()])
        rest.route(r"GET /users/(\d+)", lambda _, at: self.world.users.get(at[1]) or refuse(404, 10013, "Unknown User"))
        rest.route(r"GET /(oauth2/)?applications/@me", lambda _, __: self._application())
        rest.route(r"GET /gateway", lambda _, __: {"url": api.gateway_url})
        rest.route(r"GET /gateway/bot", lambda _, __: self._gateway())
        rest.route(r"POST /users/@me/channels", self._open_dm)
        rest.route(f"GET {channel}", lambda _, at: self.channel(at[1]))
        rest.route(f"POST {channel}/typing", self._typing)
        rest.route(f"GET {channel}/messages", self._history)
        rest.route(f"GET {message}", lambda _, at: self.message(at[1], at[2]))
        rest.route(f"POST {channel}/messages", self._say)
        rest.route(f"PATCH {message}", self._edit)
        rest.route(f"DELETE {message}", self._delete)
        rest.route(f"POST {message}/threads", self._start_thread)
        rest.route(f"POST {channel}/threads", self._start_thread)

    def _application(self) -> Json:
        bot = self.world.users[self.world.bot]
        flags = 1 << 19 if self.api.options.message_content else 0
        made = {"id": bot["id"], "name": bot["username"], "icon": None, "description": "", "bot_public": True}
        return made | {
            "bot_require_code_grant": False,
            "flags": flags,
            "owner": self.world.users[self.api.ann],
            "team": None,
            "verify_key": "0",
        }

    def _gateway(self) -> Json:
        options = self.api.options
        left = max(0, options.identifies_per_day - len(self.api.identifies))
        limit = {"total": options.identifies_per_day, "remaining": left, "reset_after": 86_400_000}
        limit["max_concurrency"] = options.max_concurrency
        return {"url": self.api.gateway_url, "shards": options.shards, "session_start_limit": limit}

    def channel(self, number: str) -> Json:
        """A channel that the bot can see."""
        if number in self.world.hidden:
            refuse(403, 50001, "Missing Access")
        return self.world.channels.get(number) or refuse(404, 10003, "Unknown Channel")

    def message(self, channel: str, number: str) -> Json:
        self.channel(channel)
        return self.world.messages[channel].get(number) or refuse(404, 10008, "Unknown Message")

    def _open_dm(self, call: Call, _: re.Match[str]) -> Json:
        user = str(call.body.get("recipient_id"))
        if user not in self.world.users:
            refuse(400, 50033, "Invalid Recipient(s)")
        return self.channel(self.world.dm(user))

    def _typing(self, _: Call, at: re.Match[str]) -> None:
        self.channel(at[1])
        self.api.typings.append(at[1])

    def _history(self, call: Call, at: re.Match[str]) -> list[Json]:
        self.channel(at[1])
        if at[1] in self.world.unread:
            refuse(403, 50001, "Missing Access")
        query = call.query
        limit = int(query.get("limit", "50"))
        if not 1 <= limit <= 100:
            refuse(400, 50035, "Invalid Form Body")
        after, before = (int(query[name]) if name in query else None for name in ("after", "before"))
        return self.world.history(at[1], limit=limit, after=after, before=before)

    def check(self, body: Json, files: dict[str, bytes]) -> str:
        """The content of a message that the bot wants to show."""
        content = body.get("content") or ""
        if not content.strip() and not files and not body.get("embeds") and not body.get("components"):
            refuse(400, 50006, "Cannot send an empty message")
        if len(content) > CONTENT_CHARACTERS:
            refuse(400, 50035, "Invalid Form Body")
        if body.get("allowed_mentions", {}).get("parse") != []:
            self.api.offences.append(f"mentions are allowed: {body}")
        return str(content)

    def attached(self, call: Call) -> list[Json]:
        """The files that came with it, on the CDN."""
        if sum(map(len, call.files.values())) > MAX_FILE_BYTES:
            refuse(413, 40005, "Request entity too large")
        return [self.api.keep(name, data, call.kinds[name]) for name, data in call.files.items()]

    def _writable(self, channel: Json) -> None:
        if channel["id"] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        if channel["type"] == FORUM:
            refuse(400, 50008, "Cannot send messages in a non-text channel")
        thread = channel.get("thread_metadata")
        if thread and thread["locked"]:
            refuse(403, 160005, "Thread is locked")
        if channel["type"] == DM and channel["recipients"][0].get("closed"):
            refuse(403, 50007, "Cannot send messages to this user")
        if thread and thread["archived"]:
            thread["archived"] = False
            self.api.dispatch("THREAD_UPDATE", channel)

    def _say(self, call: Call, at: re.Match[str]) -> Json:
        channel, body = self.channel(at[1]), call.body
        self._writable(channel)
        content, nonce = self.check(body, call.files), str(body.get("nonce") or "")
        if len(nonce) > 25:
            refuse(400, 50035, "Invalid Form Body")
        known = self._nonces.get(nonce)
        if nonce and body.get("enforce_nonce") and known and time.monotonic() - known[0] < self.api.options.nonce_s:
            return known[1]
        more: Json = {"flags": body.get("flags", 0), "nonce": body.get("nonce")}
        reference = body.get("message_reference")
        if reference:
            if at[1] in self.world.unread:
                refuse(400, 160002, "Cannot reply without permission to read message history")
            reply = self.api.replying(at[1], str(reference["message_id"]))
            if reply is None and reference.get("fail_if_not_exists", True):
                refuse(400, 50035, "Unknown message")
            more |= reply or {}
        more["attachments"] = self.attached(call)
        made = self.world.add_message(at[1], self.world.bot, content, **more)
        if nonce:
            self._nonces[nonce] = (time.monotonic(), made)
        self.api.show(made)
        return made

    def _edit(self, call: Call, at: re.Match[str]) -> Json:
        message = self.message(at[1], at[2])
        if message["author"]["id"] != self.world.bot:
            refuse(403, 50005, "Cannot edit a message authored by another user")
        if self.channel(at[1]).get("thread_metadata", {}).get("archived"):
            refuse(400, 50083, "Thread is archived")
        self.api.edits(at[1], at[2], self.check(call.body, {}))
        return message

    def _delete(self, _: Call, at: re.Match[str]) -> None:
        message = self.message(at[1], at[2])
        if message["author"]["id"] != self.world.bot and at[1] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        self.api.deletes(at[1], at[2])

    def _start_thread(self, call: Call, at: re.Match[str]) -> Json:
        parent = self.channel(at[1])
        message = at[2] if at.re.groups > 1 else None
        if message and message in self.world.channels:
            refuse(400, 160004, "A thread has already been created for this message")
        made = self.world.add_thread(parent["id"], str(call.body["name"]), self.world.bot, at=message)
        self.api.dispatch("THREAD_CREATE", made | {"newly_created": True})
        return made
