"""Discord channel: the methods that the gateway calls. `session` holds what runs behind it."""

import contextlib
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    Part,
    Rejected,
    RoomMembers,
    SendError,
    Unreachable,
    is_provisional,
    no_announcement,
    no_before_send,
)
from channels.discord.actions import DiscordActions
from channels.discord.config import DiscordConfig
from channels.discord.directory import DiscordDirectory
from channels.discord.errors import DiscordRefused
from channels.discord.ids import get_snowflake
from channels.discord.outgoing import (
    MAX_FILE_BYTES,
    MESSAGE_PATH,
    RESEND_WINDOW_S,
    DiscordOutgoing,
    mention_notified,
    message_content,
    render_bodies,
)
from channels.discord.wire import parse_channel_id, parse_message_id
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
    from channels.discord.session import DiscordAccountState, DiscordSession


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
        self._name, self._config, self._clock, self._random = name, config, clock, random
        self._commands, self._cursor = tuple(commands), cursor
        self._directory = DiscordDirectory(name, threads=config.threads)
        self._members = AnswerCache[tuple[str, str], Sequence[str]](clock, 0.0)
        """Guild and user -> the roles of a member."""
        self._outgoing = DiscordOutgoing(clock, self._directory, link_previews=config.link_previews)
        self._session: DiscordSession | None = None
        """Set while `run` runs."""
        self._state: DiscordAccountState | None = None
        """Set since the first `run`."""
        self._completer: CommandCompleter | None = None

    @property
    def name(self) -> ChannelName:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            platform="Discord",
            formatting=_FORMATTING,
            replies=True,
            threads=True,
            resend_window_s=RESEND_WINDOW_S,
            max_file_bytes=MAX_FILE_BYTES,
            buttons=True,
            defers_commands=True,
        )

    def space(self, room: RoomId) -> RoomId | None:
        """Return the guild of a room; None: none, or unknown (then only the room's own id opens
        it).
        """
        guild = self._directory.guild_of(room)
        return RoomId(guild) if guild else None

    def place_names(self, at: Address) -> PlaceNames | None:
        return self._directory.place_names(at)

    def audience(self, at: Address) -> Audience | None:
        return self._directory.audience(at)

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
        is_valid = person.isascii() and person.isdigit() and at.channel == self._name
        if session is None or not session.up or not guild or not is_valid:
            return None

        async def can_read() -> bool:
            roles = await self._members.get(
                (guild, person), lambda: self._actions.read_member(guild, person)
            )
            if roles is None or not session.up or not directory.can_read(at.room, person, roles):
                return False
            if at.thread is None:
                return True
            thread = directory.places.get(at.thread)
            if thread is None or thread.parent != at.room:
                return False
            if not thread.is_private or directory.manages_threads(at.room, person, roles):
                return True
            return await self._actions.is_in_thread(thread.id, person)

        try:
            return (
                "reads_all"
                if await with_timeout(self._clock, MEMBERSHIP_TIMEOUT_S, can_read())
                else None
            )
        except (TimeoutError, SendError):
            return None

    def set_completer(self, suggest: CommandCompleter) -> None:
        self._completer = suggest
        if self._session is not None:
            self._session.autocomplete.completer = suggest

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
            self._outgoing = DiscordOutgoing(
                self._clock, self._directory, link_previews=config.link_previews
            )

    async def run(self, emit: Emit) -> None:
        self._session = self.create_session()
        self._session.autocomplete.completer = self._completer
        try:
            await self._session.run(emit)
        finally:
            self._session = None

    def create_session(self) -> "DiscordSession":
        """Return the objects that live as long as `run`."""
        # Here and not above: importing discord.py takes 0.2 s and 18 MB, and check-config does not
        # need it.
        from channels.discord.session import DiscordAccountState, DiscordSession  # noqa: PLC0415

        self._state = self._state or DiscordAccountState(self._clock, self._commands, self._cursor)
        return DiscordSession(
            self._name,
            self._config,
            self._clock,
            random=self._random,
            directory=self._directory,
            state=self._state,
        )

    def split(self, post: Post) -> tuple[str, ...]:
        in_room = post.reply_to is None and not self._directory.is_direct(post.to.room)
        text = mention_notified(post.text, post.notify) if in_room else post.text
        return render_bodies(text) or ("\u2026",)  # only empty fences: show a placeholder

    async def send(self, part: Part, before_send: BeforeSend = no_before_send) -> Receipt:
        if not part.body.strip():
            raise ValueError("a part needs text")
        session = self._require_session()
        return await self._outgoing.send(session.api, session.interactions, part, before_send)

    async def wait_for_rights(self, at: Address) -> None:
        await self._directory.rights.wait(self._directory.guild_of(at.room) or at.room)

    async def open_direct(self, person: Sender) -> RoomId:
        """Open it: https://discord.com/developers/docs/resources/user#create-dm; one that is there
        is returned.
        """
        call = self._require_session().api.call
        found = await call("POST", "/users/@me/channels", json={"recipient_id": person.id})
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

    async def react(self, at: Address, message: MessageId, reaction: str, *, add: bool) -> None:
        await self._actions.react(at, message, reaction, add=add)

    async def edit(self, at: Address, message: MessageId, text: str) -> None:
        await self._actions.edit(at, message, text)

    async def delete(self, at: Address, message: MessageId) -> None:
        await self._actions.delete(at, message)

    async def set_topic(self, at: Address, topic: str) -> None:
        await self._actions.set_topic(at, topic)

    async def leave(self, at: Address) -> None:
        await self._actions.leave(at)

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

    async def list_members(self, at: Address, *, most: int) -> RoomMembers:
        return await self._actions.list_members(at, most)

    @property
    def _actions(self) -> DiscordActions:
        return DiscordActions(self._require_session(), self._directory, self._outgoing.flags)

    async def download(self, at: Address, attachment: Attachment, *, limit_bytes: int) -> bytes:
        from channels.discord.rest import download_attachment  # noqa: PLC0415 - with the library, as above

        del at  # the attachment's id contains its channel
        return await download_attachment(
            self._require_session().api, self._config, attachment.id, limit_bytes
        )

    def _require_session(self) -> "DiscordSession":
        if self._session is None:
            raise Unreachable(f"{self._name} is not connected")
        return self._session


_PREVIEW_PATIENCE_S = 1.0
"""Longest wait of an edit for the rate limit: the answer itself may come meanwhile, and must not
wait for it."""


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
        api = self._require_session().api
        if preview_id is None:
            return await self._outgoing.begin_preview(api, at, body, reply_to, announce)
        await api.call(
            "PATCH",
            MESSAGE_PATH,
            json=message_content(body),
            patience_s=_PREVIEW_PATIENCE_S,
            channel_id=parse_channel_id(at, self._directory),
            message_id=parse_message_id(preview_id),
        )
        return preview_id

    async def delete_preview(self, at: Address, preview_id: MessageId) -> None:
        try:
            if is_provisional(preview_id):
                preview_id = await self._outgoing.find_preview(
                    self._require_session().api, at, preview_id, "\u2026"
                )
            await self._actions.delete_own(
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
