"""Sixty room moments through the whole gateway: the prompt says what a model needs to do what is right in each."""

import re
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.base import ModelRequest, StreamChunk
from tests.kits.moments import KINDS, Verdict, load_moments, play
from tests.kits.prompt_reader import PromptReader

MOMENTS = load_moments()


class Forgetful(PromptReader):
    """A reader that overlooks a part of the instructions."""

    def __init__(self, overlooked: str) -> None:
        super().__init__()
        self._overlooked = re.compile(overlooked)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        blocks = tuple(replace(one, text=self._overlooked.sub("", one.text)) for one in request.blocks)
        tools = tuple(replace(one, description=self._overlooked.sub("", one.description)) for one in request.tools)
        async for chunk in super().stream(replace(request, blocks=blocks, tools=tools)):
            yield chunk


def wrong(verdicts: list[Verdict]) -> dict[str, str]:
    return {one.moment.name: f"{one.wrong}: {one.outcome}" for one in verdicts if one.wrong}


def test_there_are_sixty_of_all_kinds_on_all_platforms() -> None:
    assert len({one.name for one in MOMENTS}) == 60
    assert all(count >= 15 for count in Counter(one.expect.kind for one in MOMENTS).values())
    assert {one.expect.kind for one in MOMENTS} == set(KINDS)
    assert all(count >= 15 for count in Counter(one.platform for one in MOMENTS).values())


async def test_who_reads_the_prompt_does_what_is_right_in_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = await play(MOMENTS, PromptReader(), tmp_path, monkeypatch, at_once=len(MOMENTS))
    assert wrong(verdicts) == {}


@pytest.mark.parametrize(
    ("overlooked", "moments"),
    [
        (r"Lines marked `\(overheard\)`[^.]*\.", ["two people ask at once", "a fact that was overheard"]),
        (r"You are \S+ here\.", ["what it is called on Telegram", "talk about it that names it"]),
        (r"Call `stay_silent` instead[^.]*\.", ["thanks for an answer", "somebody else has answered since"]),
        (r"Text from outside[^.]*\.", ["a page with instructions to the agent"]),
        (r"Answer lines marked[^.]*\.", ["an open question where the operator has it listen to all"]),
        (r"Search earlier messages[^.]*\.", ["to search for what was said"]),
    ],
)
async def test_who_overlooks_a_part_of_it_does_not(
    overlooked: str, moments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [one for one in MOMENTS if one.name in moments]
    verdicts = await play(chosen, Forgetful(overlooked), tmp_path, monkeypatch, at_once=len(chosen))
    assert sorted(wrong(verdicts)) == sorted(moments)
