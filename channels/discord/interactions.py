"""Native commands: acknowledged at once, answered later, exactly once.

https://discord.com/developers/docs/interactions/receiving-and-responding: the first answer within three
seconds, or the person sees that we failed; the token of an interaction lives for fifteen minutes.
"""

import asyncio
import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from channels.base import (
    BeforeSend,
    CommandSpec,
    Denied,
    Part,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
)
from channels.discord.commands import build_command_table, is_same_table
from channels.discord.ids import get_snowflake
from channels.discord.places import build_receipt
from channels.discord.rest import DiscordRestClient
from channels.discord.wire import INTERACTION_PREFIX
from channels.payload import Json, get_int, get_object, get_str
from channels.tasks import cancel_and_wait
from gateway.clock import Clock
from gateway.events import Address, Receipt

logger = logging.getLogger("reverie.discord")
EPHEMERAL: Final = 1 << 6
"""https://discord.com/developers/docs/resources/message#message-object-message-flags"""
_COMMAND, _DEFERRED = 2, 5
_TOKEN_LIFETIME_S: Final = 14.5 * 60
_MAX_PUBLIC_POSTS = 1000


@dataclass(slots=True, eq=False)
class _PendingInteraction:
    """One interaction that waits for its answer."""

    application: str
    token: str
    is_private: bool
    expires_s: float
    deferred: asyncio.Task[bool]
    first_part: str = ""
    """Key of the part that became the first answer; empty: none yet."""
    maybe_sent: set[str] = field(default_factory=set)
    """Keys of follow-ups that may be visible: these have no nonce, so they are not sent again."""


class InteractionResponder:
    """The interactions of the last fifteen minutes."""

    def __init__(self, api: DiscordRestClient, clock: Clock, specs: Sequence[CommandSpec]) -> None:
        self._api, self._clock, self.specs = api, clock, specs
        self._private_commands: AbstractSet[str] = {spec.name for spec in specs if spec.private}
        self._pending: dict[str, _PendingInteraction] = {}
        self._last_answers: dict[Address, tuple[str, _PendingInteraction]] = {}
        """Place -> the post that answered a command there last, and the command: the further parts of a post
        do not say what they answer."""
        self._public_posts: dict[str, None] = {}
        """Private posts that are said in the open, because they answer a text."""

    async def register_commands(self) -> None:
        """Make Discord's command table ours; best effort, and nothing if we have no commands."""
        if not self.specs:
            return
        try:
            application = get_snowflake(await self._api.call("GET", "/oauth2/applications/@me"), "id")
            path, wanted = "/applications/{application_id}/commands", build_command_table(self.specs)
            if not is_same_table(await self._api.call("GET", path, application_id=application), wanted):
                await self._api.call("PUT", path, json=wanted, application_id=application)
                logger.info("%d commands are registered with Discord", len(wanted))
        except SendError as error:
            logger.warning("the commands could not be registered: %s", error.reason)

    def handle_interaction(self, data: object) -> None:
        """An interaction has come: acknowledge it now, whatever else is waiting."""
        inside: Json = get_object({"d": data}, "d")
        interaction, token, application = (
            get_snowflake(inside, "id"),
            get_str(inside, "token"),
            get_snowflake(inside, "application_id"),
        )
        name = get_str(get_object(inside, "data"), "name").lower()
        if (
            get_int(inside, "type") != _COMMAND
            or not (interaction and token and application)
            or interaction in self._pending
        ):
            return
        now_s, private = self._clock.monotonic(), name in self._private_commands
        for old in [known for known, asked in self._pending.items() if asked.expires_s < now_s]:
            del self._pending[old]
        task = asyncio.create_task(self._defer(interaction, token, private=private))
        self._pending[interaction] = _PendingInteraction(application, token, private, now_s + _TOKEN_LIFETIME_S, task)

    async def _defer(self, interaction: str, token: str, *, private: bool) -> bool:
        answer = {"type": _DEFERRED, "data": {"flags": EPHEMERAL if private else 0}}
        try:
            await self._api.call(
                "POST",
                "/interactions/{webhook_id}/{webhook_token}/callback",
                json=answer,
                webhook_id=interaction,
                webhook_token=token,
            )
        except SendError as error:
            logger.warning("a command could not be acknowledged: %s", error.reason)
            return isinstance(error, Uncertain)  # then the answer shows whether it was
        return True

    async def close(self) -> None:
        """End what is going on."""
        await cancel_and_wait(*(asked.deferred for asked in self._pending.values()))

    async def send(self, part: Part, content: dict[str, object], going: BeforeSend) -> Receipt | None:
        """Answer the command that `part` answers; None: it answers none, or none that can still be, so say it openly.

        `content` is the message. Raises a `SendError`; `Rejected` if it is private and can no longer be.
        """
        stem = part.key.rpartition("#")[0] or part.key
        asked = self._find_pending(part, stem)
        if asked is None or not await _is_acknowledged(asked) or self._clock.monotonic() >= asked.expires_s:
            if part.private and stem not in self._public_posts:
                if part.reply_to is None or part.reply_to.startswith(INTERACTION_PREFIX):
                    raise Rejected("the command is too old to be answered privately")
                self._public_posts[stem] = None
                while len(self._public_posts) > _MAX_PUBLIC_POSTS:
                    del self._public_posts[next(iter(self._public_posts))]
            return None
        if part.private and not asked.is_private:
            raise Rejected("the command was acknowledged in the open, so it cannot be answered privately")
        self._last_answers[part.to] = stem, asked
        try:
            return await self._answer(part, asked, content, going)
        except Rejected:
            if part.private or asked.is_private:
                raise
            asked.expires_s = 0.0  # the token is no longer taken: the rest goes to the room
            return None

    def _find_pending(self, part: Part, stem: str) -> _PendingInteraction | None:
        if part.reply_to is not None:
            return (
                self._pending.get(part.reply_to.removeprefix(INTERACTION_PREFIX)) if _is_native(part.reply_to) else None
            )
        last, asked = self._last_answers.get(part.to, ("", None))
        # Only private ones: the others are messages like all, with a nonce.
        return asked if part.private and asked is not None and last == stem else None

    async def _answer(
        self, part: Part, asked: _PendingInteraction, content: dict[str, object], going: BeforeSend
    ) -> Receipt:
        if asked.first_part in {"", part.key}:
            asked.first_part = part.key
            path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
            answer = await self._api.call(
                "PATCH",
                path,
                json=content,
                file=part.file,
                going=going,
                webhook_id=asked.application,
                webhook_token=asked.token,
            )
            return build_receipt(answer)
        if part.key in asked.maybe_sent:
            raise Uncertain("a follow-up may be visible already, and Discord does not drop repeats of these")
        asked.maybe_sent.add(part.key)
        flags = content.get("flags", 0)
        shown = content | {"flags": (flags if isinstance(flags, int) else 0) | (EPHEMERAL if asked.is_private else 0)}
        path = "/webhooks/{webhook_id}/{webhook_token}"
        try:
            answer = await self._api.call(
                "POST",
                path,
                json=shown,
                file=part.file,
                params={"wait": "true"},
                going=going,
                again=False,
                webhook_id=asked.application,
                webhook_token=asked.token,
            )
        except (Rejected, RateLimited, Unreachable, Denied):
            asked.maybe_sent.discard(part.key)
            raise
        return build_receipt(answer)


async def _is_acknowledged(asked: _PendingInteraction) -> bool:
    await asyncio.wait({asked.deferred})  # not awaited itself: it may be cancelled, and we are not
    return not asked.deferred.cancelled() and asked.deferred.result()


def _is_native(reply_to: str) -> bool:
    return reply_to.startswith(INTERACTION_PREFIX)
