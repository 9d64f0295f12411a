"""Who has written to a Telegram bot and was not answered yet: so that nobody needs to look up an id.

Updates are asked for without an offset, which confirms none (core.telegram.org/bots/api#getupdates), so whoever runs
the bot next is told all of it again. A program that polls for the bot at the same moment is interrupted once.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from channels.payload import Json, obj, string, whole
from gateway.probes.base import Finding
from gateway.probes.found import Found
from gateway.probes.net import LIMIT_S

if TYPE_CHECKING:
    from channels.telegram.config import TelegramConfig

_KINDS = ("message", "edited_message", "my_chat_member")


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits for the bot. Newest first."""

    findings: list[Finding] = field(default_factory=list)
    people: tuple[tuple[str, str], ...] = ()
    """Id, and how they call themselves, of who wrote in private."""
    groups: tuple[tuple[str, str], ...] = ()
    """Id and title of groups in which something was said to it, or which it was taken into."""


async def probe_waiting(config: "TelegramConfig", *, where: str = "") -> Waiting:
    """Look. Never raises but for cancellation; takes 10 s at most."""
    from telegram.error import Conflict, TelegramError  # noqa: PLC0415 - the library takes half a second

    from channels.telegram.calls import Api  # noqa: PLC0415 - the same

    found, updates = Found(where, [config.token.get_secret_value()]), []
    try:
        api = Api(config)
    except (RuntimeError, ValueError, OSError) as error:
        found.bad("net.proxy", f"the HTTP client cannot be set up: {error}", "look at the proxies in the environment")
        return Waiting(findings=found.findings)
    try:
        with api.redact_logs():
            async with asyncio.timeout(LIMIT_S):
                told = await api.await_call(api.bot.request.post(f"{api.bot.base_url}/getUpdates?limit=100&timeout=0"))
                updates = told if isinstance(told, list) else []
    except Conflict:
        what = "a webhook or another program takes this bot's messages"
        found.warn("telegram.poller", what, "stop the other program, and look again")
    except (TelegramError, TimeoutError) as error:
        found.warn("telegram.answer", f"Telegram did not tell who wrote: {api.redact(error)}", "try again")
    finally:
        await api.close()
    return read_waiting(updates, found)


def read_waiting(updates: Sequence[object], found: Found) -> Waiting:
    """Of raw updates, who wrote and where. Pure."""
    people: dict[str, str] = {}
    groups: dict[str, str] = {}
    for update in reversed(updates):
        event = next((told for kind in _KINDS if (told := obj(update, kind))), {})
        chat, sender = obj(event, "chat"), obj(event, "from")
        number, by = whole(chat, "id"), whole(sender, "id")
        if number is None:
            continue
        if string(chat, "type") == "private":
            if by is not None and sender.get("is_bot") is not True:
                people.setdefault(str(by), found.clean(_called(sender))[:60])
        else:
            groups.setdefault(str(number), found.clean(string(chat, "title"))[:60])
    return Waiting(findings=found.findings, people=tuple(people.items()), groups=tuple(groups.items()))


def _called(sender: Json) -> str:
    name = " ".join(part for part in (string(sender, "first_name"), string(sender, "last_name")) if part)
    user = string(sender, "username")
    return f"{name} (@{user})" if user else name or "somebody"
