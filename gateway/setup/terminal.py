"""A person at a terminal, or a pipe that plays one: plain prompts, secrets unseen."""

import getpass
import shutil
import sys
import textwrap
from functools import partial
from pathlib import Path

from gateway.probes.base import Finding
from gateway.setup.answers import SecretReference
from gateway.setup.dialog import (
    ConfirmQuestion,
    ProblemChoice,
    ProblemQuestion,
    SecretQuestion,
    SetupFindings,
    SetupQuestion,
)
from gateway.setup.driving import AnswerFlags, SetupAborted, parse_choice, resolve_secret
from gateway.store.lines import escape_unprintable

_CHOICE_LABELS: dict[ProblemChoice, str] = {
    "correct": "correct it",
    "again": "look again",
    "go on": "go on as it is",
    "skip": "skip this platform",
}
_LEVEL_SIGNS = {"ok": "ok", "warning": "!", "bad": "x"}
_MAX_COLUMNS = 80


class TerminalRespondent:
    """Asks there. Words that were answered by flags are not asked for again."""

    def __init__(self, directory: Path, flags: AnswerFlags) -> None:
        self._directory = directory
        self._answers, self._secrets = dict(flags.answers), dict(flags.secrets)
        self._width = min(shutil.get_terminal_size((_MAX_COLUMNS, 24)).columns, _MAX_COLUMNS)
        self.question_count = 0
        """Questions so far."""
        self.seen_secrets: list[str] = []
        """Secrets that were typed or looked up."""

    def set_directory(self, directory: Path) -> None:
        """Paths start there from now on."""
        self._directory = directory

    def ask(self, question: SetupQuestion) -> str:
        if (given := self._answers.pop(question.key, None)) is not None:
            try:
                return parse_choice(question, given)
            except ValueError as error:
                raise SetupAborted(f"--{question.key.replace('.', '-')}: {error}", code=2) from None
        if question.is_optional and question.default is not None:
            return question.default
        while True:
            words = self._read_line(question.text, question.default)
            if not words.strip() and question.default is not None:
                return question.default
            try:
                if words.strip() or question.choices:
                    return parse_choice(question, words)
                self.tell(("  This one is needed.",))
            except ValueError as error:
                self._write_wrapped(str(error), "  ", "  ")

    def ask_secret(self, question: SecretQuestion) -> SecretReference:
        if (given := self._secrets.pop(question.key, None)) is not None:
            try:
                return self._remember_secret(resolve_secret(given, self._directory))
            except ValueError as error:
                raise SetupAborted(f"--{question.key.replace('.', '-')}-file: {error}", code=2) from None
        kept = question.existing
        if question.is_optional:
            return self._remember_secret(kept or SecretReference(reference=""))
        hint = "hidden; Enter keeps it" if kept else "hidden, or ${NAME} of the environment"
        while True:
            words = self._read_hidden(f"{question.text} ({hint}): ").strip()
            if not words and kept is not None:
                return self._remember_secret(kept)
            try:
                if words.startswith("${"):
                    return self._remember_secret(resolve_secret(words, self._directory))
                if words:
                    value = question.parse(words)
                    return self._remember_secret(
                        SecretReference(reference=f"${{file:secrets/{question.file}}}", value=value, is_new=True)
                    )
                self.tell(("  This one is needed.",))
            except ValueError as error:
                self._write_wrapped(str(error), "  ", "  ")

    def confirm(self, question: ConfirmQuestion) -> bool:
        while True:
            words = self._read_line(
                f"  {question.text}", "yes" if question.default else "no", brackets="Y/n y/N"
            ).lower()
            if words.strip() in {"", "y", "yes", "n", "no"}:
                return question.default if not words.strip() else words.strip().startswith("y")
            self.tell(("  yes or no",))

    def tell(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            if line:
                self._write_wrapped(line.lstrip(), " " * (len(line) - len(line.lstrip())), " " * _hanging_indent(line))
            else:
                self._write("\n")

    def show_findings(self, said: SetupFindings) -> None:
        for finding in said.findings:
            self._write_finding(finding)

    def choose_remedy(self, said: ProblemQuestion) -> ProblemChoice:
        ways = ", ".join(f"{_CHOICE_LABELS[way]} ({way[0]})" for way in said.choices)
        self._write_wrapped(f"What now: {ways}.", "  ", "  ")
        question = SetupQuestion(
            key="", text="  Your choice", default=said.choices[0], parse=partial(_parse_problem_choice, said.choices)
        )
        answer = self.ask(question)
        return next(way for way in said.choices if way == answer)

    def _write_finding(self, finding: Finding) -> None:
        self._write_wrapped(escape_unprintable(finding.what), f"  {_LEVEL_SIGNS[finding.level]:>2} ", "     ")
        if finding.fix:
            self._write_wrapped(f"-> {escape_unprintable(finding.fix)}", "     ", "        ")

    def _remember_secret(self, secret: SecretReference) -> SecretReference:
        if secret.value:
            self.seen_secrets.append(secret.value)
        return secret

    def _read_line(self, text: str, default: str | None, brackets: str = "") -> str:
        self.question_count += 1
        shown = brackets.split()[0 if default == "yes" else 1] if brackets else default or ""
        self._write(f"{text} [{shown}]: " if shown else f"{text}: ")
        words = sys.stdin.readline()
        if not words:
            raise _input_ended()
        if not sys.stdin.isatty():
            self._write("\n")
        return words.rstrip("\n")

    def _read_hidden(self, prompt: str) -> str:
        self.question_count += 1
        if sys.stdin.isatty():
            try:
                return getpass.getpass(prompt, sys.stdout)
            except EOFError:
                raise _input_ended() from None
        self._write(prompt)
        words = sys.stdin.readline()
        self._write("\n")
        if not words:
            raise _input_ended()
        return words

    def _write_wrapped(self, text: str, first: str, rest: str) -> None:
        lines = textwrap.wrap(
            text,
            self._width - 1,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self._write("".join(f"{line}\n" for line in lines))

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _input_ended() -> SetupAborted:
    if sys.stdin.isatty():
        sys.stdout.write("\n")  # Ctrl-D ends no line
    reason = "the input has ended before all was answered, and nothing was written; --non-interactive takes flags"
    return SetupAborted(reason, code=2)


def _parse_problem_choice(ways: tuple[ProblemChoice, ...], words: str) -> str:
    """By its beginning, also as it is worded on the screen."""
    said = " ".join(words.lower().split())
    found = [way for way in ways if said and (way.startswith(said) or _CHOICE_LABELS[way].startswith(said))]
    if len(found) != 1:
        raise ValueError(f"one of {', '.join(ways)}")
    return found[0]


def _hanging_indent(line: str) -> int:
    """How far the rest of a long line is set in: below the words that explain a name, where there are any."""
    return len(line) - len(line.lstrip())
