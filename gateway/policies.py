"""From the operator's words to the policies that the deciding files take. Pure."""

from datetime import time
from zoneinfo import ZoneInfo

from agent import signals
from gateway import access, attention
from gateway.access import Role
from gateway.attention import Urgency
from gateway.bindings import Bindings, Bound, Pattern
from gateway.events import ChannelName, RoomId
from gateway.presence import Habits, Night
from gateway.records import AMBIENT, LOW, NORMAL, URGENT, inner
from gateway.regexes import Regex
from gateway.salience import Salience
from gateway.settings import Settings

_URGENCIES: dict[str, Urgency] = {"ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}
_ROLES: tuple[Role, ...] = ("guest", "member", "admin", "owner", "blocked")
"""Weakest first: who is listed twice has the last; being blocked wins over all."""


def access_policy(settings: Settings) -> access.Policy:
    """Who is who, and what is open."""
    return access.Policy(
        dm=settings.access.dm,
        roles={person: role for role in _ROLES for person in getattr(settings.access.roles, role)},
        rooms={
            ChannelName(name): frozenset(RoomId(room) for room in channel.rooms)
            for name, channel in settings.channels.items()
        },
    )


def attention_policy(settings: Settings) -> attention.Policy:
    """What may interrupt."""
    rules = tuple(
        attention.Rule(
            type=rule.type,
            urgency=_URGENCIES[rule.urgency],
            keyword=rule.keyword,
            role=rule.role,
            regex=None if rule.regex is None else Regex(rule.regex),
        )
        for rule in settings.attention.rules
    )
    said = settings.attention.salience
    salience = Salience(
        people=frozenset(said.people),
        keywords=said.keywords,
        questions=said.questions,
        activity=said.activity,
        rest_s=said.rest,
    )
    return attention.Policy(rules=rules, thresholds=settings.attention.thresholds, salience=salience)


def habits(settings: Settings) -> Habits:
    """When people are taken to be idle, away and asleep."""
    said, night = settings.attention.presence, None
    if said.sleep is not None:
        start, _, end = said.sleep.partition("-")
        night = Night(start=time.fromisoformat(start), end=time.fromisoformat(end), zone=ZoneInfo(said.timezone))
    return Habits(idle_s=said.idle, away_s=said.away, night=night)


def bindings(settings: Settings) -> Bindings:
    """Which agent behaves how where."""
    return Bindings(
        [
            Pattern(
                channel=binding.match.channel,
                room=binding.match.room,
                thread=binding.match.thread,
                bound=Bound(
                    listen=binding.listen,
                    agent=agent.id,
                    prompt=binding.prompt,
                    language=binding.language,
                    private=binding.private,
                    arrivals=binding.arrivals,
                ),
            )
            for agent in settings.agents
            for binding in agent.bindings
        ]
    )


def dmn_policy(settings: Settings, agent: str) -> signals.Policy:
    """The pace of an agent's outer loop."""
    said = settings.dmn
    return signals.Policy(
        inner=inner(agent),
        engaged_s=said.engaged,
        working_s=said.working,
        foraging_s=said.foraging,
        resting_s=said.resting,
        max_autonomous_turns=said.max_autonomous_turns,
        daily_turns=said.daily_turns,
        daily_cost_usd=said.daily_cost_usd,
        forage=said.forage,
        dream_every_s=said.dream_every,
        dream_tokens=said.dream_tokens,
    )
