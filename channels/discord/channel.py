"""Discord channel: the methods that the gateway calls. `session` holds what runs behind it."""

import contextlib
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from channels.base import (
    Announce,
    Audience,
    BeforeSend,
    Capabilities,
    CommandCompleter,
    CommandSpec,
    Emit,
    PostPart,
    Rejected,
    SendError,
    is_provisional,
    no_announcement,
    no_before_send,
)
from channels.discord.actions import DiscordActions
from channels.discord.config import DiscordConfig
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
from channels.discord.wire import DiscordRefused, parse_channel_id, parse_message_id
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    MessageId,
    PlaceNames,
    Post,
    Receipt,
    RoomId,
    Sender,
)

if TYPE_CHECKING:
    from channels.discord.session import DiscordAccountState


_FORMATTING = (
    "Discord shows **bold**, *italic*, ~~strike~~, ||spoiler||, `code`, fenced code, headings to "
    "###, lists, > quotes and [links](url); tables become code blocks, pictures become links. A "
    "reply notifies its addressee, other mentions ping nobody. Messages over 2,000 characters are "
    "split."
)


class DiscordChannel(DiscordActions):
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
        super().__init__(name, config, clock)
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
            self._outgoing = DiscordOutgoing(
                self._clock, self._directory, link_previews=config.link_previews
            )

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
        session = self._connected
        return await self._outgoing.send(session.api, session.interactions, part, before_send)

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
            return await self._outgoing.begin_preview(self._api, at, body, reply_to, announce)
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
                preview_id = await self._outgoing.find_preview(self._api, at, preview_id, "\u2026")
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
