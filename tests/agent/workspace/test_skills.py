"""Skills of a workspace: the catalogue, invalid skills, and files that must not be reachable."""

from pathlib import Path

import pytest

from agent.workspace import default_workspace
from agent.workspace.skills import (
    MAX_CATALOGUE_CHARS,
    MAX_DESCRIPTION_CHARS,
    MAX_SKILL_BYTES,
    MAX_SKILLS,
    SKILLS_HEADING,
    Skill,
    SkillFileNotFound,
    SkillLibrary,
    read_skill,
    render_skills,
)


def front(name: str, description: str = "Makes tea.", body: str = "Boil water.") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n"


def add(root: Path, name: str, content: str | None = None) -> Path:
    folder = root / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(front(name) if content is None else content)
    return folder


def test_the_catalogue_is_these_bytes(tmp_path: Path) -> None:
    add(tmp_path, "tea")
    add(tmp_path, "a-walk", front("a-walk", "|\n  Where to go,\n    and when."))
    assert SkillLibrary(tmp_path).refresh().text == (
        "# Skills\n\nInstructions for certain tasks. Before you do such a task, read its skill "
        "with load_skill.\n\n- a-walk: Where to go, and when.\n- tea: Makes tea."
    )
    assert SkillLibrary(tmp_path / "elsewhere").refresh().text == ""


def test_the_same_skills_are_the_same_bytes_whoever_saved_them() -> None:
    skills = [Skill(name=name, description="d") for name in ("b", "a", "c-1")]
    assert render_skills(skills) == render_skills(reversed(skills))
    plain = front("tea")
    for other in (
        plain.replace("\n", "\r\n"),
        "\ufeff" + plain,
        plain.replace("tea.", "tea.  "),
        plain + "\n\n",
    ):
        assert read_skill("tea", other.encode()) == read_skill("tea", plain.encode())


def test_adding_a_skill_changes_the_catalogue_by_its_line(tmp_path: Path) -> None:
    add(tmp_path, "tea")
    skills = SkillLibrary(tmp_path)
    before = skills.refresh()
    assert skills.refresh() is before
    (tmp_path / "skills" / "tea" / "cups.md").write_text("Two.")
    assert skills.refresh().text == before.text
    add(tmp_path, "wine", front("wine", "Not now."))
    assert skills.refresh().text == f"{before.text}\n- wine: Not now."
    add(tmp_path, "tea", front("tea", "Makes good tea."))
    assert skills.refresh().text == f"{SKILLS_HEADING}\n\n- tea: Makes good tea.\n- wine: Not now."
    (tmp_path / "skills" / "wine" / "SKILL.md").unlink()
    assert skills.refresh().text == f"{SKILLS_HEADING}\n\n- tea: Makes good tea."


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "does not begin with name and description"),
        ("Boil water.", "does not begin with name and description"),
        ("---\nname: tea\ndescription: x\n", "does not begin with name and description"),
        (f"---\nname: tea\n#{'x' * 9_000}\n---\n", "does not begin with name and description"),
        ("---\nname: [tea\n---\n", "not YAML in line"),
        ("---\nname: &a [*a\n---\n", "not YAML"),
        ("---\nname: !!python/object:os.system {}\n---\n", "not YAML"),
        ("---\nwhen: 2026-13-45\n---\n", "not YAML"),
        (f"---\n{'[' * 2_000}\n---\n", "nested too deeply"),
        ("---\n- tea\n---\n", "not a list of keys"),
        ("---\n---\n", "not a list of keys"),
        ("---\ndescription: x\n---\n", "its name must be that of its folder, tea"),
        (front("coffee"), "its name must be that of its folder, tea"),
        ("---\nname: tea\n---\n", "its description must be"),
        (front("tea", "' '"), "its description must be"),
        (front("tea", "[a]"), "its description must be"),
        (front("tea", "x" * (MAX_DESCRIPTION_CHARS + 1)), "its description must be"),
        (front("tea", body="x" * MAX_SKILL_BYTES), "more than"),
    ],
)
def test_a_broken_skill_is_left_out_and_told(tmp_path: Path, content: str, why: str) -> None:
    add(tmp_path, "tea", content)
    add(tmp_path, "wine")
    known = SkillLibrary(tmp_path).refresh()
    assert list(known.skills) == ["wine"]
    [note] = known.notes
    assert why in note
    assert str(tmp_path / "skills" / "tea" / "SKILL.md") in note


def test_too_many_or_too_wordy_skills_are_left_out_and_told(tmp_path: Path) -> None:
    many = [Skill(name=f"s{number}", description="x" * 1_000) for number in range(30)]
    text, left_out = render_skills(many)
    assert len(text) <= MAX_CATALOGUE_CHARS + len(SKILLS_HEADING)
    assert 0 < len(left_out) < 30
    for number in range(MAX_SKILLS + 1):
        add(tmp_path, f"s{number}")
    known = SkillLibrary(tmp_path).refresh()
    assert len(known.skills) == MAX_SKILLS
    assert "more than 200 skills" in known.notes[0]


def test_links_stay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    add(outside, "spy")
    root = tmp_path / "w"
    folder = add(root, "tea")
    (root / "skills" / "spy").symlink_to(outside / "skills" / "spy")
    (root / "skills" / "two").mkdir()
    (root / "skills" / "two" / "SKILL.md").symlink_to(folder / "SKILL.md")
    (root / "skills" / "loop").mkdir()
    (root / "skills" / "loop" / "SKILL.md").symlink_to("SKILL.md")
    (folder / "b.md").write_text("b")
    (folder / "a.md").symlink_to("b.md")
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("../two")
    skills = SkillLibrary(root)
    known = skills.refresh()
    assert list(known.skills) == ["tea"]
    assert len(known.notes) == 3
    assert skills.read_text("tea", "a.md") == "b"
    (root / "skills" / "two" / "c.md").write_text("c")
    for file in ("passwd", "up", "up/c.md"):
        with pytest.raises(SkillFileNotFound, match="leads out of the skill"):
            skills.read_text("tea", file)


@pytest.mark.parametrize(
    "file",
    [
        "../wine/SKILL.md",
        "..",
        "/etc/passwd",
        "a/../../wine/SKILL.md",
        "x\0y",
        "none",
        "SKILL.md/x",
        "x" * 300,
    ],
)
def test_a_path_leads_nowhere_else(tmp_path: Path, file: str) -> None:
    add(tmp_path, "wine")
    (add(tmp_path, "tea") / "a").mkdir()
    with pytest.raises(SkillFileNotFound):
        SkillLibrary(tmp_path).read_text("tea", file)


@pytest.mark.parametrize("name", ["..", ".", "", "none", "tea/..", "../skills/tea"])
def test_a_name_is_never_a_path(tmp_path: Path, name: str) -> None:
    add(tmp_path, "tea")
    with pytest.raises(SkillFileNotFound, match="is no skill"):
        SkillLibrary(tmp_path).read_text(name)


def test_files_are_read_and_folders_listed(tmp_path: Path) -> None:
    folder = add(tmp_path, "tea")
    (folder / "docs" / "more").mkdir(parents=True)
    (folder / "docs" / "b.md").write_text("bé\n")
    skills = SkillLibrary(tmp_path)
    assert skills.read_text("tea") == "Boil water."
    assert skills.read_text("tea", "docs/b.md") == "bé\n"
    assert (
        skills.read_text("tea", "docs")
        == skills.read_text("tea", "./docs/")
        == "In docs:\nb.md\nmore/"
    )
    assert skills.read_text("tea", ".") == "In this skill:\nSKILL.md\ndocs/"
    assert skills.paths() == (folder,)


def test_the_skill_that_comes_along_can_be_used() -> None:
    known = SkillLibrary(default_workspace()).refresh()
    assert "catch-up" in known.skills
    assert known.notes == ()
    assert (
        SkillLibrary(default_workspace()).read_text("catch-up").startswith("# Catching somebody up")
    )
