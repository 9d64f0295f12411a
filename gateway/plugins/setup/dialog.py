"""The questions of setup, and `Respondent`, which has them answered: by flags, by a person at a
terminal or a pipe in its place, or by their defaults; and the command `reverie setup`.
"""

import argparse
import getpass
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.config.source import clean_reference
from gateway.core.findings import Finding, unknown
from gateway.core.text_safety import escape_unprintable

DONE, FAILED, BAD_USAGE, UNCHECKED = 0, 1, 2, 3
"""Exit codes."""
LATER, NONE = "later", "none"
QUESTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "platforms": (
        "Platforms (telegram, discord, irc; several with spaces)",
        "telegram, discord, irc; several in quotes",
    ),
    "telegram.url": ("", "another Bot API server"),
    "telegram.owner": (f"Your id, or `{LATER}`", "the owner's Telegram id"),
    "telegram.groups": (
        "Groups where the bot may act: ids, `*`, `none`",
        "ids of groups, `*`, or none",
    ),
    "discord.api.url": ("", "another server with Discord's HTTP API"),
    "discord.gateway.url": ("", "its gateway"),
    "discord.owner": (f"Your id, or `{LATER}`", "the owner's Discord id"),
    "discord.rooms": (
        "Servers or channels where the bot may act: their ids, `*` for all, or `none`",
        "ids of guilds or channels, `*`, or none",
    ),
    "irc.server": ("Server", "host:port"),
    "irc.tls": (
        "TLS: yes, no, or a file with the root certificate of your own server",
        "yes, no, or a file with its root",
    ),
    "irc.nick": ("Nick", "the bot's nick"),
    "irc.account": (
        "Its account with the services, or `none`",
        "the bot's services account, or none",
    ),
    "irc.contact": (
        "Who runs the bot, and how to reach them",
        "who runs the bot, and how to reach them",
    ),
    "irc.rooms": ("Rooms that the bot joins, or `none`", "rooms that the bot joins, or none"),
    "irc.owner": (
        f"Your own account there, or `{LATER}`",
        "the owner's account with the services",
    ),
    "model.provider": (
        "Who answers",
        "anthropic, openai, gemini, compatible, llama.cpp or embedded",
    ),
    "model.url": ("Its address", "the provider's address"),
    "model.name": ("Model", "the model, as its provider calls it"),
    "persona.name": ("Its name", "name of the bot"),
    "persona.text": ("Its character, in a paragraph", "character of the bot, in a paragraph"),
    "speaks.up": (
        "May it speak up in rooms unasked? never, when useful, sometimes",
        "in rooms, without being asked: never, when useful, or sometimes",
    ),
}
"""Questions by key, which is also the flag of the answer (`-` for dots): text, and help of the
flag."""
SECRETS: Final[Mapping[str, tuple[str, str]]] = {
    "telegram.token": ("Token", "the bot's token"),
    "discord.token": ("Token", "the bot's token"),
    "irc.password": ("Password of that account", "the password of its services account"),
    "irc.server.password": (
        "Password of the server, not of the services",
        "the server's own password",
    ),
    "model.key": ("Key", "the provider's key"),
}
"""Questions for secrets; their flags end in `-env` and `-file`, and name a variable or a file."""
CORRECT, AGAIN, GO_ON = "correct it", "look again", "go on"
"""What to do where something does not work."""
_MEANINGS: Final[Mapping[str, str]] = {
    CORRECT: "answer again",
    AGAIN: "test it again",
    GO_ON: "keep it, although it does not work",
}
_SOLVED_ELSEWHERE: Final = (
    "discord.intents",
    "model.busy",
    "model.credit",
    "net.lost",
    "net.proxy",
    "net.route",
    "net.timeout",
    "telegram.poller",
)
"""Codes of problems that are solved elsewhere, so that probing again is the first choice."""
_LEVEL_SIGNS: Final = {"ok": "ok", "warning": "!", "bad": "x", "unknown": "?"}
_MAX_COLUMNS: Final = 80
SectionT = TypeVar("SectionT", bound=BaseModel)


class SetupStopped(Exception):
    """Setup stops, and nothing is written. The message says why and what to do."""

    def __init__(self, reason: str, *, code: int = FAILED) -> None:
        super().__init__(reason)
        self.code = code


class BeginAgain(Exception):
    """The person wants to begin again."""


Values = dict[str, Any]
"""A section of the configuration. Secrets are references: `${NAME}`, `${file:PATH}`, or the secret
itself where somebody wrote it there by hand."""


def replace_texts(values: Any, text: Callable[[str], Any]) -> Any:  # noqa: ANN401 - of any kind
    """Return a part of the configuration with other texts."""
    if isinstance(values, dict):
        return {key: replace_texts(below, text) for key, below in values.items()}
    if isinstance(values, list):
        return [replace_texts(below, text) for below in values]
    return text(values) if isinstance(values, str) else values


def resolve_secret(reference: str, directory: Path) -> str | None:
    """Resolve `${NAME}` or `${file:PATH}` as the configuration does. None: the variable is not set.
    Raises ValueError with the remedy.
    """
    name = reference[2:-1]
    if reference.startswith("${file:") and reference.endswith("}"):
        path = directory / Path(reference[7:-1].strip()).expanduser()
        what = f"the file {path}"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise ValueError(f"{what} cannot be read ({reason})") from None
        if not text.strip():
            raise ValueError(f"{what} is empty")
    elif reference.startswith("${") and reference.endswith("}") and name.isidentifier():
        what, text = f"the variable {name}", os.environ.get(name, "")
    else:
        raise ValueError("write ${NAME} for an environment variable, or ${file:PATH}")
    try:
        return clean_reference(text) or None
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


def unset(code: str, secret: str) -> Finding:
    """Build the finding of what cannot be tested without a secret."""
    what = f"whether it works: {secret} is not set here"
    return unknown(code, what, "run `reverie doctor` where it is set")


def split_words(words: str) -> list[str]:
    """Return the words of an answer that names several things."""
    return words.replace(",", " ").split()


def parse_choice(choices: Sequence[str], words: str) -> str:
    """Parse one of several: its number from 1, its name, or an unambiguous prefix. Raises
    ValueError.
    """
    word = " ".join(words.lower().split())
    if word.isdecimal() and 1 <= int(word) <= len(choices):
        return choices[int(word) - 1]
    found = [one for one in choices if one.lower() == word] or [
        one for one in choices if word and one.lower().startswith(word)
    ]
    if len(found) != 1:
        raise ValueError(f"one of {', '.join(choices)}")
    return found[0]


def flag_of(key: str) -> str:
    """Return the flag of an answer."""
    return f"--{key.replace('.', '-')}"


YES_OR_NO: Final = ("yes", "no")


class Respondent:
    """Has questions answered. Each method may raise `SetupStopped`, and `BeginAgain` for a person.

    Questions are named by their keys; others, which no flag answers, by their texts.
    """

    def __init__(self, flags: Mapping[str, str], *, attended: bool, force: bool = False) -> None:
        """`flags`: answers of flags by key; of secrets, references. `attended`: somebody can be
        asked. `force`: without them, what does not work is configured, too.
        """
        self.directory = Path()
        """Configuration directory, the base of relative paths."""
        self.attended, self._force, self._flags = attended, force, flags
        self._used = set[str]()
        self._given = dict[str, str]()
        self._proposals = dict[str, str]()
        """Answers that they gave before they began again."""
        self.typed = dict[str, str]()
        """Secrets to be written to files, by reference."""
        self.asked_secrets = list[str]()
        """References of all secrets that were asked for."""
        self.findings: list[Finding] = []
        self.seen_secrets: list[str] = []
        """Secrets that were typed or resolved."""

    def begin_again(self) -> None:
        """Ask everything again, and propose the answers so far."""
        self._proposals |= self._given
        self._used.clear()
        self.findings.clear()

    @property
    def unused_flags(self) -> list[str]:
        return [flag_of(key) for key in self._flags if key not in self._used]

    def _take_flag(self, key: str) -> str | None:
        """Return the answer of a flag, which answers once."""
        given, is_used = self._flags.get(key), key in self._used
        self._used.add(key)
        if given is not None and is_used and not self.attended:
            raise SetupStopped(f"{flag_of(key)}: {given!r} was not accepted")
        return None if is_used else given

    def has_secret(self, key: str) -> bool:
        """Return whether a flag names this secret."""
        return key in self._flags

    def ask(
        self,
        key: str,
        *,
        default: str | None = None,
        unattended: str | None = None,
        parse: Callable[[str], str] = str.strip,
        optional: bool = False,
    ) -> str:
        """Return what `parse` makes of the answer; it raises ValueError with a hint on the correct
        form.

        `default`: answer for empty input; None: an answer is required. `unattended`: answer where
        nobody can be asked; None: `default`. `optional`: only a flag answers, else the default.
        """
        text = QUESTIONS[key][0] if key in QUESTIONS else key
        if (given := self._take_flag(key)) is not None:
            try:
                return parse(given)
            except ValueError as error:
                raise SetupStopped(f"{flag_of(key)}: {error}", code=BAD_USAGE) from None
        if optional:
            return default or ""
        if not self.attended:
            answer = default if unattended is None else unattended
            if answer is None:
                raise SetupStopped(f"{flag_of(key)} is missing: {text}", code=BAD_USAGE)
            return answer
        return self._ask_person(key, text, default, parse)

    def _ask_person(
        self, key: str, text: str, default: str | None, parse: Callable[[str], str]
    ) -> str:
        earlier = self._proposals.pop(key, None)
        proposed = default if earlier is None else earlier

        def read(words: str) -> str:
            if words.strip():
                return parse(words)
            if proposed is None:
                raise ValueError("An answer is needed.")
            return parse(proposed) if proposed == earlier else proposed

        answer = self._prompt(f"{text} [{proposed}]" if proposed else text, read)
        if earlier is not None and answer != earlier:  # those about the same may no longer fit
            page = f"{key.partition('.')[0]}."
            self._proposals = {
                one: self._proposals[one] for one in self._proposals if not one.startswith(page)
            }
        if key in QUESTIONS:
            self._given[key] = answer
        return answer

    def ask_secret(
        self,
        key: str,
        file: str,
        existing: str | None,
        *,
        parse: Callable[[str], str] = str.strip,
        optional: bool = False,
    ) -> str:
        """Return the reference of a secret, empty: none where it is optional. It is typed unseen,
        into `file` below `secrets`.

        `existing`: the answer for empty input; not if it was just typed, for then it was refused.
        `optional`: only a flag answers, else it stays as it is.
        """
        found = self._take_secret(key)
        if found is None and optional:
            found = existing or ""
        elif found is None:
            found = self._ask_hidden(key, file, None if existing in self.typed else existing, parse)
        if found:
            self.asked_secrets.append(found)
        return found

    def _take_secret(self, key: str) -> str | None:
        if (reference := self._take_flag(key)) is None:
            return None
        try:
            value = resolve_secret(reference, self.directory)
        except ValueError as error:
            raise SetupStopped(f"{flag_of(key)}-file: {error}", code=BAD_USAGE) from None
        if value is None and not (self.attended or self._force):
            why = f"{flag_of(key)}-env: {reference[2:-1]} is not set (--force writes it anyway)"
            raise SetupStopped(why, code=BAD_USAGE)
        return reference

    def _ask_hidden(
        self, key: str, file: str, existing: str | None, parse: Callable[[str], str]
    ) -> str:
        proposed = self._proposals.pop(key, existing)
        flag, (text, _) = flag_of(key), SECRETS[key]
        if not self.attended:
            if proposed:
                return proposed
            why = f"{flag}-env NAME or {flag}-file PATH is missing: {text}"
            raise SetupStopped(why, code=BAD_USAGE)

        def read(words: str) -> str:
            words = words.strip()
            if words.startswith("${"):
                resolve_secret(words, self.directory)  # raises ValueError with the remedy
                return words
            if words:
                return self.add_secret(file, parse(words))
            if proposed is None:
                raise ValueError("An answer is needed.")
            return proposed

        hint = "hidden; Enter keeps it" if proposed else "hidden, or ${NAME} of the environment"
        self._given[key] = answer = self._prompt(f"{text} ({hint})", read, hidden=True)
        return answer

    def add_secret(self, file: str, value: str) -> str:
        """Return the reference of a new secret, to be written to a file below `secrets`."""
        reference = f"${{file:secrets/{file}}}"
        self.typed[reference] = value
        self.asked_secrets.append(reference)
        self.seen_secrets.append(value)
        return reference

    def reveal(self, reference: str) -> str | None:
        """Return a secret. None: it is not known here, e.g. because the variable is not set."""
        value = self.typed.get(reference, reference)
        if "${" in value:
            try:
                value = resolve_secret(reference, self.directory) or ""
            except ValueError:
                return None
        if value:
            self.seen_secrets.append(value)
        return value or None

    def confirm(self, text: str, *, default: bool = True) -> bool:
        """Return the answer to a yes or no question."""
        if not (self.attended or default or self._force):
            raise SetupStopped(f"{text} (--force says yes)")
        word = self.ask(
            f"  {text}",
            default="yes" if default else "no",
            unattended="yes",
            parse=partial(parse_choice, YES_OR_NO),
        )
        return word == "yes"

    def _prompt(self, text: str, read: Callable[[str], str], *, hidden: bool = False) -> str:
        while True:
            if hidden and sys.stdin.isatty():
                words = getpass.getpass(f"{text}: ", sys.stdout)
                if words:
                    self.tell(f"  {len(words)} characters received")
            else:
                words = input(f"{text}: ")
            if not sys.stdin.isatty():
                sys.stdout.write("\n")
            if words.strip().lower() == "back":
                raise BeginAgain
            try:
                return read(words)
            except ValueError as error:
                _write_wrapped(str(error), "  ")

    def tell(self, *lines: str) -> None:
        for line in lines if self.attended else ():
            _write_wrapped(line.lstrip(), " " * (len(line) - len(line.lstrip())))

    def review(self, findings: Iterable[Finding], *, also: tuple[str, ...] = ()) -> str:
        """Show findings. Where something does not work, return what to do about it; else `GO_ON`.

        `also`: codes of warnings that are asked about, too.
        """
        found = tuple(findings)
        self.findings += found
        for finding in found if self.attended else ():
            _write_wrapped(
                escape_unprintable(finding.what), f"  {_LEVEL_SIGNS[finding.level]:>2} ", "     "
            )
            if finding.fix:
                _write_wrapped(f"-> {escape_unprintable(finding.fix)}", "     ", "        ")
        wrong = [
            one
            for one in found
            if one.level == "bad" or (one.level == "warning" and one.code in also)
        ]
        if not wrong:
            return GO_ON
        if not self.attended:
            if self._force or all(one.level == "warning" for one in wrong):
                return GO_ON
            problems = "; ".join(f"{one.what}: {one.fix}" for one in wrong)
            raise SetupStopped(f"{problems} (--force writes it anyway)")
        elsewhere = all(one.code.startswith(_SOLVED_ELSEWHERE) for one in wrong)
        ways = (AGAIN, CORRECT, GO_ON) if elsewhere else (CORRECT, AGAIN, GO_ON)
        self.tell("  What now?", *(f"    {way[0]}  {way}: {_MEANINGS[way]}" for way in ways))
        return self.ask(" Your choice", default=ways[0], parse=partial(parse_choice, ways))

    def build(self, kind: type[SectionT], section: Values, **more: object) -> SectionT:
        """Build a section of the settings, as the gateway will have it, with other values where
        `more` has some.
        """

        def reveal(text: str) -> str:
            return (self.reveal(text) or "") if text.startswith("${") else text

        try:
            values = replace_texts(section, reveal) | more
            return kind.model_validate(values, context=self.directory.absolute())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(key) for key in first["loc"])
            why = f"{where}: {first['msg']}; correct it first"
            raise SetupStopped(why, code=BAD_USAGE) from None


def _write_wrapped(text: str, first: str, rest: str | None = None) -> None:
    width = min(shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns, _MAX_COLUMNS) - 1
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    print(*lines or [""], sep="\n", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add those of `reverie setup`. Exit codes: 0 done; 1 something does not work or was not
    confirmed; 2 bad usage; 3 done, but something could not be tested. No configuration is written
    unless it is 0 or 3.
    """
    parser.usage = "%(prog)s [--config DIR] [--non-interactive] [an answer by its flag ...]"
    parser.add_argument(
        "--config",
        type=Path,
        metavar="DIR",
        help="the configuration directory (else setup asks for it)",
    )
    parser.add_argument(
        "--non-interactive", action="store_true", help="ask nothing: use flags or defaults"
    )
    parser.add_argument("--yes", action="store_true", help="change existing files without asking")
    parser.add_argument(
        "--force", action="store_true", help="the same, and also write answers that did not work"
    )
    answers = parser.add_argument_group("answers, each to one question")
    for key, (_, help_text) in QUESTIONS.items():
        answers.add_argument(flag_of(key), metavar="TEXT", help=help_text)
    hidden = parser.add_argument_group("secrets, by the name of an environment variable or a file")
    for key, (_, help_text) in SECRETS.items():
        either = hidden.add_mutually_exclusive_group()
        either.add_argument(f"{flag_of(key)}-env", metavar="NAME", help=help_text)
        either.add_argument(f"{flag_of(key)}-file", type=Path, metavar="PATH", help="the same")
    parser.set_defaults(handler=_run)


def _run(args: argparse.Namespace) -> int:
    from gateway.plugins.setup.program import run_setup  # noqa: PLC0415 - it imports this module

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: nothing is written
        signal.signal(number, signal.default_int_handler)
    given = {key.replace("_", "."): value for key, value in vars(args).items() if value is not None}
    flags = {key: given[key] for key in QUESTIONS if key in given}
    for key in SECRETS:
        if name := given.get(f"{key}.env"):
            flags[key] = f"${{{name}}}"
        if path := given.get(f"{key}.file"):
            flags[key] = f"${{file:{path.absolute()}}}"
    person = Respondent(
        flags,
        attended=not args.non_interactive,
        force=args.force,
    )
    return run_setup(args.config, person, yes=args.yes or args.force)
