"""`reverie setup`: asks what matters and writes the configuration.

Exit codes: 0 done, 1 something does not work or was not agreed to, 2 bad usage. Nothing is written unless it is 0.
"""

import argparse
from pathlib import Path
from typing import Any

_TEXT_FLAGS = {
    "platforms": "telegram, discord, irc; several in quotes",
    "telegram.owner": "the owner's Telegram id",
    "telegram.groups": "ids of groups, `*`, or none",
    "discord.owner": "the owner's Discord id",
    "discord.rooms": "ids of guilds or channels, `*`, or none",
    "irc.server": "host:port",
    "irc.tls": "yes, no, or a file with its root",
    "irc.nick": "the bot's nick",
    "irc.account": "its account with the services, or none",
    "irc.contact": "who runs it, and how to reach them",
    "irc.rooms": "rooms that it joins, or none",
    "irc.owner": "the owner's account with the services",
    "model.provider": "anthropic, openai, compatible, llama.cpp or embedded",
    "model.name": "the model, as its provider calls it",
    "persona.name": "what the bot is called",
    "persona.text": "who it is, in a paragraph",
}
"""Flags for answers: the question's key, and help."""
_SECRET_FLAGS = {
    "telegram.token": "the bot's token",
    "discord.token": "the bot's token",
    "irc.password": "the password of its account with the services",
    "irc.server.password": "the server's own password",
    "model.key": "the provider's key",
}
"""Questions whose answers are named, never given."""
_URL_FLAGS = {
    "telegram-url": "another Bot API server",
    "discord-api-url": "another server with Discord's HTTP API",
    "discord-gateway-url": "its gateway",
    "model-url": "the provider's address",
}


def add_setup_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    """Add `setup` to a command line. Each parsed namespace carries its handler as `handler(args) -> int`."""
    text = "ask what matters, look whether it works, and write the configuration"
    usage = "%(prog)s [--config DIR] [--non-interactive] [an answer by its flag ...]"
    parser = subparsers.add_parser("setup", help=text, description=text, usage=usage)
    parser.add_argument("--config", type=Path, metavar="DIR", help="the configuration directory (asked for)")
    parser.add_argument("--non-interactive", action="store_true", help="ask nothing: flags answer, or defaults")
    parser.add_argument("--yes", action="store_true", help="change files that are there without asking")
    parser.add_argument("--force", action="store_true", help="the same, and write what does not work, too")
    parser.add_argument("--json", action="store_true", help="for programs; implies --non-interactive")
    answers = parser.add_argument_group("answers, each to one question")
    for key, told in _TEXT_FLAGS.items():
        answers.add_argument(f"--{key.replace('.', '-')}", metavar="TEXT", help=told)
    hidden = parser.add_argument_group("secrets, by the name of an environment variable or a file")
    for key, told in _SECRET_FLAGS.items():
        either = hidden.add_mutually_exclusive_group()
        either.add_argument(f"--{key.replace('.', '-')}-env", metavar="NAME", help=told)
        either.add_argument(f"--{key.replace('.', '-')}-file", type=Path, metavar="PATH", help="the same")
    others = parser.add_argument_group("other servers than the platforms' own")
    for name, told in _URL_FLAGS.items():
        others.add_argument(f"--{name}", metavar="URL", help=told)
    parser.set_defaults(handler=setup_command)


def setup_command(args: argparse.Namespace) -> int:
    """Handler."""
    from gateway.setup.driving import AnswerFlags  # noqa: PLC0415 - the other commands start faster without it
    from gateway.setup.program import SetupOptions, run_setup  # noqa: PLC0415 - the same

    given = vars(args)
    answers = {key: given[_flag_attribute(key)] for key in _TEXT_FLAGS if given[_flag_attribute(key)] is not None}
    secrets = {}
    for key in _SECRET_FLAGS:
        if (variable := given[f"{_flag_attribute(key)}_env"]) is not None:
            secrets[key] = f"${{{variable}}}"
        elif (path := given[f"{_flag_attribute(key)}_file"]) is not None:
            secrets[key] = f"${{file:{path.absolute()}}}"
    return run_setup(
        SetupOptions(
            directory=args.config,
            flags=AnswerFlags(answers=answers, secrets=secrets),
            is_interactive=not (args.non_interactive or args.json),
            json=args.json,
            yes=args.yes or args.force,
            force=args.force,
            telegram_url=args.telegram_url,
            discord_urls=(args.discord_api_url, args.discord_gateway_url),
            model_url=args.model_url,
        )
    )


def _flag_attribute(key: str) -> str:
    return key.replace(".", "_")
