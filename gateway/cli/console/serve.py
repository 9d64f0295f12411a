"""The gateway process of a console: `reverie run` with an API for that console.

Reads one line of JSON with a port and a token from standard input. Ends as on SIGTERM when standard input is closed,
because then the console is gone.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from pydantic import SecretStr

from gateway import app
from gateway.config.loader import ConfigError, ConfigFiles, read_config
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.config.secrets import PriceTableError, collect_secrets
from gateway.core.logging import start_logging
from gateway.core.redaction import Redactor
from gateway.ingest.factory import ChannelUnavailable
from gateway.store import StoreError

logger = logging.getLogger("reverie")


def main() -> int:
    """Run the gateway; exit codes as for `reverie run`."""
    parser = argparse.ArgumentParser(prog="python -m gateway.cli.console.serve")
    parser.add_argument("--config", type=Path, required=True, metavar="DIR")
    directory: Path = parser.parse_args().config
    parameters = json.loads(sys.stdin.buffer.readline())
    try:
        loaded = read_config(directory, os.environ)
    except ConfigError as error:
        sys.stderr.writelines(f"{problem}\n" for problem in error.problems)
        return 2
    redactor = Redactor([*collect_secrets(loaded.settings, loaded.resolved_values), parameters["token"]])
    start_logging(logging.INFO, redactor, form="text")
    for warning in loaded.warnings:
        logger.warning("%s", warning)
    return asyncio.run(_serve(loaded.settings, directory, redactor, parameters["port"], parameters["token"]))


async def _serve(settings: Settings, directory: Path, redactor: Redactor, port: int, token: str) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ended = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(ended), sys.stdin)
    watching = asyncio.create_task(_stop_at_eof(ended, stop))
    files = ConfigFiles(directory, os.environ, {"host": "127.0.0.1", "port": port, "token": SecretStr(token)})
    settings = files.with_ops(settings)
    live = LiveSettings(settings, directory, os.environ)
    live.files = files
    try:
        await app.run(settings, stop, live=live, redactor=redactor)
    except (ChannelUnavailable, PriceTableError) as error:
        logger.error("%s", error)  # noqa: TRY400 - the operator can fix it; a traceback does not help
        return 2
    except (StoreError, app.NoChannelsLeft) as error:
        logger.error("%s", error)  # noqa: TRY400 - as above
        return 1
    finally:
        watching.cancel()
        pipe.close()
    return 0


async def _stop_at_eof(ended: asyncio.StreamReader, stop: asyncio.Event) -> None:
    await ended.read()
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
