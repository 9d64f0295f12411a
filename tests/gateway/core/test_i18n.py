import ast
import subprocess
import sys
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog

from gateway.core.i18n import (
    _,
    current_language,
    language_for,
    languages,
    ngettext,
    use_language,
)
from gateway.plugins.approvals import approval_buttons, render_outcome
from tests.checks.messages import find_sentences, marked_texts, problems

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("tag", "language"),
    [
        ("de", "de"),
        ("de-AT", "de"),
        ("DE_at", "de"),
        ("es-419", "es"),
        ("en", ""),
        ("en-GB", ""),
        ("tlh", ""),
        ("deu", ""),
        ("", ""),
        ("../de", ""),
        ("de-" + "x" * 99, ""),
    ],
)
def test_a_language_falls_back_to_the_one_without_region_then_to_english(
    tag: str, language: str
) -> None:
    assert languages() == {"de", "es"}
    with use_language(tag):
        assert current_language() == language


def test_the_room_decides_and_alone_with_somebody_their_client() -> None:
    assert language_for("de", "es", direct=True) == "de"
    assert language_for(None, "es", direct=True) == "es"
    assert language_for(None, "es", direct=False) is None
    with use_language("tlh"):
        assert _("Deny") == "Deny"


def test_plurals() -> None:
    def shown(count: int) -> str:
        one, many = (
            "No cache miss in the last request.",
            "No cache miss in the last {count} requests.",
        )
        return ngettext(one, many, count).format(count=count)

    assert [shown(1), shown(3)] == [
        "No cache miss in the last request.",
        "No cache miss in the last 3 requests.",
    ]
    with use_language("de-CH"):
        assert [shown(1), shown(3)] == [
            "Kein Cache-Fehlgriff in der letzten Anfrage.",
            "Kein Cache-Fehlgriff in den letzten 3 Anfragen.",
        ]
    assert shown(1) == "No cache miss in the last request."


def test_pairing_and_approval_have_the_language_and_what_others_wrote_is_no_format() -> None:
    with use_language("de"):
        assert [one.label for one in approval_buttons("k7qd")] == ["Ja", "Nein"]
        assert approval_buttons("k7qd")[0].command == "approve k7qd"
        assert render_outcome("once", "{by}") == "**Genehmigt** von `{by}`."


def test_the_check_finds_unmarked_sentences_and_lost_placeholders() -> None:
    planted = """
def answer(name):
    "A docstring says nothing."
    logger.warning("The log is English: %s.", name)
    marked = _("This is marked for {name}.").format(name=name)
    return f"This is not marked for {name}." if name else "Nor is this sentence."
"""
    found = [text for _, text in find_sentences(ast.parse(planted))]
    assert found == ["This is not marked for {}.", "Nor is this sentence."]
    inside = ast.parse("""f"{_('In an f-string.')} {ngettext('One.', 'Many {count}.', n)}\"""")
    assert list(marked_texts(inside)) == ["In an f-string.", ("One.", "Many {count}.")]
    catalog = Catalog(locale="de")
    catalog.add("Hello {name}.", "Hallo.")
    catalog.add("Not yet.", "")
    assert [one.split(": ")[1] for one in problems("de", catalog)] == [
        "other placeholders",
        "not translated",
    ]


def test_the_catalogs_are_complete_and_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "tests/checks/messages.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
