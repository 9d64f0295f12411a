"""Skills: the catalogue in every prompt, the tool that reads them, invalid ones, and files that must
not be reachable.
"""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

import pytest

from agent.models.base import ToolResult
from agent.models.scripted import Script
from agent.workspace.persona import DEFAULT_WORKSPACE
from gateway.access.policy import ConversationBinding
from gateway.config.tools import ToolsConfig
from gateway.core.clock import ManualClock
from gateway.core.tool import tools_of
from gateway.core.tool_spec import ToolCall, canonical_json
from gateway.hooks import SKILLS_SHOWN_S
from gateway.plugins.skills import (
    MAX_CATALOGUE_CHARS,
    MAX_DESCRIPTION_CHARS,
    MAX_SKILL_BYTES,
    MAX_SKILLS,
    SKILLS_HEADING,
    SkillFileNotFound,
    SkillLibrary,
    Skills,
    read_skill,
    render_skills,
)
from gateway.stream.routing import BindingPattern, Bindings
from reverie.testing.gateway import Gateway, settings
from tests.gateway.plugins.files.files_kit import where
from tests.kits.commands import parts_of
from tests.kits.plugins import plugin_of
from tests.kits.tools import dispatcher, live_tools, specs_of


def front(name: str, description: str = "Makes tea.", body: str = "Boil water.") -> str:
    return f"---\nname: {name}\ndescription: {description}\n---\n\n{body}\n"


def add(root: Path, name: str, content: str | None = None) -> Path:
    folder = root / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(front(name) if content is None else content)
    return folder


def load(skills: Skills, role: str = "guest", **arguments: object) -> ToolResult:
    call = ToolCall(id="1", name="load_skill", arguments=canonical_json(arguments))
    return asyncio.run(dispatcher(tools_of(skills)).call(call, where(role)))


def skilled(
    root: Path, allowed: Collection[str] | None = None, sandbox: str = "bubblewrap"
) -> Skills:
    tools = ToolsConfig.model_validate({"bash": {"sandbox": sandbox}})
    bound = ConversationBinding(
        listen="all",
        agent="reverie",
        private=False,
        skills=None if allowed is None else tuple(allowed),
    )
    pattern = BindingPattern(channel="*", room="*", thread=None, binding=bound)
    gateway = parts_of(
        live=live_tools(tools, workspace=root),
        clock=ManualClock(),
        places=parts_of(bindings=Bindings([pattern])),
    )
    return plugin_of(Skills, gateway=gateway)


def catalogue(skills: Skills) -> str:
    return asyncio.run(skills.skills("reverie", {"load_skill"}))


def test_a_skill_is_read_by_anybodys_wish_as_the_operators_words(tmp_path: Path) -> None:
    add(tmp_path, "tea")
    result = load(skilled(tmp_path), name="tea")
    assert (result.text, result.is_error) == ("Boil water.", False)
    assert (result.kind, result.origin, result.is_untrusted) == (
        "skill",
        "skills/tea/SKILL.md",
        False,
    )
    (spec,) = specs_of(Skills)
    assert spec.is_parallel


def test_what_is_beside_a_skill_is_told_with_it(tmp_path: Path) -> None:
    folder = add(tmp_path, "tea")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "boil.sh").write_text("sleep 180\n")
    assert load(skilled(tmp_path), name="tea").text == (
        "Boil water.\n\n(Beside it, for load_skill: scripts/. In the shell they are in "
        "/skills/tea/.)"
    )
    assert load(skilled(tmp_path, sandbox="off"), name="tea").text == (
        "Boil water.\n\n(Beside it, for load_skill: scripts/. In the shell they are in "
        f"{tmp_path}/skills/tea/.)"
    )
    assert load(skilled(tmp_path), name="tea", file="scripts").text == "In scripts:\nboil.sh"
    script = load(skilled(tmp_path), name="tea", file="scripts/boil.sh")
    assert (script.text, script.origin) == ("sleep 180\n", "skills/tea/scripts/boil.sh")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"name": "coffee"}, "There is no skill 'coffee'; there are: tea, wine."),
        ({"name": "../skills/tea"}, "There is no skill '../skills/tea'; there are: tea, wine."),
        (
            {"name": "wine"},
            (
                "The skill wine is not for this place: do without it, or say that you cannot do this "
                "here."
            ),
        ),
        (
            {"name": "tea", "file": "../wine/SKILL.md"},
            "'../wine/SKILL.md' in the skill tea is no path within the skill",
        ),
        (
            {"name": "tea", "file": "x.md"},
            "'x.md' in the skill tea is not there; load it with file '.' to see",
        ),
        ({"name": "tea", "file": "secret"}, "'secret' in the skill tea leads out of the skill"),
        ({"name": ""}, "name: "),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(
    tmp_path: Path, arguments: dict[str, object], why: str
) -> None:
    (add(tmp_path, "tea") / "secret").symlink_to("/etc/passwd")
    add(tmp_path, "wine")
    result = load(skilled(tmp_path, ("tea",)), "owner", **arguments)
    assert result.is_error
    assert result.text.startswith(why)


def test_the_catalogue_names_all_skills_wherever_they_are_for(tmp_path: Path) -> None:
    add(tmp_path, "tea")
    add(tmp_path, "wine", front("wine", "Not now."))
    for allowed in (None, (), ("tea",)):
        text = catalogue(skilled(tmp_path, allowed))
        assert text == f"{SKILLS_HEADING}\n\n- tea: Makes tea.\n- wine: Not now."
    assert catalogue(skilled(tmp_path / "none")) == ""


def test_a_new_skill_is_there_at_once_also_for_the_shell(tmp_path: Path) -> None:
    skills = skilled(tmp_path)
    assert load(skills, name="tea").text == "There is no skill 'tea'; there are: none."
    folder = add(tmp_path, "tea")
    assert load(skills, name="tea").text == "Boil water."
    assert asyncio.run(skills.paths("reverie")) == (folder,)
    assert catalogue(skills).endswith("- tea: Makes tea.")


def test_a_broken_skill_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path, "tea", "no front")
    skills = skilled(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert catalogue(skills) == ""
    [record] = caplog.records
    assert "tea/SKILL.md: it does not begin with name and description" in record.getMessage()


@pytest.mark.parametrize(("off", "count"), [((), 1), (("load_skill",), 0)])
async def test_prompts_show_skills_to_agents_that_can_load_them(
    tmp_path: Path, off: tuple[str, ...], count: int
) -> None:
    add(tmp_path / "workspace", "tea")
    given = settings(tmp_path, tools={"off": [*off]})
    agents = [one.model_copy(update={"workspace": tmp_path / "workspace"}) for one in given.agents]
    async with Gateway(given.model_copy(update={"agents": (*agents,)}), Script()) as gateway:
        await gateway.ask("hello")
    [request] = gateway.scripted.requests
    assert str(request).count("- tea: Makes tea.") == count
    assert ("load_skill" in {one.name for one in request.tools}) is bool(count)


async def test_the_first_skill_is_shown_soon_and_its_tool_once_nothing_is_cached(
    tmp_path: Path, clock: ManualClock
) -> None:
    given = settings(tmp_path)
    agents = [one.model_copy(update={"workspace": tmp_path / "workspace"}) for one in given.agents]
    (tmp_path / "workspace").mkdir()
    given = given.model_copy(update={"agents": (*agents,)})
    async with Gateway(given, Script(), clock=clock) as gateway:
        await gateway.ask("hello")
        add(tmp_path / "workspace", "tea")
        clock.advance(SKILLS_SHOWN_S)
        await gateway.ask("hello")
        clock.advance(7_200)
        await gateway.ask("hello")
    requests = gateway.scripted.requests
    assert ["- tea: Makes tea." in str(one) for one in requests] == [False, True, True]
    offered = ["load_skill" in {tool.name for tool in one.tools} for one in requests]
    assert offered == [False, False, True]


def test_the_catalogue_is_these_bytes(tmp_path: Path) -> None:
    add(tmp_path, "tea")
    add(tmp_path, "a-walk", front("a-walk", "|\n  Where to go,\n    and when."))
    assert SkillLibrary(tmp_path).refresh().text == (
        "# Skills\n\nBefore you do such a task, read its skill with load_skill.\n\n"
        "- a-walk: Where to go, and when.\n- tea: Makes tea."
    )
    assert SkillLibrary(tmp_path / "elsewhere").refresh().text == ""


def test_the_same_skills_are_the_same_bytes_whoever_saved_them() -> None:
    skills = dict.fromkeys(("b", "a", "c-1"), "d")
    assert render_skills(skills) == render_skills(dict(reversed(skills.items())))
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
    assert skills.refresh() == before
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
    text, left_out = render_skills({f"s{number}": "x" * 1_000 for number in range(30)})
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
    ("name", "file"),
    [
        *(
            ("tea", file)
            for file in (
                "../wine/SKILL.md",
                "..",
                "/etc/passwd",
                "a/../../wine/SKILL.md",
                "x\0y",
                "none",
                "SKILL.md/x",
                "x" * 300,
            )
        ),
        *((name, "") for name in ("..", ".", "", "none", "tea/..", "../skills/tea")),
    ],
)
def test_neither_a_name_nor_a_path_leads_elsewhere(tmp_path: Path, name: str, file: str) -> None:
    add(tmp_path, "wine")
    (add(tmp_path, "tea") / "a").mkdir()
    with pytest.raises(SkillFileNotFound, match=None if file else "is no skill"):
        SkillLibrary(tmp_path).read_text(name, file)


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


def test_the_skill_that_comes_along_can_be_used() -> None:
    known = SkillLibrary(DEFAULT_WORKSPACE).refresh()
    assert "catch-up" in known.skills
    assert known.notes == ()
    assert (
        SkillLibrary(DEFAULT_WORKSPACE).read_text("catch-up").startswith("# Catching somebody up")
    )
