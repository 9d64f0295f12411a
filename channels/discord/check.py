"""Probe of a Discord bot: its token, its intents, its guilds and rooms.

Codes: `discord.token`, `discord.intents`, `discord.guilds`, `discord.rooms`, `discord.threads`,
`discord.answer`, and those of `net`. https://discord.com/developers/docs/resources/application
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from channels.base import Denied, Rejected, SendError
from channels.discord.directory import (
    ADMINISTRATOR,
    OPEN_THREADS,
    SEND_MESSAGES,
    DiscordDirectory,
)
from channels.text import Json, get_object, get_str
from gateway.core.events import ChannelName
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
PERMISSIONS: Final = 1 << 6 | 1 << 10 | 1 << 11 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 38
"""ADD_REACTIONS, VIEW_CHANNEL, SEND_MESSAGES, EMBED_LINKS, ATTACH_FILES, READ_MESSAGE_HISTORY,
SEND_MESSAGES_IN_THREADS: https://discord.com/developers/docs/topics/permissions"""
_THREADS_FIX: Final = (
    "give its role Create Public Threads and Send Messages in Threads (Server Settings, Roles), or "
    "take `threads` out; meanwhile it answers in the channel"
)
_MAX_ROOMS: Final = 10


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
    mute: tuple[str, ...] = ()
    """Ids of the guilds where its roles do not let it post."""
    owner: tuple[str, str] = ("", "")
    """Id and name of the owner of the application, or of its team's. Empty: not known."""

    @property
    def invitation_url(self) -> str:
        """URL for adding the bot to a guild
        (https://discord.com/developers/docs/topics/oauth2#bot-authorization-flow). Empty: not
        known.
        """
        if not self.application:
            return ""
        parameters = {
            "client_id": self.application,
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

    application, user = client.application, client.user
    if not me or application is None or user is None:
        found.bad("discord.answer", "the answer does not come from Discord", "check api_url")
        return
    state.id, state.name, state.application = me, user.global_name or user.name, str(application.id)
    found.ok("discord.token", f"the token belongs to {state.name or 'a bot'} (id {me})")
    owner = application.team.owner if application.team is not None else application.owner
    if owner is not None and not owner.bot and str(owner.id) != me:
        state.owner = str(owner.id), owner.global_name or owner.name
    flags = application.flags
    state.reads_messages = flags.gateway_message_content or flags.gateway_message_content_limited
    if not state.reads_messages:
        found.bad(
            "discord.intents",
            "the message content intent is off: Discord would end the connection (4014)",
            INTENT_FIX,
        )
    else:
        is_full = flags.gateway_message_content
        how = "in full" if is_full else "limited, which is enough until 10,000 people use it"
        found.ok(
            "discord.intents", f"the message content intent is on ({how}); others are not needed"
        )
    api = DiscordRestClient()
    api.client = client
    try:
        await _probe_guilds(api, found, state)
    except Denied:
        raise TypeError from None  # the token was valid a moment ago
    except SendError as error:
        what = f"Discord did not answer all questions: {error.reason}"
        found.unknown("discord.answer", what, "try again later")
    await _probe_rooms(api, found, state, config)
    _check_roles(found, state, config)


async def _probe_guilds(
    api: "DiscordRestClient", found: FindingCollector, state: DiscordProbeResult
) -> None:
    answer = await api.call("GET", "/users/@me/guilds", again=False)
    listed = [_parse_object(one) for one in answer] if isinstance(answer, list) else []
    state.guilds = tuple(
        (get_str(one, "id"), get_str(one, "name")) for one in listed if get_str(one, "id")
    )
    state.threadless, state.mute = (
        tuple(get_str(one, "id") for one in listed if not _may(get_str(one, "permissions"), bits))
        for bits in (OPEN_THREADS, SEND_MESSAGES)
    )
    if state.guilds:
        names = ", ".join(name or number for number, name in state.guilds[:5])
        found.ok("discord.guilds", f"it is in {len(state.guilds)} guild(s): {names}")
    else:
        found.warn(
            "discord.guilds",
            "it is in no guild: only people who share a guild with it can write to it",
            f"open {state.invitation_url} and choose a guild",
        )


def _may(permissions: str, bits: int) -> bool:
    """Return whether these permissions, a number written as text, have all these bits. Unknown ones
    do.
    """
    held = int(permissions) if permissions.isascii() and permissions.isdigit() else ADMINISTRATOR
    return bool(held & ADMINISTRATOR) or held & bits == bits


def _check_roles(
    found: FindingCollector, state: DiscordProbeResult, config: "DiscordConfig"
) -> None:
    """Report guilds where the bot is to post, or to open threads, and its roles do not let it. A
    channel there may let it all the same.
    """
    known = {number for number, _ in state.guilds}
    anywhere = any(
        room == "*" or room not in known for room in config.threads
    )  # a channel may be in any of them
    for number, name in state.guilds:
        if number in state.mute and {"*", number} & {*config.rooms}:
            found.warn(
                "discord.rooms",
                f"its roles do not let it post in {name or number}",
                "give its role Send Messages (Server Settings, Roles), or list channels instead",
            )
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
    known, directory = (
        {number for number, _ in state.guilds},
        DiscordDirectory(ChannelName("doctor")),
    )
    directory.own_id = state.id
    rooms = [room for room in config.rooms if room != "*" and room not in known]
    for index, room in enumerate(rooms[:_MAX_ROOMS]):
        try:
            channel = await _learn_room(api, directory, room)
            missing = directory.missing_rights(directory.address(room))
        except Rejected:
            found.warn(
                "discord.rooms",
                f"it sees no channel and is in no guild with the id {room}",
                (
                    "invite the bot to the guild, let it see the channel, and check the id (Copy "
                    "Channel ID)"
                ),
            )
        except SendError as error:
            what = f"whether it can post in {len(rooms) - index} more channels"
            found.unknown("discord.rooms", f"{what}: {error.reason}", "try again later")
            return
        else:
            name = f"#{get_str(channel, 'name') or room} ({room})"
            if missing is None:
                found.unknown(
                    "discord.rooms",
                    f"whether it can post in {name}",
                    "post something there by the bot, e.g. with `reverie say`",
                )
            elif missing:
                found.bad(
                    "discord.rooms",
                    f"it cannot post in {name}",
                    f"give it the permission {' and '.join(missing)} in that channel",
                )
            else:
                found.ok("discord.rooms", f"it sees {name}, and may post there")
    if rooms[_MAX_ROOMS:]:
        found.unknown(
            "discord.rooms",
            f"whether it can post in {len(rooms) - _MAX_ROOMS} more channels",
            f"doctor looks at the first {_MAX_ROOMS} only",
        )


async def _learn_room(api: "DiscordRestClient", directory: DiscordDirectory, room: str) -> Json:
    """Add a channel or thread to a directory, with all that decides what we may do there. Raises
    SendError.
    """
    call = partial(api.call, "GET", again=False)
    channel = _parse_object(await call("/channels/{channel_id}", channel_id=room))
    guild = get_str(channel, "guild_id")
    if guild and directory.find_guild(guild) != guild:
        told = _parse_object(await call("/guilds/{guild_id}", guild_id=guild))
        path = "/guilds/{guild_id}/members/{user_id}"
        me = await call(path, guild_id=guild, user_id=directory.own_id)
        directory.apply_event("GUILD_CREATE", {**told, "members": [me]})
    place = directory.add_channel(channel, guild)
    if place is not None and place.parent:
        await _learn_room(api, directory, place.parent)
    return channel


def _parse_object(answer: object) -> Json:
    return get_object({"it": answer}, "it")


async def find_discord_name(config: "DiscordConfig", number: str) -> str:
    """Return the display name of a user; empty if there is none, or on any error. Discord shows
    every user to bots.
    """
    import aiohttp  # noqa: PLC0415 - the libraries take half a second
    import discord  # noqa: PLC0415 - as above

    from channels.discord.rest import DiscordClient  # noqa: PLC0415 - as above

    client = DiscordClient(config)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await client.log_in(config.token.get_secret_value().strip())
            user = await client.fetch_user(int(number))
    except (
        discord.DiscordException,
        aiohttp.ClientError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):
        return ""
    finally:
        await client.close()
    return clean_person_name(user.global_name or user.name)
