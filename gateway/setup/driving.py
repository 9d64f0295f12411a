"""Runs an interview: hands each step to whoever answers, and looks at the world where it asks for that."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from gateway.setup.answers import SecretReference
from gateway.setup.dialog import (
    ConfirmQuestion,
    DialogFlow,
    DialogReply,
    DialogStep,
    ProbeRequest,
    ProblemChoice,
    ProblemQuestion,
    SecretQuestion,
    SetupFindings,
    SetupNotice,
    SetupQuestion,
)
from gateway.setup.looking import run_probe

T = TypeVar("T")


class Respondent(Protocol):
    """Who answers. Each may raise `SetupAborted`."""

    def ask(self, question: SetupQuestion) -> str: ...

    def ask_secret(self, question: SecretQuestion) -> SecretReference: ...

    def confirm(self, question: ConfirmQuestion) -> bool: ...

    def tell(self, lines: tuple[str, ...]) -> None: ...

    def show_findings(self, said: SetupFindings) -> None: ...

    def choose_remedy(self, said: ProblemQuestion) -> ProblemChoice: ...


class SetupAborted(Exception):
    """It does not go on. The text says why, and what to do."""

    def __init__(self, reason: str, *, code: int) -> None:
        """`code`: the exit code."""
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFlags:
    """What was answered before anything was asked."""

    answers: Mapping[str, str] = field(default_factory=dict)
    """By the question's key."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The same, as references."""


def run_flow(flow: DialogFlow[T], who: Respondent, directory: Path, *, polled: bool) -> T:
    """Run it to its end. Raises `SetupAborted`, and whatever `who` raises."""
    try:
        step = next(flow)
        while True:
            step = flow.send(_reply_to(step, who, directory, polled=polled))
    except StopIteration as end:
        result: T = end.value
        return result


def _reply_to(step: DialogStep, who: Respondent, directory: Path, *, polled: bool) -> DialogReply:
    match step:
        case SetupQuestion():
            return who.ask(step)
        case SecretQuestion():
            return who.ask_secret(step)
        case ConfirmQuestion():
            return who.confirm(step)
        case ProblemQuestion():
            return who.choose_remedy(step)
        case ProbeRequest():
            return asyncio.run(run_probe(step, directory, polled=polled))
        case SetupFindings():
            who.show_findings(step)
        case SetupNotice(lines):
            who.tell(lines)
    return None


def parse_choice(question: SetupQuestion, words: str) -> str:
    """What the words mean as an answer. Raises ValueError with the remedy."""
    said = words.strip()
    if not question.choices:
        return question.parse(words)
    if said.isdecimal() and 1 <= int(said) <= len(question.choices):
        return question.choices[int(said) - 1]
    exact = [one for one in question.choices if one.lower() == said.lower()]
    begun = [one for one in question.choices if said and one.lower().startswith(said.lower())]
    if exact or (len(begun) == 1 and not question.allows_other):
        return (exact or begun)[0]
    if question.allows_other:
        return question.parse(words)
    raise ValueError(f"one of {', '.join(question.choices)}")


def resolve_secret(reference: str, directory: Path, env: Mapping[str, str] = os.environ) -> SecretReference:
    """What `${NAME}` or `${file:PATH}` stands for, as the configuration reads it. Raises ValueError with the remedy."""
    if reference.startswith("${file:") and reference.endswith("}"):
        path = directory / Path(reference[7:-1].strip()).expanduser()
        try:
            value = path.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text file"
            raise ValueError(f"the file {path} cannot be read ({reason})") from None
        if not value:
            raise ValueError(f"the file {path} is empty")
        return SecretReference(reference=reference, value=value)
    name = reference[2:-1]
    if not reference.startswith("${") or not reference.endswith("}") or not name.isidentifier():
        raise ValueError("write ${NAME} for an environment variable, or ${file:PATH}")
    return SecretReference(reference=reference, value=env.get(name) or None)
