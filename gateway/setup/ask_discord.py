"""What is asked about a Discord bot. Pure."""

import re
from dataclasses import dataclass, replace

from pydantic import SecretStr

from channels.discord.config import DiscordConfig
from gateway.probes.discord import DiscordProbeResult
from gateway.setup.answers import DiscordAnswers, SecretReference
from gateway.setup.ask_bot import LATER, ask_owner, ask_token
from gateway.setup.dialog import (
    DialogFlow,
    ProbeRequest,
    SecretQuestion,
    SetupQuestion,
    ask,
    confirm,
    request_probe,
    review_findings,
    split_words,
    tell,
)

_DISCORD_INTRO = (
    "",
    "Discord",
    "  A bot is made at https://discord.com/developers/applications",
    "  New Application, then Bot: switch on MESSAGE CONTENT INTENT; Reset Token shows the token.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordSetup:
    """What came out."""

    channel: DiscordAnswers
    owner: str | None
    """The owner's id. None: not told."""


def ask_discord(
    before: DiscordAnswers | None, owner: str | None, channel: str, urls: tuple[str | None, str | None] = (None, None)
) -> DialogFlow[DiscordSetup]:
    """Raises Skipped. `urls`: of another server, for HTTP and for the gateway."""
    yield from tell(*_DISCORD_INTRO)
    made = before or DiscordAnswers(channel=channel, token=SecretReference(reference=""))
    made = replace(made, api_url=urls[0] or made.api_url, gateway_url=urls[1] or made.gateway_url)
    token, seen = yield from ask_token(
        SecretQuestion(
            key="discord.token", text="Token", file=f"{channel}.token", existing=before.token if before else None
        ),
        "Discord",
        DiscordProbeResult(),
        config=lambda token: build_discord_config(replace(made, token=token, rooms=())),
        name=lambda seen: seen.name,
        later="discord.guilds",
    )
    made = replace(made, token=token, name=seen.name, invitation=seen.invitation_url)
    rooms = yield from _ask_discord_rooms(made, seen)
    told = yield from _ask_discord_owner(made, owner, seen)
    return DiscordSetup(channel=replace(made, rooms=rooms), owner=told)


def _ask_discord_rooms(made: DiscordAnswers, seen: DiscordProbeResult) -> DialogFlow[tuple[str, ...]]:
    while not seen.guilds and seen.id:
        yield from tell("", "  It is in no guild yet. Open this address, and choose where it is to be:", "")
        yield from tell(f"  {seen.invitation_url}", "")
        answer = yield from ask(
            SetupQuestion(
                key="",
                text="Press Enter once it is there, or `go on` without",
                default="",
                noninteractive_default="go on",
            )
        )
        if answer:
            break
        seen = yield from request_probe(ProbeRequest(build_discord_config(made)), DiscordProbeResult)
    yield from tell("", *(f"  {number}  {name}" for number, name in seen.guilds[:10]))
    default = " ".join(made.rooms) or (seen.guilds[0][0] if len(seen.guilds) == 1 else "none")
    while True:
        answer = yield from ask(
            SetupQuestion(
                key="discord.rooms",
                text="Where it may act: ids of these or of channels, `*`, `none`",
                default=default,
                parse=_parse_discord_rooms,
            )
        )
        rooms = () if answer == "none" else split_words(answer)
        wanted = [room for room in rooms if room != "*" and room not in {number for number, _ in seen.guilds}]
        if made.token.value is None or not wanted:
            return rooms
        checked = yield from request_probe(
            ProbeRequest(build_discord_config(replace(made, rooms=tuple(wanted)))), DiscordProbeResult
        )
        way = yield from review_findings(
            [one for one in checked.findings if one.code == "discord.rooms"], skip=False, also=("discord.rooms",)
        )
        if way == "go on":
            return rooms


def _ask_discord_owner(made: DiscordAnswers, before: str | None, seen: DiscordProbeResult) -> DialogFlow[str | None]:
    number, name = seen.owner
    yield from tell("", "  The owner may do everything, and is known by an id of Discord's.")
    if before is None and number:
        yield from tell(f"  The application belongs to {name} ({number}).")
    elif before is None:
        yield from tell("  Yours: Settings, Advanced, Developer Mode; then right-click your name, Copy User ID.")
    return (
        yield from ask_owner(
            SetupQuestion(
                key="discord.owner",
                text=f"Your id, or `{LATER}`",
                default=before or number or LATER,
                parse=_parse_discord_id,
            ),
            build_discord_config(made) if made.token.value is not None else None,
            lambda answer: confirm(f"Discord knows nobody with the id {answer}. Take it all the same?", default=False),
            known=(before, number),
        )
    )


def build_discord_config(made: DiscordAnswers) -> DiscordConfig:
    """As the configuration will have it."""
    more = {"api_url": made.api_url, "gateway_url": made.gateway_url}
    token = SecretStr(made.token.value or "")
    base = {"platform": "discord", "token": token, "rooms": made.rooms}
    return DiscordConfig.model_validate(base | {key: value for key, value in more.items() if value})


def _parse_discord_id(words: str) -> str:
    words = words.strip().lower()
    if words != LATER and not re.fullmatch(r"[0-9]{1,20}", words):
        raise ValueError("an id is a number, e.g. 123456789012345678")
    return words


def _parse_discord_rooms(words: str) -> str:
    words = words.strip().lower()
    if words in {"", "none"}:
        return "none"
    for one in split_words(words):
        if not re.fullmatch(r"[0-9]{1,20}|\*", one):
            raise ValueError(f"{one} is no id: right-click the channel or the guild, Copy ID (in developer mode)")
    return " ".join(split_words(words))
