"""Probe of a Telegram bot: its token, settings and groups; and who has written to it, so that setup
can offer the ids.

Codes: `telegram.token`, `telegram.privacy`, `telegram.webhook`, `telegram.poller`,
`telegram.rooms`, `telegram.answer`, and those of `net`.
https://core.telegram.org/bots/api

Updates are requested without an offset, which confirms none
(core.telegram.org/bots/api#getupdates): the next poller receives all of them again. A program that
polls for the bot at the same time is interrupted once.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from channels.text import clean_text
from gateway.core.findings import PROBE_TIMEOUT_S, Finding, FindingCollector, clean_person_name
from gateway.core.frozen import frozen
from gateway.core.net_probe import PROXY_FIX, probe_url

if TYPE_CHECKING:
    from telegram import ChatFullInfo, ChatMember, Update

    from channels.telegram.api import TelegramApi
    from channels.telegram.config import TelegramConfig


@contextlib.asynccontextmanager
async def _connected(config: "TelegramConfig") -> "AsyncIterator[TelegramApi]":
    """The Bot API for 10 s. Raises TimeoutError after that, and RuntimeError, ValueError or another
    OSError if the HTTP client cannot be set up.
    """
    from channels.telegram.api import TelegramApi  # noqa: PLC0415 - the library takes half a second

    api = TelegramApi(config)
    try:
        with api.redact_logs():
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                yield api
    finally:
        await api.close()


async def find_telegram_name(config: "TelegramConfig", number: str) -> str:
    """Return the name of a person.

    Empty if the bot has never met them, or on any error. Raises nothing but CancelledError.
    """
    from telegram.error import TelegramError  # noqa: PLC0415 - the library takes half a second

    try:
        async with _connected(config) as api:
            chat = await api.await_call(api.bot.get_chat(int(number)))
    except (TelegramError, RuntimeError, ValueError, OSError):
        return ""
    return clean_person_name((chat.first_name if chat.type == "private" else None) or "")


PRIVACY_FIX: Final = (
    "to let it read all messages of groups: talk to @BotFather, send /setprivacy, choose the bot, "
    "choose Disable, then take the bot out of each group and add it again"
)
_COPY_WHOLE_FIX: Final = (
    "talk to @BotFather, send /mybots, choose the bot, API Token, and copy all of it"
)
_ADD_FIX: Final = "add the bot to the group, and check the id: the bot shows it there after /whoami"
_MAX_ROOMS: Final = 10


@dataclass(slots=True, kw_only=True)
class TelegramProbeResult:
    """Findings, and what is known about the bot."""

    findings: list[Finding] = field(default_factory=list)
    id: str = ""
    """Id of the bot. Empty: not known."""
    username: str = ""
    """Username without `@`."""
    name: str = ""
    reads_whole_groups: bool | None = None
    """True if it receives all messages of its groups. None: not known."""


async def probe_telegram(config: "TelegramConfig", *, where: str = "") -> TelegramProbeResult:
    """Query the Bot API. Takes 10 s at most; raises nothing but CancelledError.

    No update is fetched and nothing is changed.
    """
    hook = config.webhook
    secrets = [config.token.get_secret_value(), *([hook.secret.get_secret_value()] if hook else [])]
    found = FindingCollector(where, secrets)
    state = TelegramProbeResult(findings=found.findings)
    try:
        async with _connected(config) as api:
            if await _probe_token(api, found, state, config, where):
                await _probe_account(api, found, state, config)
    except TimeoutError:
        found.bad(
            "telegram.answer",
            "the Bot API did not answer in time",
            "check the network and try again",
        )
    except (RuntimeError, ValueError, OSError) as error:
        found.bad("net.proxy", f"the HTTP client cannot be set up: {error}", PROXY_FIX)
    return state


async def _probe_token(
    api: "TelegramApi",
    found: FindingCollector,
    state: TelegramProbeResult,
    config: "TelegramConfig",
    where: str,
) -> bool:
    """Find out whose token it is. Return whether the probe can go on."""
    from telegram.error import InvalidToken, NetworkError, RetryAfter, TelegramError  # noqa: PLC0415 - as above

    from channels.telegram.people import seconds  # noqa: PLC0415 - as above

    try:
        me = await api.await_call(api.bot.get_me())
    except InvalidToken:
        found.bad("telegram.token", "Telegram does not know this token", _COPY_WHOLE_FIX)
        return False
    except RetryAfter as error:
        wait_s = seconds(error.retry_after)
        found.bad(
            "telegram.answer", f"Telegram asks us to wait {wait_s:g} s", "try again after that"
        )
        return False
    except NetworkError as error:
        reached = await probe_url(config.base_url, where=where, proxy=config.proxy)
        if reached.level == "bad":
            found.add(reached)
        else:
            fix = "check base_url: it is the root of a Bot API server, without /bot"
            found.bad(
                "telegram.answer", f"there is no Bot API at this address: {api.redact(error)}", fix
            )
        return False
    except TelegramError as error:
        found.bad(
            "telegram.answer",
            f"the Bot API refused to say who the bot is: {api.redact(error)}",
            "try again",
        )
        return False
    state.id, state.username, state.name = (
        str(me.id),
        clean_text(me.username or ""),
        clean_text(me.first_name),
    )
    found.ok(
        "telegram.token", f"the token belongs to @{state.username} ({state.name}, id {state.id})"
    )
    state.reads_whole_groups = me.can_read_all_group_messages is not False
    return True


async def _probe_account(
    api: "TelegramApi",
    found: FindingCollector,
    state: TelegramProbeResult,
    config: "TelegramConfig",
) -> None:
    from telegram.error import TelegramError  # noqa: PLC0415 - the library takes half a second

    try:
        _check_privacy(found, state, config)
        await _probe_webhook(api, found, config)
        await _probe_rooms(api, found, state, config)
    except TelegramError as error:
        found.unknown(
            "telegram.answer",
            f"Telegram did not answer all questions: {api.redact(error)}",
            "try again",
        )


def _check_privacy(
    found: FindingCollector, state: TelegramProbeResult, config: "TelegramConfig"
) -> None:
    if state.reads_whole_groups:
        found.ok("telegram.privacy", "privacy mode is off: in groups it sees all messages")
    elif config.rooms:
        found.warn(
            "telegram.privacy",
            "privacy mode is on: in groups it sees only commands, mentions and replies to it",
            PRIVACY_FIX,
        )
    else:
        found.ok("telegram.privacy", "privacy mode is on, which means nothing in private chats")


async def _probe_webhook(
    api: "TelegramApi", found: FindingCollector, config: "TelegramConfig"
) -> None:
    """Warn if updates go to a webhook other than the configured one."""
    url = (await api.await_call(api.bot.get_webhook_info())).url
    if not url or (config.webhook is not None and url == config.webhook.url):
        return
    # Its path is often a secret, so only the host is shown.
    host = url.split("/")[2] if url.count("/") > 1 else "somewhere"
    what = f"a webhook at {host} gets this bot's messages; the gateway removes it when it starts"
    found.warn(
        "telegram.webhook",
        what,
        (
            "stop the program that set it, or it will set it again; or create another bot with "
            "@BotFather"
        ),
    )


async def _probe_rooms(
    api: "TelegramApi",
    found: FindingCollector,
    state: TelegramProbeResult,
    config: "TelegramConfig",
) -> None:
    from telegram.error import BadRequest, ChatMigrated, Forbidden  # noqa: PLC0415 - the library takes half a second

    rooms = [room for room in config.rooms if room != "*"]
    for room in rooms[:_MAX_ROOMS]:
        try:
            chat = await api.await_call(api.bot.get_chat(room))
            me = await api.await_call(api.bot.get_chat_member(room, int(state.id)))
        except ChatMigrated as moved:
            found.ok(
                "telegram.rooms",
                (
                    f"group {room} is a supergroup now, with the id {moved.new_chat_id}; the "
                    "gateway goes on with both"
                ),
            )
        except (BadRequest, Forbidden):
            found.warn("telegram.rooms", f"the bot is in no group with the id {room}", _ADD_FIX)
        else:
            _judge_room(found, chat, me, room)
    if rooms[_MAX_ROOMS:]:
        found.unknown(
            "telegram.rooms",
            f"whether the bot can post in {len(rooms) - _MAX_ROOMS} more groups",
            f"doctor looks at the first {_MAX_ROOMS} only",
        )


def _judge_room(found: FindingCollector, chat: "ChatFullInfo", me: "ChatMember", room: str) -> None:
    """Add a finding on whether the bot can post in a group
    (https://core.telegram.org/bots/api#chatmember, #chatpermissions).
    """
    name = f"{clean_text(chat.title or '') or 'a group'} ({room})"
    may = getattr(me, "can_send_messages", None)  # of who is restricted
    if me.status == me.MEMBER and chat.permissions is not None:
        may = chat.permissions.can_send_messages
    if chat.type == chat.CHANNEL:
        found.warn(
            "telegram.rooms",
            f"{name} is a channel: the bot does not post there",
            "list groups only; a channel's discussion group is one",
        )
    elif me.status in (me.LEFT, me.BANNED) or getattr(me, "is_member", True) is False:
        found.warn("telegram.rooms", f"the bot is not in {name}: {me.status}", _ADD_FIX)
    elif may is False:
        fix = "let members send messages there, take its restriction away, or make it an admin"
        found.bad("telegram.rooms", f"the bot must not post in {name}", fix)
    else:
        found.ok("telegram.rooms", f"it is in {name}, and may post there")


@frozen
class TelegramContacts:
    """People and groups whose updates wait for the bot, newest first."""

    findings: list[Finding] = field(default_factory=list)
    people: tuple[tuple[str, str], ...] = ()
    """Id and name of people who wrote in private."""
    groups: tuple[tuple[str, str], ...] = ()
    """Id and title of groups that mentioned the bot or added it."""


async def find_contacts(config: "TelegramConfig", *, where: str = "") -> TelegramContacts:
    """Fetch the pending updates. Takes 10 s at most; raises nothing but CancelledError."""
    from telegram.error import Conflict, TelegramError  # noqa: PLC0415 - the library takes half a second

    found = FindingCollector(where, [config.token.get_secret_value()])
    updates: Sequence[Update] = ()
    try:
        async with _connected(config) as api:
            updates = await api.get_updates(None, wait=False)
    except Conflict:
        found.warn(
            "telegram.poller",
            "a webhook or another program takes this bot's messages",
            "stop the other program, and try again",
        )
    except (TelegramError, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        found.warn("telegram.answer", f"Telegram did not show who wrote: {reason}", "try again")
    except (RuntimeError, ValueError, OSError) as error:
        found.bad("net.proxy", f"the HTTP client cannot be set up: {error}", PROXY_FIX)
    return parse_contacts(updates, found)


def parse_contacts(updates: "Sequence[Update]", found: FindingCollector) -> TelegramContacts:
    """Extract people and groups from updates. Pure."""
    people: dict[str, str] = {}
    groups: dict[str, str] = {}
    for update in reversed(updates):
        chat, sender = update.effective_chat, update.effective_user
        if chat is None or not (update.message or update.edited_message or update.my_chat_member):
            continue
        if chat.type == "private":
            if sender and not sender.is_bot:
                name = clean_text(sender.full_name).strip() or "somebody"
                name += f" (@{clean_text(sender.username)})" if sender.username else ""
                people.setdefault(str(sender.id), found.clean(name)[:60])
        else:
            groups.setdefault(str(chat.id), found.clean(chat.title or "")[:60])
    return TelegramContacts(
        findings=found.findings, people=tuple(people.items()), groups=tuple(groups.items())
    )
