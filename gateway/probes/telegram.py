"""Whether a Telegram bot's token is good, and what will surprise its operator.

Codes: `telegram.token`, `telegram.privacy`, `telegram.webhook`, `telegram.poller`, `telegram.commands`,
`telegram.rooms`, `telegram.answer`, and those of `probes.net`. https://core.telegram.org/bots/api
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from channels.payload import get_int, get_object, get_str
from gateway.probes.base import Finding
from gateway.probes.found import FindingCollector
from gateway.probes.net import PROBE_TIMEOUT_S, probe_url

if TYPE_CHECKING:
    from channels.telegram.calls import TelegramApi
    from channels.telegram.config import TelegramConfig


PRIVACY_FIX: Final = (
    "to let it read whole groups: talk to @BotFather, send /setprivacy, choose the bot, choose Disable, "
    "then take the bot out of each group and add it again"
)
_COPY_WHOLE_FIX: Final = "talk to @BotFather, send /mybots, choose the bot, API Token, and copy it whole"
_POLLER_WAIT_S: Final = 2
"""How long another poller has to show itself."""
_MAX_ROOMS: Final = 10
"""Looked at, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramProbeResult:
    """What was found, and whose the token is."""

    findings: list[Finding] = field(default_factory=list)
    id: str = ""
    """Empty: not known."""
    username: str = ""
    """Without `@`."""
    name: str = ""
    reads_whole_groups: bool | None = None
    """Whether groups show it everything that is said. None: not known."""


async def probe_telegram(config: "TelegramConfig", *, where: str = "", listen: bool = False) -> TelegramProbeResult:
    """Ask the Bot API. Confirms no update, changes nothing; never raises but for cancellation; takes 10 s at most.

    `listen`: also find out, in two seconds, whether another program polls for this bot. That interrupts it once, so
    it must not be asked for while a gateway of ours may run with this token.
    """
    from channels.telegram.calls import TelegramApi  # noqa: PLC0415 - the library takes half a second

    hook = config.webhook
    secrets = [config.token.get_secret_value(), *([hook.secret.get_secret_value()] if hook else [])]
    found, seen = FindingCollector(where, secrets), _TelegramProbeState()
    try:
        api = TelegramApi(config)
    except (RuntimeError, ValueError, OSError) as error:
        found.bad("net.proxy", f"the HTTP client cannot be set up: {error}", "look at the proxies in the environment")
        return seen.to_result(found)
    try:
        with api.redact_logs():
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                if await _probe_token(api, found, seen, config.base_url, where):
                    await _probe_account(api, found, config, listen=listen)
    except TimeoutError:
        found.bad("telegram.answer", "the Bot API did not answer in time", "try again; look at the network")
    finally:
        await api.close()
    return seen.to_result(found)


class _TelegramProbeState:
    id = username = name = ""
    reads_whole_groups: bool | None = None

    def to_result(self, found: FindingCollector) -> TelegramProbeResult:
        return TelegramProbeResult(
            findings=found.findings,
            id=self.id,
            username=self.username,
            name=self.name,
            reads_whole_groups=self.reads_whole_groups,
        )


async def _call_method(api: "TelegramApi", method: str, **parameters: str | int) -> object:
    """The result as it came: the library insists on fields that are nothing to us. Raises TelegramError."""
    query = f"?{urlencode(parameters)}" if parameters else ""
    return await api.await_call(api.bot.request.post(f"{api.bot.base_url}/{method}{query}"))


async def _probe_token(
    api: "TelegramApi", found: FindingCollector, seen: _TelegramProbeState, base_url: str, where: str
) -> bool:
    """Learn whose token it is; whether there is more to ask."""
    from telegram.error import InvalidToken, NetworkError, TelegramError  # noqa: PLC0415 - the same

    from channels.telegram.transport import FloodWait  # noqa: PLC0415 - the same

    try:
        me = await _call_method(api, "getMe")
    except InvalidToken:
        found.bad("telegram.token", "Telegram does not know this token", _COPY_WHOLE_FIX)
        return False
    except FloodWait as error:
        found.bad("telegram.answer", f"Telegram asks us to wait {error.retry_after_s:g} s", "try again after that")
        return False
    except NetworkError as error:
        unreachable = [one for one in await probe_url(base_url, where=where) if one.level == "bad"]
        found.findings += unreachable
        if not unreachable:
            fix = "look at base_url: it is the root of a Bot API server, without /bot"
            found.bad("telegram.answer", f"there is no Bot API at this address: {api.redact(error)}", fix)
        return False
    except TelegramError as error:
        found.bad("telegram.answer", f"the Bot API refused to say who the bot is: {api.redact(error)}", "try again")
        return False
    number = get_int(me, "id")
    if number is None:
        found.bad("telegram.answer", "the answer is not the Bot API's", "look at base_url")
        return False
    seen.id, seen.username, seen.name = str(number), get_str(me, "username"), get_str(me, "first_name")
    found.ok("telegram.token", f"the token is that of @{seen.username} ({seen.name}, id {seen.id})")
    seen.reads_whole_groups = get_object({"me": me}, "me").get("can_read_all_group_messages") is not False
    return True


async def _probe_account(
    api: "TelegramApi", found: FindingCollector, config: "TelegramConfig", *, listen: bool
) -> None:
    """What else there is to say of a bot that is known."""
    from telegram.error import TelegramError  # noqa: PLC0415 - the library takes half a second

    try:
        await _probe_privacy(api, found, config)
        hooked = await _probe_webhook(api, found, config)
        if listen and not hooked and config.webhook is None:
            await _probe_poller(api, found)
        await _probe_rooms(api, found, config)
        commands = await _call_method(api, "getMyCommands")
        told = len(commands) if isinstance(commands, list) else 0
        found.ok("telegram.commands", f"{told} commands stand in its menu" if told else "its menu is set at the start")
    except TelegramError as error:
        found.warn("telegram.answer", f"Telegram did not tell all: {api.redact(error)}", "try again")


async def _probe_privacy(api: "TelegramApi", found: FindingCollector, config: "TelegramConfig") -> None:
    me = await _call_method(api, "getMe")
    if get_object({"me": me}, "me").get("can_read_all_group_messages") is not False:
        found.ok("telegram.privacy", "privacy mode is off: groups show it all that is said")
    elif config.rooms:
        told = "privacy mode is on: groups show it only commands, mentions and replies to it"
        found.warn("telegram.privacy", told, PRIVACY_FIX)
    else:
        found.ok("telegram.privacy", "privacy mode is on, which means nothing in private chats")


async def _probe_webhook(api: "TelegramApi", found: FindingCollector, config: "TelegramConfig") -> bool:
    """Whether updates go to a webhook that is not the configured one."""
    told = await _call_method(api, "getWebhookInfo")
    url = get_str(told, "url")
    if not url or (config.webhook is not None and url == config.webhook.url):
        return False
    # Its path is often a secret, so the host alone is told.
    host = url.split("/")[2] if url.count("/") > 1 else "somewhere"
    if config.webhook is None:
        what = f"a webhook at {host} gets this bot's messages; the gateway takes it away when it starts"
        fix = "stop the program that set it, or it will set it again; or make a bot of its own with @BotFather"
    else:
        what = f"a webhook at {host} is set, not the configured one; the gateway sets its own when it starts"
        fix = "stop the program that set it"
    found.warn("telegram.webhook", what, fix)
    return True


async def _probe_poller(api: "TelegramApi", found: FindingCollector) -> None:
    """A poll without an offset confirms nothing, and another's next poll ends it with 409."""
    from telegram.error import Conflict  # noqa: PLC0415 - the library takes half a second

    try:
        await _call_method(api, "getUpdates", timeout=_POLLER_WAIT_S, limit=1)
    except Conflict:
        what = "another program asks for this bot's messages, too: each would get a part of them"
        found.bad("telegram.poller", what, "stop the other program, or make a bot of its own with @BotFather")
        return
    found.ok("telegram.poller", "no other program was seen to ask for its messages")


async def _probe_rooms(api: "TelegramApi", found: FindingCollector, config: "TelegramConfig") -> None:
    """Whether the bot is in the groups that are named."""
    from telegram.error import BadRequest, ChatMigrated, Forbidden  # noqa: PLC0415 - the library takes half a second

    for room in [room for room in config.rooms if room != "*"][:_MAX_ROOMS]:
        try:
            chat = await _call_method(api, "getChat", chat_id=room)
        except ChatMigrated as moved:
            found.warn("telegram.rooms", f"group {room} has another id now", f"write {moved.new_chat_id} in its place")
        except (BadRequest, Forbidden):
            fix = "add the bot to the group, and look at the id: the bot tells it there after /whoami"
            found.warn("telegram.rooms", f"the bot is in no group with the id {room}", fix)
        else:
            found.ok("telegram.rooms", f"it is in {get_str(chat, 'title') or 'a group'} ({room})")
