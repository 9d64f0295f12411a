"""Application commands and interactions of the loopback Discord.

https://discord.com/developers/docs/interactions/receiving-and-responding
"""

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.servers.discord_api_menu import MOST_CHOICES, wrong
from tests.servers.discord_api_rest import Call, Rest, refuse
from tests.servers.discord_api_world import EPHEMERAL, PERMISSIONS, SLASH, Json, when

if TYPE_CHECKING:
    from tests.servers.discord_api import DiscordApi


LOADING = 1 << 7
"""`is thinking...`: seen, but nothing was said yet."""
MESSAGE, DEFERRED, UNCHANGED, CHOICES = 4, 5, 6, 8
COMMAND, COMPONENT, TYPING, FORM = 2, 3, 4, 5
ANSWERS = {COMMAND: {MESSAGE, DEFERRED}, COMPONENT: {MESSAGE, DEFERRED, UNCHANGED}, TYPING: {CHOICES}}
"""Which responses an interaction may have, as far as they matter here."""
ANSWERS[FORM] = ANSWERS[COMPONENT]
TOKEN_S = 15 * 60


@dataclass(slots=True, kw_only=True)
class Interaction:
    """One slash command that somebody gave, or something else that they did, and what came of it."""

    id: str
    token: str
    channel: str
    user: str
    made_s: float
    """Monotonic; move it back to let the token expire."""
    kind: int = COMMAND
    choices: list[str] | None = None
    """What was suggested."""
    told: Json = field(default_factory=dict)
    """As the gateway told it."""
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
        if wrong(call.body[""]):
            refuse(400, 50035, "Invalid Form Body")
        for command in call.body[""]:
            number = self.world.ids.new()
            more = {"id": number, "application_id": self.world.bot, "version": number, "type": command.get("type", 1)}
            more |= {"guild_id": at[1]} if at[1] else {}
            made.append({"default_member_permissions": None, "nsfw": False, "options": []} | command | more)
        self.table[at[1] or "global"] = made
        self.api.changed()
        return made

    def give(self, channel: str, user: str, name: str, /, **options: str) -> Interaction:
        """Somebody gives a slash command; of one with subs, `name` has the sub, too."""
        return self._happens(COMMAND, channel, user, self._data(channel, name, _values(options)))

    def type(self, channel: str, user: str, name: str, option: str, begun: str, /, **options: str) -> Interaction:
        """Somebody is writing an option of a slash command."""
        values = [*_values(options), {"name": option, "type": 3, "value": begun, "focused": True}]
        return self._happens(TYPING, channel, user, self._data(channel, name, values))

    def press(self, channel: str, user: str, *, form: bool = False) -> Interaction:
        """Somebody presses a button that is not there, or sends a form that nobody showed them."""
        if form:
            return self._happens(FORM, channel, user, {"custom_id": "approve", "components": []})
        return self._happens(COMPONENT, channel, user, {"custom_id": "approve", "component_type": 2})

    def replay(self, interaction: Interaction) -> None:
        """The gateway tells of it once more."""
        self.api.dispatch("INTERACTION_CREATE", interaction.told)

    def _data(self, channel: str, name: str, options: list[Json]) -> Json:
        name, _, sub = name.partition(" ")
        guild = self.world.channels[channel].get("guild_id")
        known = [c for c in self.table.get("global", []) + self.table.get(guild or "", []) if c["name"] == name]
        return {
            "id": known[0]["id"] if known else self.world.ids.new(),
            "name": name,
            "type": 1,
            "options": [{"name": sub, "type": 1, "options": options}] if sub else options,
        }

    def _happens(self, kind: int, channel: str, user: str, data: Json) -> Interaction:
        number, place = self.world.ids.new(), self.world.channels[channel]
        guild, person = place.get("guild_id"), self.world.users[user]
        made = Interaction(
            id=number, token=f"itk{number}", channel=channel, user=user, made_s=time.monotonic(), kind=kind
        )
        self.given[made.token] = made
        told = made.told = {
            "id": number,
            "application_id": self.world.bot,
            "type": kind,
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
            "data": data,
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
        if kind not in ANSWERS[found.kind]:
            refuse(400, 50035, "Invalid Form Body")
        if kind in {UNCHANGED, CHOICES}:
            self._quiet(found, kind, data.get("choices", []))
            return None
        found.ephemeral = bool(data.get("flags", 0) & EPHEMERAL)
        content = self.api.talk.check(data, call.files) if kind == MESSAGE else ""
        found.answered = kind
        made = self._show(found, content, data.get("flags", 0) | (LOADING if kind == DEFERRED else 0))
        if call.query.get("with_response", "false") not in {"1", "true"}:
            return None
        told = {"id": found.id, "type": COMMAND, "response_message_id": made["id"]}
        told |= {"response_message_loading": kind == DEFERRED, "response_message_ephemeral": found.ephemeral}
        return {"interaction": told, "resource": {"type": kind, "message": made}}

    def _quiet(self, found: Interaction, kind: int, choices: list[Json]) -> None:
        """An answer that nobody reads as a message."""
        if kind == CHOICES:
            texts = [one[key] for one in choices for key in ("name", "value")]
            if len(choices) > MOST_CHOICES or not all(1 <= len(text) <= 100 for text in texts):
                refuse(400, 50035, "Invalid Form Body")
            found.choices = [one["value"] for one in choices]
        found.answered = kind
        self.api.changed()

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
        message["attachments"] = self.api.talk.attached(call)
        return self._reveal(message, content)

    def _delete(self, _: Call, at: re.Match[str]) -> None:
        found = self._valid(at[1])
        message = self._message(found, at[2])
        if message["flags"] & EPHEMERAL:
            del self.world.messages[found.channel][message["id"]]
        else:
            self.api.deletes(found.channel, message["id"])


def _values(options: dict[str, str]) -> list[Json]:
    return [{"name": key, "type": 3, "value": value} for key, value in options.items()]
