"""The questions of setup, and `Respondent`, which has them answered: by flags, by a person at a
terminal or a pipe in its place, or by their defaults; and the command `reverie setup`.
"""

import argparse
import asyncio
import getpass
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.config.source import clean_reference
from gateway.core.findings import Finding, unknown
from gateway.core.text_safety import escape_unprintable

DONE, FAILED, BAD_USAGE, UNCHECKED = 0, 1, 2, 3
"""Exit codes."""
BACK: Final = "back"
"""Answer that leads to the question before."""
LATER, NONE = "later", "none"
QUESTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "platforms": (
        "Platforms (telegram, discord, irc; separate several with spaces)",
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
        "anthropic, openai, compatible, llama.cpp or embedded",
    ),
    "model.url": ("Its address", "the provider's address"),
    "model.name": ("Model", "the model, as its provider calls it"),
    "persona.name": ("Its name", "name of the bot"),
    "persona.text": ("Its character, in a paragraph", "character of the bot, in a paragraph"),
    "speaks.up": (
        "May it speak up in rooms without being asked? never, when useful, sometimes",
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
CORRECT, AGAIN, GO_ON, SKIP = "correct it", "look again", "go on", "skip"
"""What to do where something does not work."""
_MEANINGS: Final[Mapping[str, str]] = {
    CORRECT: "answer again",
    AGAIN: "test it again",
    GO_ON: "keep it, although it does not work",
    SKIP: "leave this platform out",
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
T = TypeVar("T")
SectionT = TypeVar("SectionT", bound=BaseModel)


class SetupStopped(Exception):
    """Setup stops, and nothing is written. The message says why and what to do."""

    def __init__(self, reason: str, *, code: int = FAILED) -> None:
        """`code`: exit code."""
        super().__init__(reason)
        self.code = code


class StepBack(Exception):
    """The person wants to answer the question before this one again."""


class PlatformSkipped(Exception):
    """The person leaves the platform out."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret among the values of a configuration."""

    reference: str = field(repr=False)
    """Text in the configuration: `${NAME}`, `${file:PATH}`, or the secret itself where somebody
    wrote it there by hand."""
    value: str | None = field(default=None, repr=False)
    """None: not known here, e.g. because the variable is not set."""
    is_new: bool = False
    """True if `value` is to be written to the file of `reference`."""


Values = dict[str, Any]
"""A section of the configuration, with `Secret` in place of texts that were asked for."""


def find_secrets(values: object) -> Iterator[Secret]:
    """Yield the secrets in a part of the configuration."""
    if isinstance(values, Secret):
        yield values
    elif isinstance(values, dict | list):
        for below in values.values() if isinstance(values, dict) else values:
            yield from find_secrets(below)


def replace_texts(values: Any, text: Callable[[str | Secret], Any]) -> Any:  # noqa: ANN401 - of any kind
    """Return a part of the configuration with other texts and secrets."""
    if isinstance(values, dict):
        return {key: replace_texts(below, text) for key, below in values.items()}
    if isinstance(values, list):
        return [replace_texts(below, text) for below in values]
    return text(values) if isinstance(values, str | Secret) else values


def resolve_secret(reference: str, directory: Path, env: Mapping[str, str] = os.environ) -> Secret:
    """Resolve `${NAME}` or `${file:PATH}` as the configuration does. Raises ValueError with the
    remedy.
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
        what, text = f"the variable {name}", env.get(name, "")
    else:
        raise ValueError("write ${NAME} for an environment variable, or ${file:PATH}")
    try:
        return Secret(reference, clean_reference(text) or None)
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


def unset(code: str, secret: Secret) -> Finding:
    """Build the finding of what cannot be tested without a secret."""
    what = f"whether it works: {secret.reference} is not set here"
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


_KEYS: Final = {*QUESTIONS, *SECRETS}


@dataclass(frozen=True, slots=True)
class _Past:
    """Something that was given: an answer, or the result of a probe."""

    question: str
    """Its key, else its text; name of the function of a probe."""
    by_person: bool
    value: Any


class Respondent:
    """Has questions answered. Each method may raise `SetupStopped`, and `StepBack` for a person.

    On `back` the interview runs anew, and what was given before the question that is asked again is
    given once more, each to its own question, without asking, probing or telling it. That question
    and those after it propose their last answers.
    """

    def __init__(
        self,
        answers: Mapping[str, str],
        secrets: Mapping[str, str],
        *,
        attended: bool,
        force: bool = False,
    ) -> None:
        """`answers`, `secrets`: of flags, by key; references to secrets. `attended`: somebody can
        be asked. `force`: without them, what does not work is configured, too.
        """
        self.directory = Path()
        """Configuration directory, the base of relative paths."""
        self.attended, self._force = attended, force
        self._answers, self._secrets = answers, secrets
        self._past: list[_Past] = []
        self._position = 0
        """How much of the past this run of the interview was given."""
        self._proposals: dict[str, str | Secret] = {}
        """Earlier answers, by question, to those that are asked again."""
        self._has_resumed = False
        self.findings: list[Finding] = []
        """All that were reviewed."""
        self.seen_secrets: list[str] = []
        """Secrets that were typed or resolved."""

    def step_back(self) -> None:
        """Forget the person's last answer and what came after it; the interview is then to be run
        anew.
        """
        self._position = 0
        self._proposals = {one: self._proposals[one] for one in self._proposals if one in _KEYS}
        while self._past:
            last = self._past.pop()
            if last.by_person:
                self._proposals[last.question] = last.value
                break

    @property
    def answers(self) -> dict[str, str | Secret]:
        """The person's answers so far, by the keys of the questions, and those they proposed."""
        given = {one.question: one.value for one in self._past if one.by_person}
        return {key: one for key, one in (self._proposals | given).items() if key in _KEYS}

    def resume(self, answers: Mapping[str, str | Secret]) -> None:
        """Propose the answers of an interrupted interview. Only the first call counts."""
        if not self._has_resumed:
            self._proposals |= answers
        self._has_resumed = True

    @property
    def _is_repeating(self) -> bool:
        return self._position < len(self._past)

    def _has_past(self, question: str) -> bool:
        """Return whether this question has its answer already. If another was asked here before,
        that answer and what came after it are forgotten.
        """
        if self._is_repeating and self._past[self._position].question != question:
            del self._past[self._position :]
        return self._is_repeating

    def _repeat(self) -> Any:  # noqa: ANN401 - an answer of any kind
        self._position += 1
        return self._past[self._position - 1].value

    def _keep(self, question: str, value: T, *, by_person: bool = False) -> T:
        self._past.append(_Past(question, by_person, value))
        self._position += 1
        if isinstance(value, Secret) and value.value:
            self.seen_secrets.append(value.value)
        return value

    @property
    def unused_flags(self) -> list[str]:
        """Flags that no question used."""
        used = {one.question for one in self._past}
        return [flag_of(key) for key in (*self._answers, *self._secrets) if key not in used]

    def _take_flag(self, key: str, given: Mapping[str, str]) -> str | None:
        """Return the answer of a flag, which answers once."""
        if key not in given or not any(
            one.question == key and not one.by_person for one in self._past
        ):
            return given.get(key)
        if not self.attended:
            raise SetupStopped(f"{flag_of(key)}: {given[key]!r} was not accepted")
        return None

    def has_secret(self, key: str) -> bool:
        """Return whether a flag names this secret."""
        return key in self._secrets

    def ask(
        self,
        key: str,
        text: str = "",
        *,
        default: str | None = None,
        unattended: str | None = None,
        parse: Callable[[str], str] = str.strip,
        optional: bool = False,
    ) -> str:
        """Return what `parse` makes of the answer; it raises ValueError with a hint on the correct
        form.

        `key`: empty: there is no flag. `default`: answer for empty input; None: an answer is
        required. `unattended`: answer where nobody can be asked; None: `default`. `optional`: only
        a flag answers, else the default.
        """
        text = text or QUESTIONS[key][0]
        question = key or text
        if self._has_past(question):
            return str(self._repeat())
        if (given := self._take_flag(key, self._answers)) is not None:
            try:
                return self._keep(key, parse(given))
            except ValueError as error:
                raise SetupStopped(f"{flag_of(key)}: {error}", code=BAD_USAGE) from None
        if optional:
            return self._keep(question, default or "")
        if not self.attended:
            answer = default if unattended is None else unattended
            if answer is None:
                raise SetupStopped(f"{flag_of(key)} is missing: {text}", code=BAD_USAGE)
            return self._keep(question, answer)
        return self._ask_person(question, text, default, parse)

    def _ask_person(
        self, question: str, text: str, default: str | None, parse: Callable[[str], str]
    ) -> str:
        earlier = self._proposals.get(question)
        proposed = earlier if isinstance(earlier, str) else default

        def read(words: str) -> str:
            if words.strip():
                return parse(words)
            if proposed is None:
                raise ValueError("An answer is needed.")
            return parse(proposed) if proposed == earlier else proposed

        prompt = f"{text} [{proposed}]" if proposed else text
        answer = self._keep(question, self._prompt(prompt, read), by_person=True)
        self._proposals.pop(question, None)
        if earlier is not None and answer != earlier:  # those about the same may no longer fit
            page = f"{question.partition('.')[0]}."
            for one in [one for one in self._proposals if one.startswith(page)]:
                del self._proposals[one]
        return answer

    def ask_secret(
        self,
        key: str,
        file: str,
        existing: Secret | None,
        *,
        parse: Callable[[str], str] = str.strip,
        optional: bool = False,
    ) -> Secret | None:
        """Return a secret, None: none where it is optional. It is typed unseen, into `file` below
        `secrets`.

        `existing`: the answer for empty input; not if it was just typed, for then it was refused.
        `optional`: only a flag answers, else it stays as it is.
        """
        if self._has_past(key):
            return self._repeat()  # type: ignore[no-any-return] # what was kept below
        if (secret := self._take_secret(key)) is not None:
            return self._keep(key, secret)
        if existing is not None and existing.is_new and not optional:
            existing = None
        if optional or (not self.attended and existing):
            return self._keep(key, existing)
        flag, (text, _) = flag_of(key), SECRETS[key]
        if not self.attended:
            why = f"{flag}-env NAME or {flag}-file PATH is missing: {text}"
            raise SetupStopped(why, code=BAD_USAGE)
        return self._ask_hidden(key, file, existing, parse)

    def _ask_hidden(
        self, key: str, file: str, existing: Secret | None, parse: Callable[[str], str]
    ) -> Secret:
        if isinstance(earlier := self._proposals.get(key), Secret):
            existing = earlier

        def read(words: str) -> Secret:
            words = words.strip()
            if words.startswith("${"):
                return resolve_secret(words, self.directory)
            if words:
                return Secret(f"${{file:secrets/{file}}}", parse(words), is_new=True)
            if existing is None:
                raise ValueError("An answer is needed.")
            return existing

        hint = "hidden; Enter keeps it" if existing else "hidden, or ${NAME} of the environment"
        prompt = f"{SECRETS[key][0]} ({hint})"
        secret = self._keep(key, self._prompt(prompt, read, hidden=True), by_person=True)
        self._proposals.pop(key, None)
        return secret

    def _take_secret(self, key: str) -> Secret | None:
        """Return the secret that a flag names."""
        if (given := self._take_flag(key, self._secrets)) is None:
            return None
        try:
            secret = resolve_secret(given, self.directory)
        except ValueError as error:
            raise SetupStopped(f"{flag_of(key)}-file: {error}", code=BAD_USAGE) from None
        if secret.value is None and not (self.attended or self._force):
            why = f"{flag_of(key)}-env: {given[2:-1]} is not set (--force writes it anyway)"
            raise SetupStopped(why, code=BAD_USAGE)
        return secret

    def confirm(self, text: str, *, default: bool = True) -> bool:
        """Return the answer to a yes or no question."""
        if not (self.attended or default or self._force):
            raise SetupStopped(f"{text} (--force says yes)")
        word = self.ask(
            "",
            f"  {text}",
            default="yes" if default else NO,
            unattended="yes",
            parse=partial(parse_choice, YES_OR_NO),
        )
        return word == "yes"

    def _prompt(self, text: str, read: Callable[[str], T], *, hidden: bool = False) -> T:
        """Return what `read` makes of a line. Raises EOFError where the input ends."""
        while True:
            if hidden and sys.stdin.isatty():
                words = getpass.getpass(f"{text}: ", sys.stdout)
                if words:
                    self.tell(f"  {len(words)} characters received")
            else:
                words = input(f"{text}: ")
            if not sys.stdin.isatty():
                sys.stdout.write("\n")
            if words.strip().lower() == BACK:
                raise StepBack
            try:
                return read(words)
            except ValueError as error:
                _write_wrapped(str(error), "  ")

    def probe(self, probing: Coroutine[None, None, T]) -> T:
        """Return the result of a probe, or of a search for what can be offered as an answer."""
        question = getattr(probing, "__qualname__", "")
        if self._has_past(question):
            probing.close()
            return self._repeat()  # type: ignore[no-any-return] # what was kept below
        return self._keep(question, asyncio.run(probing))

    def tell(self, *lines: str) -> None:
        """Show lines to a person."""
        for line in lines if self.attended and not self._is_repeating else ():
            _write_wrapped(line.lstrip(), " " * (len(line) - len(line.lstrip())))

    def review(
        self, findings: Iterable[Finding], *, skip: bool = True, also: tuple[str, ...] = ()
    ) -> str:
        """Show findings. Where something does not work, return what to do about it; else `GO_ON`.
        Raises PlatformSkipped.

        `also`: codes of warnings that are asked about, too.
        """
        found = tuple(findings)
        self.findings += found
        for finding in found if self.attended and not self._is_repeating else ():
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
        first = (AGAIN, CORRECT) if elsewhere else (CORRECT, AGAIN)
        ways = (*first, GO_ON, *[SKIP] * skip)
        self.tell("  What now?", *(f"    {way[0]}  {way}: {_MEANINGS[way]}" for way in ways))
        way = self.ask("", " Your choice", default=ways[0], parse=partial(parse_choice, ways))
        if way == SKIP:
            raise PlatformSkipped
        return way

    def know(self, value: object) -> Secret | None:
        """Return a value of the configuration as a secret, resolved as far as it can be here."""
        if not isinstance(value, str) or not value:
            return value if isinstance(value, Secret) else None
        if "${" not in value:
            return Secret(value, value)
        try:
            return resolve_secret(value, self.directory)
        except ValueError:
            return Secret(value)

    def build(self, kind: type[SectionT], section: Values, **more: object) -> SectionT:
        """Build a section of the settings, as the gateway will have it, with other values where
        `more` has some.
        """

        def reveal(text: str | Secret) -> str:
            known = self.know(text) if isinstance(text, Secret) or text.startswith("${") else None
            return (known.value or "") if known else str(text)

        try:
            values = replace_texts(section, reveal) | more
            return kind.model_validate(values, context=self.directory.absolute())
        except ValidationError as error:
            stop_for(error)


YES_OR_NO: Final = ("yes", "no")
NO: Final = YES_OR_NO[1]


def stop_for(error: ValidationError) -> NoReturn:
    """Raise SetupStopped for what the existing configuration has wrong."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(key) for key in first["loc"])
    raise SetupStopped(f"{where}: {first['msg']}; correct it first", code=BAD_USAGE) from None


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
    parser.add_argument(
        "--json", action="store_true", help="for programs; implies --non-interactive"
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

    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the answers are kept
        signal.signal(number, signal.default_int_handler)
    given = {key.replace("_", "."): value for key, value in vars(args).items() if value is not None}
    secrets = {key: f"${{{given[f'{key}.env']}}}" for key in SECRETS if f"{key}.env" in given}
    for key in SECRETS:
        if path := given.get(f"{key}.file"):
            secrets[key] = f"${{file:{path.absolute()}}}"
    person = Respondent(
        {key: given[key] for key in QUESTIONS if key in given},
        secrets,
        attended=not (args.non_interactive or args.json),
        force=args.force,
    )
    return run_setup(args.config, person, as_json=args.json, yes=args.yes or args.force)
