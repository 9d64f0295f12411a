"""The last words: what to do next, and how to talk to the bot. Pure."""

import shlex
from collections.abc import Iterator

from gateway.setup.answers import SetupAnswers


def build_farewell(answers: SetupAnswers, directory: str, *, running: bool) -> list[str]:
    """Lines for people. `running`: a gateway runs with this configuration already."""
    return list(_farewell_lines(answers, directory, running=running))


def next_commands(directory: str) -> list[str]:
    """The next two, as they can be copied into a shell."""
    quoted = shlex.quote(directory)
    return [f"reverie doctor --config {quoted}", f"reverie run --config {quoted}"]


def _farewell_lines(answers: SetupAnswers, directory: str, *, running: bool) -> Iterator[str]:
    doctor, run = next_commands(directory)
    yield ""
    yield "Next"
    yield f"  {doctor}     looks at everything once more"
    if running:
        yield "  A gateway runs with this configuration and reads what has changed by itself."
    else:
        yield f"  {run}        starts it; Ctrl-C ends it"
    yield ""
    yield "Talking to it"
    if answers.telegram:
        name = answers.telegram.username
        yield f"  Telegram  write to @{name}: https://t.me/{name}" if name else "  Telegram  write to the bot"
    if answers.discord:
        name = f" {answers.discord.name}" if answers.discord.name else ""
        yield f"  Discord   write to{name or ' the bot'} in a direct message, or name it in a channel"
        if answers.discord.invitation:
            yield "            to take it into a guild, open:"
            yield answers.discord.invitation
    if answers.irc:
        yield f"  IRC       /msg {answers.irc.nick} hello"
        for room in answers.irc.rooms[:1]:
            yield f"            or in {room}:  {answers.irc.nick}: hello"
    yield from _owner_lines(answers, directory)


def _owner_lines(answers: SetupAnswers, directory: str) -> Iterator[str]:
    channels = [one.channel for one in (answers.telegram, answers.discord, answers.irc) if one]
    without = [name for name in channels if not any(one.startswith(f"{name}:") for one in answers.owners)]
    if without and len(without) == len(channels):
        yield ""
        yield "Nobody owns it yet, so it asks everybody for a code at first"
    elif without:
        yield ""
        yield f"You are its owner, but not on {', '.join(without)} yet"
    if without:
        yield "  Say whoami to it there (/whoami, on IRC !whoami): it tells you an id. Then"
        yield f"  reverie pair seed ID --role owner --config {shlex.quote(directory)}"
