"""Discord channel: the methods that the gateway calls. `session` holds what runs behind it.

All actions other than sending are repeatable, so discord.py may repeat them after a 5xx, and an
interrupted one is at worst uncertain.
"""

import contextlib
import logging
import random as _random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from channels.aio import AnswerCache, with_timeout
from channels.base import (
    MEMBERSHIP_TIMEOUT_S,
    Announce,
    Audience,
    BeforeSend,
    Capabilities,
    CommandCompleter,
    CommandSpec,
    Emit,
    Membership,
    PostPart,
    RateLimited,
    Rejected,
    RoomMembers,
    SendError,
    Unreachable,
    is_provisional,
    no_announcement,
    no_before_send,
)
from channels.discord.config import DiscordConfig
from channels.discord.directory import DiscordDirectory, listed_name, user_sender
from channels.discord.ids import get_snowflake, get_snowflakes
from channels.discord.outgoing import (
    MAX_FILE_BYTES,
    MESSAGE_PATH,
    MESSAGES_PATH,
    RESEND_WINDOW_S,
    SUPPRESS_EMBEDS,
    mention_notified,
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
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)

if TYPE_CHECKING:
    from channels.discord.rest import DiscordRestClient
    from channels.discord.session import DiscordAccountState, DiscordSession

logger = logging.getLogger("reverie.discord")
_TOPIC_CHARS, _NAME_CHARS = 1024, 100
"""https://discord.com/developers/docs/resources/channel#modify-channel."""
_UNKNOWN_EMOJI, _WRONG_CHANNEL_TYPE = 10014, 50003
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#json."""
_EMOJI_CHARS = 32
_MAX_MEMBERS, _MAX_THREAD_MEMBERS, _MAX_MESSAGES = 1000, 100, 100
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
_FORMATTING = (
    "Discord shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, headings to "
    "###, lists, > quotes and [links](url); tables become code blocks, pictures become links. A "
    "reply notifies its addressee, other mentions ping nobody. Messages over 2,000 characters are "
    "split."
)


class DiscordChannel:
    """One bot account on Discord; a `channels.base.Channel`. With `preview: all`, use
    `DiscordPreviewChannel`.
    """

    typing_interval_s = 8.0
    """Discord shows the indicator for ten seconds."""
    capabilities = Capabilities(
        platform="Discord",
        formatting=_FORMATTING,
        replies=True,
        threads=True,
        resend_window_s=RESEND_WINDOW_S,
        max_file_bytes=MAX_FILE_BYTES,
        buttons=True,
        defers_commands=True,
        native_commands=True,
        sender_ids=DiscordConfig.sender_ids,
        sender_id_example=DiscordConfig.sender_id_example,
        room_title="a Discord channel",
    )

    def __init__(
        self,
        name: ChannelName,
        config: DiscordConfig,
        clock: Clock,
        *,
        cursor: str | None = None,
        commands: Sequence[CommandSpec] = (),
        random: Callable[[], float] = _random.random,
    ) -> None:
        self.name, self._config, self._clock = name, config, clock
        self._directory = DiscordDirectory(name, threads=config.threads)
        self._members = AnswerCache[tuple[str, str], Sequence[str]](clock, 0.0)
        """Guild and user -> the roles of a member."""
        self._session: DiscordSession | None = None
        """Set while `run` runs."""
        self._random, self._commands, self._cursor = random, tuple(commands), cursor
        self._state: DiscordAccountState | None = None
        """Set since the first `run`."""
        self._completer: CommandCompleter | None = None

    def space(self, room: RoomId) -> RoomId | None:
        """Return the guild of a room; None: none, or unknown (then only the room's own id opens
        it).
        """
        guild = self._directory.guild_of(room)
        return RoomId(guild) if guild else None

    def rooms(self) -> Sequence[RoomId]:
        return self._directory.rooms()

    def place_names(self, at: Address) -> PlaceNames | None:
        return self._directory.place_names(at)

    def audience(self, at: Address) -> Audience | None:
        return self._directory.audience(at)

    def set_completer(self, suggest: CommandCompleter) -> None:
        self._completer = suggest
        if self._state is not None:
            self._state.interactions.completer = suggest

    def take_over(self, before: "DiscordChannel") -> None:
        """Continue where `before` ended, if it was the same bot, including its events not emitted
        yet.

        Call it before `run`.

        Also with its IDENTIFY budget:
        https://discord.com/developers/docs/events/gateway#rate-limiting counts all sessions of a
        bot.
        """
        config, old_config = self._config, before._config  # noqa: SLF001 - same class
        if (config.token, config.api_url, config.gateway_url) == (
            old_config.token,
            old_config.api_url,
            old_config.gateway_url,
        ):
            self._state, self._directory = before._state, before._directory  # noqa: SLF001 - same class
            self._directory.thread_rooms = frozenset(config.threads)

    async def run(self, emit: Emit) -> None:
        # Here and not above: importing discord.py takes 0.2 s and 18 MB, and check-config does not
        # need it.
        from channels.discord.session import DiscordAccountState, DiscordSession  # noqa: PLC0415

        self._state = state = self._state or DiscordAccountState(
            self._clock, self._directory, self._commands, self._cursor
        )
        state.interactions.completer = self._completer
        self._session = DiscordSession(
            self.name,
            self._config,
            self._clock,
            random=self._random,
            directory=self._directory,
            state=state,
        )
        try:
            await self._session.run(emit)
        finally:
            self._session = None

    def split(self, post: Post) -> tuple[str, ...]:
        in_room = post.reply_to is None and not self._directory.is_direct(post.to.room)
        text = mention_notified(post.text, post.notify) if in_room else post.text
        return render_bodies(text) or ("\u2026",)  # only empty fences: show a placeholder

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        return await self._connected.outgoing.send(part, before_send)

    async def wait_for_rights(self, at: Address) -> None:
        await self._directory.rights.wait(self._directory.guild_of(at.room) or at.room)

    async def open_direct(self, person: Sender) -> RoomId:
        """Open it: https://discord.com/developers/docs/resources/user#create-dm; one that is there
        is returned.
        """
        found = await self._api.call(
            "POST", "/users/@me/channels", json={"recipient_id": person.id}
        )
        if not (room := get_snowflake(found, "id")):
            raise Rejected("Discord names no direct chat")
        return RoomId(room)

    async def typing(self, at: Address, *, active: bool) -> None:
        session = self._session
        if not active or session is None or not self._config.typing:
            return  # the indicator expires, or ends with the message
        where = replace(at, thread=None) if self._directory.is_unopened(at) else at
        with contextlib.suppress(SendError):
            channel = parse_channel_id(where, self._directory)
            await session.api.call(
                "POST", "/channels/{channel_id}/typing", again=False, channel_id=channel
            )

    def is_joined(self, room: RoomId) -> bool | None:
        return None if self._session is None else self._directory.is_visible(room)

    def join_refusal(self, room: RoomId) -> str:
        if (
            self._session is None
            or not self._directory.is_complete
            or self._directory.is_visible(room)
        ):
            return ""
        return (
            "Discord shows no such channel or server: invite the bot to it, and let it view the "
            "channel"
        )

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
        if custom := re.fullmatch(r"<?a?:?(\w{2,32}):(\d{15,20})>?", text):
            return f"{custom[1]}:{custom[2]}"
        named = re.fullmatch(r":(\w{2,32}):", text)
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
        """Return everybody in a direct chat or thread, and all members of a guild. Where Discord
        does not tell, who spoke there lately: it tells only bots whose operator has switched on the
        privileged intent GUILD_MEMBERS.

        https://discord.com/developers/docs/resources/guild#list-guild-members,
        https://discord.com/developers/docs/resources/channel#list-thread-members.
        """
        channel, limit = parse_channel_id(at, self._directory), max(0, min(most, _MAX_MEMBERS - 1))
        call = partial(self._api.call, "GET", channel_id=channel)
        try:
            guild, told = self._directory.guild_of(channel), None
            if (
                not guild
            ):  # a direct chat, or we have just joined, and its event has not arrived yet
                told = await call("/channels/{channel_id}")
                guild = get_snowflake(told, "guild_id")
            if not guild:
                others = get_objects(told, "recipients")
                members = self._to_senders([(user, {}) for user in others], limit)
                return RoomMembers(members=members, total=len(others) + 1)
            counted = at.thread or await call(
                "/guilds/{guild_id}", params={"with_counts": "true"}, guild_id=guild
            )
            people, note = await self._guild_people(call, guild, at, limit + 1)
        except (Rejected, RateLimited):
            raise
        except SendError as error:  # nothing was to be changed, so nothing is uncertain
            raise Unreachable(error.reason) from None
        return RoomMembers(
            members=self._to_senders(people, limit),
            total=get_int(counted, "approximate_member_count"),
            note=note,
        )

    async def _guild_people(
        self, call: Callable[..., Awaitable[object]], guild: str, at: Address, limit: int
    ) -> tuple[list[tuple[Json, Json]], str]:
        """Return people with their data as members, and the note on them."""
        path, params = "/guilds/{guild_id}/members", dict[str, str | int](limit=limit)
        if at.thread is not None:
            path = "/channels/{channel_id}/thread-members"
            params = {"limit": min(limit, _MAX_THREAD_MEMBERS), "with_member": "true"}
        try:
            told = await call(path, params=params, guild_id=guild)
        except DiscordRefused as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            said = get_objects({"": await call(MESSAGES_PATH, params={"limit": _MAX_MESSAGES})}, "")
            return [
                (get_object(message, "author"), get_object(message, "member"))
                for message in said
                if not get_snowflake(message, "webhook_id")
            ], _SPEAKERS_NOTE
        members = [get_object(one, "member") or one for one in get_objects({"": told}, "")]
        note = _MEMBERS_NOTE if at.thread is None else ""
        return [(get_object(member, "user"), member) for member in members], note

    def _to_senders(self, users: list[tuple[Json, Json]], limit: int) -> tuple[Sender, ...]:
        """Return the users with their data as members; each once, and not us."""
        senders: dict[str, Sender] = {}
        for user, member in users:
            sender = user_sender(user, name=listed_name(user, member))
            if sender is not None and sender.id != self._directory.own_id:
                senders.setdefault(sender.id, sender)
        return tuple(senders.values())[:limit]


class DiscordPreviewChannel(DiscordChannel):
    """A `DiscordChannel` that shows an answer while it is generated, in a message that is
    edited.
    """

    preview_interval_s = 1.5
    """Discord allows five edits in five seconds per channel; other answers may need some of
    them."""

    async def preview(
        self,
        at: Address,
        body: str,
        preview_id: MessageId | None,
        *,
        is_full: bool = False,  # noqa: ARG002 - each is a message here
        reply_to: MessageId | None = None,
        announce: Announce = no_announcement,
    ) -> MessageId | None:
        if preview_id is None:
            return await self._connected.outgoing.begin_preview(at, body, reply_to, announce)
        await self._api.call(
            "PATCH",
            MESSAGE_PATH,
            json=message_content(body),
            channel_id=parse_channel_id(at, self._directory),
            message_id=parse_message_id(preview_id),
        )
        return preview_id

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        try:
            if is_provisional(preview_id):
                preview_id = await self._connected.outgoing.find_preview(at, preview_id, "\u2026")
            await self._delete_own(
                parse_channel_id(at, self._directory), parse_message_id(preview_id)
            )
        except DiscordRefused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise


def create_channel(
    name: ChannelName,
    config: DiscordConfig,
    clock: Clock,
    *,
    cursor: str | None = None,
    commands: Sequence[CommandSpec] = (),
) -> DiscordChannel:
    """Return a channel of the class with the configured abilities."""
    kind = DiscordChannel if config.preview == "off" else DiscordPreviewChannel
    return kind(name, config, clock, cursor=cursor, commands=commands)
