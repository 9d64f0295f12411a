"""What an earlier process left undone, at the start and when a lease comes here."""

from typing import Final

from gateway.cluster.cluster import AGENT_PREFIX, LeaseName, agent_lease, lease_of
from gateway.context.history import find_open_step
from gateway.core.events import Alarm, ConversationId, TaskFinished
from gateway.core.facts import AMBIENT, LOW, NORMAL, URGENT, TurnRecord, is_inner
from gateway.runtime.agents import Agents
from gateway.runtime.dmn_admin import load_dmn_states
from gateway.store import StoreReader
from gateway.stream.attention import is_talk_alone
from gateway.stream.handle import GatewayHandle
from gateway.stream.inbox import ConversationInbox, ReadyConversation

SCANNED_ENTRIES: Final = 50
"""Unread entries of a place that are searched for a reminder, and turns that are searched for the
last ones."""


async def take_over(
    gateway: GatewayHandle, agents: Agents, inbox: ConversationInbox, lease: LeaseName
) -> None:
    """Take up what the process has left that held the lease before."""
    await gateway.store.follow()
    agent = agents.by_id.get(lease.removeprefix(AGENT_PREFIX))
    if agent is not None and lease == agent_lease(agent.id):
        states = await load_dmn_states(gateway.store, [agent.id], gateway.clock.now())
        agent.take_over(states[agent.id])
    for arrival in await find_pending_arrivals(gateway, agents, lease):
        inbox.add(arrival)


async def find_pending_arrivals(
    gateway: GatewayHandle, agents: Agents, lease: LeaseName = ""
) -> list[ReadyConversation]:
    """Return what an earlier process left undone, as new arrivals. `lease`: of whoever does it;
    empty: all.
    """
    store = gateway.store
    found, due = [], dict(await store.due_conversations(LOW))
    unfinished = await _find_unfinished(store)
    due |= {place: max(urgency, due.get(place, 0)) for place, urgency in unfinished.items()}
    for place, urgency in due.items():
        holders = {
            lease_of(place),
            *([agent_lease(agents.agent_for(place).id)] if urgency < URGENT else []),
        }
        if lease and lease not in holders:
            continue
        in_place, is_talk = place in unfinished, False
        if not in_place and urgency < URGENT and not is_inner(place):
            unread = await store.unread_entries(place, most=SCANNED_ENTRIES)
            in_place = any(isinstance(one.fact, Alarm | TaskFinished) for one in unread.messages)
            is_talk = is_talk_alone(await store.due_reasons(place))
        direct = None if is_inner(place) else await gateway.places.is_direct(place)
        found.append(
            ReadyConversation(
                conversation=place,
                urgency=urgency,
                direct=direct,
                handle_in_place=in_place,
                awaits_quiet=is_talk,
            )
        )
    return found


async def _find_unfinished(store: StoreReader) -> dict[ConversationId, int]:
    """Return the places whose last turn was interrupted, or left work open, and how urgent that
    is.

    The input of an interrupted one is owed an answer, even if nothing newer is there.
    """
    ended: dict[ConversationId, int] = {}
    for one in await store.newest_entries(SCANNED_ENTRIES, kinds=["turn_ended"]):
        if not isinstance(one.fact, TurnRecord) or one.fact.cause == "compact":
            continue
        is_interrupted = one.fact.outcome == "interrupted"
        is_put_off = is_interrupted and not one.fact.upto  # it has left what it was to read
        if one.conversation is not None and not is_put_off:
            is_owed = is_interrupted and not is_inner(one.conversation)
            is_open = bool(find_open_step(one.fact))
            ended[one.conversation] = URGENT if is_owed else NORMAL if is_open else AMBIENT
    return {place: urgency for place, urgency in ended.items() if urgency > AMBIENT}
