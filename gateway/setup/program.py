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
from gateway.control import ControlError, send_control_request, socket_path
from gateway.redaction import Redactor
from gateway.settings_source import Tree, value_at
from gateway.setup.answers import SetupAnswers
from gateway.setup.dialog import ConfirmQuestion, SetupQuestion
from gateway.setup.drafting import ConfigDraft, draft_config, redact_diff
from gateway.setup.driving import AnswerFlags, SetupAborted, resolve_secret, run_flow
from gateway.setup.editing import parse_yaml
from gateway.setup.entries import read_answers
from gateway.setup.farewell import build_farewell, next_commands
from gateway.setup.interview import SetupSituation, run_interview
from gateway.setup.placing import check_files, is_writable, read_config_files, write_files
from gateway.setup.terminal import TerminalRespondent
from gateway.setup.unattended import BAD_USAGE, FAILED, UnattendedRespondent

DONE = 0
DEFAULT_DIRECTORY = "./reverie"
_SMALL_MODEL_PERSONA = "IDENTITY.local.md"
"""Of the persona that comes with the product, what is for very small models: a persona of one's own is for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupOptions:
    """What was said on the command line."""

    directory: Path | None
    """None: asked for."""
    flags: AnswerFlags
    is_interactive: bool
    json: bool
    yes: bool
    """Files that are there are changed without asking."""
    force: bool
    """The same, and what does not work is configured all the same."""
    telegram_url: str | None = None
    discord_urls: tuple[str | None, str | None] = (None, None)
    model_url: str | None = None


def run_setup(options: SetupOptions) -> int:
    """Run it; the exit code. Says on standard error why it stopped, if it did."""
    who: TerminalRespondent | UnattendedRespondent = (
        TerminalRespondent(Path(), options.flags)
        if options.is_interactive
        else UnattendedRespondent(Path(), options.flags, force=options.force)
    )
    try:
        return _run_setup(options, who)
    except SetupAborted as stopped:
        return _report_abort(options, who, str(stopped), stopped.code)
    except KeyboardInterrupt:
        sys.stderr.write("\nstopped; nothing was written\n")
        return FAILED
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        return _report_abort(options, who, _describe_error(error), FAILED)
    except Exception:  # noqa: BLE001 - what nobody thought of may quote what was typed: it is told without
        redact = Redactor(who.seen_secrets)
        sys.stderr.write(f"this is a bug, and nothing was written\n{redact(traceback.format_exc())}")
        return FAILED


def _report_abort(options: SetupOptions, who: TerminalRespondent | UnattendedRespondent, reason: str, code: int) -> int:
    told = Redactor(who.seen_secrets)(reason)
    if options.json:
        sys.stdout.write(json.dumps({"ok": False, "error": told, "findings": _findings_as_json(who)}) + "\n")
    else:
        sys.stderr.write(f"setup: {told}\n")
    return code


def _describe_error(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"the configuration is not YAML (line {error.problem_mark.line + 1}); mend it first"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return "a file of the configuration cannot be read; mend it first"


def _run_setup(options: SetupOptions, who: TerminalRespondent | UnattendedRespondent) -> int:
    who.tell(("Reverie setup. Enter takes what stands in brackets; Ctrl-C leaves all as it is.", ""))
    directory = options.directory
    if directory is None:
        question = SetupQuestion(key="config", text="Directory of the configuration", default=DEFAULT_DIRECTORY)
        directory = Path(who.ask(question)).expanduser()
    if not is_writable(directory):
        raise SetupAborted(
            f"{directory} cannot be written: name another directory, or look who owns it", code=BAD_USAGE
        )
    who.set_directory(directory)
    now = read_config_files(directory)
    trees = [parse_yaml(text) for text in now.values()]
    running = bool(now) and _is_gateway_running(directory, trees)
    there = _existing_answers(directory, trees) if now else None
    if there is not None:
        who.tell((f"There is a configuration in {directory}: what it says now is proposed.",))
    persona = _load_default_persona()
    situation = SetupSituation(
        existing=there,
        identity=persona["IDENTITY.md"],
        is_running=running,
        fresh_token=secrets.token_urlsafe(32),
        telegram_url=options.telegram_url,
        discord_urls=options.discord_urls,
        model_url=options.model_url,
    )
    answers = run_flow(run_interview(situation), who, directory, polled=running)
    who.seen_secrets += [one.value for one in answers.secrets if one.value]
    today = datetime.now(UTC).date().isoformat()
    made = draft_config(answers, now, persona, _read_existing_files(directory, answers), today)
    return _write_config(options, who, directory, answers, made, running=running)


def _write_config(
    options: SetupOptions,
    who: TerminalRespondent | UnattendedRespondent,
    directory: Path,
    answers: SetupAnswers,
    made: ConfigDraft,
    *,
    running: bool,
) -> int:
    warnings = _validate_draft(directory, answers, made) if made.files else []
    if isinstance(who, UnattendedRespondent) and who.unused_flags:
        warnings.append(f"not needed: {', '.join(who.unused_flags)}")
    if made.files and not _confirm_write(options, who, directory, made):
        raise SetupAborted("nothing was written", code=FAILED)
    if made.files:
        write_files(directory, made.files)
    names = [str(directory / file.path) for file in made.files]
    if options.json:
        told = {
            "ok": True,
            "directory": str(directory),
            "written": names,
            "channels": [one.channel for one in (answers.telegram, answers.discord, answers.irc) if one],
            "owners": list(answers.owners),
            "warnings": [*warnings, *made.notices],
            "findings": _findings_as_json(who),
            "next": next_commands(str(directory)),
        }
        sys.stdout.write(json.dumps(told) + "\n")
        return DONE
    out = ["", "Written." if names else "Nothing has changed."]
    out += [f"  note: {one}" for one in (*warnings, *made.notices)]
    out += build_farewell(answers, str(directory), running=running)
    sys.stdout.write("".join(f"{line}\n" for line in out))
    return DONE


def _confirm_write(
    options: SetupOptions, who: TerminalRespondent | UnattendedRespondent, directory: Path, made: ConfigDraft
) -> bool:
    lines = redact_diff(made, who.seen_secrets)
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
            raise SetupAborted(f"{directory} holds a configuration already; --yes changes it", code=FAILED)
        return True
    return who.confirm(ConfirmQuestion(text="Write it?"))


def _validate_draft(directory: Path, answers: SetupAnswers, made: ConfigDraft) -> list[str]:
    """What is unwise about it. Raises Stopped if it would not be taken."""
    unset = {one.reference[2:-1]: "not-set-0" for one in answers.secrets if one.value is None and not one.path}
    wrong, warnings = check_files(directory, made.files, {**os.environ, **unset})
    if wrong:
        told = "".join(f"\n  {one}" for one in wrong)
        raise SetupAborted(f"the configuration would not be good:{told}\nnothing was written", code=BAD_USAGE)
    missing = [f"{name} must be set in the environment of `reverie run`" for name in unset]
    return [*warnings, *missing]


def _existing_answers(directory: Path, trees: list[Tree]) -> SetupAnswers:
    whole: dict[str, Tree] = {}
    for tree in trees:
        whole |= {key: below for key, below in tree.items() if key not in whole} if isinstance(tree, dict) else {}
        for key, below in tree.items() if isinstance(tree, dict) else ():
            if isinstance(below, dict) and isinstance(whole[key], dict):
                whole[key] = {**below, **whole[key]}  # type: ignore[dict-item] # looked at one line above
    return read_answers(whole, _SecretValues(directory))


class _SecretValues(dict[str, str]):
    """What references stand for, looked up when asked for."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override] # narrower
        try:
            return resolve_secret(key, self._directory).value or default
        except ValueError:
            return default


def _is_gateway_running(directory: Path, trees: list[Tree]) -> bool:
    from gateway.orders import DmnRequest  # noqa: PLC0415 - only here

    path = next(
        (found for tree in trees if isinstance(found := value_at(tree, "store", "path"), str)), "./data/reverie.db"
    )
    try:
        asyncio.run(send_control_request(socket_path(directory / path), DmnRequest(what="status", by="setup")))
    except (ControlError, OSError, ValueError):
        return False
    return True


def _load_default_persona() -> dict[str, str]:
    folder = default_workspace()
    files = sorted(path for path in folder.rglob("*.md") if path.name != _SMALL_MODEL_PERSONA)
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _read_existing_files(directory: Path, answers: SetupAnswers) -> Mapping[str, str]:
    """Of files that may be written, those that are there."""
    folder = (answers.workspace or "").removeprefix("./").rstrip("/")
    files = (directory / folder).rglob("*.md") if folder else ()
    return {path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _findings_as_json(who: TerminalRespondent | UnattendedRespondent) -> list[dict[str, str]]:
    found = who.findings if isinstance(who, UnattendedRespondent) else []
    return [{"code": one.code, "level": one.level, "what": one.what, "fix": one.fix} for one in found]
