"""Application commands and interactions of the loopback Discord.

https://discord.com/developers/docs/interactions/receiving-and-responding
"""

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.servers.discord_api_rest import Call, Rest, refuse
from tests.servers.discord_api_world import EPHEMERAL, PERMISSIONS, SLASH, Json, when

if TYPE_CHECKING:
    from tests.servers.discord_api import DiscordApi

LOADING = 1 << 7
"""`is thinking...`: seen, but nothing was said yet."""
MESSAGE, DEFERRED, COMMAND = 4, 5, 2
NAME = re.compile(r"[-_'\w]{1,32}")
TOKEN_S = 15 * 60


@dataclass(slots=True, kw_only=True)
class Interaction:
    """One slash command that somebody gave, and what came of it."""

    id: str
    token: str
    channel: str
    user: str
    made_s: float
    """Monotonic; move it back to let the token expire."""
    answered: int | None = None
    """Type of the first response."""
    ephemeral: bool = False
    messages: list[str] = field(default_factory=list)
    """Ids of all responses, the original one first."""


class Commands:
    """Handlers; each is named by what it does."""

    def __init__(self, api: "DiscordApi", rest: Rest) -> None:
        self.api, self.world = api, api.world
        self.table: dict[str, list[Json]] = {}
        """`global` or a guild -> commands."""
        self.given: dict[str, Interaction] = {}
        """Token -> interaction."""
        commands, hook = r"/applications/\d+/(?:guilds/(\d+)/)?commands", r"/webhooks/\d+/([^/]+)"
        rest.route(f"PUT {commands}", self._overwrite)
        rest.route(f"GET {commands}", lambda _, at: self.table.get(at[1] or "global", []))
        rest.route(r"POST /interactions/(\d+)/([^/]+)/callback", self._callback)
        rest.route(f"POST {hook}", self._follow_up)
        rest.route(rf"GET {hook}/messages/(@original|\d+)", lambda _, at: self._message(self._valid(at[1]), at[2]))
        rest.route(rf"PATCH {hook}/messages/(@original|\d+)", self._edit)
        rest.route(rf"DELETE {hook}/messages/(@original|\d+)", self._delete)

    def _overwrite(self, call: Call, at: re.Match[str]) -> list[Json]:
        made = []
        for command in call.body[""]:
            described = 1 <= len(command.get("description", "")) <= 100
            if not NAME.fullmatch(command["name"]) or not described or command["name"] != command["name"].lower():
                refuse(400, 50035, "Invalid Form Body")
            number = self.world.ids.new()
            more = {"id": number, "application_id": self.world.bot, "version": number, "type": command.get("type", 1)}
            more |= {"guild_id": at[1]} if at[1] else {}
            made.append({"default_member_permissions": None, "nsfw": False, "options": []} | command | more)
        self.table[at[1] or "global"] = made
        self.api.changed()
        return made

    def give(self, channel: str, user: str, name: str, **options: str) -> Interaction:
        """Somebody gives a slash command."""
        number, place = self.world.ids.new(), self.world.channels[channel]
        guild = place.get("guild_id")
        known = [c for c in self.table.get("global", []) + self.table.get(guild or "", []) if c["name"] == name]
        made = Interaction(id=number, token=f"itk{number}", channel=channel, user=user, made_s=time.monotonic())
        self.given[made.token] = made
        person = self.world.users[user]
        told = {
            "id": number,
            "application_id": self.world.bot,
            "type": COMMAND,
            "token": made.token,
            "version": 1,
            "channel_id": channel,
            "channel": place | {"permissions": PERMISSIONS},
            "locale": "en-US",
            "entitlements": [],
            "authorizing_integration_owners": {"0": guild or "0"},
            "context": 0 if guild else 1,
            "app_permissions": PERMISSIONS,
            "attachment_size_limit": 10 * 2**20,
            "data": {
                "id": known[0]["id"] if known else self.world.ids.new(),
                "name": name,
                "type": 1,
                "options": [{"name": key, "type": 3, "value": value} for key, value in options.items()],
            },
        }
        if guild:
            member = self.world.member(user) | {"user": person, "permissions": PERMISSIONS}
            told |= {"guild_id": guild, "guild_locale": "en-US", "member": member}
        else:
            told |= {"user": person}
        self.api.dispatch("INTERACTION_CREATE", told)
        return made

    def _valid(self, token: str) -> Interaction:
        found = self.given.get(token)
        if found is None or time.monotonic() - found.made_s > TOKEN_S:
            refuse(401, 50027, "Invalid Webhook Token")
        return found

    def _callback(self, call: Call, at: re.Match[str]) -> Json | None:
        found = self.given.get(at[2])
        if found is None or found.id != at[1] or time.monotonic() - found.made_s > self.api.options.interaction_s:
            refuse(404, 10062, "Unknown interaction")
        if found.answered is not None:
            refuse(400, 40060, "Interaction has already been acknowledged.")
        kind, data = call.body["type"], call.body.get("data") or {}
        if kind not in {MESSAGE, DEFERRED}:
            refuse(400, 50035, "Invalid Form Body")
        found.ephemeral = bool(data.get("flags", 0) & EPHEMERAL)
        content = self.api.talk.check(data, call.files) if kind == MESSAGE else ""
        found.answered = kind
        made = self._show(found, content, data.get("flags", 0) | (LOADING if kind == DEFERRED else 0))
        if call.query.get("with_response", "false") not in {"1", "true"}:
            return None
        told = {"id": found.id, "type": COMMAND, "response_message_id": made["id"]}
        told |= {"response_message_loading": kind == DEFERRED, "response_message_ephemeral": found.ephemeral}
        return {"interaction": told, "resource": {"type": kind, "message": made}}

    def _show(self, found: Interaction, content: str, flags: int) -> Json:
        meta = {"id": found.id, "type": COMMAND, "user": self.world.users[found.user]}
        meta["authorizing_integration_owners"] = {}
        more: Json = {"flags": flags, "type": SLASH, "webhook_id": self.world.bot}
        more |= {"application_id": self.world.bot, "interaction_metadata": meta}
        made = self.world.add_message(found.channel, self.world.bot, content, **more)
        found.messages.append(made["id"])
        if not flags & EPHEMERAL:
            self.api.show(made)
        self.api.changed()
        return made

    def _message(self, found: Interaction, number: str) -> Json:
        if found.answered is None:
            refuse(404, 10015, "Unknown Webhook")
        number = found.messages[0] if number == "@original" else number
        made = self.world.messages[found.channel].get(number)
        if made is None or number not in found.messages:
            refuse(404, 10008, "Unknown Message")
        return made

    def _follow_up(self, call: Call, at: re.Match[str]) -> Json:
        found = self._valid(at[1])
        original = self._message(found, "@original")
        content = self.api.talk.check(call.body, call.files)
        if original["flags"] & LOADING:  # the first follow-up takes the place of `thinking`
            return self._reveal(original, content)
        return self._show(found, content, call.body.get("flags", 0) | (EPHEMERAL if found.ephemeral else 0))

    def _reveal(self, message: Json, content: str) -> Json:
        message |= {"content": content, "flags": message["flags"] & ~LOADING}
        if not message["flags"] & EPHEMERAL:
            self.api.dispatch("MESSAGE_UPDATE", self.world.seen_live(message))
        self.api.changed()
        return message

    def _edit(self, call: Call, at: re.Match[str]) -> Json:
        message = self._message(self._valid(at[1]), at[2])
        content = self.api.talk.check(call.body, call.files)
        if not message["flags"] & LOADING:
            message["edited_timestamp"] = when(self.world.ids.new())
        return self._reveal(message, content)

    def _delete(self, _: Call, at: re.Match[str]) -> None:
        found = self._valid(at[1])
        message = self._message(found, at[2])
        if message["flags"] & EPHEMERAL:
            del self.world.messages[found.channel][message["id"]]
        else:
            self.api.deletes(found.channel, message["id"])
