"""`reverie setup` as a program: runs the interview, its probes, and writes the files.

`TerminalRespondent` asks a person at a terminal, or a pipe in its place; `UnattendedRespondent`
answers from flags, and a missing answer without a default is an error that names the flag.
"""

import asyncio
import getpass
import json
import os
import secrets
import shutil
import sys
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar, cast

import yaml
from rich.console import Console
from rich.prompt import InvalidResponse, PromptBase
from rich.text import Text, TextType

from agent.workspace.persona import default_workspace
from gateway.cli.setup.config_edit import (
    ConfigDraft,
    check_files,
    draft_config,
    is_writable,
    merge_trees,
    parse_yaml,
    read_answers,
    read_config_files,
    redact_diff,
    write_files,
)
from gateway.cli.setup.dialog import (
    ProblemChoice,
    SecretQuestion,
    SecretReference,
    SetupAnswers,
    SetupQuestion,
)
from gateway.cli.setup.interview import SetupSituation, build_farewell, next_commands, run_interview
from gateway.config.source import Tree, clean_reference, value_at
from gateway.core.findings import Finding
from gateway.core.redaction import Redactor
from gateway.core.text_safety import escape_unprintable
from gateway.ops.health import find_gateway_state

DONE, FAILED, BAD_USAGE = 0, 1, 2
"""Exit codes."""
BACK: Final = "back"
"""Answer that leads to the question before."""
T = TypeVar("T")


class SetupAborted(Exception):
    """Setup stops. The message says why and what to do."""

    def __init__(self, reason: str, *, code: int) -> None:
        """`code`: exit code."""
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFlags:
    """Answers given by flags."""

    answers: Mapping[str, str] = field(default_factory=dict)
    """Answers by key of the question."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """References to secrets by key of the question."""


def parse_choice(question: SetupQuestion, words: str) -> str:
    """Parse the text of an answer. Raises ValueError with a hint on the correct form."""
    word = words.strip()
    if not question.choices:
        return question.parse(words)
    if word.isdecimal() and 1 <= int(word) <= len(question.choices):
        return question.choices[int(word) - 1]
    exact = [one for one in question.choices if one.lower() == word.lower()]
    begun = [one for one in question.choices if word and one.lower().startswith(word.lower())]
    if exact or (len(begun) == 1 and not question.allows_other):
        return (exact or begun)[0]
    if question.allows_other:
        return question.parse(words)
    raise ValueError(f"one of {', '.join(question.choices)}")


def resolve_secret(
    reference: str, directory: Path, env: Mapping[str, str] = os.environ
) -> SecretReference:
    """Resolve `${NAME}` or `${file:PATH}` as the configuration does. Raises ValueError with the
    remedy.
    """
    if reference.startswith("${file:") and reference.endswith("}"):
        path = directory / Path(reference[7:-1].strip()).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise ValueError(f"the file {path} cannot be read ({reason})") from None
        value = _clean(text, f"the file {path}")
        if not value:
            raise ValueError(f"the file {path} is empty")
        return SecretReference(reference=reference, value=value)
    name = reference[2:-1]
    if not reference.startswith("${") or not reference.endswith("}") or not name.isidentifier():
        raise ValueError("write ${NAME} for an environment variable, or ${file:PATH}")
    return SecretReference(
        reference=reference, value=_clean(env.get(name, ""), f"the variable {name}") or None
    )


def _clean(text: str, what: str) -> str:
    try:
        return clean_reference(text)
    except ValueError as error:
        raise ValueError(f"{what} {error}") from None


_CHOICE_LABELS: dict[ProblemChoice, str] = {
    "correct": "correct it",
    "again": "look again",
    "go on": "go on as it is",
    "skip": "skip this platform",
}
_LEVEL_SIGNS = {"ok": "ok", "warning": "!", "bad": "x", "unknown": "?"}
_MAX_COLUMNS = 80


class StepBack(Exception):
    """The person wants to answer the question before this one again."""


@dataclass(frozen=True, slots=True)
class _Past:
    """Something that was given: an answer, or the result of a probe."""

    key: str
    """Key of the question, or its text if it has none; name of the probe."""
    by_person: bool
    value: Any


class _Prompt(PromptBase[str]):
    """A question on a terminal, or to a pipe in its place."""

    def __init__(
        self, text: str, parse: Callable[[str], str], *, hint: str, hidden: bool = False
    ) -> None:
        super().__init__(
            Text(text), console=Console(soft_wrap=True, color_system=None), password=hidden
        )
        self.parse, self._hint = parse, hint

    def make_prompt(self, default: object) -> Text:
        del default
        return Text(f"{self.prompt} [{self._hint}]: " if self._hint else f"{self.prompt}: ")

    @classmethod
    def get_input(
        cls, console: Console, prompt: TextType, password: bool, stream: TextIO | None = None
    ) -> str:
        del stream
        try:
            if password and sys.stdin.isatty():
                words = getpass.getpass(
                    str(prompt), sys.stdout
                )  # shows it once nothing typed is shown any more
            else:
                console.print(prompt, end="", markup=False, highlight=False)
                words = input()
                if not sys.stdin.isatty():
                    console.print()
        except EOFError:
            console.print()  # Ctrl-D ends no line
            reason = "the input ended before all questions were answered; nothing was written"
            raise SetupAborted(f"{reason}; --non-interactive uses flags instead", code=2) from None
        if words.strip().lower() == BACK:
            raise StepBack
        return words

    def process_response(self, value: str) -> str:
        try:
            return self.parse(value)
        except ValueError as error:
            raise InvalidResponse(str(error)) from None

    def on_validate_error(self, value: str, error: InvalidResponse) -> None:
        del value
        _write_wrapped(str(error), "  ")


class TerminalRespondent:
    """Asks at the terminal. Questions that a flag answered are not asked.

    On `back` the interview runs anew, and what was given before the question that is asked again is
    given once more, to the same questions, without asking, probing or telling it. That question
    proposes its last answer.
    """

    def __init__(self, directory: Path, flags: AnswerFlags) -> None:
        self.directory, self._flags = directory, flags
        self._past: list[_Past] = []
        self._proposed: tuple[str, str] | None = None
        """The question that was stepped back to, and its last answer. None: that is not what is
        asked next."""
        self._asked = Counter[str]()
        """How often each question came in this run of the interview."""
        self._is_repeating = False
        """True while the next question of this run is one of the past."""
        self.seen_secrets: list[str] = []
        """Secrets that were typed or resolved."""

    def step_back(self) -> None:
        """Forget the person's last answer and what came after it; the interview is then to be run
        anew.
        """
        self._asked.clear()
        self._proposed = None
        while self._past:
            last = self._past.pop()
            if last.by_person:
                self._proposed = (last.key, last.value) if isinstance(last.value, str) else None
                break
        self._is_repeating = bool(self._past)

    def _is_new(self, key: str) -> bool:
        """Return whether the flag of a question was not used yet."""
        return not any(one.key == key and not one.by_person for one in self._past)

    def _find_past(self, key: str) -> _Past | None:
        """Return what was given when this question came for the same time. None: it is new."""
        same = (one for one in self._past if one.key == key)
        past = next(islice(same, self._asked[key], None), None)
        self._asked[key] += 1
        self._is_repeating = past is not None and self._asked.total() < len(self._past)
        return past

    def _keep(self, key: str, value: T, *, by_person: bool = True) -> T:
        self._past.append(_Past(key, by_person, value))
        return value

    def ask(self, question: SetupQuestion) -> str:
        key = question.key or question.text
        if past := self._find_past(key):
            return str(past.value)
        given = self._flags.answers.get(question.key)
        if given is not None and self._is_new(question.key):
            try:
                return self._keep(key, parse_choice(question, given), by_person=False)
            except ValueError as error:
                raise SetupAborted(f"--{question.key.replace('.', '-')}: {error}", code=2) from None
        default = question.default
        if question.is_optional and default is not None:
            return self._keep(key, default, by_person=False)
        if self._proposed is not None and self._proposed[0] == key:
            default = self._proposed[1]
        self._proposed = None

        def parse(words: str) -> str:
            if words.strip():
                return parse_choice(question, words)
            if default is None:
                raise ValueError("An answer is needed.")
            return default

        return self._keep(key, _Prompt(question.text, parse, hint=default or "")())

    def ask_secret(self, question: SecretQuestion) -> SecretReference:
        if past := self._find_past(question.key):
            return cast("SecretReference", past.value)
        given, existing = self._flags.secrets.get(question.key), question.existing
        if given is not None and self._is_new(question.key):
            try:
                return self._keep_secret(
                    question.key, resolve_secret(given, self.directory), by_person=False
                )
            except ValueError as error:
                raise SetupAborted(
                    f"--{question.key.replace('.', '-')}-file: {error}", code=2
                ) from None
        if question.is_optional:
            return self._keep_secret(
                question.key, existing or SecretReference(reference=""), by_person=False
            )

        def read(words: str) -> SecretReference:
            if words.startswith("${"):
                return resolve_secret(words, self.directory)
            if not words and existing is None:
                raise ValueError("An answer is needed.")
            if not words and existing is not None:
                return existing
            reference = f"${{file:secrets/{question.file}}}"
            return SecretReference(reference=reference, value=question.parse(words), is_new=True)

        def parse(words: str) -> str:
            read(words.strip())
            return words.strip()

        hint = "hidden; Enter keeps it" if existing else "hidden, or ${NAME} of the environment"
        words = _Prompt(f"{question.text} ({hint})", parse, hint="", hidden=True)()
        return self._keep_secret(question.key, read(words))

    def _keep_secret(
        self, key: str, secret: SecretReference, *, by_person: bool = True
    ) -> SecretReference:
        if secret.value:
            self.seen_secrets.append(secret.value)
        return self._keep(key, secret, by_person=by_person)

    def confirm(self, text: str, *, default: bool = True) -> bool:
        if past := self._find_past(text):
            return bool(past.value)

        def parse(words: str) -> str:
            word = words.strip().lower() or ("yes" if default else "no")
            if word not in {"y", "yes", "n", "no"}:
                raise ValueError("yes or no")
            return word

        return self._keep(
            text, _Prompt(f"  {text}", parse, hint="Y/n" if default else "y/N")().startswith("y")
        )

    def probe(self, probing: Coroutine[None, None, T]) -> T:
        key: str = getattr(probing, "__qualname__", "probe")
        if past := self._find_past(key):
            probing.close()
            return cast("T", past.value)
        return self._keep(key, asyncio.run(probing), by_person=False)

    def tell(self, *lines: str) -> None:
        for line in () if self._is_repeating else lines:
            _write_wrapped(line.lstrip(), " " * (len(line) - len(line.lstrip())))

    def show_findings(self, findings: Sequence[Finding]) -> None:
        for finding in () if self._is_repeating else findings:
            _write_wrapped(
                escape_unprintable(finding.what), f"  {_LEVEL_SIGNS[finding.level]:>2} ", "     "
            )
            if finding.fix:
                _write_wrapped(f"-> {escape_unprintable(finding.fix)}", "     ", "        ")

    def choose_remedy(
        self, choices: tuple[ProblemChoice, ...], findings: Sequence[Finding]
    ) -> ProblemChoice:
        del findings  # they are on the screen
        ways = ", ".join(f"{_CHOICE_LABELS[way]} ({way[0]})" for way in choices)
        self.tell(f"  What now: {ways}.")
        parse = partial(_parse_problem_choice, choices)
        answer = self.ask(SetupQuestion("", " Your choice", default=choices[0], parse=parse))
        return next(way for way in choices if way == answer)


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
    sys.stdout.write("".join(f"{line}\n" for line in lines or [""]))
    sys.stdout.flush()


def _parse_problem_choice(ways: tuple[ProblemChoice, ...], words: str) -> str:
    """Parse a choice by its beginning, or by that of its label on the screen."""
    text = " ".join(words.lower().split())
    found = [
        way
        for way in ways
        if text and (way.startswith(text) or _CHOICE_LABELS[way].startswith(text))
    ]
    if len(found) != 1:
        raise ValueError(f"one of {', '.join(ways)}")
    return found[0]


class UnattendedRespondent:
    """Answers from flags."""

    def __init__(self, directory: Path, flags: AnswerFlags, *, force: bool) -> None:
        """`force`: configure also what does not work."""
        self.directory, self._flags, self._force = directory, flags, force
        self._used_keys: set[str] = set()
        """Keys of the flags that were used."""
        self.findings: list[Finding] = []
        self.seen_secrets: list[str] = []
        """Secrets that were resolved."""

    def ask(self, question: SetupQuestion) -> str:
        flag = f"--{question.key.replace('.', '-')}"
        if (words := self._flags.answers.get(question.key)) is not None:
            if question.key in self._used_keys:
                raise SetupAborted(f"{flag}: {words!r} was not accepted", code=FAILED)
            self._used_keys.add(question.key)
            try:
                return parse_choice(question, words)
            except ValueError as error:
                raise SetupAborted(f"{flag}: {error}", code=BAD_USAGE) from None
        if question.secret_key in self._flags.secrets:
            return "yes"
        default = (
            question.default
            if question.noninteractive_default is None
            else question.noninteractive_default
        )
        if default is None:
            raise SetupAborted(f"{flag} is missing: {question.text}", code=BAD_USAGE)
        return default

    def ask_secret(self, question: SecretQuestion) -> SecretReference:
        flag = f"--{question.key.replace('.', '-')}"
        reference = self._flags.secrets.get(question.key)
        if reference is None:
            if question.existing is None and question.is_optional:
                return SecretReference(reference="")
            if question.existing is None:
                raise SetupAborted(
                    f"{flag}-env NAME or {flag}-file PATH is missing: {question.text}",
                    code=BAD_USAGE,
                )
            return question.existing
        try:
            secret = resolve_secret(reference, self.directory)
        except ValueError as error:
            raise SetupAborted(f"{flag}-file: {error}", code=BAD_USAGE) from None
        if secret.value is None and not self._force:
            raise SetupAborted(
                f"{flag}-env: {reference[2:-1]} is not set (--force writes it anyway)",
                code=BAD_USAGE,
            )
        self._used_keys.add(question.key)
        if secret.value:
            self.seen_secrets.append(secret.value)
        return secret

    @property
    def unused_flags(self) -> list[str]:
        """Flags that no question used."""
        keys = [*self._flags.answers, *self._flags.secrets]
        return [f"--{key.replace('.', '-')}" for key in keys if key not in self._used_keys]

    def confirm(self, text: str, *, default: bool = True) -> bool:
        if not default and not self._force:
            raise SetupAborted(f"{text} (--force says yes)", code=FAILED)
        return True

    def probe(self, probing: Coroutine[None, None, T]) -> T:
        return asyncio.run(probing)

    def tell(self, *lines: str) -> None:
        """Ignore the text."""

    def show_findings(self, findings: Sequence[Finding]) -> None:
        self.findings += findings

    def choose_remedy(
        self, choices: tuple[ProblemChoice, ...], findings: Sequence[Finding]
    ) -> ProblemChoice:
        del choices
        if self._force or all(one.level == "warning" for one in findings):
            return "go on"
        problems = "; ".join(f"{one.what}: {one.fix}" for one in findings)
        raise SetupAborted(f"{problems} (--force writes it anyway)", code=FAILED)


DEFAULT_DIRECTORY = "./reverie"
_SMALL_MODEL_PERSONA = "IDENTITY.local.md"
"""File of the default persona for very small models; a persona written by setup is for all
models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """Options of the command line."""

    directory: Path | None
    """None: asked for."""
    flags: AnswerFlags
    is_interactive: bool
    json: bool
    yes: bool
    """True: existing files are changed without asking."""
    force: bool
    """True: as `yes`, and what does not work is configured, too."""
    telegram_url: str | None = None
    discord_urls: tuple[str | None, str | None] = (None, None)
    model_url: str | None = None


def run_setup(options: SetupOptions) -> int:
    """Run setup and return the exit code. If it stops, the reason is written to standard error."""
    respondent: TerminalRespondent | UnattendedRespondent = (
        TerminalRespondent(Path(), options.flags)
        if options.is_interactive
        else UnattendedRespondent(Path(), options.flags, force=options.force)
    )
    try:
        while True:
            try:
                return _run_setup(options, respondent)
            except StepBack:
                assert isinstance(respondent, TerminalRespondent), "only a person can go back"
                respondent.step_back()
    except SetupAborted as stopped:
        return _report_abort(options, respondent, str(stopped), stopped.code)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; nothing was written\n")
        return FAILED
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        return _report_abort(options, respondent, _describe_error(error), FAILED)
    except Exception:  # noqa: BLE001 - an unexpected error may quote a secret: it is printed redacted
        redactor = Redactor(respondent.seen_secrets)
        sys.stderr.write(f"this is a bug; nothing was written\n{redactor(traceback.format_exc())}")
        return FAILED


def _report_abort(
    options: SetupOptions,
    respondent: TerminalRespondent | UnattendedRespondent,
    reason: str,
    code: int,
) -> int:
    message = Redactor(respondent.seen_secrets)(reason)
    if options.json:
        sys.stdout.write(
            json.dumps({"ok": False, "error": message, "findings": _findings_as_json(respondent)})
            + "\n"
        )
    else:
        sys.stderr.write(f"setup: {message}\n")
    return code


def _describe_error(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return (
            f"the configuration is not YAML (line {error.problem_mark.line + 1}); correct it first"
        )
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return "a file of the configuration cannot be read; correct it first"


def _run_setup(options: SetupOptions, respondent: TerminalRespondent | UnattendedRespondent) -> int:
    respondent.tell(
        "Reverie setup. Enter takes the value in brackets; `back` goes to the",
        "question before; Ctrl-C stops and changes nothing.",
        "",
    )
    directory = options.directory
    if directory is None:
        question = SetupQuestion(
            "config", "Directory of the configuration", default=DEFAULT_DIRECTORY
        )
        directory = Path(respondent.ask(question)).expanduser()
    if not is_writable(directory):
        raise SetupAborted(
            f"{directory} cannot be written: name another directory, or look who owns it",
            code=BAD_USAGE,
        )
    respondent.directory = directory
    now = read_config_files(directory)
    trees = [parse_yaml(text) for text in now.values()]
    running = bool(now) and _is_gateway_running(directory, trees)
    existing = _existing_answers(directory, trees) if now else None
    if existing is not None:
        respondent.tell(f"There is a configuration in {directory}: setup proposes its values.")
    persona = _load_default_persona()
    situation = SetupSituation(
        existing=existing,
        identity=persona["IDENTITY.md"],
        is_running=running,
        fresh_token=secrets.token_urlsafe(32),
        telegram_url=options.telegram_url,
        discord_urls=options.discord_urls,
        model_url=options.model_url,
    )
    answers = run_interview(respondent, situation)
    respondent.seen_secrets += [one.value for one in answers.secrets if one.value]
    today = datetime.now(UTC).date().isoformat()
    draft = draft_config(answers, now, persona, _read_existing_files(directory, answers), today)
    return _write_config(options, respondent, directory, answers, draft, running=running)


def _write_config(
    options: SetupOptions,
    respondent: TerminalRespondent | UnattendedRespondent,
    directory: Path,
    answers: SetupAnswers,
    draft: ConfigDraft,
    *,
    running: bool,
) -> int:
    warnings = _validate_draft(directory, answers, draft) if draft.files else []
    if isinstance(respondent, UnattendedRespondent) and respondent.unused_flags:
        warnings.append(f"not needed: {', '.join(respondent.unused_flags)}")
    if draft.files and not _confirm_write(options, respondent, directory, draft):
        raise SetupAborted("nothing was written", code=FAILED)
    if draft.files:
        write_files(directory, draft.files)
    names = [str(directory / file.path) for file in draft.files]
    if options.json:
        result = {
            "ok": True,
            "directory": str(directory),
            "written": names,
            "channels": [
                one.channel for one in (answers.telegram, answers.discord, answers.irc) if one
            ],
            "owners": list(answers.owners),
            "warnings": [*warnings, *draft.notices],
            "findings": _findings_as_json(respondent),
            "next": next_commands(str(directory)),
        }
        sys.stdout.write(json.dumps(result) + "\n")
        return DONE
    out = ["", "Written." if names else "Nothing has changed."]
    out += [f"  note: {one}" for one in (*warnings, *draft.notices)]
    out += build_farewell(answers, str(directory), running=running)
    sys.stdout.write("".join(f"{line}\n" for line in out))
    return DONE


def _confirm_write(
    options: SetupOptions,
    respondent: TerminalRespondent | UnattendedRespondent,
    directory: Path,
    draft: ConfigDraft,
) -> bool:
    lines = redact_diff(draft, respondent.seen_secrets)
    hidden = [file.path for file in draft.files if file.secret and (directory / file.path).exists()]
    fresh = [file.path for file in draft.files if not (directory / file.path).exists()]
    if not options.json:
        if lines:
            sys.stdout.write(
                "\nWhat would change:\n\n" + "".join(f"{line}\n" for line in lines) + "\n"
            )
        for path in hidden:
            sys.stdout.write(f"{path} gets new content, which setup does not show.\n")
        if fresh:
            sys.stdout.write(
                "".join(["\nNew files\n", *(f"  {directory / path}\n" for path in fresh)])
            )
    if options.yes or options.force:
        return True
    if not options.is_interactive:
        if lines or hidden:
            raise SetupAborted(
                f"{directory} already has a configuration; --yes changes it", code=FAILED
            )
        return True
    return respondent.confirm("Write it?")


def _validate_draft(directory: Path, answers: SetupAnswers, draft: ConfigDraft) -> list[str]:
    """Check the draft and return its warnings. Raises SetupAborted if it could not be loaded."""
    unset = {
        one.reference[2:-1]: "not-set-0"
        for one in answers.secrets
        if one.value is None and not one.path
    }
    wrong, warnings = check_files(directory, draft.files, {**os.environ, **unset})
    if wrong:
        problems = "".join(f"\n  {one}" for one in wrong)
        raise SetupAborted(
            f"the configuration would have errors:{problems}\nnothing was written", code=BAD_USAGE
        )
    missing = [f"{name} must be set in the environment of `reverie run`" for name in unset]
    return [*warnings, *missing]


def _existing_answers(directory: Path, trees: list[Tree]) -> SetupAnswers:
    def value_of(reference: str) -> str | None:
        try:
            return resolve_secret(reference, directory).value
        except ValueError:
            return None

    whole = merge_trees(trees)
    return read_answers(whole if isinstance(whole, dict) else {}, value_of)


def _is_gateway_running(directory: Path, trees: list[Tree]) -> bool:
    path = next(
        (found for tree in trees if isinstance(found := value_at(tree, "store", "path"), str)),
        "./data/reverie.db",
    )
    return asyncio.run(find_gateway_state(directory / path)).is_alive


def _load_default_persona() -> dict[str, str]:
    folder = default_workspace()
    files = sorted(path for path in folder.rglob("*.md") if path.name != _SMALL_MODEL_PERSONA)
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _read_existing_files(directory: Path, answers: SetupAnswers) -> Mapping[str, str]:
    """Read the existing files among those that may be written."""
    folder = (answers.workspace or "").removeprefix("./").rstrip("/")
    files = (directory / folder).rglob("*.md") if folder else ()
    return {
        path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8") for path in files
    }


def _findings_as_json(
    respondent: TerminalRespondent | UnattendedRespondent,
) -> list[dict[str, str]]:
    found = respondent.findings if isinstance(respondent, UnattendedRespondent) else []
    return [
        {"code": one.code, "level": one.level, "what": one.what, "fix": one.fix} for one in found
    ]
