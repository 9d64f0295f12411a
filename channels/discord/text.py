"""From a message's content and what hangs on it to our Markdown. Pure.

Discord's markup is Markdown with references in angle brackets:
https://discord.com/developers/docs/reference#message-formatting. Inside code they are plain text.
"""

import re

from channels.discord.directory import Directory
from channels.discord.ids import snowflake
from channels.payload import Json, obj, objs, string
from channels.text import name

_REFERENCE = re.compile(
    r"(?P<code>```.*?```|``.*?``|`[^`\n]+`)"
    r"|<@!?(?P<user>\d{1,20})>|<@&(?P<role>\d{1,20})>|<#(?P<channel>\d{1,20})>"
    r"|<a?:(?P<emoji>\w{1,64}):\d{1,20}>|</(?P<command>[^:<>\n]{1,110}):\d{1,20}>",
    re.DOTALL,
)
_EMBED_CHARACTERS = 600
_EMBEDS = 3
_OPTIONS = 10


def names_us(content: str, me: str) -> bool:
    """Whether our mention stands in the text itself, outside of code."""
    return any(found["user"] == me for found in _REFERENCE.finditer(content)) if me else False


def readable(content: str, people: dict[str, str], directory: Directory) -> str:
    """`content` with names in place of ids. `people`: user id to name."""

    def name(found: re.Match[str]) -> str:
        if found["user"]:
            return f"@{people.get(found['user']) or found['user']}"
        if found["role"]:
            return f"@{directory.role_name(found['role']) or 'role'}"
        if found["channel"]:
            return f"#{directory.channel_name(found['channel']) or found['channel']}"
        if found["emoji"]:
            return f":{found['emoji']}:"
        return f"/{found['command']}" if found["command"] else found[0]

    return _REFERENCE.sub(name, content)


def people_in(message: Json) -> dict[str, str]:
    """The names of those that a message mentions."""
    return {snowflake(user, "id"): display_name(user, obj(user, "member")) for user in objs(message, "mentions")}


def display_name(user: Json, member: Json) -> str:
    """As people see it; anybody can take any. Empty if there is none."""
    return name(string(member, "nick") or string(user, "global_name") or string(user, "username"))


def beside(message: Json, directory: Directory, *, embeds: bool) -> list[str]:
    """What stands beside the text, as lines of text. `embeds`: the author may make some (people cannot)."""
    lines = []
    for snapshot in objs(message, "message_snapshots")[:_EMBEDS]:
        inner = obj(snapshot, "message")
        shown = readable(string(inner, "content"), people_in(inner), directory)
        files = [f"[attachment: {string(file, 'filename')}]" for file in objs(inner, "attachments")]
        lines.append(" ".join(["[forwarded]", *([shown] if shown else []), *files]))
    kinds = ("sticker_items", "stickers")
    stickers = next((found for kind in kinds if (found := objs(message, kind))), [])
    lines += [f"[sticker: {string(sticker, 'name')}]" for sticker in stickers]
    if poll := obj(message, "poll"):
        answers = [string(obj(answer, "poll_media"), "text") for answer in objs(poll, "answers")[:_OPTIONS]]
        lines.append(f"[poll: {string(obj(poll, 'question'), 'text')} - {' / '.join(answers)}]")
    if embeds:
        lines += [line for embed in objs(message, "embeds")[:_EMBEDS] if (line := _embed(embed))]
    return lines


def _embed(embed: Json) -> str:
    if string(embed, "type") not in {"", "rich"}:  # the others are previews of links that stand in the text
        return ""
    fields = [f"{string(field, 'name')}: {string(field, 'value')}" for field in objs(embed, "fields")[:_OPTIONS]]
    shown = " - ".join(part for part in (string(embed, "title"), string(embed, "description"), *fields) if part.strip())
    return shown[:_EMBED_CHARACTERS] + ("…" if len(shown) > _EMBED_CHARACTERS else "")
