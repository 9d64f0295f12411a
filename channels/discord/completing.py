"""Interactions that are no commands: suggestions are answered, all else is acknowledged, and nothing is told of them.

https://discord.com/developers/docs/interactions/receiving-and-responding
"""

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from channels.base import CommandTyped, SendError, Suggest
from channels.discord.directory import Directory
from channels.discord.ids import snowflake
from channels.discord.options import focused
from channels.discord.people import alone, asker
from channels.discord.rest import Api
from channels.payload import Json, obj, string, whole
from channels.tasks import end, within
from channels.text import line
from gateway.clock import Clock

_LOG = logging.getLogger("reverie.discord")
_COMPONENT, _TYPING, _FORM = 3, 4, 5
_UNCHANGED, _CHOICES = 6, 8
_ANSWER_S: Final = 2.0
"""Discord waits for three seconds, and the answer must get there."""
_MOST, _CHARS = 25, 100
_REMEMBERED: Final = 1000
_AT_ONCE: Final = 50
"""More are not answered: each key that somebody presses asks."""


class Completions:
    """Answers while it is connected."""

    def __init__(self, api: Api, clock: Clock, directory: Directory) -> None:
        self._api, self._clock, self._directory = api, clock, directory
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self.completer: Suggest | None = None
        """What is asked. None: nothing is suggested."""

    def handle_interaction(self, data: object) -> None:
        """An interaction has come. One that comes twice is answered once; commands are not its business."""
        inside: Json = obj({"d": data}, "d")
        interaction, token, kind = snowflake(inside, "id"), string(inside, "token"), whole(inside, "type")
        if kind not in {_COMPONENT, _TYPING, _FORM} or not (interaction and token) or interaction in self._seen:
            return
        self._seen[interaction] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        if len(self._running) < _AT_ONCE:
            task = asyncio.create_task(self._answer(interaction, token, inside, kind))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """End what is going on."""
        await end(*self._running)

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
            _LOG.info("an interaction of type %d could not be answered: %s", kind, error.reason)

    async def _find_choices(self, inside: Json) -> list[str]:
        """What may be meant; nothing on any trouble."""
        typed = _typed(inside, self._directory)
        if typed is None or self.completer is None:
            return []
        try:
            found = await within(self._clock, _ANSWER_S, _asked(self.completer, typed))
        except Exception:  # noqa: BLE001 - nothing that helps to write may break more than that
            _LOG.warning("nothing can be suggested for %s", typed.name, exc_info=True)
            return []
        return list(dict.fromkeys(one for one in found if one and one == line(one, _CHARS)))[:_MOST]


async def _asked(suggest: Suggest, typed: CommandTyped) -> list[str]:
    return list(await suggest(typed))


def _typed(data: Json, directory: Directory) -> CommandTyped | None:
    asked, channel, who = obj(data, "data"), snowflake(data, "channel_id"), asker(data)
    found, name = focused(asked), string(asked, "name").lower()
    if found is None or who is None or not channel or not name:
        return None
    sub, arg, begun = found
    return CommandTyped(
        at=directory.address(channel),
        sender=who,
        direct=alone(data),
        name=name,
        sub=sub,
        arg=arg,
        prefix=begun[:_CHARS],
    )
