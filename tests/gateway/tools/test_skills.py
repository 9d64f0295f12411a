"""An agent's skills, as a turn reads them."""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

import pytest

from agent.models.base import ToolResult
from agent.workspace.skills import SKILLS_HEADING
from gateway.config.tools import ToolsConfig
from gateway.core.tool import specs_of, tools_of
from gateway.core.tool_spec import ToolCall, canonical_json
from gateway.stream.routing import BindingPattern, Bindings, ConversationBinding
from gateway.tools.agent import SkillTools
from tests.agent.workspace.test_skills import add, front
from tests.gateway.tools.files_kit import where
from tests.kits.tools import dispatcher, live_tools


def load(skills: SkillTools, role: str = "guest", **arguments: object) -> ToolResult:
    call = ToolCall(id="1", name="load_skill", arguments=canonical_json(arguments))
    return asyncio.run(dispatcher(tools_of(skills)).call(call, where(role)))


def skilled(
    root: Path, allowed: Collection[str] | None = None, sandbox: str = "bubblewrap"
) -> SkillTools:
    tools = ToolsConfig.model_validate({"bash": {"sandbox": sandbox}})
    bound = ConversationBinding(
        listen="all",
        agent="reverie",
        private=False,
        skills=None if allowed is None else tuple(allowed),
    )
    pattern = BindingPattern(channel="*", room="*", thread=None, binding=bound)
    return SkillTools(live_tools(tools, workspace=root), Bindings([pattern]))


def test_a_skill_is_read_by_anybodys_wish_as_the_operators_words(tmp_path: Path) -> None:
    add(tmp_path, "tea")
    result = load(skilled(tmp_path), name="tea")
    assert (result.text, result.is_error) == ("Boil water.", False)
    assert (result.kind, result.origin, result.is_untrusted) == (
        "skill",
        "skills/tea/SKILL.md",
        False,
    )
    (spec,) = specs_of(SkillTools)
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
        text = asyncio.run(skilled(tmp_path, allowed).render_catalogue("reverie"))
        assert text == f"{SKILLS_HEADING}\n\n- tea: Makes tea.\n- wine: Not now."
    assert asyncio.run(skilled(tmp_path / "none").render_catalogue("reverie")) == ""


def test_a_new_skill_is_there_at_once_also_for_the_shell(tmp_path: Path) -> None:
    skills = skilled(tmp_path)
    assert load(skills, name="tea").text == "There is no skill 'tea'; there are: none."
    folder = add(tmp_path, "tea")
    assert load(skills, name="tea").text == "Boil water."
    assert asyncio.run(skills.paths("reverie")) == (folder,)
    assert asyncio.run(skills.render_catalogue("reverie")).endswith("- tea: Makes tea.")


def test_a_broken_skill_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add(tmp_path, "tea", "no front")
    skills = skilled(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert asyncio.run(skills.render_catalogue("reverie")) == ""
    [record] = caplog.records
    assert "tea/SKILL.md: it does not begin with name and description" in record.getMessage()
