"""Command parser: finds a command in a message, and parses its arguments by the table. Pure.

A command is the prefix and a known name at the start of a message, or after the bot's own name in
it. Some messages to the bot alone need no prefix: `more` (in a room also unaddressed, after a page
of a long answer), `again`, the question whether it is a person, and an exact command of the table
(`reverie: dmn pause`), without arguments.

Arguments are the same text everywhere: written on IRC, or native options joined to one line
(channels/discord).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from typing import Final

from channels.base import CommandArg
from gateway.access.texts import is_formatted_code
from gateway.commands.definition import CommandDefinition
from gateway.core.events import Command, EventId, Message
from gateway.core.frozen import frozen
from gateway.core.i18n import _
from gateway.core.text_safety import one_line
from gateway.store.format import HIDDEN_VALUE, is_request_id

MAX_QUOTED_CHARS: Final = 40
_WORD: Final = re.compile(
    r"""\s*(?:"((?:[^"\\]|\\.)*)"(?!\S)|[“„”]([^“„”"]*)[“”](?!\S)|`([^`\s]+)`(?!\S)|(\S+))""",
    re.DOTALL,
)
"""A word.

In quotes it may contain spaces, and may be empty, which means not given; phones use their own
quotes. Ids are shown as code, and may be returned in that form.
"""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


@frozen
class ParsedArguments:
    """Valid arguments of a command."""

    sub: CommandDefinition | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Values by argument name, without those that were not given."""


@frozen
class InvalidArguments:
    """Arguments that do not fit the table."""

    reason: str
    """A sentence of Markdown."""
    sub: CommandDefinition | None = None
    """Subcommand that was meant. None: none, or the command has none."""
    suggestions: tuple[str, ...] = ()


def parse_arguments(row: CommandDefinition, text: str) -> ParsedArguments | InvalidArguments:
    """Parse the text after a command's name."""
    word, end = next(_split_words(text), ("", 0))
    sub = named = row.find_sub(word.lower())
    if sub is None and row.subs and row.handler is None:
        sub = row.find_sub(row.default_sub) if word else row.subs[0]
        if sub is None:
            near = get_close_matches(word.lower(), [one.name for one in row.subs], n=3, cutoff=0.5)
            reason = _("There is no `{name}`.").format(name=f"{row.name} {quote_code(word)}")
            return InvalidArguments(reason=reason, suggestions=tuple(near))
    given = _parse_args((sub or row).args, text[end:] if named else text)
    return (
        InvalidArguments(reason=given, sub=sub)
        if isinstance(given, str)
        else ParsedArguments(sub=sub, arguments=given)
    )


def join_words(row: CommandDefinition, words: Sequence[str]) -> str:
    """Return words, as a shell has split them, as a line that `parse_arguments` splits in the same
    way.
    """
    named = row.find_sub(words[0].lower()) if words else None
    args = (named or row.find_sub(row.default_sub) or row).args
    rest = next(
        (number for number, arg in enumerate(args, start=int(named is not None)) if arg.rest),
        len(words),
    )
    return " ".join(
        word
        if number >= rest or re.fullmatch(r"""[^\s"“”„`\\]+""", word)
        else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'
        for number, word in enumerate(words)
    )


def mask_secrets(row: CommandDefinition, text: str) -> str:
    """Return the text without secrets, for records. Invalid arguments are hidden if they could
    contain a secret.
    """
    parsed = parse_arguments(row, text)
    everything = [*row.args, *(arg for sub in row.subs for arg in sub.args)]
    if isinstance(parsed, ParsedArguments):
        given = [
            (arg, parsed.arguments[arg.name])
            for arg in (parsed.sub or row).args
            if arg.name in parsed.arguments
        ]
        shown = [
            HIDDEN_VALUE if arg.secret and not is_request_id(value) else value
            for arg, value in given
        ]
        return " ".join([parsed.sub.name, *shown] if parsed.sub is not None else shown)
    if not any(arg.secret for arg in everything):
        return " ".join(text.split())
    return f"{parsed.sub.name} {HIDDEN_VALUE}" if parsed.sub is not None else HIDDEN_VALUE


def escape_code(text: str) -> str:
    """Return a text that cannot end the code around it."""
    return text.replace("`", "'")


def quote_code(text: str, most: int = MAX_QUOTED_CHARS) -> str:
    """Return a text to put between backticks: it cannot end them, and is one short line."""
    return one_line(escape_code(text), most)


def _split_words(text: str) -> Iterator[tuple[str, int]]:
    for found in _WORD.finditer(text):
        quoted, curly, coded, bare = found.groups()
        word = (
            _ESCAPED.sub(r"\1", quoted)
            if quoted is not None
            else curly
            if curly is not None
            else coded or bare
        )
        yield " ".join(word.split()), found.end()


def _parse_args(args: Sequence[CommandArg], text: str) -> dict[str, str] | str:
    given = dict[str, str]()
    words, end = _split_words(text), 0
    for arg in args:
        if arg.rest:
            value, end = text[end:].strip(), len(text)
        else:
            value, end = next(words, ("", end))
        if wrong := _find_error(arg, value):
            return wrong
        if value:
            given[arg.name] = value.lower() if arg.choices else value
    if left := text[end:].split():
        return _("`{word}` is one word too many.").format(word=quote_code(left[0]))
    return given


def _find_error(arg: CommandArg, value: str) -> str:
    if not value:
        return _("`{name}` is missing.").format(name=arg.name) if arg.required else ""
    if arg.choices and value.lower() not in arg.choices:
        choices = join_or([f"`{choice}`" for choice in arg.choices])
        return _("Write {choices}, not `{word}`.").format(word=quote_code(value), choices=choices)
    if arg.number and not re.fullmatch(r"[0-9]{1,18}", value):
        return _("`{name}` must be a number, not `{word}`.").format(
            name=arg.name, word=quote_code(value)
        )
    if (most := getattr(arg, "most", 0)) and not 1 <= int(value) <= most:
        return _("`{name}` must be a number from 1 to {most}.").format(name=arg.name, most=most)
    return ""


def join_or(names: Sequence[str]) -> str:
    """Return the names as a choice, in words."""
    return (
        names[0]
        if len(names) == 1
        else _("{first} or {last}").format(first=", ".join(names[:-1]), last=names[-1])
    )


_ADDRESSED = re.compile(r"(?:@(\S{1,64}?)[:,]?|(\S{1,64})[:,])\s+(?=\S)")
"""`reverie: `, `reverie, ` or `@reverie ` before a text that is addressed to it."""
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,31})(?:\s+(.*))?", re.DOTALL)
_MORE = re.compile(
    r"(?:please,?\s+)?(more|again)(?:,?\s+(?:please|pls|plz))?\s*[.!?…]*", re.IGNORECASE
)
_QUESTION_CHARS = 120
"""Longest question that counts: in a longer text it is part of a conversation."""

_REAL = r"(?:(?:actual|real|live|living)\s+)*"
_SPEAKER = (
    r"(?:bot|robot|chat ?bot|irc bot|ai bot|a\.?i\.?|llm|language model|automated|artificial "
    r"intelligence"
    r"|human(?: being)?|person)"
)
_KIND = (
    r"(?:(?:an?|the|some (?:kind|sort) of|just "
    rf"an?)\s+)?{_REAL}(?:{_SPEAKER}|machine|computer|program|script)"
)
_OR = rf"(?:,?\s+or\s+(?:(?:just|to|with)\s+)?{_KIND})?"
_EITHER = _KIND + _OR
_ADVERBS = r"(?:(?:really|actually|just|even)\s+)*"
_GREETING = r"(?:(?:hey|hi|hello|so|wait|but|um+|ok|okay|sorry)[,.!]*\s+)*"
_TAIL = r"(?:,?\s+(?:right|then|btw|by the way)|,\s*@?[^\s,?]{1,64})?[\s?!.]*"
_QUESTIONS = tuple(
    rf"{_GREETING}{asked}{_TAIL}"
    for asked in (
        rf"(?:are|r)\s+(?:you|u|ya)\s+{_ADVERBS}(?:real|{_EITHER})",
        rf"(?:am|are)\s+(?:i|we)\s+{_ADVERBS}(?:talking|speaking|chatting|writing)\s+(?:to|with)\s+{_EITHER}",
        # `this program` is another one
        rf"is\s+this\s+{_ADVERBS}(?:(?:just\s+)?an?\s+)?{_REAL}{_SPEAKER}{_OR}",
        # without the mark it is no question
        rf"(?:you\s+are|you\W?re|ur)\s+{_ADVERBS}{_KIND}(?:,?\s+right)?\s*\?",
        r"(?:bot|robot|ai|machine)\s+or\s+(?:human|person)",
        r"(?:human|person)\s+or\s+(?:bot|robot|ai|machine)",
        r"bist\s+du\s+(?:wirklich\s+)?(?:eine?\s+)?(?:bot|roboter|mensch|ki)",
        r"(?:(?:es|est)[\s-]+tu|(?:est[\s-]+ce\s+que\s+)?tu\s+es)\s+(?:vraiment\s+)?une?\s+(?:bot|robot|ia|humain|personne)",
        r"¿?\s*eres\s+(?:un\s+|una\s+)?(?:bot|robot|ia|humano|persona)",
        r"ты\s+(?:бот|робот|человек|ии)",
    )
)
"""Compiled (8 ms) at the first text that is short enough, and kept by `re`."""


@frozen
class ParsedCommand:
    """A message that is a command."""

    command: Command
    only_if_more: bool = False
    """It is one only if a next page can be shown; else an ordinary message."""
    is_unaddressed: bool = False
    """It is addressed to nobody, so it is one only if that page was shown just now."""
    only_if_allowed: bool = False
    """It is one only if its sender may use it; else an ordinary message."""


def begins_with_nick(text: str, nick: str) -> bool:
    """Return whether a line begins with the nick as a word of its own, whatever its case, also as
    `@nick`.
    """
    start = text.lstrip(" \t*_`").removeprefix("@").casefold()
    return (
        re.match(rf"{re.escape(nick.casefold())}(?![\w\[\]{{}}\\|^`-])", start, re.ASCII)
        is not None
    )


def narrow_mention(message: Message, nicks: Iterable[str]) -> Message:
    """Return a mention as an ordinary line unless it begins with a nick of ours, or is a reply.

    Only where a nick is how people address the bot: elsewhere the platform says who is mentioned.
    """
    if message.kind != "mention" or message.reply_to is not None:
        return message
    is_called = any(begins_with_nick(message.text, nick) for nick in nicks)
    return message if is_called else replace(message, kind="room")


def parse_command(
    message: Message,
    prefix: str,
    rows: Mapping[str, CommandDefinition],
    ours: Collection[str] | None = None,
) -> ParsedCommand | None:
    """Return the command that a message is; None: an ordinary message. `rows`: by every known name.

    Without a `prefix` there are no prefixed commands. An unknown name is a command only in a direct
    chat, where nobody else can be meant. `ours`: the bot's names there, folded by `str.casefold`;
    None: nothing is a command there without its prefix.
    """
    if message.sender.is_bot:
        return None
    text = message.text.strip()
    addressed = message.kind != "room"
    called = _ADDRESSED.match(text)
    body = text[called.end() :] if message.kind == "mention" and called else text
    found = _NAME.fullmatch(body[len(prefix) :]) if prefix and body.startswith(prefix) else None
    if found is not None:
        name = found[1].lower()
        if name in rows or message.kind == "direct":
            return ParsedCommand(command=_build_command(message, name, (found[2] or "").strip()))
    if (word := _MORE.fullmatch(body)) and (addressed or word[1].lower() == "more"):
        return ParsedCommand(
            command=_build_command(message, word[1].lower(), ""),
            only_if_more=True,
            is_unaddressed=not addressed,
        )
    about_us = not message.attachments and (message.reply_to is None or message.kind != "mention")
    if addressed and about_us and asks_for_disclosure(body):
        return ParsedCommand(command=_build_command(message, "about", ""))
    if prefix and ours is not None and not message.attachments:
        return _parse_unprefixed(message, text, called, rows, ours)
    return None


def _parse_unprefixed(
    message: Message,
    text: str,
    called: re.Match[str] | None,
    rows: Mapping[str, CommandDefinition],
    ours: Collection[str],
) -> ParsedCommand | None:
    """Return the command that is addressed to the bot without a prefix: its name, or with that of a
    subcommand.
    """
    us = called is not None and (called[1] or called[2]).casefold() in ours
    if message.kind != "direct" and not (us and message.kind == "mention"):
        return None
    name, *sub = (text[called.end() :] if called and us else text).lower().split() or [""]
    row = rows.get(name)
    if row is None or [name, *sub] == ["why"]:  # as people begin a question
        return None
    if name not in (row.name, *SHORTCUTS):
        return None
    if sub and (len(sub) > 1 or row.find_sub(sub[0]) is None):
        return None
    if isinstance(parse_arguments(row, " ".join(sub)), InvalidArguments):
        return None
    return ParsedCommand(command=_build_command(message, name, " ".join(sub)), only_if_allowed=True)


def asks_for_disclosure(text: str) -> bool:
    """Return whether this asks if a machine is speaking, and nothing else."""
    text = text.strip()
    return len(text) <= _QUESTION_CHARS and any(
        re.fullmatch(question, text, re.IGNORECASE) for question in _QUESTIONS
    )


def find_nearest(name: str, names: Collection[str]) -> list[str]:
    """Return known names that may have been meant, the likeliest first."""
    return get_close_matches(name.lower(), sorted(names), n=3, cutoff=0.6)


SHORTCUTS: Final[Mapping[str, tuple[str, str]]] = {
    "pause": ("dmn", "pause"),
    "quiet": ("dmn", "quiet"),
    "wake": ("dmn", "wake"),
}
"""Words that people try, each with the command and the subcommand that they stand for. Aliases of
the command, too."""


def expand_shortcut(name: str, args: str) -> tuple[str, str]:
    """Return the command that is meant, and its arguments."""
    command, *sub = SHORTCUTS.get(name, (name,))
    return command, " ".join([*sub, args]).strip()


def expand_command(command: Command) -> Command:
    """Return the command that a native one stands for: a shortcut, or a link `t.me/BOT?start=CODE`,
    which hands in a code of `link`.

    A code of somebody else's request approves nothing so: whoever makes the link is not who opens
    it.
    """
    if command.name == "start" and is_formatted_code(command.args):
        return replace(command, name="link", args=f"code {command.args}")
    name, args = expand_shortcut(command.name, command.args)
    return replace(command, name=name, args=args)


def _build_command(message: Message, name: str, args: str) -> Command:
    name, args = expand_shortcut(name, args)
    return Command(
        id=EventId(message.id),
        at=message.at,
        sender=message.sender,
        name=name,
        args=args,
        sent=message.sent,
        origin="text",
        direct=message.kind == "direct",
        language=message.language,
    )
