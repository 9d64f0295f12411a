"""Is a message meant for the gateway itself, and what is meant? Pure.

A command is the prefix and a known name at the beginning of a message, or of what follows the bot's own name in it.
Some things are understood without a prefix when they are said to the bot and nothing else is: `more` (in a room also
said to nobody, behind a page of a long answer), `again`, the question
whether it is a person, and what is word for word a command of the table (`reverie: dmn pause`).
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gateway.commands.table import CommandDefinition
from gateway.commands.words import is_unambiguous
from gateway.events import Command, EventId, Message

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
