"""What people do on the loopback Discord, and what they see."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.servers.discord_api_commands import LOADING
from tests.servers.discord_api_session import CONTENT, Session
from tests.servers.discord_api_world import DM, EPHEMERAL, Json, World, when


class People:
    """The half of the server that tests speak to."""

    def __init__(self) -> None:
        self.world = world = World()
        self.sessions: list[Session] = []
        self.bot, self.guild, self.room, self.other = world.bot, world.guild, world.room, world.other
        self.ann, self.ben = world.ann, world.ben
        self.cdn_url = ""
        self.news: Callable[[], None] = lambda: None

    def visible(self, channel: str) -> list[Json]:
        """What everybody sees of the bot there now, oldest first."""
        mine = (m for m in self.world.messages[channel].values() if m["author"]["id"] == self.bot)
        return [m for m in mine if not m["flags"] & (EPHEMERAL | LOADING)]

    def texts(self, channel: str) -> list[str]:
        return [message["content"] for message in self.visible(channel)]

    def dispatch(self, event: str, data: Json) -> None:
        """To every session that takes it, connected or not."""
        channel = self.world.channels.get(data.get("channel_id", ""), {})
        guild = data.get("guild_id")
        for session in self.sessions:
            if session.valid and session.serves(guild) and session.wants(event, private=channel.get("type") == DM):
                session.dispatch(event, self._veiled(session, data) if event.startswith("MESSAGE_") else data)
        self.news()

    def _veiled(self, session: Session, data: Json) -> Json:
        """Without the intent, content is shown only where it was meant for the bot."""
        open_to = "guild_id" not in data or data.get("author", {}).get("id") == self.bot
        named = any(user["id"] == self.bot for user in data.get("mentions", ()))
        if session.intents & CONTENT or open_to or named or "content" not in data:
            return data
        return data | {"content": "", "embeds": [], "attachments": [], "components": []}

    def show(self, message: Json) -> None:
        self.dispatch("MESSAGE_CREATE", self.world.seen_live(message))

    def keep(self, name: str, data: bytes, kind: str) -> Json:
        """Put a file on the CDN -> an attachment."""
        number = self.world.ids.new()
        path = f"attachments/{number}/{name}"
        self.world.files[path] = (data, kind)
        url = f"{self.cdn_url}/{path}"
        made = {"id": number, "filename": name, "size": len(data), "url": url, "proxy_url": url}
        return made | {"content_type": kind}

    def replying(self, channel: str, number: str) -> Json | None:
        """What a reply to that message has beside its text; None: there is no such message."""
        to = self.world.messages[channel].get(number)
        if to is None:
            return None
        reference = {"channel_id": channel, "message_id": number, "type": 0}
        shown = {key: value for key, value in to.items() if key != "referenced_message"}
        return {"type": 19, "message_reference": reference, "referenced_message": shown}

    def says(
        self,
        channel: str,
        user: str,
        text: str,
        *,
        reply_to: str | None = None,
        files: Sequence[tuple[str, bytes, str]] = (),
        ago_s: float = 0.0,
        **more: Any,
    ) -> str:
        """Somebody says something -> its id. `more`: fields of the message. `ago_s` puts it into the past, silently."""
        reply = self.replying(channel, reply_to) if reply_to is not None else {}
        assert reply is not None
        more = reply | {"attachments": [self.keep(*file) for file in files]} | more
        made = self.world.add_message(channel, user, text, ago_s=ago_s, **more)
        if reply:
            author = reply["referenced_message"]["author"]
            made["mentions"] = [author, *(u for u in made["mentions"] if u["id"] != author["id"])]
        if not ago_s:
            self.show(made)
        return str(made["id"])

    def edits(self, channel: str, message: str, text: str) -> None:
        made = self.world.messages[channel][message]
        made |= {"content": text, "edited_timestamp": when(self.world.ids.new())}
        self.dispatch("MESSAGE_UPDATE", self.world.seen_live(made))

    def deletes(self, channel: str, message: str) -> None:
        del self.world.messages[channel][message]
        self.dispatch("MESSAGE_DELETE", {"id": message} | self._place(channel))

    def reacts(self, channel: str, message: str, user: str, emoji: str, *, added: bool = True) -> None:
        """`emoji`: a character, or `name:id`."""
        shown, _, number = emoji.partition(":")
        made: Json = {"user_id": user, "message_id": message, "emoji": {"id": number or None, "name": shown}}
        made |= {"burst": False, "type": 0}
        made |= self._place(channel)
        if "guild_id" in made and added:
            made["member"] = self.world.member(user) | {"user": self.world.users[user]}
        self.dispatch("MESSAGE_REACTION_ADD" if added else "MESSAGE_REACTION_REMOVE", made)

    def threads(self, parent: str, user: str, name: str, text: str = "", *, at: str | None = None) -> str:
        """Somebody starts a thread (at a message), or a post if the parent is a forum -> its id."""
        made = self.world.add_thread(parent, name, user, at=at)
        self.dispatch("THREAD_CREATE", made | {"newly_created": True})
        if text:
            self.says(made["id"], user, text)
        return str(made["id"])

    def _place(self, channel: str) -> Json:
        guild = self.world.channels[channel].get("guild_id")
        return {"channel_id": channel} | ({"guild_id": guild} if guild else {})
