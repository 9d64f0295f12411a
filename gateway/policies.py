"""From the operator's words to the policies that the deciding files take. Pure."""

from collections.abc import Callable
from datetime import time
from zoneinfo import ZoneInfo

from agent import signals
from gateway import access, attention
from gateway.access import Role
from gateway.attention import Urgency
from gateway.bindings import NOT_BOUND, Bindings, Bound, Pattern
from gateway.events import Address, ChannelName, RoomId
from gateway.limits.most import Most, Rate
from gateway.presence import Habits, Night
from gateway.records import AMBIENT, LOW, NORMAL, OPERATOR, URGENT, inner
from gateway.regexes import Regex
from gateway.salience import Salience
from gateway.settings import Settings
from gateway.standing import AGENT, RANKS, Grant, Mapped, folded

_URGENCIES: dict[str, Urgency] = {"ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}


def access_policy(settings: Settings) -> access.Policy:
    """Who is who, and what is open. Who is listed twice has the strongest role; being blocked wins over all."""
    said = settings.access
    roles: dict[str, Role] = {}
    for role in (*RANKS[1:], RANKS[0]):
        for one in getattr(said.roles, role):
            roles[folded(one)] = role
    grants: dict[str, list[Grant]] = {}
    for number, given in enumerate(said.grants):
        scope = given.room or f"{AGENT}{given.agent}"
        grants.setdefault(folded(given.who), []).append(Grant(given.role, scope, f"access.grants[{number}]"))
    return access.Policy(
        dm_policy=said.dm,
        roles=roles,
        open_rooms={
            ChannelName(name): frozenset(RoomId(room) for room in channel.rooms)
            for name, channel in settings.channels.items()
        },
        grants=grants,
        platform_roles=[
            Mapped(one.channel, one.room, one.has, one.role, f"access.platform_roles[{number}]")
            for number, one in enumerate(said.platform_roles)
        ],
        room_policy=said.rooms,
        allow_masks=said.masks,
        agent_of=_agents(bindings(settings)),
        operator_channel=OPERATOR if settings.ops.token is not None else None,
    )


def _agents(bound: Bindings) -> Callable[[Address], str]:
    return lambda at: bound.find(at).agent


def most(settings: Settings) -> Most:
    """How much may be asked of the agents, and what it may cost."""
    rates, budgets = settings.access.rates, settings.access.budgets
    return Most(
        sender=Rate(rates.sender.burst, rates.sender.per_minute),
        room=Rate(rates.room.burst, rates.room.per_minute),
        agent=Rate(rates.agent.burst, rates.agent.per_minute),
        sender_usd=budgets.sender_usd,
        room_usd=budgets.room_usd,
        agent_usd=budgets.agent_usd,
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
    return Habits(idle_s=said.idle, away_s=said.away, sleep_hours=night)


def bindings(settings: Settings) -> Bindings:
    """Which agent behaves how where. What matches nothing else of the operator's own channel is the first agent's."""
    own = Bound(listen="all", agent=settings.agents[0].id, private=True) if settings.agents else NOT_BOUND
    fallback = [Pattern(channel=OPERATOR, room="*", thread=None, binding=own)] if settings.ops.token is not None else []
    return Bindings(
        [
            Pattern(
                channel=binding.match.channel,
                room=binding.match.room,
                thread=binding.match.thread,
                binding=Bound(
                    listen=binding.listen,
                    agent=agent.id,
                    prompt=binding.prompt,
                    language=binding.language,
                    private=binding.private,
                    arrivals=binding.arrivals,
                    skills=binding.skills,
                ),
            )
            for agent in settings.agents
            for binding in agent.bindings
        ]
        + fallback
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
