"""From answers to the files that are to be, and what is shown of them. Pure but for the persona's files."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.redaction import Redactor
from gateway.settings_source import Keys, Tree, at
from gateway.setup.answers import Answers
from gateway.setup.editing import CannotEdit, Change, changes, edit, read
from gateway.setup.entries import entries
from gateway.setup.placing import File
from gateway.setup.rendering import render

MAIN = "reverie.yaml"
ASIDE = "reverie.setup.example.yaml"
"""Where the answers go if a file cannot be changed; its name keeps it from being read as configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What is to be put in place."""

    files: tuple[File, ...]
    """Those that are not so yet."""
    notices: tuple[str, ...] = ()
    """What the person must know of it."""
    diff: tuple[str, ...] = field(default=(), repr=False)
    """Of files that are there already."""


def draft(
    answers: Answers, now: Mapping[str, str], persona: Mapping[str, str], here: Mapping[str, str], today: str
) -> Draft:
    """`now`: the configuration's files and their texts. `persona`: the one that comes with the product.

    `here`: the texts of other files that may be written, as they are now, by path.
    """
    wanted = entries(answers)
    secrets = [File(path=one.path, text=f"{one.value}\n", secret=True) for one in answers.secrets if one.is_new]
    files = _persona(answers, persona, here)
    told: tuple[str, ...] = ()
    if answers.identity is not None and not files:
        told = (f"Its persona is not here but in {answers.workspace}: edit it there.",)
    if not now:
        return Draft(files=(*secrets, *files, File(path=MAIN, text=render(wanted, today))))
    trees = {name: read(text) for name, text in now.items()}
    whole: Tree = {}
    for tree in trees.values():
        whole = _merged(whole, tree)
    asked = changes(whole, wanted)
    texts = dict(now)
    try:
        for change in asked:
            name = _home(change, trees)
            texts[name] = edit(texts.get(name, ""), [change])
    except CannotEdit as error:
        aside = File(path=ASIDE, text=render(wanted, today))
        told = (
            f"The file that is there is written in a way that setup does not change ({error}).",
            f"The answers are in {ASIDE} beside it: take over from there what you want.",
        )
        return Draft(files=(*secrets, aside), notices=told)
    files = [*files, *(File(path=name, text=text) for name, text in texts.items() if text != now.get(name))]
    found = [line for file in files for line in _diff(file, {**here, **now}.get(file.path, ""))]
    return Draft(files=(*secrets, *files), notices=told, diff=tuple(found))


def shown(draft: Draft, secrets: list[str]) -> list[str]:
    """The diff for people. Lines of a file that holds secrets itself are told without them."""
    redact = Redactor(secrets)
    return [redact(line) for line in draft.diff]


def _diff(file: File, before: str) -> list[str]:
    old, new = before.splitlines(), file.text.splitlines()
    return list(difflib.unified_diff(old, new, file.path, f"{file.path} (new)", lineterm=""))


def _persona(answers: Answers, persona: Mapping[str, str], here: Mapping[str, str]) -> list[File]:
    if answers.identity is None or answers.workspace is None or answers.workspace.startswith(("/", "~", "..")):
        return []
    folder = answers.workspace.removeprefix("./").rstrip("/")
    texts = {**persona, "IDENTITY.md": answers.identity}
    files = [File(path=f"{folder}/{name}", text=text) for name, text in texts.items()]
    # What is there already is the operator's; only who it is was asked for.
    return [one for one in files if one.path not in here or one.path == f"{folder}/IDENTITY.md"]


def _home(change: Change, trees: Mapping[str, Tree]) -> str:
    """The file that has the most of the way to it."""
    best = max(trees, key=lambda name: (_depth(trees[name], change.keys), name == MAIN))
    return best if _depth(trees[best], change.keys) or MAIN not in trees else MAIN


def _depth(tree: Tree, keys: Keys) -> int:
    for depth, key in enumerate(keys):
        below = at(tree, key)
        if below is None:
            return depth
        tree = below
    return len(keys)


def _merged(whole: Tree, part: Tree) -> Tree:
    if isinstance(whole, dict) and isinstance(part, dict):
        return whole | {key: _merged(whole.get(key), below) for key, below in part.items()}
    return part
