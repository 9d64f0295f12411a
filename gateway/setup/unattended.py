"""Nobody to ask: flags answer, and what they leave out has a default or is an error that names the flag."""

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

FAILED, BAD_USAGE = 1, 2


class UnattendedRespondent:
    """Answers by flags."""

    def __init__(self, directory: Path, flags: AnswerFlags, *, force: bool) -> None:
        """`force`: what does not work is configured all the same."""
        self._directory, self._flags, self._force = directory, flags, force
        self._used_keys: set[str] = set()
        """Keys of flags that have answered."""
        self.findings: list[Finding] = []
        self.seen_secrets: list[str] = []
        """Secrets that were looked up."""

    def set_directory(self, directory: Path) -> None:
        """Paths start there from now on."""
        self._directory = directory

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
        default = question.default if question.noninteractive_default is None else question.noninteractive_default
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
                raise SetupAborted(f"{flag}-env NAME or {flag}-file PATH is missing: {question.text}", code=BAD_USAGE)
            return question.existing
        try:
            secret = resolve_secret(reference, self._directory)
        except ValueError as error:
            raise SetupAborted(f"{flag}-file: {error}", code=BAD_USAGE) from None
        if secret.value is None and not self._force:
            raise SetupAborted(
                f"{flag}-env: {reference[2:-1]} is not set (--force writes it all the same)", code=BAD_USAGE
            )
        self._used_keys.add(question.key)
        if secret.value:
            self.seen_secrets.append(secret.value)
        return secret

    @property
    def unused_flags(self) -> list[str]:
        """Flags for which there was no question."""
        keys = [*self._flags.answers, *self._flags.secrets]
        return [f"--{key.replace('.', '-')}" for key in keys if key not in self._used_keys]

    def confirm(self, question: ConfirmQuestion) -> bool:
        if not question.default and not self._force:
            raise SetupAborted(f"{question.text} (--force says yes)", code=FAILED)
        return True

    def tell(self, lines: tuple[str, ...]) -> None:
        """Nobody listens."""

    def show_findings(self, said: SetupFindings) -> None:
        self.findings += said.findings

    def choose_remedy(self, said: ProblemQuestion) -> ProblemChoice:
        if self._force or all(one.level == "warning" for one in said.findings):
            return "go on"
        told = "; ".join(f"{one.what}: {one.fix}" for one in said.findings)
        raise SetupAborted(f"{told} (--force writes it all the same)", code=FAILED)
