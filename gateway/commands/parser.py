"""What stands behind a command's name, by the table. Pure.

The same text everywhere: as it is written on IRC, and as native options are put into a row (channels/discord).

Is a message meant for the gateway itself, and what is meant? Pure.

A command is the prefix and a known name at the beginning of a message, or of what follows the bot's own name in it.
Some things are understood without a prefix when they are said to the bot and nothing else is: `more` (in a room also
said to nobody, behind a page of a long answer), `again`, the question
whether it is a person, and what is word for word a command of the table (`reverie: dmn pause`).
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from channels.base import CommandArg
from gateway.commands.table import CommandDefinition, SubcommandDefinition
from gateway.core.events import Command, EventId, Message
from gateway.store.format import HIDDEN_VALUE, is_request_id

MAX_QUOTED_CHARS: Final = 40
"""Of what somebody wrote, as much is told back."""
_WORD: Final = re.compile(
    r"""\s*(?:"((?:[^"\\]|\\.)*)"(?!\S)|[“„”]([^“„”"]*)[“”](?!\S)|`([^`\s]+)`(?!\S)|(\S+))""", re.DOTALL
)
"""A word: in quotes it may have spaces and be empty, which stands for one that is not given; phones write their own
quotes. Ids are shown as code, and may come back so."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_UNAMBIGUOUS_FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    "number": _NUMBER,
    "id": re.compile(r"(?=[^ ]*[0-9])[A-Za-z0-9]{2,26}"),
    "word": re.compile(r"(?=\S*[-_./:0-9])[\w./:@*-]{1,100}"),
    "room": re.compile(r"[#&+][^\s,]{1,100}|[\w.-]{1,64}/[^\s/]{1,100}(?:/[^\s/]{1,100})?|-?[0-9]{5,20}"),
    "person": re.compile(r"[\w.-]{1,64}:[^\s]{1,200}"),
    "time": re.compile(r"(?:[0-9]{1,4}\s?(?:s|m|h|d|min|hours?|minutes?|days?)\s?){1,3}|[0-9]{1,2}:[0-9]{2}"),
}
"""What nobody writes in passing, by `CommandArg.form`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedArguments:
    """A right use of a command."""

    sub: SubcommandDefinition | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """By argument; what was not given is not there."""
    is_sub_named: bool = False
    """Its sub was named, and not only meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidArguments:
    """Something that does not fit the table."""

    reason: str
    """A sentence of Markdown."""
    sub: SubcommandDefinition | None = None
    """Which one it would have been. None: none, or it has none."""
    suggestions: tuple[str, ...] = ()
    """Subs that may have been meant."""


def parse_arguments(row: CommandDefinition, text: str) -> ParsedArguments | InvalidArguments:
    """What `text` says to this command."""
    if not row.subs:
        given = _parse_args(row.args, text)
        return InvalidArguments(reason=given) if isinstance(given, str) else ParsedArguments(arguments=given)
    first = next(_split_words(text), ("", 0))
    sub = row.find_sub(first[0].lower()) if first[0] else row.subs[0]
    named = sub is not None and bool(first[0])
    rest = text[first[1] :] if named else text
    if sub is None:
        sub = row.find_sub(row.default_sub)
    if sub is None:
        near = get_close_matches(first[0].lower(), [one.name for one in row.subs], n=3, cutoff=0.5)
        return InvalidArguments(reason=f"There is no `{row.name} {quote_code(first[0])}`.", suggestions=tuple(near))
    given = _parse_args(sub.args, rest)
    return (
        InvalidArguments(reason=given, sub=sub)
        if isinstance(given, str)
        else ParsedArguments(sub=sub, arguments=given, is_sub_named=named)
    )


def is_unambiguous(row: CommandDefinition, text: str, rows: Mapping[str, CommandDefinition]) -> bool:
    """Whether this can be meant as nothing but that command, though no prefix stands before it."""
    use = parse_arguments(row, text)
    if isinstance(use, InvalidArguments) or (row.subs and text.strip() and not use.is_sub_named):
        return False
    args = {arg.name: arg for arg in (use.sub.args if use.sub is not None else row.args)}
    if row.name == "help" and use.arguments:
        about = rows.get(use.arguments.get("command", "").lower())
        return about is not None and (
            "sub" not in use.arguments or about.find_sub(use.arguments["sub"].lower()) is not None
        )
    return all(_is_unambiguous_value(args[name], value) for name, value in use.arguments.items())


def mask_secrets(row: CommandDefinition, text: str) -> str:
    """The same without secrets, for records. What cannot be understood has none left if it could have had one."""
    use = parse_arguments(row, text)
    everything = [*row.args, *(arg for sub in row.subs for arg in sub.args)]
    if isinstance(use, ParsedArguments):
        args = use.sub.args if use.sub is not None else row.args
        given = [(arg, use.arguments[arg.name]) for arg in args if arg.name in use.arguments]
        shown = [HIDDEN_VALUE if arg.secret and not is_request_id(value) else value for arg, value in given]
        return " ".join([use.sub.name, *shown] if use.sub is not None else shown)
    if not any(arg.secret for arg in everything):
        return " ".join(text.split())
    return f"{use.sub.name} {HIDDEN_VALUE}" if use.sub is not None else HIDDEN_VALUE


def quote_code(text: str, most: int = MAX_QUOTED_CHARS) -> str:
    """Somebody's words, to stand between backticks: they cannot end them, and are one short line."""
    line = " ".join(text.split()).replace("`", "'")
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _split_words(text: str) -> Iterator[tuple[str, int]]:
    """Each word, and where it ends."""
    for found in _WORD.finditer(text):
        quoted, curly, coded, bare = found.groups()
        word = _ESCAPED.sub(r"\1", quoted) if quoted is not None else curly if curly is not None else coded or bare
        yield " ".join(word.split()), found.end()


def _parse_args(args: Sequence[CommandArg], text: str) -> dict[str, str] | str:
    """The arguments by name, or what is wrong with them."""
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
        return f"`{quote_code(left[0])}` is more than it takes."
    return given


def _find_error(arg: CommandArg, value: str) -> str:
    if not value:
        return f"`{arg.name}` is missing." if arg.required else ""
    if arg.choices and value.lower() not in arg.choices:
        return f"`{quote_code(value)}` is not {_format_choices(arg.choices)}."
    if arg.form == "number" and not _NUMBER.fullmatch(value):
        return f"`{arg.name}` is a number, and `{quote_code(value)}` is none."
    return ""


def _format_choices(choices: Sequence[str]) -> str:
    shown = [f"`{choice}`" for choice in choices]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _is_unambiguous_value(arg: CommandArg, value: str) -> bool:
    if arg.choices:
        return True
    if not arg.form:
        return arg.rest  # behind a room or a type, which nobody names in passing
    pattern = _UNAMBIGUOUS_FORMS.get(arg.form)
    return pattern is not None and pattern.fullmatch(value) is not None


_ADDRESSED = re.compile(r"(?:@(\S{1,64}?)[:,]?|(\S{1,64})[:,])\s+(?=\S)")
"""`reverie: `, `reverie, ` or `@reverie ` in front of what is said to it."""
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,31})(?:\s+(.*))?", re.DOTALL)
_MORE = re.compile(r"(?:please,?\s+)?(more|again)(?:,?\s+(?:please|pls|plz))?\s*[.!?…]*", re.IGNORECASE)
_QUESTION_CHARS = 120
"""A question that is asked in passing is part of a conversation; this one is short."""

_REAL = r"(?:(?:actual|real|live|living)\s+)*"
_SPEAKER = (
    r"(?:bot|robot|chat ?bot|irc bot|ai bot|a\.?i\.?|llm|language model|automated|artificial intelligence"
    r"|human(?: being)?|person)"
)
_KIND = rf"(?:(?:an?|the|some (?:kind|sort) of|just an?)\s+)?{_REAL}(?:{_SPEAKER}|machine|computer|program|script)"
_OR = rf"(?:,?\s+or\s+(?:(?:just|to|with)\s+)?{_KIND})?"
_EITHER = _KIND + _OR
_ADVERBS = r"(?:(?:really|actually|just|even)\s+)*"
_GREETING = r"(?:(?:hey|hi|hello|so|wait|but|um+|ok|okay|sorry)[,.!]*\s+)*"
_TAIL = r"(?:,?\s+(?:right|then|btw|by the way)|,\s*@?[^\s,?]{1,64})?[\s?!.]*"
_QUESTIONS = tuple(
    re.compile(rf"{_GREETING}{asked}{_TAIL}", re.IGNORECASE)
    for asked in (
        rf"(?:are|r)\s+(?:you|u|ya)\s+{_ADVERBS}(?:real|{_EITHER})",
        rf"(?:am|are)\s+(?:i|we)\s+{_ADVERBS}(?:talking|speaking|chatting|writing)\s+(?:to|with)\s+{_EITHER}",
        rf"is\s+this\s+{_ADVERBS}(?:(?:just\s+)?an?\s+)?{_REAL}{_SPEAKER}{_OR}",  # `this program` is another one
        rf"(?:you\s+are|you\W?re|ur)\s+{_ADVERBS}{_KIND}(?:,?\s+right)?\s*\?",  # without the mark it is no question
        r"(?:bot|robot|ai|machine)\s+or\s+(?:human|person)",
        r"(?:human|person)\s+or\s+(?:bot|robot|ai|machine)",
        r"bist\s+du\s+(?:wirklich\s+)?(?:eine?\s+)?(?:bot|roboter|mensch|ki)",
        r"(?:(?:es|est)[\s-]+tu|(?:est[\s-]+ce\s+que\s+)?tu\s+es)\s+(?:vraiment\s+)?une?\s+(?:bot|robot|ia|humain|personne)",
        r"¿?\s*eres\s+(?:un\s+|una\s+)?(?:bot|robot|ia|humano|persona)",
        r"ты\s+(?:бот|робот|человек|ии)",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCommand:
    """A message that is a command."""

    command: Command
    only_if_more: bool = False
    """It is one only if a next page is there to be shown; else an ordinary message."""
    overheard: bool = False
    """It was said to nobody by name, so it is one only if that page was shown just now."""
    only_if_allowed: bool = False
    """It is one only if whoever wrote it may use it; else an ordinary message."""


def parse_command(
    message: Message, prefix: str, rows: Mapping[str, CommandDefinition], ours: Collection[str] | None = None
) -> ParsedCommand | None:
    """The command that a message is; None: it is an ordinary one. `rows`: by every name that is known.

    An empty `prefix`: there are no prefixed commands. An unknown name is a command only in a direct chat,
    where nobody else can be meant. `ours`: what we are called there, folded by `str.casefold`; None: nothing is a
    command there without its prefix.
    """
    if message.sender.is_bot:
        return None
    text = message.text.strip()
    addressed = message.kind != "room"
    called = _ADDRESSED.match(text)
    said = text[called.end() :] if message.kind == "mention" and called else text
    found = _NAME.fullmatch(said[len(prefix) :]) if prefix and said.startswith(prefix) else None
    if found is not None:
        name = found[1].lower()
        if name in rows or message.kind == "direct":
            return ParsedCommand(command=_build_command(message, name, (found[2] or "").strip()))
    if (word := _MORE.fullmatch(said)) and (addressed or word[1].lower() == "more"):
        return ParsedCommand(
            command=_build_command(message, word[1].lower(), ""), only_if_more=True, overheard=not addressed
        )
    about_us = not message.attachments and (message.reply_to is None or message.kind != "mention")
    if addressed and about_us and asks_for_disclosure(said):
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
    """What is said to us and is word for word a command.

    In a room our name may be anywhere in the text (`bob: join #reverie`), so whoever is called must be us; where we go
    by another name than is known, nothing else can be meant only if there is nothing else in it.
    """
    if message.kind not in ("mention", "direct") or (message.kind == "mention" and called is None):
        return None
    us = called is not None and (called[1] or called[2]).casefold() in ours
    found = _NAME.fullmatch(text[called.end() :] if called and (us or message.kind == "mention") else text)
    row = rows.get(found[1].lower()) if found else None
    if found is None or row is None or row.name != found[1].lower():
        return None
    args = (found[2] or "").strip()
    if not is_unambiguous(row, args, rows) or (args and message.kind == "mention" and not us):
        return None
    return ParsedCommand(command=_build_command(message, row.name, args), only_if_allowed=True)


def asks_for_disclosure(text: str) -> bool:
    """Whether this asks if a machine is speaking, and nothing else."""
    text = text.strip()
    return len(text) <= _QUESTION_CHARS and any(question.fullmatch(text) for question in _QUESTIONS)


def find_nearest(name: str, names: Collection[str]) -> list[str]:
    """Known names that may have been meant, the likeliest first."""
    return get_close_matches(name.lower(), sorted(names), n=3, cutoff=0.6)


def _build_command(message: Message, name: str, args: str) -> Command:
    return Command(
        id=EventId(message.id),
        at=message.at,
        sender=message.sender,
        name=name,
        args=args,
        sent=message.sent,
        origin="text",
        direct=message.kind == "direct",
    )
