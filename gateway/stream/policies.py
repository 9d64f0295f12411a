"""Policies built from the settings, for the pure modules. Pure."""

from collections.abc import Callable

from agent import signals
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
from gateway.stream.routing import UNBOUND, BindingPattern, Bindings, ConversationBinding

_URGENCIES: dict[str, Urgency] = {"ambient": AMBIENT, "low": LOW, "normal": NORMAL, "urgent": URGENT}


def build_access_policy(settings: Settings) -> AccessPolicy:
    """Build the access policy. A person listed twice has the strongest role; being blocked wins over all."""
    access = settings.access
    roles: dict[str, Role] = {}
    for role in (*ROLE_ORDER[1:], ROLE_ORDER[0]):
        for one in getattr(access.roles, role):
            roles[normalize_person_key(one)] = role
    grants: dict[str, list[RoleGrant]] = {}
    for number, given in enumerate(access.grants):
        scope = given.room or f"{AGENT_SCOPE_PREFIX}{given.agent}"
        grants.setdefault(normalize_person_key(given.who), []).append(
            RoleGrant(given.role, scope, f"access.grants[{number}]")
        )
    return AccessPolicy(
        dm_policy=access.dm,
        roles=roles,
        open_rooms={
            ChannelName(name): frozenset(RoomId(room) for room in channel.rooms)
            for name, channel in settings.channels.items()
        },
        grants=grants,
        platform_roles=[
            PlatformRoleRule(one.channel, one.room, one.has, one.role, f"access.platform_roles[{number}]")
            for number, one in enumerate(access.platform_roles)
        ],
        room_policy=access.rooms,
        allow_masks=access.masks,
        agent_of=_make_agent_lookup(build_bindings(settings)),
        operator_channel=OPERATOR_CHANNEL if settings.ops.token is not None else None,
    )


def _make_agent_lookup(bound: Bindings) -> Callable[[Address], str]:
    return lambda at: bound.find(at).agent


def build_attention_policy(settings: Settings) -> attention.AttentionPolicy:
    """Build the attention policy."""
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
    salience_config = settings.attention.salience
    salience = SaliencePolicy(
        people=frozenset(salience_config.people),
        keywords=salience_config.keywords,
        questions=salience_config.questions,
        activity=salience_config.activity,
        rest_s=salience_config.rest,
    )
    return attention.AttentionPolicy(rules=rules, thresholds=settings.attention.thresholds, salience=salience)


def build_bindings(settings: Settings) -> Bindings:
    """Build the bindings of all agents.

    The first agent gets what matches nothing else in the operator's own channel.
    """
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
    """Build the policy of an agent's DMN loop."""
    dmn = settings.dmn
    return signals.DmnPolicy(
        inner=inner_conversation(agent),
        engaged_s=dmn.engaged,
        working_s=dmn.working,
        foraging_s=dmn.foraging,
        resting_s=dmn.resting,
        max_autonomous_turns=dmn.max_autonomous_turns,
        daily_turns=dmn.daily_turns,
        daily_cost_usd=dmn.daily_cost_usd,
        forage=dmn.forage,
        dream_every_s=dmn.dream_every,
        dream_tokens=dmn.dream_tokens,
    )
