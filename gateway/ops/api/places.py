"""Conversations: which there are, what was said in one, and what the model was last asked there."""

from http import HTTPStatus

from gateway.events import Address, ChannelName, ConversationId
from gateway.ops.api import prompt
from gateway.ops.api.asks import Many, One
from gateway.ops.api.reading import Desk
from gateway.ops.api.shapes import Conversation, Conversations, ConversationSeen, Said
from gateway.ops.api.wording import fate, text, who
from gateway.ops.api.written import short
from gateway.ops.http import Refused, problem
from gateway.records import Queued, is_inner
from gateway.store.overview_rows import PlaceSeen, Spoken

LINE_CHARS = 300
"""Of what was said last, in a list."""


async def listed(desk: Desk, query: Many) -> Conversations:
    """The conversations in which something happened last."""
    found = await (await desk.open_reader()).recent_conversations(query.limit)
    running = {one.conversation for one in desk.services.turn_tracker.running}
    return Conversations(conversations=tuple(_listed(desk, one, running) for one in found))


def _listed(desk: Desk, one: PlaceSeen, running: set[ConversationId]) -> Conversation:
    place, last = Address.parse(one.conversation), one.last
    redact = desk.services.redact
    return Conversation(
        conversation=one.conversation,
        agent=agent_of(desk, one.conversation),
        platform=desk.services.list_platforms().get(ChannelName(place.channel), ""),
        last_at=last.at if last is not None else one.at,
        last_seq=last.seq if last is not None else one.seq,
        last_text=short(redact(text(last.fact)), LINE_CHARS) if last is not None else "",
        last_who=who(last.fact) if last is not None else "",
        unread=one.unread,
        running=one.conversation in running,
    )


def agent_of(desk: Desk, conversation: ConversationId) -> str:
    """Whose it is."""
    place = Address.parse(conversation)
    return place.room if is_inner(conversation) else desk.services.find_agent(place)


def conversation_of(said: str) -> ConversationId:
    """What somebody asked about. Raises Refused."""
    try:
        return Address.parse(said).conversation
    except ValueError:
        raise Refused(
            problem(HTTPStatus.BAD_REQUEST, "that is no conversation: write channel/room or channel/room/thread")
        ) from None


async def one(desk: Desk, query: One) -> ConversationSeen:
    """One conversation, with the last request that was made for it."""
    conversation = conversation_of(query.id)
    reader = await desk.open_reader()
    said = await reader.spoken_entries(conversation, query.limit)
    events = {event.seq: event for event in await reader.notifications_at([one.seq for one in said])}
    agent = agent_of(desk, conversation)
    ask = desk.services.find_last_request(conversation)
    return ConversationSeen(
        conversation=conversation,
        agent=agent,
        messages=tuple(
            _said(one, fate(events[one.seq]).value if one.seq in events else one.delivered or "waiting") for one in said
        ),
        prompt=prompt.seen(ask) if ask is not None else None,
    )


def _said(one: Spoken, became: str) -> Said:
    return Said(
        seq=one.seq,
        at=one.at,
        who=who(one.fact),
        ours=isinstance(one.fact, Queued),
        text=text(one.fact),
        kind=one.fact.kind,
        fate=became,
    )
