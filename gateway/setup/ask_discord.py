"""What is asked about a Discord bot. Pure."""

import re
from dataclasses import dataclass, replace

from pydantic import SecretStr

from channels.discord.config import DiscordConfig
from gateway.probes.discord import DiscordSeen
from gateway.setup.answers import Discord, Secret
from gateway.setup.ask_bot import LATER, ask_owner, ask_token
from gateway.setup.dialog import (
    Ask,
    AskSecret,
    Flow,
    Look,
    ask,
    confirm,
    look,
    settle,
    several,
    tell,
)

_HOW = (
    "",
    "Discord",
    "  A bot is made at https://discord.com/developers/applications",
    "  New Application, then Bot: switch on MESSAGE CONTENT INTENT; Reset Token shows the token.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came out."""

    channel: Discord
    owner: str | None
    """The owner's id. None: not told."""


def ask_discord(
    before: Discord | None, owner: str | None, channel: str, urls: tuple[str | None, str | None] = (None, None)
) -> Flow[Told]:
    """Raises Skipped. `urls`: of another server, for HTTP and for the gateway."""
    yield from tell(*_HOW)
    made = before or Discord(channel=channel, token=Secret(reference=""))
    made = replace(made, api_url=urls[0] or made.api_url, gateway_url=urls[1] or made.gateway_url)
    token, seen = yield from ask_token(
        AskSecret(
            key="discord.token", text="Token", file=f"{channel}.token", existing=before.token if before else None
        ),
        "Discord",
        DiscordSeen(),
        config=lambda token: config_of(replace(made, token=token, rooms=())),
        name=lambda seen: seen.name,
        later="discord.guilds",
    )
    made = replace(made, token=token, name=seen.name, invitation=seen.invitation_url)
    rooms = yield from _rooms(made, seen)
    told = yield from _owner(made, owner, seen)
    return Told(channel=replace(made, rooms=rooms), owner=told)


def _rooms(made: Discord, seen: DiscordSeen) -> Flow[tuple[str, ...]]:
    while not seen.guilds and seen.id:
        yield from tell("", "  It is in no guild yet. Open this address, and choose where it is to be:", "")
        yield from tell(f"  {seen.invitation_url}", "")
        answer = yield from ask(
            Ask(
                key="",
                text="Press Enter once it is there, or `go on` without",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            break
        seen = yield from look(Look(config_of(made)), DiscordSeen)
    yield from tell("", *(f"  {number}  {name}" for number, name in seen.guilds[:10]))
    default = " ".join(made.rooms) or (seen.guilds[0][0] if len(seen.guilds) == 1 else "none")
    while True:
        answer = yield from ask(
            Ask(
                key="discord.rooms",
                text="Where it may act: ids of these or of channels, `*`, `none`",
                default=default,
                parse=_places,
            )
        )
        rooms = () if answer == "none" else several(answer)
        wanted = [room for room in rooms if room != "*" and room not in {number for number, _ in seen.guilds}]
        if made.token.value is None or not wanted:
            return rooms
        checked = yield from look(Look(config_of(replace(made, rooms=tuple(wanted)))), DiscordSeen)
        way = yield from settle(
            [one for one in checked.findings if one.code == "discord.rooms"], skip=False, also=("discord.rooms",)
        )
        if way == "go on":
            return rooms


def _owner(made: Discord, before: str | None, seen: DiscordSeen) -> Flow[str | None]:
    number, name = seen.owner
    yield from tell("", "  The owner may do everything, and is known by an id of Discord's.")
    if before is None and number:
        yield from tell(f"  The application belongs to {name} ({number}).")
    elif before is None:
        yield from tell("  Yours: Settings, Advanced, Developer Mode; then right-click your name, Copy User ID.")
    return (
        yield from ask_owner(
            Ask(key="discord.owner", text=f"Your id, or `{LATER}`", default=before or number or LATER, parse=_person),
            config_of(made) if made.token.value is not None else None,
            lambda answer: confirm(f"Discord knows nobody with the id {answer}. Take it all the same?", default=False),
            known=(before, number),
        )
    )


def config_of(made: Discord) -> DiscordConfig:
    """As the configuration will have it."""
    more = {"api_url": made.api_url, "gateway_url": made.gateway_url}
    token = SecretStr(made.token.value or "")
    base = {"platform": "discord", "token": token, "rooms": made.rooms}
    return DiscordConfig.model_validate(base | {key: value for key, value in more.items() if value})


def _person(words: str) -> str:
    words = words.strip().lower()
    if words != LATER and not re.fullmatch(r"[0-9]{1,20}", words):
        raise ValueError("an id is a number, e.g. 123456789012345678")
    return words


def _places(words: str) -> str:
    words = words.strip().lower()
    if words in {"", "none"}:
        return "none"
    for one in several(words):
        if not re.fullmatch(r"[0-9]{1,20}|\*", one):
            raise ValueError(f"{one} is no id: right-click the channel or the guild, Copy ID (in developer mode)")
    return " ".join(several(words))
