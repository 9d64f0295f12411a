"""What we say: in order in each channel, with a nonce, as an answer to a command where it is one.

From our Markdown to Discord's, which is nearly the same. Pure.

https://support.discord.com/hc/en-us/articles/210298617: no tables, no pictures, headings to the third
level, and fences of exactly three backticks. Mentions are made harmless by `allowed_mentions`, not here.
"""

import asyncio
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from channels.base import BeforeSend, Part, Rejected
from channels.discord.errors import DiscordRefused
from channels.discord.ids import message_nonce, parse_id
from channels.discord.wire import build_receipt, parse_channel_id
from channels.split import split_markdown
from channels.text import clean_outgoing
from gateway.core.events import Receipt

if TYPE_CHECKING:
    from channels.discord.interactions import InteractionResponder
    from channels.discord.rest import DiscordRestClient


MAX_CONTENT_UNITS = 2000
"""https://discord.com/developers/docs/resources/message#create-message says characters, not which;
counted in UTF-16 units, which is never less."""
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^`\n]*)")
_DEEP_HEADING = re.compile(r" {0,3}#{4,6} +(.+?)(?: +#+)?")
_PICTURE = re.compile(r"(`+[^`\n]+`+)|!(\[[^\]\n]*\]\()")
_TABLE_RULE = re.compile(r" {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?")


def render_bodies(text: str) -> tuple[str, ...]:
    """Messages that show `text`, each within the limit, none blank; none for blank text."""
    return split_markdown(render(text), MAX_CONTENT_UNITS)


def render(text: str) -> str:
    """`text` as Discord reads it. Code is never touched, only its fences."""
    lines = clean_outgoing(text).split("\n")
    shown: list[str] = []
    at = 0
    while at < len(lines):
        if found := _FENCE.fullmatch(lines[at]):
            end = _find_fence_end(lines, at, found[2])
            shown += _code_block(lines[at + 1 : end], found[3].strip())
            at = end + 1
        elif at + 1 < len(lines) and "|" in lines[at] and _TABLE_RULE.fullmatch(lines[at + 1].rstrip()):
            end = next((n for n in range(at + 1, len(lines)) if "|" not in lines[n]), len(lines))
            shown += _code_block(lines[at:end], "")
            at = end
        else:
            shown.append(_render_line(lines[at]))
            at += 1
    return "\n".join(shown)


def _render_line(line: str) -> str:
    if found := _DEEP_HEADING.fullmatch(line.rstrip()):
        return f"**{found[1]}**" if "**" not in found[1] else found[1]
    return _PICTURE.sub(lambda found: found[1] or found[2], line)


def _find_fence_end(lines: list[str], start: int, marks: str) -> int:
    """The line that closes it; behind the last one if none does (CommonMark, 4.5)."""
    for at in range(start + 1, len(lines)):
        found = _FENCE.fullmatch(lines[at].rstrip())
        if found and found[2][0] == marks[0] and len(found[2]) >= len(marks) and not found[3].strip():
            return at
    return len(lines)


def _code_block(code: list[str], language: str) -> list[str]:
    # Discord would end the block at the first three backticks: a mark of no width stands between them.
    safe = [line.replace("```", "`\u200b`\u200b`") for line in code]
    return [f"```{language}", *safe, "```"] if any(line.strip() for line in code) else []


logger = logging.getLogger("reverie.discord")
MAX_FILE_BYTES: Final = 10 * 2**20
"""https://discord.com/developers/docs/reference#uploading-files: where nobody has paid for more."""
SUPPRESS_EMBEDS, SUPPRESS_NOTIFICATIONS = 1 << 2, 1 << 12
MESSAGES_PATH = "/channels/{channel_id}/messages"
MESSAGE_PATH = MESSAGES_PATH + "/{message_id}"


def message_content(text: str) -> dict[str, object]:
    """The content of a message, which calls nobody."""
    return {"content": text, "allowed_mentions": {"parse": []}}


class DiscordOutgoing:
    """The way out of one account, whatever is connected just now."""

    def __init__(self, *, link_previews: bool) -> None:
        self.flags = 0 if link_previews else SUPPRESS_EMBEDS
        """What all our messages have."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Channel -> its turn: requests on several connections would overtake each other."""

    async def send(
        self, api: "DiscordRestClient", answers: "InteractionResponder", part: Part, going: BeforeSend
    ) -> Receipt:
        """As `Channel.send`."""
        channel = parse_channel_id(part.to)
        if part.file is not None and len(part.file.data) > MAX_FILE_BYTES:
            raise Rejected(f"Discord takes files of at most {MAX_FILE_BYTES} bytes")
        turn = self._locks.setdefault(channel, asyncio.Lock())
        async with turn:  # asyncio locks are fair: who came first goes first
            return await self._send(api, answers, part, _call_once(going))

    async def _send(
        self, api: "DiscordRestClient", answers: "InteractionResponder", part: Part, going: BeforeSend
    ) -> Receipt:
        content = message_content(part.body)
        if part.private or (part.reply_to is not None and not parse_id(part.reply_to)):
            # An answer to a command takes only this flag.
            answered = await answers.send(part, content | {"flags": self.flags}, going)
            if answered is not None:
                return answered
        flags = self.flags | (SUPPRESS_NOTIFICATIONS if part.style == "notice" else 0)
        content |= {"flags": flags, "nonce": message_nonce(part.key), "enforce_nonce": True}
        if part.reply_to is not None and (replied := parse_id(part.reply_to)):
            reply = {"message_id": replied, "fail_if_not_exists": False}
            try:
                return await self._post(api, part, content | {"message_reference": reply}, going)
            except DiscordRefused as refused:
                if refused.status != HTTPStatus.BAD_REQUEST:
                    raise
                # E.g. 160002: not without the right to read the history. The words matter more.
                logger.info("said without the reply: %s", refused.reason)
        return await self._post(api, part, content, going)

    async def _post(
        self, api: "DiscordRestClient", part: Part, content: dict[str, object], going: BeforeSend
    ) -> Receipt:
        where = parse_channel_id(part.to)
        return build_receipt(
            await api.call("POST", MESSAGES_PATH, json=content, file=part.file, going=going, channel_id=where)
        )


def _call_once(going: BeforeSend) -> BeforeSend:
    """The same, awaited the first time only: an answer that cannot be given becomes a message."""
    gone = asyncio.Event()

    async def first() -> None:
        if not gone.is_set():
            gone.set()
            await going()

    return first
