"""The text of a workspace: canonical, bounded, scoped, and never from outside of its directory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.workspace.character_card import decode_text
from agent.workspace.persona import (
    CUT_MARK,
    DEFAULT_WORKSPACE,
    IDENTITY,
    MAX_BUNDLE_CHARS,
    MAX_FILE_CHARS,
    PRIVATE,
    PersonaBundle,
    PersonaScope,
    compose_bundle,
    read_workspace,
)


def write(root: Path, **files: str | bytes) -> Path:
    """`IDENTITY_local="..."` becomes `IDENTITY.local.md`."""
    root.mkdir(exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (root / f"{name.replace('_', '.')}.md").write_bytes(data)
    return root


def bundle(root: Path, scope: PersonaScope = "private", family: str = "anthropic") -> PersonaBundle:
    return read_workspace(root, scope, family).bundle


ALL = {"MEMORY": "m", "USER": "u", "AGENTS": "a", "SOUL": "s", "IDENTITY": "i"}


def test_the_whole_workspace_in_fixed_order_each_file_under_its_name(tmp_path: Path) -> None:
    root = write(tmp_path / "w", **ALL)
    assert bundle(root) == PersonaBundle(
        identity="# IDENTITY.md\n\ni\n\n# SOUL.md\n\ns\n\n# AGENTS.md\n\na",
        private="# USER.md\n\nu\n\n# MEMORY.md\n\nm",
    )


def test_private_files_are_for_private_scope_and_change_nothing_in_front(tmp_path: Path) -> None:
    root = write(tmp_path / "w", **ALL)
    public = bundle(root, "public")
    assert public.private == ""
    write(root, USER="secret " * 3_000, MEMORY="secret " * 3_000)
    assert bundle(root, "public") == public
    assert bundle(root, "private").identity == public.identity
    assert "secret" not in public.identity


def test_a_familys_variant_stands_in_under_the_same_name(tmp_path: Path) -> None:
    root = write(
        tmp_path / "w", IDENTITY="for all", IDENTITY_anthropic="for one", USER_openai="theirs"
    )
    assert bundle(root, family="anthropic") == PersonaBundle(
        identity="# IDENTITY.md\n\nfor one", private=""
    )
    assert bundle(root, family="openai") == PersonaBundle(
        identity="# IDENTITY.md\n\nfor all", private="# USER.md\n\ntheirs"
    )


def test_the_embedded_model_gets_its_one_sentence_and_nothing_else(tmp_path: Path) -> None:
    root = write(tmp_path / "w", **ALL, IDENTITY_local="You are small.\r\n")
    (root / "AVATAR.json").write_text('{"name": "Big"}')
    assert bundle(root, family="local") == PersonaBundle(identity="You are small.", private="")
    (root / "IDENTITY.local.md").unlink()
    assert bundle(root, family="local").identity.startswith("# IDENTITY.md\n\ni\n\n# SOUL.md")


@pytest.mark.parametrize("family", ["", "..", "a/b", "a.b", "\0", "*"])
def test_a_family_is_never_a_path(tmp_path: Path, family: str) -> None:
    with pytest.raises(ValueError, match="family"):
        read_workspace(tmp_path, "public", family)


@pytest.mark.parametrize(
    "saved",
    [
        b"One\nTwo\n\n  Three",
        b"\xef\xbb\xbfOne\r\nTwo\r\n\r\n  Three\r\n",
        b"One\rTwo\r\r  Three\r",
        b"\n\nOne  \nTwo\t\n \t \n  Three \n\n\n",
        b"O\x00ne\nTw\x1bo\n\n  Three\x7f",
        "One\u2028Two\u2029\x0b  Three\u00a0".encode(),
    ],
)
def test_the_same_words_are_the_same_bytes_whichever_editor_saved_them(saved: bytes) -> None:
    assert decode_text(saved) == "One\nTwo\n\n  Three"


@given(
    st.one_of(
        st.binary(max_size=500),
        st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")),
    )
)
def test_canonical_text_is_fit_for_the_wire_and_stays_as_it_is(content: bytes) -> None:
    text = decode_text(content)
    assert decode_text(text.encode()) == text
    assert "\r" not in text
    assert "\0" not in text
    assert not any(line != line.rstrip() for line in text.split("\n"))


def test_twelve_thousand_characters_of_a_file_are_read_and_one_more_is_marked(
    tmp_path: Path,
) -> None:
    root = write(tmp_path / "w", SOUL="€" * MAX_FILE_CHARS)
    assert read_workspace(root, "public", "x").notes == ()
    assert CUT_MARK not in bundle(root).identity
    write(root, SOUL="€" * MAX_FILE_CHARS + "!")
    reading = read_workspace(root, "public", "x")
    assert reading.bundle.identity == f"# SOUL.md\n\n{'€' * MAX_FILE_CHARS}\n{CUT_MARK}"
    assert reading.notes == (
        f"{root}: SOUL.md has 12001 characters; only the first 12000 are used",
    )
    write(root, SOUL="€" * 1_000_000)
    assert bundle(root).identity == reading.bundle.identity


def test_sixty_thousand_characters_in_all_and_the_last_files_give_way() -> None:
    card = b'{"name": "A", "description": "%s"}' % (b"d" * 20_000)
    found = {name: (f"{name}.md", b"x" * 13_000) for name in (*IDENTITY, *PRIVATE)} | {
        "AVATAR": ("AVATAR.json", card)
    }
    made, notes = compose_bundle(found)
    assert made.identity.count(CUT_MARK) == 4
    assert made.private == f"# USER.md\n\n{'x' * 12_000}\n{CUT_MARK}\n\n# MEMORY.md\n\n{CUT_MARK}"
    assert len(notes) == 6
    assert len(made.identity + made.private) < MAX_BUNDLE_CHARS + 500
    public, _ = compose_bundle({name: file for name, file in found.items() if name in IDENTITY})
    assert public.identity == made.identity


def test_links_are_followed_within_the_workspace_only(tmp_path: Path) -> None:
    root = write(tmp_path / "w", IDENTITY="i")
    (tmp_path / "secret.md").write_text("passwords")
    (tmp_path / "w-also").mkdir()
    (tmp_path / "w-also" / "x.md").write_text("passwords")
    write(root / "shared", SOUL="shared soul")
    (root / "SOUL.md").symlink_to("shared/SOUL.md")
    (root / "AGENTS.md").symlink_to(tmp_path / "secret.md")
    (root / "USER.md").symlink_to("../w-also/x.md")
    (root / "MEMORY.md").symlink_to("nowhere.md")
    reading = read_workspace(root, "private", "x")
    assert reading.bundle == PersonaBundle(
        identity="# IDENTITY.md\n\ni\n\n# SOUL.md\n\nshared soul", private=""
    )
    assert [note.split(" ", 1)[1] for note in reading.notes] == [
        "is not read: it links to a place outside of the workspace"
    ] * 2


def test_what_is_no_file_neither_hangs_nor_counts(tmp_path: Path) -> None:
    root = write(tmp_path / "w", IDENTITY="i")
    os.mkfifo(root / "SOUL.md")
    (root / "AGENTS.md").mkdir()
    (root / "USER.md").symlink_to("USER.md")
    reading = read_workspace(root, "private", "x")
    assert reading.bundle == PersonaBundle(identity="# IDENTITY.md\n\ni", private="")
    assert len(reading.notes) == 3


def test_an_empty_or_missing_workspace_is_told(tmp_path: Path) -> None:
    for root, told in (
        (tmp_path, "expected IDENTITY.md"),
        (tmp_path / "nowhere", "there is no directory"),
    ):
        reading = read_workspace(root, "public", "x")
        assert reading.bundle.identity == ""
        assert any(told in note for note in reading.notes)


def test_the_persona_that_ships() -> None:
    text = bundle(DEFAULT_WORKSPACE, family="anthropic").identity
    assert [line for line in text.split("\n") if line.startswith("# ")] == [
        "# IDENTITY.md",
        "# SOUL.md",
        "# AGENTS.md",
    ]
    assert bundle(DEFAULT_WORKSPACE, family="local").identity == (
        "You are Reverie, a helpful chat bot. You answer politely, in one short sentence."
    )


def test_private_files_are_also_looked_for_in_the_agents_own_directory(tmp_path: Path) -> None:
    root = write(
        tmp_path / "everybody's",
        IDENTITY="I am",
        USER="from the workspace",
        MEMORY="from the workspace",
    )
    own = write(tmp_path / "own", MEMORY="from the dream", IDENTITY="not me", SOUL="nor mine")
    reading = read_workspace(root, "private", "x", own)
    assert (
        reading.bundle.private == "# USER.md\n\nfrom the workspace\n\n# MEMORY.md\n\nfrom the dream"
    )
    assert reading.notes == ()
    public = read_workspace(root, "public", "x", own)
    assert public.bundle.identity == reading.bundle.identity == "# IDENTITY.md\n\nI am"
    assert public.bundle.private == ""
    assert read_workspace(root, "private", "x", tmp_path / "none").bundle.private.endswith(
        "# MEMORY.md\n\nfrom the workspace"
    )


def test_a_link_in_the_agents_own_directory_leads_nowhere_else(tmp_path: Path) -> None:
    root, own = write(tmp_path / "w", IDENTITY="I am"), write(tmp_path / "own", OTHER="x")
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (own / "MEMORY.md").symlink_to(outside)
    (own / "USER.md").symlink_to(root / "IDENTITY.md")
    reading = read_workspace(root, "private", "x", own)
    assert reading.bundle.private == ""
    assert sum("links to a place outside" in note for note in reading.notes) == 2
