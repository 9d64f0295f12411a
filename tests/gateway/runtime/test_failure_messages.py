"""What people are told where there is no answer: why, and whether to ask again. No model ever reads it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.config.loader import parse_config
from gateway.core.clock import ManualClock
from gateway.runtime.turn import FAILURE_TEXTS
from tests.kits.console_platforms import Running, running
from tests.kits.gateway import UNHURRIED
from tests.servers.model_api import ModelApi
from tests.servers.model_api_events import Answer, failure

IRC = "irc.libera"


@contextlib.asynccontextmanager
async def gateway(tmp: Path, url: str, kind: str = "anthropic") -> AsyncIterator[Running]:
    settings = parse_config(
        {
            "channels": {IRC: {"platform": "console", "rooms": ["#garden"]}},
            "agents": [{"id": "ana"}],
            "llm": {
                "providers": {"p": {"kind": kind, "base_url": url, "api_key": "k"}},
                "models": {"main": {"provider": "p", "name": "claude-sonnet-5-5"}},
            },
            "attention": {"coalesce": 0},
            "access": {"dm": "open", "rates": UNHURRIED},
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        tmp,
    )
    async with asyncio.timeout(60), running(settings, ManualClock()) as made:
        yield made


async def told(made: Running, text: str) -> str:
    """What somebody is answered, however long that takes."""
    asked = asyncio.create_task(made.ask(IRC, f"reverie, {text}", sender="ann", room="#garden"))
    while not asked.done():
        made.clock.advance(0.5)
        await asyncio.wait([asked], timeout=0.005)
    await asked
    return " ".join(made.said[-1].split())


def said(message: str, kind: str = "invalid_request_error", status: int = 400) -> Answer:
    return Answer(
        status=status, body=json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    )


CAUSES = {
    "overloaded": failure(529, "overloaded_error"),
    "misconfigured": failure(401, "authentication_error"),
    "budget": said("Your credit balance is too low to access the Anthropic API."),
    "too_long": said("prompt is too long: 200001 tokens > 200000 maximum"),
    "refused": said("messages.0: this is against our policy"),
    "nothing": Answer(text=""),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_is_told_in_words_and_never_read_by_the_model(tmp_path: Path, cause: str) -> None:
    async def story() -> None:
        async with ModelApi() as api, gateway(tmp_path, api.url) as made:
            api.default = lambda _: CAUSES[cause]
            words = await told(made, "hello there")
            assert words.endswith(FAILURE_TEXTS[cause])  # type: ignore[index]
            assert "01M" not in words
            assert "reference" not in words
            api.default = lambda _: Answer(text="Here I am.")
            assert (await told(made, "and now?")).endswith("Here I am.")
            messages = json.dumps(api.seen[-1].body)
            assert "hello there" in messages
            assert FAILURE_TEXTS[cause] not in messages  # type: ignore[index]
            assert not api.violations

    asyncio.run(story())


def test_who_cannot_be_reached_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with ModelApi() as api:
            url = api.url
        async with gateway(tmp_path, url) as made:
            assert (await told(made, "hello")).endswith(FAILURE_TEXTS["unreachable"])

    asyncio.run(story())
