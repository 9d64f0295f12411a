"""Interactions that are no commands: suggestions are answered, all else is acknowledged, and nothing is told of them.

https://discord.com/developers/docs/interactions/receiving-and-responding
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from channels.base import CommandCompleter, CommandCompletion, SendError
from channels.discord.directory import DiscordDirectory
from channels.discord.ids import get_snowflake
from channels.discord.options import find_focused
from channels.discord.people import interaction_sender, is_direct_interaction
from channels.discord.rest import DiscordRestClient
from channels.payload import Json, get_int, get_object, get_str
from channels.tasks import cancel_and_wait, with_timeout
from channels.text import single_line
from gateway.clock import Clock

logger = logging.getLogger("reverie.discord")
_COMPONENT, _TYPING, _FORM = 3, 4, 5
_UNCHANGED, _CHOICES = 6, 8
_ANSWER_TIMEOUT_S: Final = 2.0
"""Discord waits for three seconds, and the answer must get there."""
_MAX_CHOICES, _MAX_CHOICE_CHARS = 25, 100
_MAX_SEEN: Final = 1000
_MAX_CONCURRENT: Final = 50
"""More are not answered: each key that somebody presses asks."""


class AutocompleteResponder:
    """Answers while it is connected."""

    def __init__(self, api: DiscordRestClient, clock: Clock, directory: DiscordDirectory) -> None:
        self._api, self._clock, self._directory = api, clock, directory
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self.completer: CommandCompleter | None = None
        """What is asked. None: nothing is suggested."""

    def handle_interaction(self, data: object) -> None:
        """An interaction has come. One that comes twice is answered once; commands are not its business."""
        inside: Json = get_object({"d": data}, "d")
        interaction, token, kind = get_snowflake(inside, "id"), get_str(inside, "token"), get_int(inside, "type")
        if kind not in {_COMPONENT, _TYPING, _FORM} or not (interaction and token) or interaction in self._seen:
            return
        self._seen[interaction] = None
        while len(self._seen) > _MAX_SEEN:
            self._seen.popitem(last=False)
        if len(self._running) < _MAX_CONCURRENT:
            task = asyncio.create_task(self._answer(interaction, token, inside, kind))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End what is going on."""
        await cancel_and_wait(*self._running)

    async def _answer(self, interaction: str, token: str, inside: Json, kind: int) -> None:
        answer: dict[str, object] = {"type": _UNCHANGED}
        if kind == _TYPING:
            choices = await self._find_choices(inside)
            answer = {"type": _CHOICES, "data": {"choices": [{"name": one, "value": one} for one in choices]}}
        try:
            await self._api.call(
                "POST",
                "/interactions/{webhook_id}/{webhook_token}/callback",
                json=answer,
                again=False,
                webhook_id=interaction,
                webhook_token=token,
            )
        except SendError as error:
            logger.info("an interaction of type %d could not be answered: %s", kind, error.reason)

    async def _find_choices(self, inside: Json) -> list[str]:
        """What may be meant; nothing on any trouble."""
        typed = _parse_completion(inside, self._directory)
        if typed is None or self.completer is None:
            return []
        try:
            found = await with_timeout(self._clock, _ANSWER_TIMEOUT_S, _call_completer(self.completer, typed))
        except Exception:
            logger.warning("nothing can be suggested for %s", typed.name, exc_info=True)
            return []
        return list(dict.fromkeys(one for one in found if one and one == single_line(one, _MAX_CHOICE_CHARS)))[
            :_MAX_CHOICES
        ]


async def _call_completer(suggest: CommandCompleter, typed: CommandCompletion) -> list[str]:
    return list(await suggest(typed))


def _parse_completion(data: Json, directory: DiscordDirectory) -> CommandCompletion | None:
    asked, channel, who = get_object(data, "data"), get_snowflake(data, "channel_id"), interaction_sender(data)
    found, name = find_focused(asked), get_str(asked, "name").lower()
    if found is None or who is None or not channel or not name:
        return None
    sub, arg, begun = found
    return CommandCompletion(
        at=directory.address(channel),
        sender=who,
        direct=is_direct_interaction(data),
        name=name,
        sub=sub,
        arg=arg,
        prefix=begun[:_MAX_CHOICE_CHARS],
    )
