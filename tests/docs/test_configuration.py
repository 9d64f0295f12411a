"""docs/configuration.md and config/reverie.example.yaml have every key of the settings, and no
other."""

import re
import subprocess
import sys

import pytest

from gateway.config.reload import RESTART_KEYS
from tests.checks.configuration import EXAMPLE, FILE, ROOT, Key, comments_of, schema, tables, text

KEYS = [key for table in tables() for key in table.keys]


def test_the_reference_is_what_the_settings_say() -> None:
    assert FILE.read_text() == text(), "make docs"
    done = subprocess.run(
        [sys.executable, "tests/checks/configuration.py", "--check"],
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0


def test_every_key_of_every_section_is_in_it() -> None:
    """Counted in another way than it is written: by the models that can be reached."""
    fields = {name for model in schema()["$defs"].values() for name in model.get("properties", ())}
    tables_of_their_own = {*schema()["properties"], "providers", "models", "context_optimization"}
    assert fields - {key.path[-1] for key in KEYS} <= tables_of_their_own
    assert len(KEYS) > 250


def test_every_key_has_a_type_and_a_meaning() -> None:
    assert [key.path for key in KEYS if not key.meaning.strip()] == []
    assert [key.path for key in KEYS if "class " in key.type or "typing" in key.type] == []


def _in_example(key: Key) -> bool:
    return re.search(rf"(?<![a-z_]){key.path[-1]}:", EXAMPLE.read_text()) is not None


def test_no_key_borrows_the_meaning_of_another_of_its_name() -> None:
    told = comments_of("a:\n  enabled: true # of a\nb:\n  enabled: true\n  other: 1 # of b\n")
    assert told == {"a.enabled": "of a", "b.other": "of b", "other": "of b"}


def test_every_key_is_in_the_example() -> None:
    assert [".".join(key.path) for key in KEYS if not _in_example(key)] == []


@pytest.mark.parametrize("key", sorted(RESTART_KEYS))
def test_what_needs_a_restart_is_marked(key: str) -> None:
    plain = key.replace("agents.*", "agents[]")
    assert any(".".join(one.path).startswith(plain) and one.restart for one in KEYS)
