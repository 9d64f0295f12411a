"""docs/admin-commands.md is what the command table says."""

from gateway.commands.definition import COMMAND_GROUPS
from tests.checks.commands import FILE, TITLES, text
from tests.kits.commands import TABLE


def test_the_page_is_what_the_table_says() -> None:
    assert FILE.read_text("utf-8") == text(), "`make docs` writes it anew"


def test_every_command_and_subcommand_is_on_it() -> None:
    page = FILE.read_text("utf-8")
    assert list(TITLES) == list(COMMAND_GROUPS)
    for row in TABLE.rows:
        for name in [f"{row.name} {sub.name}" for sub in row.subs] or [row.name]:
            assert f"| `!{name}" in page, name
