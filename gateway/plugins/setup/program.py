"""`reverie setup` as a program: runs the interview, checks what it adds up to, and writes it."""

import asyncio
import copy
import json
import os
import re
import secrets
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from difflib import unified_diff
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from agent.workspace.persona import DEFAULT_WORKSPACE
from gateway.command_line import default_config
from gateway.config.source import format_key, value_at
from gateway.core.control_socket import find_gateway_state
from gateway.core.installing import in_image
from gateway.core.redaction import Redactor
from gateway.plugins.setup.config_edit import (
    MAIN_FILE,
    SCHEMA_FILE,
    SECRETS,
    CannotEdit,
    check_files,
    edit_files,
    find_changes,
    is_writable,
    merge_tree,
    parse_yaml,
    read_config_files,
    render_config,
    write_files,
)
from gateway.plugins.setup.dialog import (
    BAD_USAGE,
    DONE,
    FAILED,
    UNCHECKED,
    BeginAgain,
    Respondent,
    SetupStopped,
    Values,
    parse_choice,
    replace_texts,
    split_words,
)
from gateway.plugins.setup.model import ask_model
from gateway.plugins.setup.platforms import ChannelAnswers, ask_discord, ask_irc, ask_telegram
from gateway.plugins.setup.schema import schema_for_editors

PLATFORMS: Final = ("telegram", "discord", "irc")
_DEFAULT_NAME: Final = "Reverie"
_UNCHANGED: Final = "as it is"
_SMALL_MODEL_PERSONA: Final = "IDENTITY.local.md"
"""File of the default persona for very small models; a persona written by setup is for all
models."""


def run_setup(directory: Path | None, person: Respondent, *, yes: bool = False) -> int:
    """Run setup and return the exit code. If it stops, the reason is written to standard error.

    `directory`: None: asked for. `yes`: existing files are changed without asking.
    """
    try:
        while True:
            try:
                return _run_setup(directory, person, yes=yes)
            except BeginAgain:
                person.begin_again()
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            sys.stderr.write("\nstopped; nothing was written\n")
        return FAILED
    except EOFError:
        reason = "the input ended before all questions were answered; nothing was written"
        sys.stderr.write(f"\nsetup: {reason}; --non-interactive uses flags instead\n")
        return BAD_USAGE
    except (SetupStopped, OSError, UnicodeError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"{error.filename}: {error.strerror}"
        sys.stderr.write(f"setup: {Redactor(person.seen_secrets)(reason)}\n")
        return error.code if isinstance(error, SetupStopped) else FAILED
    except Exception:  # noqa: BLE001 - an unexpected error may quote a secret: it is printed redacted
        bug = Redactor(person.seen_secrets)(traceback.format_exc())
        sys.stderr.write(f"this is a bug; nothing was written\n{bug}")
        return FAILED


def _run_setup(directory: Path | None, person: Respondent, *, yes: bool) -> int:
    directory = person.directory = _choose_directory(directory, person)
    if texts := read_config_files(directory):
        _check(directory, texts, "correct the configuration first:")
        person.tell(f"There is a configuration in {directory}: setup proposes its values.")
    trees = {name: parse_yaml(text) for name, text in texts.items()}
    old: dict[str, Any] = reduce(merge_tree, trees.values(), {})
    store = directory / str(value_at(old, "store", "path") or "./data/reverie.db")
    running = bool(texts) and asyncio.run(find_gateway_state(store)).is_alive
    config = copy.deepcopy(old) if texts else _first_values()
    channels = _ask_channels(person, config, running=running)
    ask_model(person, config)
    files = _ask_persona(person, config, is_new=not texts)
    _ask_speaks_up(person, config, is_new=not texts)
    if value_at(config, "ops", "token") is None:
        token = person.add_secret("ops.token", secrets.token_urlsafe(32))
        config["ops"] = config.get("ops", {}) | {"token": token}
    held = list[str]()
    replace_texts(config, held.append)
    used = [one for one in dict.fromkeys(person.asked_secrets) if one in held]
    files |= {one[7:-1]: f"{person.typed[one]}\n" for one in used if one in person.typed}
    missing = [one[2:-1] for one in used if person.reveal(one) is None]
    notes = [f"{name} must be set in the environment of `reverie run`" for name in missing]
    configs = {MAIN_FILE: render_config(config, f"{datetime.now(UTC):%Y-%m-%d}")}
    files |= {} if texts else {SCHEMA_FILE: schema_for_editors()}
    if texts:
        changes = [*find_changes(old, config)]
        try:
            configs = edit_files(texts, trees, changes)
        except CannotEdit as error:
            lines = [f"{format_key(keys)}: {json.dumps(value)}" for keys, value in changes]
            configs, notes = texts, [*notes, _list_lines(f"{error}; write yourself:", lines)]
    _check(directory, configs, "the configuration would have errors:")
    files |= {name: text for name, text in configs.items() if text != texts.get(name)}
    if files:
        _confirm(person, directory, files, yes=yes)
        write_files(directory, files)
    notes += [f"{flag} was not used: nothing asked for it" for flag in person.unused_flags]
    last = {one.code: one.level for one in person.findings}
    code = UNCHECKED if "unknown" in last.values() else DONE
    where = f"--config {shlex.quote(str(directory))}"
    _say_farewell(channels, notes, where, changed=bool(files), running=running)
    return code


def _choose_directory(directory: Path | None, person: Respondent) -> Path:
    person.tell(
        "Reverie setup. Enter takes the value in brackets; `back` begins again, and",
        "proposes your answers; Ctrl-C stops. Nothing is written before the last question.",
        "",
    )
    question = "Directory of the configuration"
    free = "~/.config/reverie" if Path("reverie").exists() else "./reverie"
    default = str(default_config() or free)
    directory = directory or Path(person.ask(question, default=default)).expanduser()
    if not is_writable(directory):
        raise SetupStopped(
            f"{directory} cannot be written: name another directory, or look who owns it",
            code=BAD_USAGE,
        )
    return directory


def _first_values() -> Values:
    """Return what nobody is asked: a container writes into /data, and its port is published."""
    if not in_image():
        return {}
    return {"store": {"path": "/data/reverie.db"}, "ops": {"host": "0.0.0.0"}}  # noqa: S104 - inside of it


def _check(directory: Path, texts: Mapping[str, str], what: str) -> None:
    if wrong := check_files(directory, texts, os.environ):
        raise SetupStopped(_list_lines(what, wrong), code=BAD_USAGE)


def _list_lines(what: str, lines: Sequence[str]) -> str:
    return "\n  ".join([what, *lines])


def _say_farewell(
    channels: list[ChannelAnswers],
    notes: list[str],
    where: str,
    *,
    changed: bool,
    running: bool,
) -> None:
    lines = ["", "Written." if changed else "Nothing has changed."]
    lines += [f"  note: {one}" for one in notes]
    lines += [
        "",
        "Next, in a container with the same directories" if in_image() else "Next",
        f"  reverie doctor {where}     checks everything again",
        "  A gateway is running with this configuration. It reads the changes by itself."
        if running
        else f"  reverie run {where}        starts it; Ctrl-C stops it",
        "",
        "Talking to it",
    ]
    lines += [line for one in channels for line in one.farewell]
    if without := [one for one in channels if one.owner is None]:
        irc = {one.section["platform"] == "irc" for one in without}
        whoami = (
            "/whoami (on IRC: !whoami)" if len(irc) > 1 else "!whoami" if True in irc else "/whoami"
        )
        lines += [
            "",
            f"You are its owner, but not on {', '.join(one.name for one in without)} yet"
            if len(without) < len(channels)
            else "It has no owner yet, so it gives everybody a code first",
            f"  Write {whoami} to it in a direct chat: it shows you an id. Then run",
            f"  reverie ctl pair seed ID owner {where}",
        ]
    print(*lines, sep="\n")


def _confirm(person: Respondent, directory: Path, files: Mapping[str, str], *, yes: bool) -> None:
    redactor, lines, touched = Redactor(person.seen_secrets), list[str](), False
    for name, text in files.items():
        path = directory / name
        if not path.exists():
            lines.append(f"new: {path}")
            continue
        touched = True
        if name.startswith(SECRETS):
            lines.append(f"{path} gets new content, which setup does not show.")
            continue
        old = path.read_text(encoding="utf-8").splitlines()
        diff = unified_diff(old, text.splitlines(), name, f"{name} (new)", lineterm="")
        lines += map(redactor, diff)
    print("", "What would change" if touched else "What is written", "", *lines, "", sep="\n")
    if yes:
        return
    if touched and not person.attended:
        raise SetupStopped(f"{directory} already has a configuration; --yes changes it")
    if not person.confirm("Write it?"):
        raise SetupStopped("nothing was written")


def _ask_channels(person: Respondent, config: Values, *, running: bool) -> list[ChannelAnswers]:
    there: dict[str, Any] = config.get("channels") or {}
    named = {one["platform"]: name for name, one in reversed(there.items())}
    answers: list[ChannelAnswers] = []
    roles = (config.get("access") or {}).get("roles") or {}
    owners = list(roles.get("owner") or ())
    existing = [one for one in PLATFORMS if one in named]
    default = " ".join(existing) or "telegram"
    chosen = split_words(person.ask("platforms", default=default, parse=_parse_platforms))
    if stay := [one for one in existing if one not in chosen]:
        person.tell(f"  Unchanged: {', '.join(stay)}. To remove one, delete it from the file.")
    for platform in chosen:
        name = named.get(platform, "" if platform == "irc" else f"{platform}.main")
        section = there.get(name, {"platform": platform})
        mine = (one.partition(":")[2] for one in owners if one.partition(":")[0] == name)
        owner = next(mine, None)
        if platform == "telegram":
            one = ask_telegram(person, name, section, owner, polled=running)
        else:
            ask = ask_discord if platform == "discord" else ask_irc
            one = ask(person, name, section, owner)
        answers.append(one)
        if one.owner != owner:
            owners = [other for other in owners if other != f"{name}:{owner}"]
            owners += [f"{one.name}:{one.owner}"] if one.owner else []
    config["channels"] = there | {one.name: one.section for one in answers}
    if owners or roles.get("owner"):
        roles = roles | {"owner": list(dict.fromkeys(owners))}
        config["access"] = (config.get("access") or {}) | {"roles": roles}
    return answers


def _parse_platforms(words: str) -> str:
    chosen: set[str] = set()
    for word in split_words(words.lower()):
        match = [name for name in PLATFORMS if name.startswith(word)]
        if len(match) != 1:
            raise ValueError(f"{word} is not one of {', '.join(PLATFORMS)}")
        chosen |= {*match}
    if not chosen:
        raise ValueError("at least one of telegram, discord, irc")
    return " ".join(name for name in PLATFORMS if name in chosen)


def _ask_persona(person: Respondent, config: Values, *, is_new: bool) -> dict[str, str]:
    person.tell("", "Who it is")
    agents = config.setdefault("agents", [{"id": "reverie"}])
    agent, name = agents[0], agents[0]["id"]
    if is_new:
        name = person.ask("persona.name", default=_DEFAULT_NAME, parse=_parse_name)
        agent["id"] = re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "reverie"
    words = person.ask("persona.text", default=_UNCHANGED)
    if words == _UNCHANGED and (not is_new or name == _DEFAULT_NAME):
        return {}
    default = "/data/workspace" if in_image() else "./workspace"
    folder, shipped = Path(agent.setdefault("workspace", default)), DEFAULT_WORKSPACE
    files = {
        str(folder / path.relative_to(shipped)): path.read_text(encoding="utf-8")
        for path in sorted(shipped.rglob("*.md"))
        if path.name != _SMALL_MODEL_PERSONA and not (person.directory / folder).exists()
    }
    text = (shipped / "IDENTITY.md").read_text(encoding="utf-8").replace(_DEFAULT_NAME, name)
    if words != _UNCHANGED:
        text = (
            f"You are {name}. {words}\n\nYou are software and say so when it matters or when "
            "somebody asks.\n"
        )
    return files | {str(folder / "IDENTITY.md"): text}


def _ask_speaks_up(person: Respondent, config: Values, *, is_new: bool) -> None:
    agent = config["agents"][0]
    bindings = agent.get("bindings") or [{}]
    before = bindings[0].get("speaks_up", "never").replace("_", " ")
    parse = partial(parse_choice, ("never", "when useful", "sometimes"))
    chosen = person.ask("speaks.up", default=before, parse=parse, optional=not is_new)
    if chosen != before:
        agent["bindings"] = [one | {"speaks_up": chosen.replace(" ", "_")} for one in bindings]


def _parse_name(words: str) -> str:
    words = " ".join(words.split())
    if len(words) > 60:  # noqa: PLR2004 - a name
        raise ValueError("a name, of at most 60 characters")
    return words
