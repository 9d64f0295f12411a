"""The whole conversation. Pure: questions out, answers in, at the end what is to be configured."""

import re
from dataclasses import dataclass, field, replace

from gateway.setup.answers import Answers, Secret
from gateway.setup.ask_discord import ask_discord
from gateway.setup.ask_irc import ask_irc
from gateway.setup.ask_model import ask_model
from gateway.setup.ask_telegram import ask_telegram
from gateway.setup.dialog import Ask, Flow, Skipped, ask, several, tell

PLATFORMS = ("telegram", "discord", "irc")
_NAME = "Reverie"
_AS_IT_IS = "as it is"
WORKSPACE = "./workspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known before the first question."""

    existing: Answers | None = None
    """What the configuration says now. None: there is none."""
    identity: str = ""
    """The persona that comes with the product: the text of its IDENTITY.md."""
    is_running: bool = False
    """A gateway runs with this configuration."""
    fresh_token: str = field(default="", repr=False)
    """A token for the operator's own page, made by chance, if one is needed."""
    telegram_url: str | None = None
    """Of another server than the platform's own, as the next ones."""
    discord_urls: tuple[str | None, str | None] = (None, None)
    """For HTTP and for the gateway."""
    model_url: str | None = None


def interview(situation: Situation) -> Flow[Answers]:
    """Ask everything."""
    before = situation.existing or Answers()
    made = replace(before, telegram=None, discord=None, irc=None)
    while True:
        for platform in (yield from _platforms(before)):
            try:
                made = yield from _one(platform, made, before, situation)
            except Skipped:
                yield from tell(f"  {platform} is left out.")
        if any(getattr(one, name) for one in (made, before) for name in PLATFORMS):
            break
        yield from tell("  At least one platform is needed.", "")
    thinking = yield from ask_model(before.model, situation.model_url)
    made = replace(made, model=thinking)
    made = yield from _persona(made, situation)
    if made.ops_token is None:
        token = Secret(reference="${file:secrets/ops.token}", value=situation.fresh_token, is_new=True)
        made = replace(made, ops_token=token)
    return made


def _platforms(before: Answers) -> Flow[tuple[str, ...]]:
    there = [name for name in PLATFORMS if getattr(before, name) is not None]
    words = yield from ask(
        Ask(
            key="platforms",
            text="Platforms (telegram, discord, irc; several with spaces)",
            default=" ".join(there) or "telegram",
            parse=_as_platforms,
        )
    )
    chosen = several(words)
    stay = [name for name in there if name not in chosen]
    if stay:
        yield from tell(f"  Left as it is: {', '.join(stay)}. What is to go, take out of the file.")
    return chosen


def _one(platform: str, made: Answers, before: Answers, situation: Situation) -> Flow[Answers]:
    """With the answers about one platform, and its owner among the owners. Raises Skipped."""
    if platform == "telegram":
        name = before.telegram.channel if before.telegram else "telegram.main"
        owner = _owner(made, name)
        told = yield from ask_telegram(
            before.telegram, owner, name, polled=situation.is_running, url=situation.telegram_url
        )
        return _owned(replace(made, telegram=told.channel), name, owner, told.owner)
    if platform == "discord":
        name = before.discord.channel if before.discord else "discord.main"
        owner = _owner(made, name)
        answered = yield from ask_discord(before.discord, owner, name, situation.discord_urls)
        return _owned(replace(made, discord=answered.channel), name, owner, answered.owner)
    known = before.irc.channel if before.irc else ""
    owner = _owner(made, known) if known else None
    said = yield from ask_irc(before.irc, owner)
    return _owned(replace(made, irc=said.channel), said.channel.channel, owner, said.owner)


def _owner(made: Answers, channel: str) -> str | None:
    """The first one's id on that channel."""
    return next((one.partition(":")[2] for one in made.owners if one.startswith(f"{channel}:")), None)


def _owned(made: Answers, channel: str, old: str | None, new: str | None) -> Answers:
    """With the first owner on that channel replaced."""
    owners = [one for one in made.owners if old is None or one != f"{channel}:{old}"]
    if new is not None and f"{channel}:{new}" not in owners:
        owners.append(f"{channel}:{new}")
    return replace(made, owners=made.owners if old == new else tuple(owners))


def _persona(made: Answers, situation: Situation) -> Flow[Answers]:
    yield from tell("", "Who it is")
    if situation.existing is None:
        name = yield from ask(Ask(key="persona.name", text="Its name", default=_NAME, parse=_as_name))
        made = replace(made, agent_id=slug(name))
    else:
        name = made.agent_id
    words = yield from ask(
        Ask(key="persona.text", text="Its character, in a paragraph", default=_AS_IT_IS, parse=str.strip)
    )
    if words == _AS_IT_IS and (situation.existing is not None or name == _NAME):
        return made
    text = situation.identity.replace(_NAME, name) if words == _AS_IT_IS else identity(name, words)
    return replace(made, workspace=made.workspace or WORKSPACE, identity=text)


def identity(name: str, words: str) -> str:
    """IDENTITY.md for a name and a paragraph."""
    return f"You are {name}. {words}\n\nYou are software and say so when it matters or when somebody asks.\n"


def slug(name: str) -> str:
    """A name as an agent's id: letters, digits, dots, hyphens."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.") or "reverie"


def _as_name(words: str) -> str:
    words = " ".join(words.split())
    if not words or len(words) > 60:  # noqa: PLR2004 - a name
        raise ValueError("a name, of at most 60 characters")
    return words


def _as_platforms(words: str) -> str:
    chosen: list[str] = []
    for word in several(words.lower()):
        match = [name for name in PLATFORMS if name.startswith(word)]
        if len(match) != 1:
            raise ValueError(f"{word} is none of {', '.join(PLATFORMS)}")
        chosen += [name for name in match if name not in chosen]
    if not chosen:
        raise ValueError("at least one of telegram, discord, irc")
    return " ".join(name for name in PLATFORMS if name in chosen)
