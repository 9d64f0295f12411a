"""Fetching attachments: only from Discord's own hosts, and never more than was asked for."""

from typing import Final

import aiohttp
import yarl

from channels.base import RateLimited, Rejected, Unreachable
from channels.discord.ids import get_snowflake
from channels.discord.rest import TOO_MANY_REQUESTS, DiscordRestClient
from channels.payload import get_objects, get_str

CDN_HOSTS: Final = frozenset({"cdn.discordapp.com", "media.discordapp.net"})
"""https://discord.com/developers/docs/reference#cdn-formatting"""
_OK, _BROKEN = 200, 500
_CHUNK_BYTES = 65536


async def download_attachment(
    api: DiscordRestClient, api_url: str, attachment: str, limit_bytes: int, timeout_s: float
) -> bytes:
    """The bytes of `channel/message/attachment`, at most `limit_bytes`. Raises a `SendError`.

    The message is asked for again, because the addresses of files are signed and expire after a day.
    """
    channel, message, number = [*attachment.split("/"), "", "", ""][:3]
    if not all(part.isascii() and part.isdigit() for part in (channel, message, number)):
        raise Rejected("this is not an attachment of Discord")
    path = "/channels/{channel_id}/messages/{message_id}"
    told = await api.call("GET", path, channel_id=channel, message_id=message)
    found = [file for file in get_objects(told, "attachments") if get_snowflake(file, "id") == number]
    if not found:
        raise Rejected("the attachment is gone")
    url = check_url(get_str(found[0], "url"), api_url)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with (
            aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session,
            session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as response,
        ):
            return await _read_limited(response, limit_bytes)
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"the attachment cannot be fetched: {type(error).__name__}") from error


def check_url(url: str, api_url: str) -> yarl.URL:
    """The address, if it is one of Discord's or the configured server's. Raises `Rejected`: payloads are no orders."""
    try:
        found, ours = yarl.URL(url), yarl.URL(api_url)
        same = found.origin() == ours.origin()
    except ValueError:
        raise Rejected("the attachment has no address") from None
    theirs = found.scheme == "https" and found.host in CDN_HOSTS and found.explicit_port in {None, 443}
    if found.user or not (theirs or same):
        raise Rejected("the attachment is not on Discord's own hosts")
    return found


async def _read_limited(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    if response.status == TOO_MANY_REQUESTS:
        raise RateLimited("too many files at once", retry_after_s=5.0)
    if response.status >= _BROKEN:
        raise Unreachable(f"the file server answers {response.status}")
    if response.status != _OK:
        raise Rejected(f"the attachment cannot be had ({response.status})")
    data = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        data += chunk
        if len(data) > limit_bytes:
            raise Rejected(f"the attachment is larger than {limit_bytes} bytes")
    return bytes(data)
