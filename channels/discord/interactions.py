"""Interactions: answers to native commands, autocompletion, and the command table for Discord.

https://discord.com/developers/docs/interactions/receiving-and-responding: an interaction needs a
first answer within three seconds, or the person sees a failure; its token is valid for fifteen
minutes. So commands, also those given by a tap on a button, are acknowledged at once and answered
later, exactly once. `Ask about this message` in the menu of a message opens a form; the form, once
sent, is acknowledged, and is an ordinary message to the agent: its answer is an ordinary reply to
the message asked about, so it needs no token. Other forms and buttons are acknowledged, and emit
nothing.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from channels.aio import ResultT, cancel_and_wait, with_timeout
from channels.base import (
    BeforeSend,
    CommandArg,
    CommandCompleter,
    CommandCompletion,
    CommandSpec,
    Denied,
    PostPart,
    RateLimited,
    Rejected,
    SendError,
    SubcommandSpec,
    Uncertain,
    Unreachable,
)
from channels.discord.directory import DiscordDirectory, interaction_sender, is_direct_interaction
from channels.discord.ids import get_snowflake
from channels.discord.rest import DiscordRestClient
from channels.discord.wire import (
    ASK_PREFIX,
    ASKED_KEY,
    INTERACTION_PREFIX,
    asked_message,
    build_receipt,
    button_command,
    find_focused,
    form_target,
)
from channels.text import Json, get_int, get_object, get_objects, get_str, single_line
from gateway.core.clock import Clock
from gateway.core.events import Receipt
from gateway.core.i18n import N_, _, use_language
from gateway.core.ratelimit import LruDict

logger = logging.getLogger("reverie.discord")
_MAX_SUMMARY_CHARS = 100
_SUBCOMMAND, _TEXT_OPTION, _MESSAGE_MENU = 1, 3, 3
_IN_GUILDS, _WITH_BOT = 0, 1
"""Contexts: not in chats between other people, where we are absent."""
_MANAGE_GUILD = str(1 << 5)
ASK_TITLE: Final = N_("Ask about this message")
"""Row in the menu of a message, and title of its form."""
_MAX_QUESTION_CHARS = 2000


def _build_form(target: str) -> dict[str, object]:
    """Return the form that asks for a question:
    https://discord.com/developers/docs/components/reference#label.
    """
    field = {
        "type": 4,
        "custom_id": "question",
        "style": 2,
        "required": False,
        "max_length": _MAX_QUESTION_CHARS,
        "placeholder": _("Leave this empty, and I explain the message."),
    }
    label = {"type": 18, "label": _("Your question"), "component": field}
    return {"custom_id": f"{ASK_PREFIX}{target}", "title": _(ASK_TITLE), "components": [label]}


def menu_rows(specs: Sequence[CommandSpec]) -> list[Json]:
    """Return our commands as Discord shows them, and our row in the menu of messages. Pure.

    Commands of admins are shown to people who manage the server, until its admins say otherwise
    there. https://discord.com/developers/docs/interactions/application-commands
    """
    ask = {"type": _MESSAGE_MENU, "name": ASK_TITLE, "contexts": [_IN_GUILDS, _WITH_BOT]}
    return [
        *(
            {
                "name": spec.name,
                "description": _describe(spec),
                "contexts": [_WITH_BOT] if spec.direct_only else [_IN_GUILDS, _WITH_BOT],
                "default_member_permissions": _MANAGE_GUILD
                if spec.role in {"owner", "admin"}
                else None,
                "options": _build_options(spec),
            }
            for spec in specs
        ),
        *([ask] if specs else []),
    ]


def _build_options(spec: CommandSpec) -> list[Json]:
    if not spec.subs:
        return [*map(_build_option, spec.args)]
    return [
        {
            "type": _SUBCOMMAND,
            "name": sub.name,
            "description": _describe(sub),
            "options": [*map(_build_option, sub.args)],
        }
        for sub in spec.subs
    ]


def _build_option(arg: CommandArg) -> Json:
    offered: Json = {"autocomplete": True} if arg.suggests else {}
    if arg.choices:  # Discord takes one of the two
        offered = {"choices": [{"name": choice, "value": choice} for choice in arg.choices]}
    return {
        "type": _TEXT_OPTION,
        "name": arg.name,
        "description": _describe(arg),
        "required": arg.required,
        **offered,
    }


def _describe(spec: CommandSpec | SubcommandSpec | CommandArg) -> str:
    return spec.summary[:_MAX_SUMMARY_CHARS] or spec.name


_COMPONENT, _TYPING, _FORM = 3, 4, 5
_MESSAGE, _UNCHANGED, _CHOICES, _SHOW_FORM = 4, 6, 8, 9
_ASK_TAKEN_TEXT: Final = N_("I have your question. If I may answer here, I reply to that message.")
_MAX_ASKED = 100
_ANSWER_TIMEOUT_S: Final = 2.0
"""Discord waits for three seconds, including the transfer."""
_MAX_CHOICES, _MAX_CHOICE_CHARS = 25, 100
_MAX_SEEN: Final = 1000
_MAX_CONCURRENT: Final = 50
"""More requests are not answered: each key press makes one."""


def _parse_completion(data: Json, directory: DiscordDirectory) -> CommandCompletion | None:
    command, channel, sender = (
        get_object(data, "data"),
        get_snowflake(data, "channel_id"),
        interaction_sender(data),
    )
    found, name = find_focused(command), get_str(command, "name").lower()
    if found is None or sender is None or not channel or not name:
        return None
    sub, arg, text, given = found
    return CommandCompletion(
        at=directory.address(channel),
        sender=sender,
        direct=is_direct_interaction(data),
        name=name,
        sub=sub,
        arg=arg,
        prefix=text[:_MAX_CHOICE_CHARS],
        given=given,
    )


EPHEMERAL: Final = 1 << 6
"""https://discord.com/developers/docs/resources/message#message-object-message-flags"""
_COMMAND, _DEFERRED = 2, 5
_DIRECT = 1  # a channel's type; 3 is a chat of several people
_GOODBYE_S = 0.3


@dataclass(slots=True, eq=False)
class _PendingInteraction:
    application: str
    token: str
    is_private: bool
    expires_s: float
    deferred: asyncio.Task[bool]
    first_part: str = ""
    """Key of the part that became the first answer; empty: none yet."""
    maybe_sent: set[str] = field(default_factory=set)
    """Keys of follow-ups that may be visible: they have no nonce, so they are not sent again."""


class InteractionResponder:
    """Answers to interactions: to commands within fifteen minutes, to all others at once. Outlives
    connections.
    """

    def __init__(
        self,
        api: DiscordRestClient,
        clock: Clock,
        directory: DiscordDirectory,
        specs: Sequence[CommandSpec],
    ) -> None:
        self._api, self._clock, self._directory, self.specs = api, clock, directory, specs
        self._private_commands: AbstractSet[str] = {
            *(spec.name for spec in specs if spec.private),
            *(f"{spec.name} {sub.name}" for spec in specs for sub in spec.subs if sub.private),
        }
        """Commands, with their subcommands, whose answers are for the sender alone."""
        self.completer: CommandCompleter | None = None
        """Source of suggestions. None: none are given."""
        self._seen = LruDict[str, None](_MAX_SEEN)
        self._asked = LruDict[tuple[str, str, str], Json](_MAX_ASKED)
        """Person, channel and message -> the message that they were shown a form for. Without it,
        as after a restart, the model sees what the log has of the message."""
        self._running: set[asyncio.Task[Any]] = set()
        self._pending: dict[str, _PendingInteraction] = {}
        self._posts = LruDict[str, _PendingInteraction | None](1000)
        """Post -> the command that it answers, which its further parts do not name; None: it is
        private, and sent publicly, because it answers a text message."""

    async def register_commands(self, application: str) -> None:
        """Register our commands with Discord. Best effort; nothing if we have none."""
        if not self.specs:
            return
        wanted = menu_rows(self.specs)
        try:
            await self._api.call(
                "PUT",
                "/applications/{application_id}/commands",
                json=wanted,
                application_id=application,
            )
        except SendError as error:
            logger.warning("the commands could not be registered: %s", error.reason)

    def handle_interaction(self, data: object) -> object:
        """Answer an interaction, once. A command is acknowledged, whatever else is waiting.

        Returns the data; of a form of ours, with the message that it asks about.
        """
        payload: Json = get_object({"d": data}, "d")
        interaction, token = get_snowflake(payload, "id"), get_str(payload, "token")
        asked, sender = asked_message(payload), interaction_sender(payload)
        where = (sender.id if sender else "", get_snowflake(payload, "channel_id"))
        if target := form_target(payload):
            data = {**payload, ASKED_KEY: self._asked.get((*where, target))}
        if not (interaction and token) or interaction in self._seen:
            return data
        self._seen.put(interaction, None)
        if asked is not None:
            self._asked.put((*where, asked[0]), asked[1])
        kind = get_int(payload, "type")
        if button_command(payload) is not None or (kind == _COMMAND and asked is None):
            self._acknowledge(interaction, token, payload)
        elif (
            kind in {_COMMAND, _COMPONENT, _TYPING, _FORM} and len(self._running) < _MAX_CONCURRENT
        ):
            self._start(self._answer_at_once(interaction, token, payload, kind))
        return data

    def _acknowledge(self, interaction: str, token: str, payload: Json) -> None:
        """Defer the answer to a command. That to a tap is for who tapped alone."""
        command, now_s = get_object(payload, "data"), self._clock.monotonic()
        options = get_objects(command, "options")
        subs = [get_str(one, "name") for one in options if get_int(one, "type") == _SUBCOMMAND]
        name = " ".join([get_str(command, "name"), *subs]).lower()
        private = button_command(payload) is not None or name in self._private_commands
        self._pending = {
            one: pending for one, pending in self._pending.items() if pending.expires_s >= now_s
        }
        self._pending[interaction] = _PendingInteraction(
            get_snowflake(payload, "application_id"),
            token,
            private,
            now_s + 14.5 * 60,
            self._start(self._defer(interaction, token, private=private)),
        )

    def _start(self, work: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _defer(self, interaction: str, token: str, *, private: bool) -> bool:
        answer = {"type": _DEFERRED, "data": {"flags": EPHEMERAL if private else 0}}
        error = await self._call_back(interaction, token, answer)
        return error is None or isinstance(error, Uncertain)  # then the answer itself will show

    async def _call_back(
        self, interaction: str, token: str, answer: object, *, again: bool = True
    ) -> SendError | None:
        """Give the first answer to an interaction; return what went wrong."""
        try:
            await self._api.call(
                "POST",
                "/interactions/{webhook_id}/{webhook_token}/callback",
                json=answer,
                again=again,
                webhook_id=interaction,
                webhook_token=token,
            )
        except SendError as error:
            logger.warning("an interaction could not be answered: %s", error.reason)
            return error
        return None

    async def _answer_at_once(
        self, interaction: str, token: str, payload: Json, kind: int | None
    ) -> None:
        answer: dict[str, object] = {"type": _UNCHANGED}
        with use_language(get_str(payload, "locale")):
            if asked := asked_message(payload):
                answer = {"type": _SHOW_FORM, "data": _build_form(asked[0])}
            elif form_target(payload):
                data = {
                    "content": _(_ASK_TAKEN_TEXT),
                    "allowed_mentions": {"parse": []},
                    "flags": EPHEMERAL,
                }
                answer = {"type": _MESSAGE, "data": data}
        if kind == _TYPING:
            choices = await self._find_choices(payload)
            answer = {
                "type": _CHOICES,
                "data": {"choices": [{"name": choice, "value": choice} for choice in choices]},
            }
        await self._call_back(interaction, token, answer, again=False)

    async def _find_choices(self, payload: Json) -> list[str]:
        completion = _parse_completion(payload, self._directory)
        if completion is None or self.completer is None:
            return []
        try:
            found = await with_timeout(self._clock, _ANSWER_TIMEOUT_S, self.completer(completion))
        except Exception:
            logger.warning("nothing can be suggested for %s", completion.name, exc_info=True)
            return []
        return list(
            dict.fromkeys(
                choice
                for choice in found
                if choice and choice == single_line(choice, _MAX_CHOICE_CHARS)
            )
        )[:_MAX_CHOICES]

    async def close(self) -> None:
        """Finish or cancel all pending answers."""
        if running := tuple(self._running):
            await asyncio.wait(running, timeout=_GOODBYE_S)
            await cancel_and_wait(*running)

    async def send(
        self, part: PostPart, content: dict[str, object], before_send: BeforeSend
    ) -> Receipt | None:
        """Answer the command that `part` answers; None: there is none, or it is too late, so send
        it as a message.

        `content` is the message. Raises a `SendError`; `Rejected` if it is private and cannot be
        sent privately any more: only in a chat with one person a message is as private.
        """
        stem = part.key.rpartition("#")[0] or part.key
        pending = self._find_pending(part, stem)
        place = self._directory.places.get(part.to.room)
        is_alone = place is not None and place.kind == _DIRECT
        if (
            pending is None
            or not await _is_acknowledged(pending)
            or self._clock.monotonic() >= pending.expires_s
        ):
            is_public = stem in self._posts and self._posts[stem] is None
            if part.private and not is_alone and not is_public:
                if part.reply_to is None or part.reply_to.startswith(INTERACTION_PREFIX):
                    raise Rejected("the command is too old to be answered privately")
                self._posts.put(stem, None)
            return None
        if part.private and not pending.is_private:
            raise Rejected(
                "the command was acknowledged in the open, so it cannot be answered privately"
            )
        self._posts.put(stem, pending)
        try:
            return await self._answer(part, pending, content, before_send)
        except Rejected:
            if (part.private or pending.is_private) and not is_alone:
                raise
            pending.expires_s = 0.0  # the token is no longer valid: the rest goes to the room
            return None

    def _find_pending(self, part: PostPart, stem: str) -> _PendingInteraction | None:
        if part.reply_to is None:  # only private ones: all others are messages, with a nonce
            return self._posts.get(stem) if part.private else None
        is_native = part.reply_to.startswith(INTERACTION_PREFIX)
        number = part.reply_to.removeprefix(INTERACTION_PREFIX)
        return self._pending.get(number) if is_native else None

    async def _answer(
        self,
        part: PostPart,
        pending: _PendingInteraction,
        content: dict[str, object],
        before_send: BeforeSend,
    ) -> Receipt:
        if pending.first_part in {"", part.key}:
            pending.first_part = part.key
            path = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
            answer = await self._api.call(
                "PATCH",
                path,
                json=content,
                file=part.file,
                before_send=before_send,
                webhook_id=pending.application,
                webhook_token=pending.token,
            )
            return build_receipt(answer)
        if part.key in pending.maybe_sent:
            raise Uncertain(
                "a follow-up may be visible already, and Discord does not drop repeats of these"
            )
        pending.maybe_sent.add(part.key)
        flags = content.get("flags", 0)
        follow_up = content | {
            "flags": (flags if isinstance(flags, int) else 0)
            | (EPHEMERAL if pending.is_private else 0)
        }
        path = "/webhooks/{webhook_id}/{webhook_token}"
        try:
            answer = await self._api.call(
                "POST",
                path,
                json=follow_up,
                file=part.file,
                params={"wait": "true"},
                before_send=before_send,
                again=False,
                webhook_id=pending.application,
                webhook_token=pending.token,
            )
        except (Rejected, RateLimited, Unreachable, Denied):
            pending.maybe_sent.discard(part.key)
            raise
        return build_receipt(answer)


async def _is_acknowledged(pending: _PendingInteraction) -> bool:
    await asyncio.wait(
        {pending.deferred}
    )  # not awaited itself: its cancellation must not cancel us
    return not pending.deferred.cancelled() and pending.deferred.result()
