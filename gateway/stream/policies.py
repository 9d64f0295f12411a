"""From the operator's words to the policies that the deciding files take. Pure."""

from collections.abc import Callable
from datetime import time
from zoneinfo import ZoneInfo

from agent import signals
from gateway.access.limits import LimitSettings, Rate
from gateway.config.models import Settings
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.facts import AMBIENT, LOW, NORMAL, OPERATOR_CHANNEL, URGENT, inner_conversation
from gateway.core.fields import GuardedRegex
from gateway.core.identity import (
    AGENT_SCOPE_PREFIX,
    ROLE_ORDER,
    AccessPolicy,
    PlatformRoleRule,
    Role,
    RoleGrant,
    normalize_person_key,
)
from gateway.stream import attention
from gateway.stream.attention import SaliencePolicy, Urgency
from gateway.stream.presence import PresencePolicy, SleepHours
from gateway.stream.routing import UNBOUND, BindingPattern, Bindings, ConversationBinding

_URGENCIES: dict[str, Urgency] = {"ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}


def build_access_policy(settings: Settings) -> AccessPolicy:
    """Who is who, and what is open. Who is listed twice has the strongest role; being blocked wins over all."""
    said = settings.access
    roles: dict[str, Role] = {}
    for role in (*ROLE_ORDER[1:], ROLE_ORDER[0]):
        for one in getattr(said.roles, role):
            roles[normalize_person_key(one)] = role
    grants: dict[str, list[RoleGrant]] = {}
    for number, given in enumerate(said.grants):
        scope = given.room or f"{AGENT_SCOPE_PREFIX}{given.agent}"
        grants.setdefault(normalize_person_key(given.who), []).append(
            RoleGrant(given.role, scope, f"access.grants[{number}]")
        )
    return AccessPolicy(
        dm_policy=said.dm,
        roles=roles,
        open_rooms={
            ChannelName(name): frozenset(RoomId(room) for room in channel.rooms)
            for name, channel in settings.channels.items()
        },
        grants=grants,
        platform_roles=[
            PlatformRoleRule(one.channel, one.room, one.has, one.role, f"access.platform_roles[{number}]")
            for number, one in enumerate(said.platform_roles)
        ],
        room_policy=said.rooms,
        allow_masks=said.masks,
        agent_of=_make_agent_lookup(build_bindings(settings)),
        operator_channel=OPERATOR_CHANNEL if settings.ops.token is not None else None,
    )


def _make_agent_lookup(bound: Bindings) -> Callable[[Address], str]:
    return lambda at: bound.find(at).agent


def build_limit_settings(settings: Settings) -> LimitSettings:
    """How much may be asked of the agents, and what it may cost."""
    rates, budgets = settings.access.rates, settings.access.budgets
    return LimitSettings(
        sender=Rate(rates.sender.burst, rates.sender.per_minute),
        room=Rate(rates.room.burst, rates.room.per_minute),
        agent=Rate(rates.agent.burst, rates.agent.per_minute),
        sender_usd=budgets.sender_usd,
        room_usd=budgets.room_usd,
        agent_usd=budgets.agent_usd,
    )


def build_attention_policy(settings: Settings) -> attention.AttentionPolicy:
    """What may interrupt."""
    rules = tuple(
        attention.AttentionRule(
            type=rule.type,
            urgency=_URGENCIES[rule.urgency],
            keyword=rule.keyword,
            role=rule.role,
            regex=None if rule.regex is None else GuardedRegex(rule.regex),
        )
        for rule in settings.attention.rules
    )
    said = settings.attention.salience
    salience = SaliencePolicy(
        people=frozenset(said.people),
        keywords=said.keywords,
        questions=said.questions,
        activity=said.activity,
        rest_s=said.rest,
    )
    return attention.AttentionPolicy(rules=rules, thresholds=settings.attention.thresholds, salience=salience)


def build_presence_policy(settings: Settings) -> PresencePolicy:
    """When people are taken to be idle, away and asleep."""
    said, night = settings.attention.presence, None
    if said.sleep is not None:
        start, _, end = said.sleep.partition("-")
        night = SleepHours(start=time.fromisoformat(start), end=time.fromisoformat(end), zone=ZoneInfo(said.timezone))
    return PresencePolicy(idle_s=said.idle, away_s=said.away, sleep_hours=night)


def build_bindings(settings: Settings) -> Bindings:
    """Which agent behaves how where. What matches nothing else of the operator's own channel is the first agent's."""
    own = ConversationBinding(listen="all", agent=settings.agents[0].id, private=True) if settings.agents else UNBOUND
    fallback = (
        [BindingPattern(channel=OPERATOR_CHANNEL, room="*", thread=None, binding=own)]
        if settings.ops.token is not None
        else []
    )
    return Bindings(
        [
            BindingPattern(
                channel=binding.match.channel,
                room=binding.match.room,
                thread=binding.match.thread,
                binding=ConversationBinding(
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


def build_dmn_policy(settings: Settings, agent: str) -> signals.DmnPolicy:
    """The pace of an agent's outer loop."""
    said = settings.dmn
    return signals.DmnPolicy(
        inner=inner_conversation(agent),
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
