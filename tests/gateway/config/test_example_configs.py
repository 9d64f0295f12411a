"""Example configurations: each loads without a warning, runs, and answers on servers like the real
ones."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import app
from gateway.config.loader import read_config
from tests.kits.platform_users import DISCORD, IRC, NICK, TELEGRAM, so
from tests.kits.three_platforms import ROOM, Town, town

EXAMPLES = Path(__file__).resolve().parents[3] / "config" / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
GIVEN = {
    "TELEGRAM_TOKEN": "1:AAbbccddeeffgghhiijjkkllmmnnooppqqr",
    "TELEGRAM_OWNER": "1001",
    "TELEGRAM_GROUP": "-1001234567890",
    "DISCORD_TOKEN": "a.b.c",
    "DISCORD_GUILD": "123456789012345678",
    "DISCORD_OWNER": "223456789012345678",
    "DISCORD_MODERATORS": "323456789012345678",
    "IRC_PASSWORD": "correcthorse",
    "ANTHROPIC_API_KEY": "sk-ant-example",
    "REVERIE_TOKEN": "made-up-and-long",
}
PLATFORMS = {
    "telegram": {TELEGRAM},
    "discord": {DISCORD},
    "irc": {IRC},
    "everywhere": {TELEGRAM, DISCORD, IRC},
}


def test_there_is_one_for_each_kind_of_use() -> None:
    assert set(NAMES) == set(PLATFORMS)


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_without_a_warning_and_names_all_it_needs(name: str) -> None:
    text = (EXAMPLES / name / "reverie.yaml").read_text()
    needs = set(re.findall(r"\$\{([A-Z_]+)\}", text))
    loaded = read_config(EXAMPLES / name, {one: GIVEN[one] for one in needs})
    settings, warnings = loaded.settings, loaded.warnings
    assert warnings == ()
    assert {channel.platform for channel in settings.channels.values()} == {
        one.partition(".")[0] for one in PLATFORMS[name]
    }
    head = text.partition("\nchannels:")[0]
    assert {one for one in needs if f"{one}=" not in head} == set(), "each is told at the top"
    assert settings.access.dm != "open"


def _pointed(config: dict[str, Any], it: Town, irc_port: int) -> None:
    """Change nothing but addresses and the people it names."""
    for channel in config["channels"].values():
        match channel["platform"]:
            case "telegram":
                channel |= {"base_url": it.telegram.url, "poll_timeout": 2}
            case "discord":
                channel |= {"api_url": it.discord.api_url, "gateway_url": it.discord.gateway_url}
            case "irc":
                channel |= {
                    "host": "127.0.0.1",
                    "port": irc_port,
                    "tls": False,
                    "nick": NICK,
                    "rooms": [ROOM],
                }
                channel["sasl"]["account"] = "gus"
    for provider in config["llm"]["providers"].values():
        provider |= {"kind": "openai", "base_url": it.model.url}
    for model in config["llm"]["models"].values():
        model["context_tokens"] = 100_000
    config |= {"store": {"path": "reverie.db"}, "ops": config.get("ops", {}) | {"port": 0}}


@pytest.mark.parametrize("name", NAMES)
async def test_it_runs_and_answers(tmp_path: Path, name: str) -> None:
    async with town(tmp_path) as it:
        config = yaml.safe_load((EXAMPLES / name / "reverie.yaml").read_text())
        _pointed(config, it, it.config["channels"][IRC]["port"])
        (tmp_path / "reverie.yaml").write_text(json.dumps(config))  # JSON is YAML
        env = GIVEN | {
            "TELEGRAM_TOKEN": it.telegram.token,
            "TELEGRAM_OWNER": str(it.persons["olga"].id),
            "TELEGRAM_GROUP": str(it.lounge.id),
            "DISCORD_TOKEN": it.discord.token,
            "DISCORD_GUILD": it.discord.room,
            "DISCORD_OWNER": it.user("olga"),
        }
        stop = asyncio.Event()
        running = asyncio.create_task(app.run(read_config(tmp_path, env).settings, stop))

        async def until(true: Callable[[], bool], what: str) -> None:
            await so(lambda: true() or running.done(), what)
            if running.done():
                await running

        try:
            for platform in sorted(PLATFORMS[name]):
                connected = {
                    TELEGRAM: lambda: bool(it.telegram.asked("getUpdates")),
                    DISCORD: lambda: (
                        bool(it.discord.live) and bool(it.discord.commands.table.get("global"))
                    ),
                    IRC: lambda: it.joins() > 0,
                }[platform]
                await until(connected, f"{platform} is connected")
                seat = it.seat(platform, "olga", "alone" if platform == TELEGRAM else "room")
                seat.say("are you there?", to_bot=True)
                await until(
                    lambda seat=seat: any("so much for that" in text for text in seat.shown()),  # type: ignore[misc] # mypy does not infer a lambda with a default
                    platform,
                )
        finally:
            stop.set()
            await running
