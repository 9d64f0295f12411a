"""The methods of the fake Bot API: what a bot may ask, and what becomes of it."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.servers.bot_api_acts import Acts, Asked
from tests.servers.bot_api_flood import Flood
from tests.servers.bot_api_http import Json, Upload
from tests.servers.bot_api_text import ApiError, checked
from tests.servers.bot_api_updates import Updates
from tests.servers.bot_api_world import World

_ACTIONS = (
    "typing upload_photo record_video upload_video record_voice upload_voice upload_document choose_sticker "
    "find_location record_video_note upload_video_note"
)
ACTIONS = frozenset(_ACTIONS.split())
_GIFTS = "unlimited_gifts limited_gifts unique_gifts premium_subscription gifts_from_channels"
MAX_DOWNLOAD_BYTES = 20_000_000


class Methods(Acts):
    """Calls by name."""

    def __init__(self, world: World, updates: Updates) -> None:
        self.world, self.updates = world, updates
        self.flood: Flood | None = None
        self.commands: dict[str, list[Json]] = {}
        """Scope and language as one string -> what `setMyCommands` said."""
        self._table: dict[str, Callable[[Asked], Awaitable[Any]]] = {
            name.replace("_", ""): getattr(self, name)
            for name in dir(self)
            if not name.startswith("_") and name not in ("call", "world", "updates", "flood", "commands")
        }

    async def call(self, method: str, asked: Asked, uploads: dict[str, Upload]) -> Any:
        """The result. Raises `ApiError`. Names are taken in any case, as Telegram does."""
        found = self._table.get(method.lower())
        if found is None:
            raise ApiError(404, "Not Found")
        return await found(asked | uploads)

    async def get_me(self, _: Asked) -> Json:
        bot = self.world.bot.body
        more = {"can_join_groups": True, "can_read_all_group_messages": self.world.sees_all}
        return bot | more | {"supports_inline_queries": False, "has_topics_enabled": self.world.has_topics}

    async def log_out(self, _: Asked) -> bool:
        return True

    async def close(self, _: Asked) -> bool:
        return True

    async def get_updates(self, asked: Asked) -> list[Any]:
        offset, limit, timeout_s = asked.get("offset", 0), asked.get("limit", 100), asked.get("timeout", 0)
        whole = all(type(number) is int for number in (offset, limit, timeout_s))
        if not whole or not _list_or_none(asked.get("allowed_updates")):
            raise ApiError(400, "Bad Request: strict: wrong type of a parameter of getUpdates")
        return await self.updates.get(offset, limit, timeout_s, asked.get("allowed_updates"))

    async def set_webhook(self, asked: Asked) -> bool:
        url = asked.get("url", "")
        if not url.startswith(("https://", "http://127.0.0.1:")):
            raise ApiError(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        self.updates.set_hook(asked, drop_pending=asked.get("drop_pending_updates") is True)
        return True

    async def delete_webhook(self, asked: Asked) -> bool:
        self.updates.set_hook(None, drop_pending=asked.get("drop_pending_updates") is True)
        return True

    async def get_webhook_info(self, _: Asked) -> Json:
        hook = self.updates.hook or {}
        told = {"url": hook.get("url", ""), "has_custom_certificate": False}
        allowed = {"allowed_updates": sorted(self.updates.allowed)} if self.updates.allowed else {}
        return told | allowed | {"pending_update_count": len(self.updates.pending)}

    async def set_my_commands(self, asked: Asked) -> bool:
        for row in asked["commands"]:
            name, told = row["command"], row["description"]
            if not (1 <= len(name) <= 32 and name.isascii() and name == name.lower() and name.isidentifier()):
                raise ApiError(400, "Bad Request: BOT_COMMAND_INVALID")
            if not 1 <= len(told) <= 256:
                raise ApiError(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        if len(asked["commands"]) > 100:
            raise ApiError(400, "Bad Request: too many commands specified")
        self.commands[self._scope(asked)] = asked["commands"]
        return True

    async def get_my_commands(self, asked: Asked) -> list[Json]:
        return self.commands.get(self._scope(asked), [])

    async def delete_my_commands(self, asked: Asked) -> bool:
        self.commands.pop(self._scope(asked), None)
        return True

    def _scope(self, asked: Asked) -> str:
        scope = asked.get("scope") or {"type": "default"}
        if scope["type"] == "chat" and int(scope["chat_id"]) not in self.world.chats:
            raise ApiError(400, "Bad Request: chat not found")
        rest = (str(scope[key]) for key in sorted(scope) if key != "type")
        return "/".join((scope["type"], *rest, asked.get("language_code", "")))

    async def send_chat_action(self, asked: Asked) -> bool:
        chat, _ = self._place(asked)
        if asked.get("action") not in ACTIONS:
            raise ApiError(400, "Bad Request: wrong parameter action in request")
        chat.actions.append(asked["action"])
        return True

    async def send_message(self, asked: Asked) -> Json:
        chat, thread = self._place(asked)
        text = checked(asked.get("text"), asked.get("entities"))
        entities = asked.get("entities") or None
        return self._say(chat, thread, asked, {"text": text} | ({"entities": entities} if entities else {}))

    async def send_message_draft(self, asked: Asked) -> bool:
        chat, _ = self._place(asked)
        if not chat.private:
            raise ApiError(400, "Bad Request: TEXTDRAFT_PEER_INVALID")
        if type(asked.get("draft_id")) is not int or asked["draft_id"] == 0:
            raise ApiError(400, "Bad Request: TEXTDRAFT_ID_INVALID")
        if asked.get("text"):
            checked(asked["text"], asked.get("entities"))
        chat.drafts.append((asked["draft_id"], asked.get("text", "")))
        return True

    async def answer_callback_query(self, asked: Asked) -> bool:
        query = asked.get("callback_query_id", "")
        if self.world.callbacks.get(query, {}) is not None:
            raise ApiError(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        if len(asked.get("text", "")) > 200:
            raise ApiError(400, "Bad Request: MESSAGE_TOO_LONG")
        self.world.callbacks[query] = asked
        return True

    async def get_file(self, asked: Asked) -> Json:
        found = self.world.files.get(asked.get("file_id", ""))
        if found is None:
            raise ApiError(400, "Bad Request: invalid file_id")
        path, content = found
        if len(content) > MAX_DOWNLOAD_BYTES:
            raise ApiError(400, "Bad Request: file is too big")
        return {"file_id": asked["file_id"], "file_unique_id": path, "file_size": len(content), "file_path": path}

    async def get_chat(self, asked: Asked) -> Json:
        return self.world.chat(asked.get("chat_id")).body | {
            "accent_color_id": 0,
            "max_reaction_count": 11,
            "accepted_gift_types": dict.fromkeys(_GIFTS.split(), True),
        }


def _list_or_none(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))
