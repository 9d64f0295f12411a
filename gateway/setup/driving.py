"""Runs an interview: hands each step to whoever answers, and looks at the world where it asks for that."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from gateway.setup.answers import Secret
from gateway.setup.dialog import Ask, AskSecret, Confirm, Flow, Look, Reply, Report, Step, Tell, Trouble, Way
from gateway.setup.looking import look

T = TypeVar("T")


class Answering(Protocol):
    """Who answers. Each may raise `Stopped`."""

    def ask(self, question: Ask) -> str: ...

    def ask_secret(self, question: AskSecret) -> Secret: ...

    def confirm(self, question: Confirm) -> bool: ...

    def tell(self, lines: tuple[str, ...]) -> None: ...

    def show_findings(self, said: Report) -> None: ...

    def choose_remedy(self, said: Trouble) -> Way: ...


class Stopped(Exception):
    """It does not go on. The text says why, and what to do."""

    def __init__(self, reason: str, *, code: int) -> None:
        """`code`: the exit code."""
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was answered before anything was asked."""

    answers: Mapping[str, str] = field(default_factory=dict)
    """By the question's key."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """The same, as references."""


def drive(flow: Flow[T], who: Answering, directory: Path, *, polled: bool) -> T:
    """Run it to its end. Raises `Stopped`, and whatever `who` raises."""
    try:
        step = next(flow)
        while True:
            step = flow.send(_reply(step, who, directory, polled=polled))
    except StopIteration as end:
        result: T = end.value
        return result


def _reply(step: Step, who: Answering, directory: Path, *, polled: bool) -> Reply:
    match step:
        case Ask():
            return who.ask(step)
        case AskSecret():
            return who.ask_secret(step)
        case Confirm():
            return who.confirm(step)
        case Trouble():
            return who.choose_remedy(step)
        case Look():
            return asyncio.run(look(step, directory, polled=polled))
        case Report():
            who.show_findings(step)
        case Tell(lines):
            who.tell(lines)
    return None


def chosen(question: Ask, words: str) -> str:
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


def secret_of(reference: str, directory: Path, env: Mapping[str, str] = os.environ) -> Secret:
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
        return Secret(reference=reference, value=value)
    name = reference[2:-1]
    if not reference.startswith("${") or not reference.endswith("}") or not name.isidentifier():
        raise ValueError("write ${NAME} for an environment variable, or ${file:PATH}")
    return Secret(reference=reference, value=env.get(name) or None)
