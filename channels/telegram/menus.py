"""The command menus: what Telegram shows behind `/`, by the narrowest scope that fits.

https://core.telegram.org/bots/api#botcommandscope: in a private chat its own menu, else that of all private chats; in
a group that of all groups. Nothing follows from a menu: whoever may not use a command is refused all the same.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from telegram import (
    BotCommand,
    BotCommandScope,
    BotCommandScopeAllGroupChats,
    BotCommandScopeAllPrivateChats,
    BotCommandScopeChat,
    BotCommandScopeDefault,
)
from telegram.error import RetryAfter, TelegramError

from channels.base import CommandSpec
from channels.telegram.calls import TelegramApi
from gateway.events import ChannelName, Sender

logger = logging.getLogger("reverie.telegram")
_MENU_TIMEOUT_S = 5.0
"""Nobody is heard before."""
_MAX_COMMANDS, _MAX_SUMMARY_CHARS = 100, 256
"""https://core.telegram.org/bots/api#setmycommands and #botcommand"""
_MAX_CHATS: Final = 100
"""People with a menu of their own."""
_ROLE_ORDER: Final = ("blocked", "guest", "member", "admin", "owner")

Role = Literal["owner", "admin", "member", "guest"]
Menu = tuple[BotCommand, ...]


def build_menu(specs: Sequence[CommandSpec], role: Role, *, direct: bool) -> Menu:
    """What somebody may use there. Pure."""
    able = (
        spec
        for spec in specs
        if (direct or not spec.direct_only)
        and (
            _ROLE_ORDER.index(role) >= _ROLE_ORDER.index(spec.role) or (spec.own and direct and spec.role != "blocked")
        )
    )
    return tuple(BotCommand(spec.name, spec.summary[:_MAX_SUMMARY_CHARS] or spec.name) for spec in able)[:_MAX_COMMANDS]


class CommandMenus:
    """What is shown, and what is to be."""

    def __init__(self, name: ChannelName, specs: Sequence[CommandSpec]) -> None:
        self._name, self._specs = name, tuple(specs)
        self._api: TelegramApi | None = None
        self._shown: dict[int, Menu] = {}
        """By chat: what it certainly shows of its own. Empty: nothing."""
        self._wanted: dict[int, Menu] = {}
        self._lock = asyncio.Lock()

    async def start(self, api: TelegramApi) -> None:
        """Telegram can be spoken to: tell it what everybody may use. A menu is not worth a stop."""
        self._api = api
        if not self._specs:
            return
        groups, alone = (build_menu(self._specs, "guest", direct=direct) for direct in (False, True))
        scopes: Iterable[tuple[BotCommandScope, Menu]] = (
            (BotCommandScopeDefault(), groups),
            (BotCommandScopeAllGroupChats(), groups),
            (BotCommandScopeAllPrivateChats(), alone),
        )
        try:
            async with asyncio.timeout(_MENU_TIMEOUT_S):
                for scope, wanted in scopes:
                    await _set_menu(api, scope, wanted)
        except (TelegramError, TimeoutError) as error:
            logger.warning("%s: the command menu is not set: %s", self._name, api.redact(error) or "no answer in time")

    def stop(self) -> None:
        """Telegram cannot be spoken to any more."""
        self._api = None

    async def set_command_menus(self, to: Sequence[tuple[Sender, Literal["owner", "admin", "member"]]]) -> None:
        """As `CanOffer.offer`. What cannot be shown now is shown with the next connection."""
        everybody = build_menu(self._specs, "guest", direct=True)
        wanted = dict[int, Menu]()
        for sender, role in sorted(to, key=lambda one: -_ROLE_ORDER.index(one[1])):
            shown = build_menu(self._specs, role, direct=True)
            if sender.id.isascii() and sender.id.isdigit() and shown != everybody:
                wanted.setdefault(int(sender.id), shown)
        self._wanted = dict(list(wanted.items())[:_MAX_CHATS])
        await self.sync()

    async def sync(self) -> None:
        """Let each private chat show what it is to show. Raises nothing but cancellation."""
        async with self._lock:
            api, wanted = self._api, self._wanted
            if api is None:
                return
            nobody = dict[int, Menu]((chat, ()) for chat in self._shown if chat not in wanted)
            for chat, shown in (nobody | wanted).items():
                try:
                    await self._sync_chat(api, chat, shown)
                except RetryAfter as error:
                    logger.warning("%s: the menus of some chats are not set: %s", self._name, api.redact(error))
                    return
                except TelegramError as error:  # e.g. somebody who has never written to us: there is no such chat
                    logger.info("%s: the menu of a chat is not set: %s", self._name, api.redact(error))

    async def _sync_chat(self, api: TelegramApi, chat: int, wanted: Menu) -> None:
        if self._shown.get(chat) == wanted:
            return
        scope = BotCommandScopeChat(chat)
        if wanted:
            await _set_menu(api, scope, wanted)
            self._shown[chat] = wanted
        else:
            await api.await_call(api.bot.delete_my_commands(scope))
            self._shown.pop(chat, None)


async def _set_menu(api: TelegramApi, scope: BotCommandScope, wanted: Menu) -> None:
    """Set it if it differs. Raises TelegramError."""
    if tuple(await api.await_call(api.bot.get_my_commands(scope))) != wanted:
        await api.await_call(api.bot.set_my_commands(wanted, scope))
