"""`reverie setup` as a program: ask, look, show, write."""

import asyncio
import json
import os
import secrets
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml

from agent.workspace.files import default_workspace
from gateway.control import ControlError, ask, socket_path
from gateway.redaction import Redactor
from gateway.settings_source import Tree, at
from gateway.setup.answers import Answers
from gateway.setup.dialog import Ask, Confirm
from gateway.setup.drafting import Draft, draft, shown
from gateway.setup.driving import Flags, Stopped, drive, secret_of
from gateway.setup.editing import read
from gateway.setup.entries import before
from gateway.setup.farewell import commands, farewell
from gateway.setup.interview import Situation, interview
from gateway.setup.placing import configuration, place, problems, writable
from gateway.setup.terminal import Terminal
from gateway.setup.unattended import Unattended

DONE, FAILED, BAD_USAGE = 0, 1, 2
DEFAULT = "./reverie"
_LOCAL = "IDENTITY.local.md"
"""Of the persona that comes with the product, what is for very small models: a persona of one's own is for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was said on the command line."""

    directory: Path | None
    """None: asked for."""
    flags: Flags
    is_interactive: bool
    json: bool
    yes: bool
    """Files that are there are changed without asking."""
    force: bool
    """The same, and what does not work is configured all the same."""
    telegram_url: str | None = None
    discord_urls: tuple[str | None, str | None] = (None, None)
    model_url: str | None = None


def setup(options: Options) -> int:
    """Run it; the exit code. Says on standard error why it stopped, if it did."""
    who: Terminal | Unattended = (
        Terminal(Path(), options.flags)
        if options.is_interactive
        else Unattended(Path(), options.flags, force=options.force)
    )
    try:
        return _setup(options, who)
    except Stopped as stopped:
        return _stopped(options, who, str(stopped), stopped.code)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; nothing was written\n")
        return FAILED
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        return _stopped(options, who, _reason(error), FAILED)
    except Exception:  # noqa: BLE001 - what nobody thought of may quote what was typed: it is told without
        redact = Redactor(who.seen_secrets)
        sys.stderr.write(f"this is a bug, and nothing was written\n{redact(traceback.format_exc())}")
        return FAILED


def _stopped(options: Options, who: Terminal | Unattended, reason: str, code: int) -> int:
    told = Redactor(who.seen_secrets)(reason)
    if options.json:
        sys.stdout.write(json.dumps({"ok": False, "error": told, "findings": _findings(who)}) + "\n")
    else:
        sys.stderr.write(f"setup: {told}\n")
    return code


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"the configuration is not YAML (line {error.problem_mark.line + 1}); mend it first"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return "a file of the configuration cannot be read; mend it first"


def _setup(options: Options, who: Terminal | Unattended) -> int:
    who.tell(("Reverie setup. Enter takes what stands in brackets; Ctrl-C leaves all as it is.", ""))
    directory = options.directory
    if directory is None:
        question = Ask(key="config", text="Directory of the configuration", default=DEFAULT)
        directory = Path(who.ask(question)).expanduser()
    if not writable(directory):
        raise Stopped(f"{directory} cannot be written: name another directory, or look who owns it", code=BAD_USAGE)
    who.set_directory(directory)
    now = configuration(directory)
    trees = [read(text) for text in now.values()]
    running = bool(now) and _running(directory, trees)
    there = _before(directory, trees) if now else None
    if there is not None:
        who.tell((f"There is a configuration in {directory}: what it says now is proposed.",))
    persona = _persona()
    situation = Situation(
        existing=there,
        identity=persona["IDENTITY.md"],
        is_running=running,
        fresh_token=secrets.token_urlsafe(32),
        telegram_url=options.telegram_url,
        discord_urls=options.discord_urls,
        model_url=options.model_url,
    )
    answers = drive(interview(situation), who, directory, polled=running)
    who.seen_secrets += [one.value for one in answers.secrets if one.value]
    today = datetime.now(UTC).date().isoformat()
    made = draft(answers, now, persona, _here(directory, answers), today)
    return _write(options, who, directory, answers, made, running=running)


def _write(
    options: Options, who: Terminal | Unattended, directory: Path, answers: Answers, made: Draft, *, running: bool
) -> int:
    warnings = _checked(directory, answers, made) if made.files else []
    if isinstance(who, Unattended) and who.unused_flags:
        warnings.append(f"not needed: {', '.join(who.unused_flags)}")
    if made.files and not _agreed(options, who, directory, made):
        raise Stopped("nothing was written", code=FAILED)
    if made.files:
        place(directory, made.files)
    names = [str(directory / file.path) for file in made.files]
    if options.json:
        told = {
            "ok": True,
            "directory": str(directory),
            "written": names,
            "channels": [one.channel for one in (answers.telegram, answers.discord, answers.irc) if one],
            "owners": list(answers.owners),
            "warnings": [*warnings, *made.notices],
            "findings": _findings(who),
            "next": commands(str(directory)),
        }
        sys.stdout.write(json.dumps(told) + "\n")
        return DONE
    out = ["", "Written." if names else "Nothing has changed."]
    out += [f"  note: {one}" for one in (*warnings, *made.notices)]
    out += farewell(answers, str(directory), running=running)
    sys.stdout.write("".join(f"{line}\n" for line in out))
    return DONE


def _agreed(options: Options, who: Terminal | Unattended, directory: Path, made: Draft) -> bool:
    lines = shown(made, who.seen_secrets)
    hidden = [file.path for file in made.files if file.secret and (directory / file.path).exists()]
    fresh = [file.path for file in made.files if not (directory / file.path).exists()]
    if not options.json:
        if lines:
            sys.stdout.write("\nWhat would change:\n\n" + "".join(f"{line}\n" for line in lines) + "\n")
        for path in hidden:
            sys.stdout.write(f"{path} gets new content, which is not shown.\n")
        if fresh:
            sys.stdout.write("".join(["\nNew files\n", *(f"  {directory / path}\n" for path in fresh)]))
    if options.yes or options.force:
        return True
    if not options.is_interactive:
        if lines or hidden:
            raise Stopped(f"{directory} holds a configuration already; --yes changes it", code=FAILED)
        return True
    return who.confirm(Confirm(text="Write it?"))


def _checked(directory: Path, answers: Answers, made: Draft) -> list[str]:
    """What is unwise about it. Raises Stopped if it would not be taken."""
    unset = {one.reference[2:-1]: "not-set-0" for one in answers.secrets if one.value is None and not one.path}
    wrong, warnings = problems(directory, made.files, {**os.environ, **unset})
    if wrong:
        told = "".join(f"\n  {one}" for one in wrong)
        raise Stopped(f"the configuration would not be good:{told}\nnothing was written", code=BAD_USAGE)
    missing = [f"{name} must be set in the environment of `reverie run`" for name in unset]
    return [*warnings, *missing]


def _before(directory: Path, trees: list[Tree]) -> Answers:
    whole: dict[str, Tree] = {}
    for tree in trees:
        whole |= {key: below for key, below in tree.items() if key not in whole} if isinstance(tree, dict) else {}
        for key, below in tree.items() if isinstance(tree, dict) else ():
            if isinstance(below, dict) and isinstance(whole[key], dict):
                whole[key] = {**below, **whole[key]}  # type: ignore[dict-item] # looked at one line above
    return before(whole, _Values(directory))


class _Values(dict[str, str]):
    """What references stand for, looked up when asked for."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override] # narrower
        try:
            return secret_of(key, self._directory).value or default
        except ValueError:
            return default


def _running(directory: Path, trees: list[Tree]) -> bool:
    from gateway.orders import DmnOrder  # noqa: PLC0415 - only here

    path = next((found for tree in trees if isinstance(found := at(tree, "store", "path"), str)), "./data/reverie.db")
    try:
        asyncio.run(ask(socket_path(directory / path), DmnOrder(what="status", by="setup")))
    except (ControlError, OSError, ValueError):
        return False
    return True


def _persona() -> dict[str, str]:
    folder = default_workspace()
    files = sorted(path for path in folder.rglob("*.md") if path.name != _LOCAL)
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _here(directory: Path, answers: Answers) -> Mapping[str, str]:
    """Of files that may be written, those that are there."""
    folder = (answers.workspace or "").removeprefix("./").rstrip("/")
    files = (directory / folder).rglob("*.md") if folder else ()
    return {path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _findings(who: Terminal | Unattended) -> list[dict[str, str]]:
    found = who.findings if isinstance(who, Unattended) else []
    return [{"code": one.code, "level": one.level, "what": one.what, "fix": one.fix} for one in found]
