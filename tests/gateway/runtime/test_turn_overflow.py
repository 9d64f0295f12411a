"""Turns whose request finds no room in the model's window: nobody hears of that, and its cost is told."""

from pathlib import Path

import pytest

from agent.models.base import ModelError, PromptTooLong, RequestRefused
from tests.kits.scripted_turn import ACCOUNT, USAGE, Say
from tests.kits.turns import Desk, at_desk


@pytest.mark.parametrize("error", [PromptTooLong("the window is full"), RequestRefused("the image cannot be read")])
def test_what_is_asked_again_is_paid_for_twice(tmp_path: Path, error: ModelError) -> None:
    error.accounts = (ACCOUNT,)

    async def story(desk: Desk) -> None:
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        if isinstance(error, PromptTooLong):
            assert (ended.outcome, ended.text) == ("replied", "Hi.")
            assert (ended.requests, ended.accounts, ended.usage) == (2, (ACCOUNT, ACCOUNT), USAGE + USAGE)
        else:  # there are no images that could be left out
            assert (ended.outcome, ended.requests, ended.accounts) == ("failed", 1, (ACCOUNT,))

    at_desk(tmp_path, story, Say(text="H", error=error), Say(text="Hi."))


def test_one_that_never_fits_fails_and_says_so(tmp_path: Path) -> None:
    async def story(desk: Desk) -> None:
        await desk.say("ann", "hello")
        await desk.take()
        (ended,) = await desk.ended()
        assert (ended.outcome, ended.reason, len(desk.model.requests)) == ("failed", "the window is full", 3)

    at_desk(tmp_path, story, *[Say(error=PromptTooLong("the window is full"))] * 3)
