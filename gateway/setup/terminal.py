"""A person at a terminal, or a pipe that plays one: plain prompts, secrets unseen."""

import getpass
import shutil
import sys
import textwrap
from functools import partial
from pathlib import Path

from gateway.probes.base import Finding
from gateway.setup.answers import Secret
from gateway.setup.dialog import Ask, AskSecret, Confirm, Report, Trouble, Way
from gateway.setup.driving import Flags, Stopped, chosen, secret_of
from gateway.store.lines import printable

_WAYS: dict[Way, str] = {
    "correct": "correct it",
    "again": "look again",
    "go on": "go on as it is",
    "skip": "skip this platform",
}
_SIGNS = {"ok": "ok", "warning": "!", "bad": "x"}
_WIDEST = 80


class Terminal:
    """Asks there. Words that were answered by flags are not asked for again."""

    def __init__(self, directory: Path, flags: Flags) -> None:
        self._directory = directory
        self._answers, self._secrets = dict(flags.answers), dict(flags.secrets)
        self._width = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST)
        self.question_count = 0
        """Questions so far."""
        self.seen_secrets: list[str] = []
        """Secrets that were typed or looked up."""

    def set_directory(self, directory: Path) -> None:
        """Paths start there from now on."""
        self._directory = directory

    def ask(self, question: Ask) -> str:
        if (given := self._answers.pop(question.key, None)) is not None:
            try:
                return chosen(question, given)
            except ValueError as error:
                raise Stopped(f"--{question.key.replace('.', '-')}: {error}", code=2) from None
        if question.is_optional and question.default is not None:
            return question.default
        while True:
            words = self._read_line(question.text, question.default)
            if not words.strip() and question.default is not None:
                return question.default
            try:
                if words.strip() or question.choices:
                    return chosen(question, words)
                self.tell(("  This one is needed.",))
            except ValueError as error:
                self._write_wrapped(str(error), "  ", "  ")

    def ask_secret(self, question: AskSecret) -> Secret:
        if (given := self._secrets.pop(question.key, None)) is not None:
            try:
                return self._remember_secret(secret_of(given, self._directory))
            except ValueError as error:
                raise Stopped(f"--{question.key.replace('.', '-')}-file: {error}", code=2) from None
        kept = question.existing
        if question.is_optional:
            return self._remember_secret(kept or Secret(reference=""))
        hint = "hidden; Enter keeps it" if kept else "hidden, or ${NAME} of the environment"
        while True:
            words = self._read_hidden(f"{question.text} ({hint}): ").strip()
            if not words and kept is not None:
                return self._remember_secret(kept)
            try:
                if words.startswith("${"):
                    return self._remember_secret(secret_of(words, self._directory))
                if words:
                    value = question.parse(words)
                    return self._remember_secret(
                        Secret(reference=f"${{file:secrets/{question.file}}}", value=value, is_new=True)
                    )
                self.tell(("  This one is needed.",))
            except ValueError as error:
                self._write_wrapped(str(error), "  ", "  ")

    def confirm(self, question: Confirm) -> bool:
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
                self._write_wrapped(line.lstrip(), " " * (len(line) - len(line.lstrip())), " " * _hanging(line))
            else:
                self._write("\n")

    def show_findings(self, said: Report) -> None:
        for finding in said.findings:
            self._write_finding(finding)

    def choose_remedy(self, said: Trouble) -> Way:
        ways = ", ".join(f"{_WAYS[way]} ({way[0]})" for way in said.choices)
        self._write_wrapped(f"What now: {ways}.", "  ", "  ")
        question = Ask(key="", text="  Your choice", default=said.choices[0], parse=partial(_as_way, said.choices))
        answer = self.ask(question)
        return next(way for way in said.choices if way == answer)

    def _write_finding(self, finding: Finding) -> None:
        self._write_wrapped(printable(finding.what), f"  {_SIGNS[finding.level]:>2} ", "     ")
        if finding.fix:
            self._write_wrapped(f"-> {printable(finding.fix)}", "     ", "        ")

    def _remember_secret(self, secret: Secret) -> Secret:
        if secret.value:
            self.seen_secrets.append(secret.value)
        return secret

    def _read_line(self, text: str, default: str | None, brackets: str = "") -> str:
        self.question_count += 1
        shown = brackets.split()[0 if default == "yes" else 1] if brackets else default or ""
        self._write(f"{text} [{shown}]: " if shown else f"{text}: ")
        words = sys.stdin.readline()
        if not words:
            raise _ended()
        if not sys.stdin.isatty():
            self._write("\n")
        return words.rstrip("\n")

    def _read_hidden(self, prompt: str) -> str:
        self.question_count += 1
        if sys.stdin.isatty():
            try:
                return getpass.getpass(prompt, sys.stdout)
            except EOFError:
                raise _ended() from None
        self._write(prompt)
        words = sys.stdin.readline()
        self._write("\n")
        if not words:
            raise _ended()
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


def _ended() -> Stopped:
    if sys.stdin.isatty():
        sys.stdout.write("\n")  # Ctrl-D ends no line
    reason = "the input has ended before all was answered, and nothing was written; --non-interactive takes flags"
    return Stopped(reason, code=2)


def _as_way(ways: tuple[Way, ...], words: str) -> str:
    """By its beginning, also as it is worded on the screen."""
    said = " ".join(words.lower().split())
    found = [way for way in ways if said and (way.startswith(said) or _WAYS[way].startswith(said))]
    if len(found) != 1:
        raise ValueError(f"one of {', '.join(ways)}")
    return found[0]


def _hanging(line: str) -> int:
    """How far the rest of a long line is set in: below the words that explain a name, where there are any."""
    return len(line) - len(line.lstrip())
