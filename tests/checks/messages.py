"""Write the catalogs of gateway/locale: `python tests/checks/messages.py [--check]`, or `make
messages`.

Collects the marked texts of the program and the texts of the command table, brings each catalog up
to date and compiles it. Sentences that are said in chats and are not marked are problems, too.
Translations are written into `gateway/locale/<language>/LC_MESSAGES/reverie.po`; a new language
begins with a folder. With `--check` nothing is written, and problems are printed.
"""

import ast
import re
import string
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from gateway.core.i18n import DOMAIN, LOCALE_DIR
from tests.kits.commands import TABLE

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "channels", "agent")
KEYWORDS: dict[str, int] = {"_": 1, "N_": 1, "ngettext": 2}
"""Functions that mark texts, with the number of texts that each takes."""
CHAT_FILES = (
    *("commands", "access"),
    *(
        "plugins/previews.py",
        "stream/rooms.py",
        "plugins/rewind.py",
        "runtime/model_choice.py",
        "plugins/mcp/__init__.py",
        "plugins/pairing",
        "plugins/owners.py",
        "plugins/budgets.py",
    ),
)
"""Files and folders of `gateway` whose sentences are for chats: none may be left unmarked."""
_NOT_SAID = {"command", "make_arg", "Counter", "compile", "replace"}
"""Calls whose texts are collected from the command table, or are not for people."""
_SENTENCE = re.compile(
    r"(?:- |\()?[A-Z`{*][^|]* [a-z]+ [^|]*[a-z`}][.:!?]\)?\Z|.*[.!?] [A-Z]", re.DOTALL
)
"""What looks like a sentence: it begins with a capital letter, a name or code, and ends with a
mark."""
FOR_OTHERS = frozenset(
    {
        "The gateway is not running. ",  # on the operator's terminal
        "This takes effect at its next start.",
        "This is its saved state.",
        "It says that it only reads.",  # part of the definition that is approved
        # for the model
        "Not done, because {}: do not try it again, but say what it would have been for.",
        "The code, or the id of the request or room, as in list.",  # of the command table
    }
)
"""Sentences in these files that are not said in chats, with `{}` for values."""
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The date in all headers: catalogs change only with their texts."""


def command_texts() -> Iterator[str]:
    """The subjects of the command table, and what it says of commands, subcommands and
    arguments."""
    for row in (*TABLE.rows, *TABLE.operator.values()):
        yield from (row.group, row.summary, *(arg.summary for arg in row.args))
        for sub in row.subs:
            yield from (sub.summary, *(arg.summary for arg in sub.args))


def marked_texts(tree: ast.AST) -> Iterator[str | tuple[str, ...]]:
    """The marked texts of a file, also those inside of f-strings, which Babel does not find."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in KEYWORDS
        ):
            args = node.args[: KEYWORDS[node.func.id]]
            texts = tuple(
                one.value
                for one in args
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )
            if len(texts) == len(args) and all(texts):
                yield texts if len(texts) > 1 else texts[0]


def unmarked_sentences() -> Iterator[str]:
    """Sentences in `CHAT_FILES` that are not marked for translation, each with its place."""
    for entry in CHAT_FILES:
        path = ROOT / "gateway" / entry
        for file in sorted(path.glob("*.py")) if path.is_dir() else [path]:
            for line, text in find_sentences(ast.parse(file.read_text())):
                if text not in FOR_OTHERS:
                    yield f"{file.relative_to(ROOT)}:{line}: not marked for translation: {text!r}"


def find_sentences(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Find sentences outside of docstrings, marks, log messages, errors and assertions."""
    if isinstance(node, ast.Raise | ast.Assert) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ):
        return
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called.rpartition(".")[2] in KEYWORDS.keys() | _NOT_SAID or "logger." in called:
            return
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
        return  # an argument of a command, which is collected from the command table
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        text = "".join(str(one.value) if isinstance(one, ast.Constant) else "{}" for one in parts)
        if _SENTENCE.match(text):
            yield node.lineno, text
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from find_sentences(child)


def template() -> Catalog:
    """All texts to translate."""
    catalog = _new_catalog(None)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for text in marked_texts(ast.parse(path.read_text())):
                catalog.add(text, locations=[(str(path.relative_to(ROOT)), 0)])
    for text in dict.fromkeys(command_texts()):
        catalog.add(text, locations=[("gateway/commands/table.py", 0)])
    return catalog


def _new_catalog(language: str | None) -> Catalog:
    return Catalog(
        locale=language,
        domain=DOMAIN,
        project="Reverie",
        creation_date=_EPOCH,
        revision_date=_EPOCH,
        fuzzy=False,
    )


def po_path(language: str) -> Path:
    return LOCALE_DIR / language / "LC_MESSAGES" / f"{DOMAIN}.po"


def updated(language: str, texts: Catalog) -> Catalog:
    """The catalog with all texts of the program, and no others."""
    catalog, path = _new_catalog(language), po_path(language)
    known = read_po(path.open("rb"), locale=language) if path.exists() else Catalog(locale=language)
    for message in texts:
        if message.id:
            old = known.get(message.id)
            catalog.add(
                message.id,
                old.string if old else None,
                message.locations,
                old.flags if old else message.flags,
            )
    return catalog


def source(catalog: Catalog) -> bytes:
    """The `.po` file."""
    out = BytesIO()
    write_po(out, catalog, width=100, sort_output=True, include_lineno=False)
    return out.getvalue()


def compiled(catalog: Catalog) -> bytes:
    """The `.mo` file."""
    out = BytesIO()
    write_mo(out, catalog)
    return out.getvalue()


def _forms(text: object) -> list[str]:
    return [str(one) for one in text] if isinstance(text, list | tuple) else [str(text or "")]


def _fields(text: str) -> list[str]:
    return sorted(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)


def problems(language: str, catalog: Catalog) -> Iterator[str]:
    for message in catalog:
        if message.id:
            yield from (f"{language}: {why}: {message.id!r}" for why in _faults(message))


def _faults(message: Message) -> Iterator[str]:
    ids, strings = _forms(message.id), _forms(message.string)
    if message.fuzzy or not all(strings):
        yield "not translated"
        return
    if len(ids) == 1 and strings[0] and any(_fields(one) != _fields(ids[0]) for one in strings):
        yield "other placeholders"
    if len(ids) > 1 and any(set(_fields(one)) != set(_fields(ids[1])) for one in strings[1:]):
        yield "other placeholders"
    if any(one.count("`") % 2 for one in strings):
        yield "code that does not end"


def main() -> int:
    """Write the catalogs, or check them."""
    check, texts, found = "--check" in sys.argv, template(), list(unmarked_sentences())
    for folder in sorted(path for path in LOCALE_DIR.glob("*") if path.is_dir()):
        catalog = updated(folder.name, texts)
        found += problems(folder.name, catalog)
        for path, data in (
            (po_path(folder.name), source(catalog)),
            (po_path(folder.name).with_suffix(".mo"), compiled(catalog)),
        ):
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
            elif not path.exists() or path.read_bytes() != data:
                found.append(f"{path.relative_to(ROOT)} is out of date: run make messages")
    print("\n".join(found) or "complete")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
