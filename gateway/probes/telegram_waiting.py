"""Who has written to a Telegram bot and was not answered yet: so that nobody needs to look up an id.

Updates are asked for without an offset, which confirms none (core.telegram.org/bots/api#getupdates), so whoever runs
the bot next is told all of it again. A program that polls for the bot at the same moment is interrupted once.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from channels.payload import Json, get_int, get_object, get_str
from gateway.probes.base import Finding
from gateway.probes.found import FindingCollector
from gateway.probes.net import PROBE_TIMEOUT_S

if TYPE_CHECKING:
    from channels.telegram.config import TelegramConfig


_UPDATE_KINDS = ("message", "edited_message", "my_chat_member")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelegramContacts:
    """What waits for the bot. Newest first."""

    findings: list[Finding] = field(default_factory=list)
    people: tuple[tuple[str, str], ...] = ()
    """Id, and how they call themselves, of who wrote in private."""
    groups: tuple[tuple[str, str], ...] = ()
    """Id and title of groups in which something was said to it, or which it was taken into."""


async def find_contacts(config: "TelegramConfig", *, where: str = "") -> TelegramContacts:
    """Look. Never raises but for cancellation; takes 10 s at most."""
    from telegram.error import Conflict, TelegramError  # noqa: PLC0415 - the library takes half a second

    from channels.telegram.calls import TelegramApi  # noqa: PLC0415 - the same

    found, updates = FindingCollector(where, [config.token.get_secret_value()]), []
    try:
        api = TelegramApi(config)
    except (RuntimeError, ValueError, OSError) as error:
        found.bad("net.proxy", f"the HTTP client cannot be set up: {error}", "look at the proxies in the environment")
        return TelegramContacts(findings=found.findings)
    try:
        with api.redact_logs():
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                told = await api.await_call(api.bot.request.post(f"{api.bot.base_url}/getUpdates?limit=100&timeout=0"))
                updates = told if isinstance(told, list) else []
    except Conflict:
        what = "a webhook or another program takes this bot's messages"
        found.warn("telegram.poller", what, "stop the other program, and look again")
    except (TelegramError, TimeoutError) as error:
        found.warn("telegram.answer", f"Telegram did not tell who wrote: {api.redact(error)}", "try again")
    finally:
        await api.close()
    return parse_contacts(updates, found)


def parse_contacts(updates: Sequence[object], found: FindingCollector) -> TelegramContacts:
    """Of raw updates, who wrote and where. Pure."""
    people: dict[str, str] = {}
    groups: dict[str, str] = {}
    for update in reversed(updates):
        event = next((told for kind in _UPDATE_KINDS if (told := get_object(update, kind))), {})
        chat, sender = get_object(event, "chat"), get_object(event, "from")
        number, by = get_int(chat, "id"), get_int(sender, "id")
        if number is None:
            continue
        if get_str(chat, "type") == "private":
            if by is not None and sender.get("is_bot") is not True:
                people.setdefault(str(by), found.clean(_format_sender(sender))[:60])
        else:
            groups.setdefault(str(number), found.clean(get_str(chat, "title"))[:60])
    return TelegramContacts(findings=found.findings, people=tuple(people.items()), groups=tuple(groups.items()))


def _format_sender(sender: Json) -> str:
    name = " ".join(part for part in (get_str(sender, "first_name"), get_str(sender, "last_name")) if part)
    user = get_str(sender, "username")
    return f"{name} (@{user})" if user else name or "somebody"
