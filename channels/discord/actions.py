"""Actions other than sending: reactions, edits, deletion, topics, members and downloads.

All of them are repeatable, so discord.py may repeat them after a 5xx, and an interrupted one is at
worst uncertain.
"""

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from channels.aio import AnswerCache, with_timeout
from channels.base import (
    MEMBERSHIP_TIMEOUT_S,
    Membership,
    RateLimited,
    Rejected,
    RoomMembers,
    SendError,
    Unreachable,
)
from channels.discord.config import DiscordConfig
from channels.discord.directory import (
    DiscordDirectory,
    listed_name,
    user_sender,
)
from channels.discord.ids import get_snowflake, get_snowflakes
from channels.discord.outgoing import (
    MESSAGE_PATH,
    MESSAGES_PATH,
    SUPPRESS_EMBEDS,
    DiscordOutgoing,
    message_content,
    render_bodies,
)
from channels.discord.wire import DiscordRefused, parse_channel_id, parse_message_id
from channels.split import utf16_length
from channels.text import Json, get_int, get_object, get_objects, get_str, single_line
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    Attachment,
    ChannelName,
    MessageId,
    Sender,
    SenderId,
)

if TYPE_CHECKING:
    from channels.discord.rest import DiscordRestClient
    from channels.discord.session import DiscordSession


logger = logging.getLogger("reverie.discord")
_TOPIC_CHARS, _NAME_CHARS = 1024, 100
"""https://discord.com/developers/docs/resources/channel#modify-channel."""
_UNKNOWN_EMOJI, _WRONG_CHANNEL_TYPE = 10014, 50003
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#json."""
_EMOJI_CHARS = 32
_MAX_MEMBERS, _MAX_THREAD_MEMBERS, _MAX_MESSAGES = 1000, 100, 100
_CUSTOM_EMOJI = re.compile(r"<?a?:?(\w{2,32}):(\d{15,20})>?")
_NAMED_EMOJI = re.compile(r":(\w{2,32}):")
_EMOJI_SELECTOR = "\ufe0f"
"""Requests the picture of a character that also has a plain form. Discord knows each emoji in one
of both spellings."""
_CANNOT_LEAVE = (
    "a bot is in all channels of a server that it can see: take its right to see this one in the "
    "channel's settings, or close the room to it with `room revoke`"
)
_MEMBERS_NOTE = "These are members of the whole server; not all of them may see this channel."
_SPEAKERS_NOTE = (
    "Discord tells this bot no list of members; these are people who spoke here lately."
)


class DiscordActions:
    """Actions of one account, while it is connected."""

    def __init__(self, name: ChannelName, config: DiscordConfig, clock: Clock) -> None:
        self.name, self._config, self._clock = name, config, clock
        self._directory = DiscordDirectory(name, threads=config.threads)
        self._outgoing = DiscordOutgoing(clock, self._directory, link_previews=config.link_previews)
        self._members = AnswerCache[tuple[str, str], Sequence[str]](clock, 0.0)
        """Guild and user -> the roles of a member."""
        self._session: DiscordSession | None = None
        """Set while `run` runs."""

    @property
    def _connected(self) -> "DiscordSession":
        if self._session is None:
            raise Unreachable(f"{self.name} is not connected")
        return self._session

    @property
    def _api(self) -> "DiscordRestClient":
        return self._connected.api

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        channel, number = parse_channel_id(at, self._directory, message), parse_message_id(message)
        emoji = await self._resolve_emoji(channel, single_line(reaction, len(reaction)))
        path, method = MESSAGE_PATH + "/reactions/{emoji}/@me", "PUT" if add else "DELETE"
        other = (
            emoji.removesuffix(_EMOJI_SELECTOR)
            if emoji.endswith(_EMOJI_SELECTOR)
            else emoji + _EMOJI_SELECTOR
        )
        spellings = [emoji] if ":" in emoji else [emoji, other]
        for spelling in spellings:
            try:
                await self._api.call(
                    method, path, channel_id=channel, message_id=number, emoji=spelling
                )
                return
            except DiscordRefused as error:
                if error.status == HTTPStatus.NOT_FOUND and not add:
                    continue
                if error.code != _UNKNOWN_EMOJI:
                    raise
        if add:
            raise Rejected(
                "Discord does not know this emoji here: write one character, or `:name:` of one "
                "that it has"
            )

    async def _resolve_emoji(self, channel: str, text: str) -> str:
        if custom := _CUSTOM_EMOJI.fullmatch(text):
            return f"{custom[1]}:{custom[2]}"
        named = _NAMED_EMOJI.fullmatch(text)
        if named and (guild := self._directory.guild_of(channel)):
            answer = {
                "result": await self._api.call("GET", "/guilds/{guild_id}/emojis", guild_id=guild)
            }
            for emoji in get_objects(answer, "result"):
                if get_str(emoji, "name") == named[1] and (number := get_snowflake(emoji, "id")):
                    return f"{named[1]}:{number}"
        if not text or text.isascii() or len(text) > _EMOJI_CHARS:
            raise Rejected(
                "a reaction is an emoji: one character, or `:name:` of one that this server has"
            )
        return text

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        (new, *more) = render_bodies(text) or ("",)
        if not new or more:
            raise Rejected(
                "the text is too long for one message" if more else "a message needs text"
            )
        content = message_content(new) | (
            {} if self._config.link_previews else {"flags": SUPPRESS_EMBEDS}
        )
        channel, number = parse_channel_id(at, self._directory, message), parse_message_id(message)
        await self._api.call(
            "PATCH", MESSAGE_PATH, json=content, channel_id=channel, message_id=number
        )

    async def delete(self, at: Address, message: MessageId) -> None:
        """Delete our message.

        Checks its author first: with the right permission, a bot can delete other people's
        messages.
        """
        channel, number = parse_channel_id(at, self._directory, message), parse_message_id(message)
        try:
            answer = await self._api.call(
                "GET", MESSAGE_PATH, channel_id=channel, message_id=number
            )
            if (
                get_snowflake(get_object({"result": answer}, "result").get("author"), "id")
                != self._directory.own_id
            ):
                raise Rejected("that is not a message of ours")
            await self._delete_own(channel, number)
        except DiscordRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    async def _delete_own(self, channel: str, message: str) -> None:
        """Delete our message without an event for it. Raises `SendError`."""
        deleted_ids = self._connected.pipeline.deleted_ids
        deleted_ids.put(message, None)
        try:
            await self._api.call("DELETE", MESSAGE_PATH, channel_id=channel, message_id=message)
        except (Rejected, RateLimited, Unreachable):
            deleted_ids.pop(message, None)
            raise

    async def set_topic(self, at: Address, topic: str) -> None:
        """Set the topic of a channel, or the name of a thread."""
        new, key = single_line(topic, len(topic)), "topic" if at.thread is None else "name"
        max_chars = _TOPIC_CHARS if at.thread is None else _NAME_CHARS
        if utf16_length(new) > max_chars:
            raise Rejected(f"it may have {max_chars} characters there, and has {utf16_length(new)}")
        if at.thread is not None and not new:
            raise Rejected("a thread needs a name")
        try:
            await self._api.call(
                "PATCH",
                "/channels/{channel_id}",
                json={key: new},
                channel_id=parse_channel_id(at, self._directory),
            )
        except DiscordRefused as error:
            if error.code == _WRONG_CHANNEL_TYPE:
                raise Rejected("a direct chat has no topic") from None
            raise

    async def leave(self, at: Address) -> None:
        """Leave a thread; a bot can leave nothing else.

        https://discord.com/developers/docs/resources/channel#leave-thread
        """
        if at.thread is None:
            raise Rejected(
                _CANNOT_LEAVE
                if self._directory.guild_of(at.room)
                else "bots leave nothing but threads"
            )
        try:
            await self._api.call(
                "DELETE",
                "/channels/{channel_id}/thread-members/@me",
                channel_id=parse_channel_id(at, self._directory),
            )
        except DiscordRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    async def membership(self, at: Address, person: SenderId) -> Membership | None:
        """Ask Discord for the person's roles: without the privileged intent GUILD_MEMBERS it
        reports no changes.

        So each question is asked anew. Permissions come from the events of the connection.
        """
        session, directory, guild = (
            self._session,
            self._directory,
            self._directory.find_guild(at.room),
        )
        is_valid = person.isascii() and person.isdigit() and at.channel == self.name
        if session is None or not session.up or not guild or not is_valid:
            return None

        async def can_read() -> bool:
            roles = await self._members.get(
                (guild, person), lambda: self._read_member(guild, person)
            )
            if roles is None or not session.up:
                return False
            reads = directory.can_read(at, person, roles)
            return await self._is_in_thread(str(at.thread), person) if reads is None else reads

        try:
            return (
                "reads_all"
                if await with_timeout(self._clock, MEMBERSHIP_TIMEOUT_S, can_read())
                else None
            )
        except (TimeoutError, SendError):
            return None

    async def _read_member(self, guild: str, user: str) -> Sequence[str] | None:
        """Return the roles of a member of a guild. None: they are no member, or Discord does not
        tell.

        https://discord.com/developers/docs/resources/guild#get-guild-member, which needs no intent.
        """
        path = "/guilds/{guild_id}/members/{user_id}"
        try:
            answer = await self._api.call("GET", path, again=False, guild_id=guild, user_id=user)
        except SendError as error:
            logger.info("who is a member of %s is not told: %s", guild, error.reason)
            return None
        member = get_object({"result": answer}, "result")
        return (
            get_snowflakes(member, "roles")
            if get_snowflake(get_object(member, "user"), "id") == user
            else None
        )

    async def _is_in_thread(self, thread: str, user: str) -> bool:
        """Return whether somebody was added to a thread. False also if Discord does not tell.

        https://discord.com/developers/docs/resources/channel#get-thread-member
        """
        path = "/channels/{channel_id}/thread-members/{user_id}"
        try:
            answer = await self._api.call("GET", path, again=False, channel_id=thread, user_id=user)
        except SendError:
            return False
        return get_snowflake(get_object({"result": answer}, "result"), "user_id") == user

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        # Here and not above: it comes with the library.
        from channels.discord.rest import download_attachment  # noqa: PLC0415

        del at  # the attachment's id contains its channel
        return await download_attachment(self._api, self._config, attachment.id, limit_bytes)

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        channel, limit = parse_channel_id(at, self._directory), max(0, min(most, _MAX_MEMBERS - 1))
        try:
            if guild := self._directory.guild_of(channel):
                return await self._guild_members(guild, at, limit)
            return await self._chat_members(channel, at, limit)
        except (Rejected, RateLimited):
            raise
        except SendError as error:
            raise Unreachable(
                error.reason
            ) from None  # nothing was to be changed, so nothing is uncertain

    async def _chat_members(self, channel: str, at: Address, limit: int) -> RoomMembers:
        channel_data = await self._api.call("GET", "/channels/{channel_id}", channel_id=channel)
        if guild := get_snowflake(
            channel_data, "guild_id"
        ):  # we have just joined, and its event has not arrived yet
            return await self._guild_members(guild, at, limit)
        others = get_objects(channel_data, "recipients")
        return RoomMembers(
            members=self._to_senders([(user, {}) for user in others], limit), total=len(others) + 1
        )

    async def _guild_members(self, guild: str, at: Address, limit: int) -> RoomMembers:
        total = await self._member_count(guild) if at.thread is None else None
        try:
            answer = {"result": await self._fetch_members(guild, at, limit + 1)}
        except DiscordRefused as error:
            if (
                error.status != HTTPStatus.FORBIDDEN
            ):  # it is for bots with the intent GUILD_MEMBERS only
                raise
            speakers = self._to_senders(
                await self._recent_speakers(parse_channel_id(at, self._directory)), limit
            )
            return RoomMembers(members=speakers, total=total, note=_SPEAKERS_NOTE)
        members = [get_object(entry, "member") or entry for entry in get_objects(answer, "result")]
        senders = self._to_senders([(get_object(entry, "user"), entry) for entry in members], limit)
        return RoomMembers(
            members=senders, total=total, note=_MEMBERS_NOTE if at.thread is None else ""
        )

    async def _fetch_members(self, guild: str, at: Address, limit: int) -> object:
        if at.thread is None:
            return await self._api.call(
                "GET", "/guilds/{guild_id}/members", params={"limit": limit}, guild_id=guild
            )
        path, query = (
            "/channels/{channel_id}/thread-members",
            {"limit": min(limit, _MAX_THREAD_MEMBERS)},
        )
        return await self._api.call(
            "GET",
            path,
            params=query | {"with_member": "true"},
            channel_id=parse_channel_id(at, self._directory),
        )

    async def _member_count(self, guild: str) -> int | None:
        try:
            answer = await self._api.call(
                "GET", "/guilds/{guild_id}", params={"with_counts": "true"}, guild_id=guild
            )
        except DiscordRefused:
            return None
        return get_int(answer, "approximate_member_count")

    async def _recent_speakers(self, channel: str) -> list[tuple[Json, Json]]:
        try:
            answer = await self._api.call(
                "GET", MESSAGES_PATH, params={"limit": _MAX_MESSAGES}, channel_id=channel
            )
        except DiscordRefused:
            return []
        messages = get_objects({"result": answer}, "result")
        return [
            (get_object(message, "author"), get_object(message, "member"))
            for message in messages
            if not get_snowflake(message, "webhook_id")
        ]

    def _to_senders(self, users: list[tuple[Json, Json]], limit: int) -> tuple[Sender, ...]:
        """Return the users with their data as members; each once, and not us."""
        senders: dict[str, Sender] = {}
        for user, member in users:
            sender = user_sender(user, name=listed_name(user, member))
            if sender is not None and sender.id != self._directory.own_id:
                senders.setdefault(sender.id, sender)
        return tuple(senders.values())[:limit]
