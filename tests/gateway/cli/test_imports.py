"""What commands need not import: it takes the time of each start, and memory as long as a gateway
runs."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from gateway.cli.client import CHAT_COMMANDS
from gateway.cli.ctl import operator_commands
from gateway.plugins import find_plugins
from reverie.testing.servers.ircd import Ircd

PROGRAM = """
import atexit, json, sys
from reverie.__main__ import main
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
sys.argv[0] = "reverie"
sys.exit(main())
"""
NOT_FOR_IDLING = {
    "PIL", "agent.models.anthropic", "agent.models.gemini", "aiohttp",
    "channels.discord.channel", "channels.telegram.channel", "cryptography", "discord",
    "gateway.cli.log", "gateway.core.api_models", "gateway.plugins.backup.create",
    "gateway.plugins.console.app",
    "gateway.plugins.dashboard.api_views", "gateway.plugins.doctor.examine",
    "gateway.plugins.mcp.connection", "gateway.plugins.media.extract",
    "gateway.plugins.setup.dialog", "gateway.store.postgres_log", "httpx2",
    "markdown_it", "mcp", "numpy",
    "psycopg", "pypdf", "requests", "rich", "starlette", "textual", "tiktoken", "tokenizers",
    "uvicorn",
}  # fmt: skip
"""By a gateway on IRC alone that nobody has written to."""


def test_a_gateway_that_idles_and_its_client_import_nothing_for_what_nobody_asked(
    tmp_path: Path,
) -> None:
    async def story() -> tuple[set[str], set[str]]:
        async with asyncio.timeout(60), Ircd() as ircd:
            config = {
                "channels": {"irc.a": {
                    "platform": "irc", "host": "127.0.0.1", "port": ircd.port, "tls": False,
                    "nick": "reverie", "rooms": ["#lobby"],
                }},
                "agents": [{"id": "reverie"}],
                "llm": {
                    "providers": {"p": {"kind": "openai", "api_key": "none"}},
                    "models": {"main": {"provider": "p", "name": "m"}},
                },
                "ops": {"port": 0, "token": "a token of the operator"},
            }  # fmt: skip
            (tmp_path / "reverie.yaml").write_text(json.dumps(config))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM, "run", "--config", tmp_path),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                await ircd.joined("reverie", "#lobby")
                asking = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", PROGRAM, "status", "--config", tmp_path),
                    stdout=asyncio.subprocess.PIPE,
                )
                answer, _ = await asking.communicate()
            finally:
                process.terminate()
                told, _ = await process.communicate()
            assert b"irc.a" in answer
            return set(json.loads(told.splitlines()[-1])), set(json.loads(answer.splitlines()[-1]))

    imported, of_client = asyncio.run(story())
    assert "gateway.app" in imported
    assert sorted(imported & NOT_FOR_IDLING) == []
    assert (
        sorted(of_client & {"asyncio", "gateway.config.models", "gateway.store", "pydantic"}) == []
    )


def test_the_commands_that_are_asked_without_plugins_are_those_of_the_table() -> None:
    own = {"help", "log", "new", "reload", "version"}
    assert {*operator_commands()} == CHAT_COMMANDS | own
    assert not CHAT_COMMANDS & {name for one in find_plugins().classes for name in one.subcommands}


def test_the_version_is_told_without_the_gateway() -> None:
    command = [sys.executable, "-c", PROGRAM, "version"]
    told = subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout
    assert told.startswith("reverie ")
    assert not {"asyncio", "gateway.cli.main", "pydantic"} & set(json.loads(told.splitlines()[-1]))
