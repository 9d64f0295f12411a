"""From a message's content and what hangs on it to our Markdown. Pure.

Discord's markup is Markdown with references in angle brackets:
https://discord.com/developers/docs/reference#message-formatting. Inside code they are plain text.
"""

import re

from channels.discord.directory import DiscordDirectory
from channels.discord.ids import get_snowflake
from channels.payload import Json, get_object, get_objects, get_str
from channels.text import clean_name

_REFERENCE = re.compile(
    r"(?P<code>```.*?```|``.*?``|`[^`\n]+`)"
    r"|<@!?(?P<user>\d{1,20})>|<@&(?P<role>\d{1,20})>|<#(?P<channel>\d{1,20})>"
    r"|<a?:(?P<emoji>\w{1,64}):\d{1,20}>|</(?P<command>[^:<>\n]{1,110}):\d{1,20}>",
    re.DOTALL,
)
_MAX_EMBED_CHARS = 600
_MAX_EMBEDS = 3
_MAX_OPTIONS = 10


def mentions_us(content: str, me: str) -> bool:
    """Whether our mention stands in the text itself, outside of code."""
    return any(found["user"] == me for found in _REFERENCE.finditer(content)) if me else False


def resolve_references(content: str, people: dict[str, str], directory: DiscordDirectory) -> str:
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


def mentioned_names(message: Json) -> dict[str, str]:
    """The names of those that a message mentions."""
    return {
        get_snowflake(user, "id"): display_name(user, get_object(user, "member"))
        for user in get_objects(message, "mentions")
    }


def display_name(user: Json, member: Json) -> str:
    """As people see it; anybody can take any. Empty if there is none."""
    return clean_name(get_str(member, "nick") or get_str(user, "global_name") or get_str(user, "username"))


def extra_lines(message: Json, directory: DiscordDirectory, *, embeds: bool) -> list[str]:
    """What stands beside the text, as lines of text. `embeds`: the author may make some (people cannot)."""
    lines = []
    for snapshot in get_objects(message, "message_snapshots")[:_MAX_EMBEDS]:
        inner = get_object(snapshot, "message")
        shown = resolve_references(get_str(inner, "content"), mentioned_names(inner), directory)
        files = [f"[attachment: {get_str(file, 'filename')}]" for file in get_objects(inner, "attachments")]
        lines.append(" ".join(["[forwarded]", *([shown] if shown else []), *files]))
    kinds = ("sticker_items", "stickers")
    stickers = next((found for kind in kinds if (found := get_objects(message, kind))), [])
    lines += [f"[sticker: {get_str(sticker, 'name')}]" for sticker in stickers]
    if poll := get_object(message, "poll"):
        answers = [
            get_str(get_object(answer, "poll_media"), "text") for answer in get_objects(poll, "answers")[:_MAX_OPTIONS]
        ]
        lines.append(f"[poll: {get_str(get_object(poll, 'question'), 'text')} - {' / '.join(answers)}]")
    if embeds:
        lines += [line for embed in get_objects(message, "embeds")[:_MAX_EMBEDS] if (line := _embed_text(embed))]
    return lines


def _embed_text(embed: Json) -> str:
    if get_str(embed, "type") not in {"", "rich"}:  # the others are previews of links that stand in the text
        return ""
    fields = [
        f"{get_str(field, 'name')}: {get_str(field, 'value')}" for field in get_objects(embed, "fields")[:_MAX_OPTIONS]
    ]
    shown = " - ".join(
        part for part in (get_str(embed, "title"), get_str(embed, "description"), *fields) if part.strip()
    )
    return shown[:_MAX_EMBED_CHARS] + ("…" if len(shown) > _MAX_EMBED_CHARS else "")
