"""The whole setup interview: asks all questions and returns what is to be configured.

The farewell at its end tells what to do next and how to reach the bot.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gateway.cli.setup.dialog import (
    PlatformSkipped,
    Respondent,
    SecretReference,
    SetupAnswers,
    SetupQuestion,
    split_words,
)
from gateway.cli.setup.model import ask_model
from gateway.cli.setup.platforms import ask_discord, ask_irc, ask_telegram


def build_farewell(answers: SetupAnswers, directory: str, *, running: bool) -> list[str]:
    """Return the farewell. `running`: a gateway already runs with this configuration."""
    return list(_farewell_lines(answers, directory, running=running))


def next_commands(directory: str) -> list[str]:
    """Return the next two commands, ready to be copied into a shell."""
    quoted = shlex.quote(directory)
    return [f"reverie doctor --config {quoted}", f"reverie run --config {quoted}"]


def _farewell_lines(answers: SetupAnswers, directory: str, *, running: bool) -> Iterator[str]:
    doctor, run = next_commands(directory)
    yield ""
    yield "Next"
    yield f"  {doctor}     checks everything again"
    if running:
        yield "  A gateway is running with this configuration. It reads the changes by itself."
    else:
        yield f"  {run}        starts it; Ctrl-C stops it"
    yield ""
    yield "Talking to it"
    if answers.telegram:
        name = answers.telegram.username
        yield (
            f"  Telegram  write to @{name}: https://t.me/{name}"
            if name
            else "  Telegram  write to the bot"
        )
    if answers.discord:
        name = f" {answers.discord.name}" if answers.discord.name else ""
        yield (
            f"  Discord   write to{name or ' the bot'} in a direct message, or name it in a channel"
        )
        if answers.discord.invitation:
            yield "            to add it to a guild, open:"
            yield answers.discord.invitation
    if answers.irc:
        yield f"  IRC       /msg {answers.irc.nick} hello"
        for room in answers.irc.rooms[:1]:
            yield f"            or in {room}:  {answers.irc.nick}: hello"
    yield from _owner_lines(answers, directory)


def _owner_lines(answers: SetupAnswers, directory: str) -> Iterator[str]:
    channels = [one.channel for one in (answers.telegram, answers.discord, answers.irc) if one]
    without = [
        name for name in channels if not any(one.startswith(f"{name}:") for one in answers.owners)
    ]
    if without and len(without) == len(channels):
        yield ""
        yield "It has no owner yet, so it gives everybody a code first"
    elif without:
        yield ""
        yield f"You are its owner, but not on {', '.join(without)} yet"
    if without:
        irc = answers.irc.channel if answers.irc else ""
        forms = ["/whoami"] * any(one != irc for one in without) + ["!whoami on IRC"] * (
            irc in without
        )
        yield f"  Write {' or '.join(forms)} to it in a direct chat: it shows you an id. Then run"
        yield f"  reverie ctl pair seed ID owner --config {shlex.quote(directory)}"


PLATFORMS = ("telegram", "discord", "irc")
_DEFAULT_NAME = "Reverie"
_UNCHANGED = "as it is"
WORKSPACE = "./workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupSituation:
    """State before the first question."""

    existing: SetupAnswers | None = None
    """Answers in the existing configuration. None: there is none."""
    identity: str = ""
    """Text of the IDENTITY.md that comes with the product."""
    is_running: bool = False
    """True if a gateway runs with this configuration."""
    fresh_token: str = field(default="", repr=False)
    """Random token for the operator's HTTP server, in case one is needed."""
    telegram_url: str | None = None
    """URL of another Bot API server. None: Telegram's own."""
    discord_urls: tuple[str | None, str | None] = (None, None)
    """URLs of another server, for HTTP and for the gateway."""
    model_url: str | None = None


def run_interview(person: Respondent, situation: SetupSituation) -> SetupAnswers:
    """Ask all questions."""
    before = situation.existing or SetupAnswers()
    answers = replace(before, telegram=None, discord=None, irc=None)
    while True:
        for platform in _ask_platforms(person, before):
            try:
                answers = _ask_platform(person, platform, answers, before, situation)
            except PlatformSkipped:
                person.tell(f"  {platform} is skipped.")
        if any(getattr(one, name) for one in (answers, before) for name in PLATFORMS):
            break
        person.tell("  You need at least one platform.", "")
    model = ask_model(person, before.model, situation.model_url)
    answers = replace(answers, model=model)
    answers = _ask_persona(person, answers, situation)
    if answers.ops_token is None:
        token = SecretReference(
            reference="${file:secrets/ops.token}", value=situation.fresh_token, is_new=True
        )
        answers = replace(answers, ops_token=token)
    return answers


def _ask_platforms(person: Respondent, before: SetupAnswers) -> tuple[str, ...]:
    existing = [name for name in PLATFORMS if getattr(before, name) is not None]
    words = person.ask(
        SetupQuestion(
            "platforms",
            "Platforms (telegram, discord, irc; separate several with spaces)",
            default=" ".join(existing) or "telegram",
            parse=_parse_platforms,
        )
    )
    chosen = split_words(words)
    stay = [name for name in existing if name not in chosen]
    if stay:
        person.tell(f"  Unchanged: {', '.join(stay)}. To remove one, delete it from the file.")
    return chosen


def _ask_platform(
    person: Respondent,
    platform: str,
    answers: SetupAnswers,
    before: SetupAnswers,
    situation: SetupSituation,
) -> SetupAnswers:
    """Ask about one platform; return the answers with it and its owner. Raises PlatformSkipped."""
    if platform == "telegram":
        name = before.telegram.channel if before.telegram else "telegram.main"
        owner = _find_owner(answers, name)
        telegram, new_owner = ask_telegram(
            person,
            before.telegram,
            owner,
            name,
            polled=situation.is_running,
            url=situation.telegram_url,
        )
        return _with_owner(replace(answers, telegram=telegram), name, owner, new_owner)
    if platform == "discord":
        name = before.discord.channel if before.discord else "discord.main"
        owner = _find_owner(answers, name)
        discord, new_owner = ask_discord(
            person, before.discord, owner, name, situation.discord_urls
        )
        return _with_owner(replace(answers, discord=discord), name, owner, new_owner)
    owner = _find_owner(answers, before.irc.channel) if before.irc else None
    irc, new_owner = ask_irc(person, before.irc, owner)
    return _with_owner(replace(answers, irc=irc), irc.channel, owner, new_owner)


def _find_owner(answers: SetupAnswers, channel: str) -> str | None:
    return next(
        (one.partition(":")[2] for one in answers.owners if one.startswith(f"{channel}:")), None
    )


def _with_owner(
    answers: SetupAnswers, channel: str, old: str | None, new: str | None
) -> SetupAnswers:
    owners = [one for one in answers.owners if old is None or one != f"{channel}:{old}"]
    if new is not None and f"{channel}:{new}" not in owners:
        owners.append(f"{channel}:{new}")
    return replace(answers, owners=answers.owners if old == new else tuple(owners))


def _ask_persona(
    person: Respondent, answers: SetupAnswers, situation: SetupSituation
) -> SetupAnswers:
    person.tell("", "Who it is")
    if situation.existing is None:
        name = person.ask(
            SetupQuestion("persona.name", "Its name", default=_DEFAULT_NAME, parse=_parse_name)
        )
        answers = replace(answers, agent_id=slug(name))
    else:
        name = answers.agent_id
    words = person.ask(
        SetupQuestion(
            "persona.text", "Its character, in a paragraph", default=_UNCHANGED, parse=str.strip
        )
    )
    if words == _UNCHANGED and (situation.existing is not None or name == _DEFAULT_NAME):
        return answers
    text = (
        situation.identity.replace(_DEFAULT_NAME, name)
        if words == _UNCHANGED
        else render_identity(name, words)
    )
    return replace(answers, workspace=answers.workspace or WORKSPACE, identity=text)


def render_identity(name: str, words: str) -> str:
    """Render IDENTITY.md."""
    return (
        f"You are {name}. {words}\n\nYou are software and say so when it matters or when "
        "somebody asks.\n"
    )


def slug(name: str) -> str:
    """Return a name as an agent id: letters, digits, dots, hyphens."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "reverie"


def _parse_name(words: str) -> str:
    words = " ".join(words.split())
    if not words or len(words) > 60:  # noqa: PLR2004 - a name
        raise ValueError("a name, of at most 60 characters")
    return words


def _parse_platforms(words: str) -> str:
    chosen: list[str] = []
    for word in split_words(words.lower()):
        match = [name for name in PLATFORMS if name.startswith(word)]
        if len(match) != 1:
            raise ValueError(f"{word} is not one of {', '.join(PLATFORMS)}")
        chosen += [name for name in match if name not in chosen]
    if not chosen:
        raise ValueError("at least one of telegram, discord, irc")
    return " ".join(name for name in PLATFORMS if name in chosen)
