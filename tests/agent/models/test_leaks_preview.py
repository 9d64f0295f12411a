"""What is shown of an answer while a call leaks into it."""

import pytest

from agent.turn import presentable_text
from tests.agent.models.leak_formats_kit import FORMATS, WHOLE


@pytest.mark.parametrize("text", [*FORMATS.values(), *WHOLE.values()], ids=[*FORMATS, *WHOLE])
def test_nothing_of_a_call_is_shown(text: str) -> None:
    assert not [text[:at] for at in range(len(text) + 1) if presentable_text(text[:at])]


@pytest.mark.parametrize("text", FORMATS.values(), ids=FORMATS)
def test_what_stands_before_it_is(text: str) -> None:
    words = "Let me see [what](x) it is.\n"
    shown = {presentable_text(words + text[:at]) for at in range(len(text) + 1)}
    assert shown == {words.strip()}
