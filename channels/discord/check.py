"""Probe of a Discord bot: its token, its intents, its guilds and rooms.

Codes: `discord.token`, `discord.intents`, `discord.guilds`, `discord.rooms`, `discord.threads`,
`discord.answer`, and those of `net`. https://discord.com/developers/docs/resources/application
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from channels.base import Denied, RateLimited, Rejected, SendError
from channels.text import get_int, get_object, get_objects, get_str
from gateway.core.findings import PROBE_TIMEOUT_S, Finding, FindingCollector, clean_person_name
from gateway.core.net_probe import PROXY_FIX, probe_url

if TYPE_CHECKING:
    from channels.discord.config import DiscordConfig
    from channels.discord.rest import DiscordClient, DiscordRestClient


_PORTAL_URL: Final = "https://discord.com/developers/applications"
INTENT_FIX: Final = (
    f"open {_PORTAL_URL}, choose the application, Bot, switch on MESSAGE CONTENT "
    "INTENT, Save Changes"
)
_COPY_WHOLE_FIX: Final = (
    f"open {_PORTAL_URL}, choose the application, Bot, Reset Token, and copy what it shows"
)
_FULL, _LIMITED = 1 << 18, 1 << 19
"""Application flags of the message content intent: of a verified bot, and of any other."""
PERMISSIONS: Final = 1 << 6 | 1 << 10 | 1 << 11 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 38
"""ADD_REACTIONS, VIEW_CHANNEL, SEND_MESSAGES, EMBED_LINKS, ATTACH_FILES, READ_MESSAGE_HISTORY,
SEND_MESSAGES_IN_THREADS: https://discord.com/developers/docs/topics/permissions"""
_ADMINISTRATOR: Final = 1 << 3
_OPEN_THREADS: Final = 1 << 35 | 1 << 38
"""CREATE_PUBLIC_THREADS, SEND_MESSAGES_IN_THREADS."""
_THREADS_FIX: Final = (
    "give its role Create Public Threads and Send Messages in Threads (Server Settings, Roles), or "
    "take `threads` out; meanwhile it answers in the channel"
)
_MAX_ROOMS: Final = 10
"""Most rooms that are checked."""


@dataclass(slots=True, kw_only=True)
class DiscordProbeResult:
    """Findings, and what is known about the bot."""

    findings: list[Finding] = field(default_factory=list)
    id: str = ""
    """Id of the bot's user. Empty: not known."""
    application: str = ""
    """Id of the application, which equals `id` except for very old bots. Empty: not known."""
    name: str = ""
    reads_messages: bool | None = None
    """True if it receives the contents of messages. None: not known."""
    guilds: tuple[tuple[str, str], ...] = ()
    """Id and name of its guilds, at most 200."""
    threadless: tuple[str, ...] = ()
    """Ids of the guilds where its roles do not let it open threads."""
    owner: tuple[str, str] = ("", "")
    """Id and name of the owner of the application, or of its team's. Empty: not known."""

    @property
    def invitation_url(self) -> str:
        """URL for adding the bot to a guild. Empty: not known."""
        return (
            build_invitation_url(self.application or self.id) if self.application or self.id else ""
        )


def build_invitation_url(application: str) -> str:
    """Build the URL (https://discord.com/developers/docs/topics/oauth2#bot-authorization-flow)."""
    parameters = {
        "client_id": application,
        "scope": "bot applications.commands",
        "permissions": PERMISSIONS,
    }
    return f"https://discord.com/oauth2/authorize?{urlencode(parameters)}"


async def probe_discord(config: "DiscordConfig", *, where: str = "") -> DiscordProbeResult:
    """Query the HTTP API without a gateway session. Takes 10 s at most; raises nothing but
    CancelledError.
    """
    import aiohttp  # noqa: PLC0415 - the libraries take half a second
    import discord  # noqa: PLC0415 - as above

    from channels.discord.rest import DiscordClient  # noqa: PLC0415 - as above

    found = FindingCollector(where, [config.token.get_secret_value().strip()])
    state = DiscordProbeResult(findings=found.findings)
    try:
        client = DiscordClient(config)
    except ValueError as error:
        found.bad("net.proxy", str(error), PROXY_FIX)
        return state
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            me = await client.log_in(config.token.get_secret_value().strip())
            await _probe_account(client, found, state, config, me)
    except discord.LoginFailure:
        found.bad("discord.token", "Discord does not know this token", _COPY_WHOLE_FIX)
    except TimeoutError:
        found.bad(
            "discord.answer", "Discord did not answer in time", "check the network and try again"
        )
    except discord.HTTPException as error:
        fix = "check api_url" if error.status == 404 else "try again later"  # noqa: PLR2004 - HTTP's own number
        found.bad("discord.answer", f"Discord answered {error.status}", fix)
    except (aiohttp.ClientError, discord.DiscordException, OSError) as error:
        reached = await probe_url(config.api_url, where=where, proxy=config.proxy)
        if reached.level == "bad":
            found.add(reached)
        else:
            found.bad(
                "discord.answer",
                f"no answer from Discord: {type(error).__name__}",
                "check api_url and try again",
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        found.bad("discord.answer", "the answer does not come from Discord", "check api_url")
    finally:
        await client.close()
    return state


async def _probe_account(
    client: "DiscordClient",
    found: FindingCollector,
    state: DiscordProbeResult,
    config: "DiscordConfig",
    me: str,
) -> None:
    from channels.discord.rest import DiscordRestClient  # noqa: PLC0415 - the library takes half a second

    api = DiscordRestClient()
    api.client = client
    state.id, state.name = me, await _read_name(api)
    if not me:
        found.bad("discord.answer", "the answer does not come from Discord", "check api_url")
        return
    found.ok("discord.token", f"the token belongs to {state.name or 'a bot'} (id {me})")
    for look in (_probe_intents, _probe_guilds):
        try:
            await look(api, found, state)
        except Denied:
            raise TypeError from None  # the token was valid a moment ago
        except SendError as error:
            found.warn(
                "discord.answer",
                f"Discord did not answer all questions: {error.reason}",
                "try again later",
            )
    await _probe_rooms(api, found, state, config)
    _check_threads(found, state, config)


async def _read_name(api: "DiscordRestClient") -> str:
    try:
        user = await api.call("GET", "/users/@me", again=False)
    except SendError:
        return ""
    return get_str(user, "global_name") or get_str(user, "username")


async def _probe_intents(
    api: "DiscordRestClient", found: FindingCollector, state: DiscordProbeResult
) -> None:
    application = await api.call("GET", "/applications/@me", again=False)
    flags, state.application = get_int(application, "flags") or 0, get_str(application, "id")
    state.owner = _find_owner(application, state.id)
    state.reads_messages = bool(flags & (_FULL | _LIMITED))
    if not state.reads_messages:
        what = "the message content intent is off: Discord would end the connection (4014)"
        found.bad("discord.intents", what, INTENT_FIX)
    else:
        how = "in full" if flags & _FULL else "limited, which is enough until 10,000 people use it"
        found.ok(
            "discord.intents", f"the message content intent is on ({how}); others are not needed"
        )


def _find_owner(application: object, me: str) -> tuple[str, str]:
    """Return id and name of the owner. A team's owner has a name only among its members."""
    team = get_object(application, "team")
    members = [get_object(member, "user") for member in get_objects(team, "members")]
    leader = next(
        (one for one in members if get_str(one, "id") == get_str(team, "owner_user_id")), {}
    )
    person = leader or get_object(application, "owner")
    if not get_str(person, "id") or get_str(person, "id") == me or person.get("bot") is True:
        return ("", "")
    return get_str(person, "id"), get_str(person, "global_name") or get_str(person, "username")


async def _probe_guilds(
    api: "DiscordRestClient", found: FindingCollector, state: DiscordProbeResult
) -> None:
    answer = await api.call("GET", "/users/@me/guilds", again=False)
    listed = [get_object({"g": one}, "g") for one in answer] if isinstance(answer, list) else []
    state.guilds = tuple(
        (get_str(one, "id"), get_str(one, "name")) for one in listed if get_str(one, "id")
    )
    state.threadless = tuple(
        get_str(one, "id") for one in listed if not _may_open_threads(get_str(one, "permissions"))
    )
    if state.guilds:
        names = ", ".join(name or number for number, name in state.guilds[:5])
        found.ok("discord.guilds", f"it is in {len(state.guilds)} guild(s): {names}")
    else:
        what = "it is in no guild: only people who share a guild with it can write to it"
        found.warn(
            "discord.guilds",
            what,
            f"open {build_invitation_url(state.application or state.id)} and choose a guild",
        )


def _may_open_threads(permissions: str) -> bool:
    """Return whether these permissions, a number written as text, let the bot open threads. Unknown
    ones may.
    """
    held = int(permissions) if permissions.isascii() and permissions.isdigit() else _ADMINISTRATOR
    return bool(held & _ADMINISTRATOR) or held & _OPEN_THREADS == _OPEN_THREADS


def _check_threads(
    found: FindingCollector, state: DiscordProbeResult, config: "DiscordConfig"
) -> None:
    """Warn of guilds where threads are wanted and the bot's roles do not let it open any."""
    known = {number for number, _ in state.guilds}
    anywhere = any(
        room == "*" or room not in known for room in config.threads
    )  # a channel may be in any of them
    for number, name in state.guilds:
        if number in state.threadless and (anywhere or number in config.threads):
            found.warn(
                "discord.threads",
                f"its roles do not let it open threads in {name or number}",
                _THREADS_FIX,
            )


async def _probe_rooms(
    api: "DiscordRestClient",
    found: FindingCollector,
    state: DiscordProbeResult,
    config: "DiscordConfig",
) -> None:
    known = {number for number, _ in state.guilds}
    for room in [room for room in config.rooms if room != "*" and room not in known][:_MAX_ROOMS]:
        try:
            channel = await api.call("GET", "/channels/{channel_id}", again=False, channel_id=room)
        except RateLimited:
            return
        except Rejected:
            fix = (
                "invite the bot to the guild, let it see the channel, and check the id (Copy "
                "Channel ID)"
            )
            found.warn(
                "discord.rooms", f"it sees no channel and is in no guild with the id {room}", fix
            )
        except SendError:
            return
        else:
            found.ok("discord.rooms", f"it sees #{get_str(channel, 'name') or room} ({room})")


async def find_discord_name(config: "DiscordConfig", number: str) -> str:
    """Return the display name of a user; empty if there is none, or on any error. Discord shows
    every user to bots.
    """
    import aiohttp  # noqa: PLC0415 - the libraries take half a second
    import discord  # noqa: PLC0415 - as above

    from channels.base import SendError  # noqa: PLC0415 - as above
    from channels.discord.rest import DiscordClient, DiscordRestClient  # noqa: PLC0415 - as above

    client, api = DiscordClient(config), DiscordRestClient()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await client.log_in(config.token.get_secret_value().strip())
            api.client = client
            user = await api.call("GET", "/users/{user_id}", again=False, user_id=number)
    except (
        discord.DiscordException,
        aiohttp.ClientError,
        SendError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):
        return ""
    finally:
        await client.close()
    return clean_person_name(get_str(user, "global_name") or get_str(user, "username"))
