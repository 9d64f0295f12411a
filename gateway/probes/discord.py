"""Whether a Discord bot's token is good, what it may read, and where it is.

Codes: `discord.token`, `discord.intents`, `discord.sessions`, `discord.guilds`, `discord.rooms`, `discord.answer`,
and those of `probes.net`. https://discord.com/developers/docs/resources/application
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from channels.base import Denied, RateLimited, Rejected, SendError
from channels.payload import number, obj, objs, string, whole
from gateway.probes.base import Finding
from gateway.probes.found import Found
from gateway.probes.net import LIMIT_S, probe_url

if TYPE_CHECKING:
    from channels.discord.client import Client
    from channels.discord.config import DiscordConfig
    from channels.discord.rest import Api

_PORTAL: Final = "https://discord.com/developers/applications"
INTENT_FIX: Final = f"open {_PORTAL}, choose the application, Bot, switch on MESSAGE CONTENT INTENT, Save Changes"
_COPY: Final = f"open {_PORTAL}, choose the application, Bot, Reset Token, and copy what it shows"
_FULL, _LIMITED = 1 << 18, 1 << 19
"""Application flags: the message content intent of a bot that Discord has verified, and of any other."""
PERMISSIONS: Final = 1 << 6 | 1 << 10 | 1 << 11 | 1 << 14 | 1 << 15 | 1 << 16 | 1 << 38
"""ADD_REACTIONS, VIEW_CHANNEL, SEND_MESSAGES, EMBED_LINKS, ATTACH_FILES, READ_MESSAGE_HISTORY,
SEND_MESSAGES_IN_THREADS: https://discord.com/developers/docs/topics/permissions"""
_FEW_SESSIONS: Final = 20
_ROOMS: Final = 10
"""Looked at, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordSeen:
    """What was found, and whose the token is."""

    findings: list[Finding] = field(default_factory=list)
    id: str = ""
    """Of the bot's user. Empty: not known."""
    application: str = ""
    """Its id: the bot's, but for very old ones. Empty: not known."""
    name: str = ""
    reads_messages: bool | None = None
    """Whether it is shown what is written in rooms. None: not known."""
    guilds: tuple[tuple[str, str], ...] = ()
    """Id and name of where it is: at most 200."""
    owner: tuple[str, str] = ("", "")
    """Id and name of who owns the application, or leads its team. Empty: not known."""

    @property
    def invitation_url(self) -> str:
        """The address with which somebody takes the bot into a guild. Empty: not known."""
        return invitation(self.application or self.id) if self.application or self.id else ""


def invitation(application: str) -> str:
    """As https://discord.com/developers/docs/topics/oauth2#bot-authorization-flow says."""
    asked = {"client_id": application, "scope": "bot applications.commands", "permissions": PERMISSIONS}
    return f"https://discord.com/oauth2/authorize?{urlencode(asked)}"


async def probe_discord(config: "DiscordConfig", *, where: str = "") -> DiscordSeen:
    """Ask the HTTP API; no session is begun. Never raises but for cancellation; takes 10 s at most."""
    import aiohttp  # noqa: PLC0415 - the libraries take half a second
    import discord  # noqa: PLC0415 - the same

    from channels.discord.client import Client  # noqa: PLC0415 - the same

    found, seen = Found(where, [config.token.get_secret_value().strip()]), _Seen()
    client = Client(config, lambda *_: None)
    try:
        async with asyncio.timeout(LIMIT_S):
            me = await client.log_in(config.token.get_secret_value().strip())
            await _around(client, found, seen, config, me)
    except discord.LoginFailure:
        found.bad("discord.token", "Discord does not know this token", _COPY)
    except TimeoutError:
        found.bad("discord.answer", "Discord did not answer in time", "try again; look at the network")
    except discord.HTTPException as error:
        fix = "look at api_url" if error.status == 404 else "try again later"  # noqa: PLR2004 - HTTP's own number
        found.bad("discord.answer", f"Discord answered {error.status}", fix)
    except (aiohttp.ClientError, discord.DiscordException, OSError) as error:
        unreachable = [one for one in await probe_url(config.api_url, where=where) if one.level == "bad"]
        found.findings += unreachable
        if not unreachable:
            found.bad("discord.answer", f"no answer from Discord: {type(error).__name__}", "look at api_url; try again")
    except (ValueError, KeyError, TypeError, AttributeError):
        found.bad("discord.answer", "the answer is not Discord's", "look at api_url")
    finally:
        await client.http.close()
    return seen.to_result(found)


class _Seen:
    id = application = name = ""
    reads_messages: bool | None = None
    guilds: tuple[tuple[str, str], ...] = ()
    owner: tuple[str, str] = ("", "")

    def to_result(self, found: Found) -> DiscordSeen:
        return DiscordSeen(
            findings=found.findings,
            id=self.id,
            application=self.application,
            name=self.name,
            reads_messages=self.reads_messages,
            guilds=self.guilds,
            owner=self.owner,
        )


async def _around(client: "Client", found: Found, seen: _Seen, config: "DiscordConfig", me: str) -> None:
    """What there is to say of a bot that is let in."""
    from channels.discord.rest import Api  # noqa: PLC0415 - the library takes half a second

    api = Api()
    api.client = client
    seen.id, seen.name = me, await _name(api)
    if not me:
        found.bad("discord.answer", "the answer is not Discord's", "look at api_url")
        return
    found.ok("discord.token", f"the token is that of {seen.name or 'a bot'} (id {me})")
    for look in (_intents, _sessions, _guilds):
        try:
            await look(api, found, seen)
        except Denied:
            raise TypeError from None  # it was let in a moment ago
        except SendError as error:
            found.warn("discord.answer", f"Discord did not tell all: {error.reason}", "try again later")
    await _rooms(api, found, seen, config)


async def _name(api: "Api") -> str:
    try:
        told = await api.call("GET", "/users/@me", again=False)
    except SendError:
        return ""
    return string(told, "global_name") or string(told, "username")


async def _intents(api: "Api", found: Found, seen: _Seen) -> None:
    told = await api.call("GET", "/applications/@me", again=False)
    flags, seen.application = whole(told, "flags") or 0, string(told, "id")
    seen.owner = _owner(told, seen.id)
    seen.reads_messages = bool(flags & (_FULL | _LIMITED))
    if not seen.reads_messages:
        what = "the message content intent is off: Discord would end the connection (4014)"
        found.bad("discord.intents", what, INTENT_FIX)
    else:
        how = "in full" if flags & _FULL else "limited: enough until 10,000 people use it"
        found.ok("discord.intents", f"the message content intent is on ({how}); others are not needed")


def _owner(told: object, me: str) -> tuple[str, str]:
    """A team's owner has a name only among its members."""
    team = obj(told, "team")
    members = [obj(member, "user") for member in objs(team, "members")]
    leader = next((one for one in members if string(one, "id") == string(team, "owner_user_id")), {})
    person = leader or obj(told, "owner")
    if not string(person, "id") or string(person, "id") == me or person.get("bot") is True:
        return ("", "")
    return string(person, "id"), string(person, "global_name") or string(person, "username")


async def _sessions(api: "Api", found: Found, seen: _Seen) -> None:
    del seen
    told = await api.call("GET", "/gateway/bot", again=False)
    limit, shards = obj(told, "session_start_limit"), whole(told, "shards") or 1
    left, total, reset_ms = whole(limit, "remaining"), whole(limit, "total"), number(limit, "reset_after") or 0.0
    if left is not None and left < _FEW_SESSIONS:
        what = f"only {left} of {total} new sessions are left; more in {reset_ms / 3_600_000:.1f} hours"
        found.warn("discord.sessions", what, "look for what makes it start so often; Discord takes away the token at 0")
    elif left is not None:
        found.ok("discord.sessions", f"{left} of {total} new sessions are left for today")
    if shards > 1:
        what = f"Discord recommends {shards} connections"
        found.warn("discord.sessions", what, "write `shards: auto` at the channel")


async def _guilds(api: "Api", found: Found, seen: _Seen) -> None:
    told = await api.call("GET", "/users/@me/guilds", again=False)
    listed = [obj({"g": one}, "g") for one in told] if isinstance(told, list) else []
    seen.guilds = tuple((string(one, "id"), string(one, "name")) for one in listed if string(one, "id"))
    if seen.guilds:
        names = ", ".join(name or number for number, name in seen.guilds[:5])
        found.ok("discord.guilds", f"it is in {len(seen.guilds)} guild(s): {names}")
    else:
        what = "it is in no guild: only people who share one with it can write to it"
        found.warn("discord.guilds", what, f"open {invitation(seen.application or seen.id)} and choose a guild")


async def _rooms(api: "Api", found: Found, seen: _Seen, config: "DiscordConfig") -> None:
    """Whether the channels and guilds that are named are there for it."""
    known = {number for number, _ in seen.guilds}
    for room in [room for room in config.rooms if room != "*" and room not in known][:_ROOMS]:
        try:
            told = await api.call("GET", "/channels/{channel_id}", again=False, channel_id=room)
        except RateLimited:
            return
        except Rejected:
            fix = "invite the bot to the guild, let it see the channel, and look at the id (Copy Channel ID)"
            found.warn("discord.rooms", f"it sees no channel and is in no guild with the id {room}", fix)
        except SendError:
            return
        else:
            found.ok("discord.rooms", f"it sees #{string(told, 'name') or room} ({room})")
