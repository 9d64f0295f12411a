"""Conversations: which there are, what was said in one, and what the model was last asked there."""

from http import HTTPStatus

from gateway.events import Address, ChannelName, ConversationId
from gateway.ops.api import prompt
from gateway.ops.api.asks import ConversationQuery, LimitQuery
from gateway.ops.api.reading import ApiBackend
from gateway.ops.api.shapes import ConversationDetail, ConversationList, ConversationMessage, ConversationSummary
from gateway.ops.api.wording import find_actor, find_outcome, render_fact_text
from gateway.ops.api.written import clip_text
from gateway.ops.http import HttpProblem, problem_response
from gateway.records import PostQueued, is_inner
from gateway.store.overview_rows import ConversationRow, SpokenRow

MAX_LAST_TEXT_CHARS = 300
"""Of what was said last, in a list."""


async def list_conversations(desk: ApiBackend, query: LimitQuery) -> ConversationList:
    """The conversations in which something happened last."""
    found = await (await desk.open_reader()).recent_conversations(query.limit)
    running = {one.conversation for one in desk.services.turn_tracker.running}
    return ConversationList(conversations=tuple(_build_summary(desk, one, running) for one in found))


def _build_summary(desk: ApiBackend, one: ConversationRow, running: set[ConversationId]) -> ConversationSummary:
    place, last = Address.parse(one.conversation), one.last
    redact = desk.services.redact
    return ConversationSummary(
        conversation=one.conversation,
        agent=find_agent(desk, one.conversation),
        platform=desk.services.list_platforms().get(ChannelName(place.channel), ""),
        last_at=last.at if last is not None else one.at,
        last_seq=last.seq if last is not None else one.seq,
        last_text=clip_text(redact(render_fact_text(last.fact)), MAX_LAST_TEXT_CHARS) if last is not None else "",
        last_who=find_actor(last.fact) if last is not None else "",
        unread=one.unread,
        running=one.conversation in running,
    )


def find_agent(desk: ApiBackend, conversation: ConversationId) -> str:
    """Whose it is."""
    place = Address.parse(conversation)
    return place.room if is_inner(conversation) else desk.services.find_agent(place)


def parse_conversation(said: str) -> ConversationId:
    """What somebody asked about. Raises Refused."""
    try:
        return Address.parse(said).conversation
    except ValueError:
        raise HttpProblem(
            problem_response(
                HTTPStatus.BAD_REQUEST, "that is no conversation: write channel/room or channel/room/thread"
            )
        ) from None


async def get_conversation(desk: ApiBackend, query: ConversationQuery) -> ConversationDetail:
    """One conversation, with the last request that was made for it."""
    conversation = parse_conversation(query.id)
    reader = await desk.open_reader()
    said = await reader.spoken_entries(conversation, query.limit)
    events = {event.seq: event for event in await reader.notifications_at([one.seq for one in said])}
    agent = find_agent(desk, conversation)
    ask = desk.services.find_last_request(conversation)
    return ConversationDetail(
        conversation=conversation,
        agent=agent,
        messages=tuple(
            _build_message(
                one, find_outcome(events[one.seq]).value if one.seq in events else one.delivered or "waiting"
            )
            for one in said
        ),
        prompt=prompt.build_prompt_snapshot(ask) if ask is not None else None,
    )


def _build_message(one: SpokenRow, became: str) -> ConversationMessage:
    return ConversationMessage(
        seq=one.seq,
        at=one.at,
        who=find_actor(one.fact),
        ours=isinstance(one.fact, PostQueued),
        text=render_fact_text(one.fact),
        kind=one.fact.kind,
        fate=became,
    )
