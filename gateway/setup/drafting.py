"""From answers to the files that are to be, and what is shown of them. Pure but for the persona's files."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.redaction import Redactor
from gateway.settings_source import Keys, Tree, value_at
from gateway.setup.answers import SetupAnswers
from gateway.setup.editing import CannotEdit, ConfigChange, apply_changes, find_changes, parse_yaml
from gateway.setup.entries import build_entries
from gateway.setup.placing import SetupFile
from gateway.setup.rendering import render_config

MAIN_FILE = "reverie.yaml"
ASIDE_FILE = "reverie.setup.example.yaml"
"""Where the answers go if a file cannot be changed; its name keeps it from being read as configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDraft:
    """What is to be put in place."""

    files: tuple[SetupFile, ...]
    """Those that are not so yet."""
    notices: tuple[str, ...] = ()
    """What the person must know of it."""
    diff: tuple[str, ...] = field(default=(), repr=False)
    """Of files that are there already."""


def draft_config(
    answers: SetupAnswers, now: Mapping[str, str], persona: Mapping[str, str], here: Mapping[str, str], today: str
) -> ConfigDraft:
    """`now`: the configuration's files and their texts. `persona`: the one that comes with the product.

    `here`: the texts of other files that may be written, as they are now, by path.
    """
    wanted = build_entries(answers)
    secrets = [SetupFile(path=one.path, text=f"{one.value}\n", secret=True) for one in answers.secrets if one.is_new]
    files = _persona_files(answers, persona, here)
    told: tuple[str, ...] = ()
    if answers.identity is not None and not files:
        told = (f"Its persona is not here but in {answers.workspace}: edit it there.",)
    if not now:
        return ConfigDraft(files=(*secrets, *files, SetupFile(path=MAIN_FILE, text=render_config(wanted, today))))
    trees = {name: parse_yaml(text) for name, text in now.items()}
    whole: Tree = {}
    for tree in trees.values():
        whole = _merge_trees(whole, tree)
    asked = find_changes(whole, wanted)
    texts = dict(now)
    try:
        for change in asked:
            name = _choose_file(change, trees)
            texts[name] = apply_changes(texts.get(name, ""), [change])
    except CannotEdit as error:
        aside = SetupFile(path=ASIDE_FILE, text=render_config(wanted, today))
        told = (
            f"The file that is there is written in a way that setup does not change ({error}).",
            f"The answers are in {ASIDE_FILE} beside it: take over from there what you want.",
        )
        return ConfigDraft(files=(*secrets, aside), notices=told)
    files = [*files, *(SetupFile(path=name, text=text) for name, text in texts.items() if text != now.get(name))]
    found = [line for file in files for line in _unified_diff(file, {**here, **now}.get(file.path, ""))]
    return ConfigDraft(files=(*secrets, *files), notices=told, diff=tuple(found))


def redact_diff(draft: ConfigDraft, secrets: list[str]) -> list[str]:
    """The diff for people. Lines of a file that holds secrets itself are told without them."""
    redact = Redactor(secrets)
    return [redact(line) for line in draft.diff]


def _unified_diff(file: SetupFile, before: str) -> list[str]:
    old, new = before.splitlines(), file.text.splitlines()
    return list(difflib.unified_diff(old, new, file.path, f"{file.path} (new)", lineterm=""))


def _persona_files(answers: SetupAnswers, persona: Mapping[str, str], here: Mapping[str, str]) -> list[SetupFile]:
    if answers.identity is None or answers.workspace is None or answers.workspace.startswith(("/", "~", "..")):
        return []
    folder = answers.workspace.removeprefix("./").rstrip("/")
    texts = {**persona, "IDENTITY.md": answers.identity}
    files = [SetupFile(path=f"{folder}/{name}", text=text) for name, text in texts.items()]
    # What is there already is the operator's; only who it is was asked for.
    return [one for one in files if one.path not in here or one.path == f"{folder}/IDENTITY.md"]


def _choose_file(change: ConfigChange, trees: Mapping[str, Tree]) -> str:
    """The file that has the most of the way to it."""
    best = max(trees, key=lambda name: (_matched_depth(trees[name], change.keys), name == MAIN_FILE))
    return best if _matched_depth(trees[best], change.keys) or MAIN_FILE not in trees else MAIN_FILE


def _matched_depth(tree: Tree, keys: Keys) -> int:
    for depth, key in enumerate(keys):
        below = value_at(tree, key)
        if below is None:
            return depth
        tree = below
    return len(keys)


def _merge_trees(whole: Tree, part: Tree) -> Tree:
    if isinstance(whole, dict) and isinstance(part, dict):
        return whole | {key: _merge_trees(whole.get(key), below) for key, below in part.items()}
    return part
