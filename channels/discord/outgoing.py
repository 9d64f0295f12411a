"""Messages to Discord, in order in each channel, and our Markdown in Discord's dialect.

A message has a nonce, so that Discord drops repeats; an answer to a command goes through its
interaction instead.

Discord's Markdown (https://support.discord.com/hc/en-us/articles/210298617) has no tables, no
pictures, headings to the third level, and fences of exactly three backticks. Whom a mention
notifies is decided by `allowed_mentions`, not by the rendering.
"""

import asyncio
import logging
import re
from collections.abc import Sequence
from functools import partial
from html import unescape
from http import HTTPStatus
from itertools import zip_longest
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from channels.base import (
    Announce,
    BeforeSend,
    Denied,
    MayNotPost,
    OutgoingFile,
    PostPart,
    Rejected,
    Uncertain,
    Unreachable,
    is_provisional,
    no_before_send,
    provisional_hint,
    provisional_id,
)
from channels.commonmark import MATHS, TABLE_RULE, format_table, split_cells
from channels.discord.directory import DiscordDirectory
from channels.discord.ids import message_nonce, parse_id
from channels.discord.wire import (
    DiscordRefused,
    build_receipt,
    parse_channel_id,
    parse_message,
    parse_message_id,
    parse_reply_id,
    thread_title,
)
from channels.split import split_markdown
from channels.text import clean_outgoing, get_object
from gateway.core.clock import Clock, id_created_at, new_id
from gateway.core.events import Address, MessageId, PlaceNames, PostButton, Receipt, Sender

if TYPE_CHECKING:
    from channels.discord.interactions import InteractionResponder
    from channels.discord.rest import DiscordRestClient

logger = logging.getLogger("reverie.discord")


MAX_CONTENT_UNITS = 2000
"""https://discord.com/developers/docs/resources/message#create-message says characters, not which;
counted in UTF-16 units, which is never less."""
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^`\n]*)")
_SPECIAL = re.compile(
    r"((?<!`)`++[^`\n]+`+|\\[^\w\s(\[])|!(\[[^\[\]\n]*\]\()|&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z][A-Za-z\d]{1,31});|"
    + MATHS.pattern
)
"""Code or an escaped character, the beginning of a picture, a character reference, or
mathematics."""
_FORMATS = re.compile(r"[*_~|`\\]")
_MATHS_BLOCKS = {"\\[": "\\]", "$$": "$$"}
"""First line of mathematics in LaTeX -> its last one."""
_MAX_TABLE_COLUMNS = 100
"""Width in characters: a wider table is wrapped by the clients in any case."""


def render_bodies(text: str) -> tuple[str, ...]:
    """Return messages that show `text`, each within the limit, none blank; none for blank text."""
    return split_markdown(render(text), MAX_CONTENT_UNITS)


def render(text: str) -> str:
    """Return `text` in Discord's Markdown. Code is never changed, only its fences."""
    lines = clean_outgoing(text).split("\n")
    rendered: list[str] = []
    last_at = {line.strip(): index for index, line in enumerate(lines)}
    index = 0
    while index < len(lines):
        if found := _FENCE.fullmatch(lines[index]):
            end = _find_fence_end(lines, index, found[2])
            rendered += _code_block(lines[index + 1 : end], found[3].strip())
            index = end + 1
        elif (
            index + 1 < len(lines)
            and "|" in lines[index]
            and TABLE_RULE.fullmatch(lines[index + 1].rstrip())
        ):
            end = next((n for n in range(index + 1, len(lines)) if "|" not in lines[n]), len(lines))
            rendered += _render_table(lines[index:end])
            index = end
        elif last_at.get(last := _MATHS_BLOCKS.get(lines[index].strip(), "\n"), -1) > index:
            end = next(n for n in range(index + 1, len(lines)) if lines[n].strip() == last)
            rendered += [_FORMATS.sub(r"\\\g<0>", line) for line in lines[index : end + 1]]
            index = end + 1
        else:
            rendered.append(_render_line(lines[index]))
            index += 1
    return "\n".join(rendered)


def _render_line(line: str) -> str:
    if found := re.fullmatch(r" {0,3}#{4,6} +(.+?)(?: +#+)?", line.rstrip()):
        return f"**{found[1]}**" if "**" not in found[1] else found[1]
    return _SPECIAL.sub(_render_special, line)


def _render_special(found: re.Match[str]) -> str:
    if found[1] or found[2]:
        return found[1] or found[2]
    if found[0].startswith(("\\", "$")):  # Discord would take the backslashes for escapes
        return (
            _FORMATS.sub(r"\\\g<0>", found[0])
            if "\\" in found[0] or found[0].startswith("$$")
            else found[0]
        )
    return _decode_entity(found[0])


def _decode_entity(entity: str) -> str:
    """Return the character that a character reference stands for (CommonMark, 2.5): Discord shows
    it as it is written.

    What would format the text is escaped.
    """
    char = unescape(entity)
    if char.isspace():
        return " "
    if not char.isprintable():
        return entity
    return f"\\{char}" if char in "*_~|`\\" else char


def _find_fence_end(lines: list[str], start: int, marks: str) -> int:
    """Return the index of the closing line; after the last one if there is none (CommonMark,
    4.5).
    """
    for index in range(start + 1, len(lines)):
        found = _FENCE.fullmatch(lines[index].rstrip())
        if (
            found
            and found[2][0] == marks[0]
            and len(found[2]) >= len(marks)
            and not found[3].strip()
        ):
            return index
    return len(lines)


def _code_block(code: list[str], language: str) -> list[str]:
    # Discord ends the block at the first three backticks, so zero-width characters separate them.
    safe = [line.replace("```", "`\u200b`\u200b`") for line in code]
    return [f"```{language}", *safe, "```"] if any(line.strip() for line in code) else []


def _render_table(lines: list[str]) -> list[str]:
    """Return a table as a block with columns of equal width; a wide one as records, a cell in each
    line.
    """
    shown = format_table(lines)
    if max(map(len, shown)) <= _MAX_TABLE_COLUMNS:
        return _code_block(shown, "")
    names, *rows = map(split_cells, (lines[0], *lines[2:]))
    return [
        _render_line(f"{'- ' if not at else '  '}{f'{name}: ' if name else ''}{cell}")
        for row in rows or [names]
        for at, (name, cell) in enumerate(zip_longest(names if rows else (), row, fillvalue=""))
        if cell
    ]


MAX_FILE_BYTES: Final = 10 * 2**20
"""https://discord.com/developers/docs/reference#uploading-files: the limit without a paid plan."""
SUPPRESS_EMBEDS, SUPPRESS_NOTIFICATIONS = 1 << 2, 1 << 12
RESEND_WINDOW_S: Final = 120.0
"""https://discord.com/developers/docs/resources/message#create-message: an enforced nonce is unique
`in the past few minutes`; that is at least two."""
_HAS_THREAD, _WRONG_CHANNEL_TYPE, _ARCHIVED = 160004, 50024, 50083
_REPLY_REFUSED: Final = 50035, 160002
"""https://discord.com/developers/docs/topics/opcodes-and-status-codes#json"""
_NO_POSTING: Final = {
    50001: "",  # missing access
    50013: "",  # missing permissions
    10003: "the channel is gone",
    50007: "that person takes no direct messages from it",
    50278: "that person shares no server with it",
    50083: "the thread is archived",
    160005: "the thread is locked",
}
"""Codes of refusals that hold for every message in a channel, and what people can do; empty: the
directory knows."""
MESSAGES_PATH = "/channels/{channel_id}/messages"
MESSAGE_PATH = MESSAGES_PATH + "/{message_id}"


def message_content(text: str, notify: Sequence[Sender] = ()) -> dict[str, object]:
    """Return the content of a message, which notifies whom it replies to, and who of `notify` is
    mentioned in it.

    https://discord.com/developers/docs/resources/message#allowed-mentions-object
    """
    users = [one.id for one in notify if _mention(one) in text]
    return {
        "content": text,
        "allowed_mentions": {"parse": [], "users": users, "replied_user": True},
    }


def _mention(person: Sender) -> str:
    return f"<@{person.id}>"


def mention_notified(text: str, people: Sequence[Sender]) -> str:
    """Return a text that replies to nobody with mentions of these people in front; one begins with
    their name.
    """
    if len(people) == 1 and (
        named := re.match(rf"@?{re.escape(people[0].name)}(?!\w)", text, re.IGNORECASE)
    ):
        return _mention(people[0]) + text[named.end() :]
    missing = [_mention(one) for one in people if _mention(one) not in text]
    gap = " " if text[:1].isalpha() else "\n"  # else it may be the beginning of a list or a block
    return f"{' '.join(missing)}{gap}{text}" if missing else text


_ACTION_ROW, _BUTTON, _GREY = 1, 2, 2
"""https://discord.com/developers/docs/components/reference: types of components, and a style of
buttons."""


def build_components(buttons: Sequence[PostButton]) -> list[dict[str, object]]:
    """Return the components of a message: one row with these buttons; none for none."""
    row = [
        {"type": _BUTTON, "style": _GREY, "label": button.label, "custom_id": button.command}
        for button in buttons
    ]
    return [{"type": _ACTION_ROW, "components": row}] if row else []


class DiscordOutgoing:
    """Outgoing messages of one run."""

    def __init__(
        self,
        clock: Clock,
        directory: DiscordDirectory,
        api: "DiscordRestClient",
        interactions: "InteractionResponder",
        *,
        link_previews: bool,
    ) -> None:
        self._clock, self._directory = clock, directory
        self._api, self._interactions = api, interactions
        self.flags = 0 if link_previews else SUPPRESS_EMBEDS
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Channel -> lock: concurrent requests could overtake each other."""

    async def send(self, part: PostPart, before_send: BeforeSend) -> Receipt:
        channel = parse_channel_id(part.to, self._directory)
        if part.file is not None and len(part.file.data) > MAX_FILE_BYTES:
            raise Rejected(f"Discord takes files of at most {MAX_FILE_BYTES} bytes")
        lock = self._locks.setdefault(channel, asyncio.Lock())
        async with lock:  # asyncio locks are first in, first out
            try:
                return await self._send(part, _call_once(before_send))
            except (
                Denied
            ) as error:  # the gateway's side confirms whether the token is really refused
                raise Unreachable(error.reason) from None
            except DiscordRefused as error:
                if error.code not in _NO_POSTING or part.file is not None:
                    raise
                remedy = _NO_POSTING[error.code] or self._directory.describe_missing_rights(part.to)
                raise MayNotPost(f"{error.reason}: {remedy}") from error

    async def _send(self, part: PostPart, before_send: BeforeSend) -> Receipt:
        content = message_content(part.body, part.notify)
        if part.buttons:
            content["components"] = build_components(part.buttons)
        if part.replaces is not None:
            return await self._edit(part, part.replaces, before_send)
        if part.finishes is not None:
            try:
                preview = part.finishes
                if is_provisional(preview):
                    preview = await self.find_preview(
                        part.to, preview, part.body, before_send=before_send
                    )
                return await self._finish(part, preview, before_send)
            except DiscordRefused as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                logger.info("a preview cannot become the answer: %s", error.reason)
        if part.private or (part.reply_to is not None and not parse_reply_id(part.reply_to)):
            # An answer to a command accepts only this flag.
            answer = content | {"flags": self.flags}
            answered = await self._interactions.send(part, answer, before_send)
            if answered is not None:
                return answered
        flags = self.flags | (SUPPRESS_NOTIFICATIONS if part.style == "notice" else 0)
        content |= {"flags": flags, "nonce": message_nonce(part.key), "enforce_nonce": True}
        title = part.thread_title
        return await self._post(
            part.to,
            content,
            part.reply_to,
            file=part.file,
            title=title,
            before_send=before_send,
        )

    async def begin_preview(
        self,
        at: Address,
        text: str,
        reply_to: MessageId | None,
        announce: Announce,
    ) -> MessageId:
        """Send the message of a preview. Raises a `SendError`."""
        preview = provisional_id(new_id(self._clock.now()))
        return await self.find_preview(
            at, preview, text, reply_to, before_send=_call_once(partial(announce, preview))
        )

    async def find_preview(
        self,
        at: Address,
        preview: MessageId,
        text: str,
        reply_to: MessageId | None = None,
        *,
        before_send: BeforeSend = no_before_send,
    ) -> MessageId:
        """Return the id of the preview with this provisional id. If it is not there, it is sent
        with this text.

        Raises `DiscordRefused` with 404 if that cannot be told any more.
        """
        key = provisional_hint(preview)
        begun = id_created_at(key)
        if begun is None or not 0 <= (self._clock.now() - begun).total_seconds() < RESEND_WINDOW_S:
            raise DiscordRefused(
                "nobody knows whether a preview is there", status=HTTPStatus.NOT_FOUND
            )
        content = message_content(text) | {
            "flags": self.flags,
            "nonce": message_nonce(key),
            "enforce_nonce": True,
        }
        for tries_left in reversed(range(3)):
            try:
                receipt = await self._post(
                    at, content, reply_to, again=False, before_send=before_send
                )
            except Uncertain:
                if not tries_left:
                    raise
            else:
                if receipt.ids:
                    return receipt.ids[0]
        raise Uncertain("Discord: an answer without the id of the message")

    async def _finish(self, part: PostPart, preview: MessageId, before_send: BeforeSend) -> Receipt:
        """Make the preview the part. A thread that was archived meanwhile is opened again, as a new
        message would do.

        https://discord.com/developers/docs/resources/channel#modify-channel-json-params-thread
        """
        try:
            return await self._edit(part, preview, before_send)
        except DiscordRefused as error:
            if error.code != _ARCHIVED:
                raise
            thread, opened = parse_channel_id(part.to, self._directory), {"archived": False}
            try:
                await self._api.call(
                    "PATCH", "/channels/{channel_id}", json=opened, channel_id=thread
                )
            except DiscordRefused:  # it is locked
                raise error from None
            return await self._edit(part, preview, before_send)

    async def _edit(self, part: PostPart, message: MessageId, before_send: BeforeSend) -> Receipt:
        return build_receipt(
            await self._api.call(
                "PATCH",
                MESSAGE_PATH,
                json=message_content(part.body, part.notify)
                | {"components": build_components(part.buttons)},
                before_send=before_send,
                channel_id=parse_channel_id(part.to, self._directory),
                message_id=parse_message_id(message),
            )
        )

    async def _open_thread(self, at: Address, title: str) -> None:
        """Open the thread of a place, unless it is there. Where that is not possible, its messages
        stand in the room.

        It has the id of the message that it is made of, so opening it again changes nothing.
        https://discord.com/developers/docs/resources/channel#start-thread-from-message
        """
        if (
            at.thread is None
            or not self._directory.is_unopened(at)
            or at.thread in self._directory.unopened
        ):
            return
        room, message = parse_id(at.room), parse_id(at.thread)
        try:
            if not title:
                found = get_object(
                    {
                        "d": await self._api.call(
                            "GET", MESSAGE_PATH, channel_id=room, message_id=message
                        )
                    },
                    "d",
                )
                title = thread_title("", parse_message(found, self._directory))
            name = {"name": thread_title(title, None), "auto_archive_duration": 1440}
            path = f"{MESSAGE_PATH}/threads"
            try:
                thread = await self._api.call(
                    "POST", path, json=name, channel_id=room, message_id=message
                )
            except DiscordRefused as error:
                if error.code != _HAS_THREAD:
                    raise
                path = "/channels/{channel_id}"
                thread = await self._api.call("GET", path, channel_id=message)
        except DiscordRefused as error:
            if error.status == HTTPStatus.NOT_FOUND or error.code == _WRONG_CHANNEL_TYPE:
                return  # it is an archived one that was made of no message, or the message is gone
            logger.warning(
                "Discord does not let me open threads in %s, so I answer in the channel: %s (a "
                "thread needs the permissions Create Public Threads and Send Messages in Threads)",
                (self._directory.place_names(at) or PlaceNames()).room or at.room,
                error.reason,
            )
            self._directory.unopened.put(at.thread, at.room)
            return
        except Uncertain as error:
            raise Unreachable(error.reason) from error  # the message itself was surely not sent
        self._directory.add_channel(get_object({"d": thread}, "d"), self._directory.guild_of(room))

    async def _post(
        self,
        at: Address,
        content: dict[str, object],
        reply_to: MessageId | None,
        *,
        file: OutgoingFile | None = None,
        again: bool = True,
        title: str = "",
        before_send: BeforeSend,
    ) -> Receipt:
        await self._open_thread(at, title)
        channel = parse_channel_id(at, self._directory)
        post = partial(
            self._api.call,
            "POST",
            MESSAGES_PATH,
            file=file,
            again=again,
            before_send=before_send,
            channel_id=channel,
        )
        replied = parse_reply_id(reply_to)
        if replied and parse_channel_id(at, self._directory, MessageId(replied)) == channel:
            reply = {"message_id": replied, "fail_if_not_exists": False}
            try:
                return build_receipt(await post(json=content | {"message_reference": reply}))
            except DiscordRefused as error:
                if error.code not in _REPLY_REFUSED:
                    raise  # e.g. AutoMod, which tells moderators of each attempt
                # 160002: a reply needs the right to read the history. The text matters more.
                logger.info("said without the reply: %s", error.reason)
        return build_receipt(await post(json=content))


def _call_once(before_send: BeforeSend) -> BeforeSend:
    """Return a callback that awaits `before_send` the first time only.

    It is used twice if a failed answer to a command becomes a message.
    """
    is_called = asyncio.Event()

    async def first() -> None:
        if not is_called.is_set():
            is_called.set()
            await before_send()

    return first
