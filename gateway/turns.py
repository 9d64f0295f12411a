"""One turn of one conversation: facts out of the store, to the agent, and what it did back into the store.

The turn's record and its post are written in one transaction. Until then the messages are unread, and a
crash only means that they are asked about again; afterwards they are dealt with and never asked again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent import view
from agent.brief import Brief, Line, Place
from agent.models.base import Model, TooLong
from agent.prompt import hear, render_line
from agent.turn import Outcome, Tools, take_turn
from channels.base import Capabilities
from gateway import access
from gateway.bindings import Bindings
from gateway.clock import Clock
from gateway.events import Address, ChannelName, ConversationId, Message, MessageId, Post, PostKey
from gateway.ids import new_id
from gateway.past import Past, PastTurn
from gateway.records import AMBIENT, Folded, Queued, Seq, TurnEnded, TurnId
from gateway.store import Entry, OutboxPost, Store, Stored, Unread

logger = logging.getLogger("reverie.turns")

NEWEST_LINES = 50
"""Unread lines shown to one turn; older ones are counted. A raid of thousands costs one bounded prompt."""
MAX_FOLDS = 2
"""Tries to make a conversation fit after the provider says that it does not."""

FRAME_TOKENS = 400
"""Protocol text, channel card, binding and tools, roughly."""
APOLOGY = "I could not answer this time (reference {}). The operator can look it up in the log."
UNKNOWN_PLATFORM = Capabilities(platform="unknown", formatting="Plain text.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the loop is told of a turn."""

    failed: bool
    used_tools: bool
    yielded: bool


class Turns:
    """Takes turns for one agent."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        model: Model,
        tools: Tools,
        agent_id: str,
        persona: str,
        bindings: Bindings,
        access_policy: access.Policy,
        capabilities: Mapping[ChannelName, Capabilities],
        post: Callable[[OutboxPost], None],
    ) -> None:
        """`post` is called with every reply, after it is durable."""
        self._store = store
        self._clock = clock
        self._model = model
        self._tools = tools
        self._agent_id = agent_id
        self._persona = persona
        self._bindings = bindings
        self._access = access_policy
        self._capabilities = capabilities
        self._post = post
        self._past = Past()

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:
        """Deal with all that is unread there now.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is done.
        """
        place = Address.parse(conversation)
        unread = await self._store.unread(conversation, newest=NEWEST_LINES)
        if not unread.messages:
            return Report(failed=False, used_tools=False, yielded=False)
        past = await self._view(conversation)
        about = self._place(place, unread)
        outcome, heard = Outcome(outcome="failed"), ""
        covers: tuple[Seq, ...] = ()
        for tries in range(MAX_FOLDS + 1):
            past, heard, covers = await self._fit(conversation, past, unread, tries)
            history = tuple(turn.exchange for turn in past)
            brief = Brief(persona=self._persona, place=about, history=history, heard=heard)
            try:
                outcome = await take_turn(brief, self._model, self._tools, key=self._agent_id)
                break
            except TooLong as error:
                outcome = Outcome(outcome="failed", reason=error.reason)
        ended = self._ended(outcome, unread, covers, heard, autonomous=autonomous)
        seq = await self._write(place, unread, ended)
        self._past.keep(conversation, [*past, PastTurn.of(seq, ended)])
        return Report(
            failed=ended.outcome == "failed",
            used_tools=outcome.used_tools,
            yielded=outcome.yielded,
        )

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """Deal with all that is unread there by saying once that there is no answer."""
        place = Address.parse(conversation)
        unread = await self._store.unread(conversation, newest=NEWEST_LINES)
        outcome = Outcome(outcome="failed", reason=reason)
        self._past.take(conversation)
        # Writing the lines out may be what broke; but a later prompt needs something between two replies.
        heard = hear([], omitted=unread.omitted + len(unread.messages), plain=self._model.family == "local")
        await self._write(place, unread, self._ended(outcome, unread, (), heard, autonomous=autonomous))
        return Report(failed=True, used_tools=False, yielded=False)

    async def _view(self, conversation: ConversationId) -> tuple[PastTurn, ...]:
        kept = self._past.take(conversation)
        if kept is not None:
            return kept
        return tuple(PastTurn.of(turn.seq, turn.fact) for turn in await self._store.turns(conversation))

    async def _fit(
        self, conversation: ConversationId, past: tuple[PastTurn, ...], unread: Unread, tries: int
    ) -> tuple[tuple[PastTurn, ...], str, tuple[Seq, ...]]:
        """What of the past and of the new lines fits the window; folds the view if that is less than all.

        `tries`: how often the provider has said that it was still too long.
        """
        plain = self._model.family == "local"
        lines = [(stored.seq, self._line(stored)) for stored in unread.messages]
        budget = view.budget_tokens(self._model.context_tokens, FRAME_TOKENS + view.estimate_tokens(self._persona))
        budget >>= tries
        first = view.newest_within([view.estimate_tokens(render_line(line)) for _, line in lines], budget)
        shown = lines[first:]
        heard = hear([line for _, line in shown], omitted=unread.omitted + first, plain=plain)
        sizes = [turn.tokens for turn in past]
        start = view.fold_start(sizes, budget - view.estimate_tokens(heard), force=tries > 0)
        if start > 0:
            reason = "the provider said that it was too long" if tries else "the window is full"
            kept_from = past[start].seq if start < len(past) else Seq(past[-1].seq + 1)
            logger.info(
                "%s: folded, %d of %d turns stay in view: %s", conversation, len(past) - start, len(past), reason
            )
            folded = Folded(start=kept_from, reason=reason)
            await self._store.append([Entry(fact=folded, at=self._clock.now(), conversation=conversation)])
        return past[start:], heard, tuple(seq for seq, _ in shown)

    def _ended(
        self, outcome: Outcome, unread: Unread, covers: tuple[Seq, ...], heard: str, *, autonomous: bool
    ) -> TurnEnded:
        turn = TurnId(new_id(self._clock.now()))
        failed = outcome.outcome == "failed"
        if failed:
            logger.error("turn %s failed: %s", turn, outcome.reason)
        return TurnEnded(
            turn=turn,
            covers=covers,
            omitted=unread.omitted + len(unread.messages) - len(covers),
            heard=heard,
            upto=unread.upto,
            outcome=outcome.outcome,
            text=APOLOGY.format(turn) if failed else outcome.text,
            reason=outcome.reason,
            model=outcome.model,
            usage=outcome.usage,
            requests=outcome.requests,
            autonomous=autonomous,
        )

    async def _write(self, place: Address, unread: Unread, ended: TurnEnded) -> Seq:
        """The turn and its post, in one transaction; then the post goes to the outbox. Where the turn stands."""
        now = self._clock.now()
        record = Entry(
            fact=ended,
            at=now,
            conversation=place.conversation,
            key=f"turn:{ended.turn}",
            cause=unread.upto or None,
        )
        if not ended.text:
            (written,) = await self._store.append([record])
            return written.seq
        post = Post(
            key=PostKey(ended.turn),
            to=place,
            text=ended.text,
            reply_to=_answered(unread),
        )
        queued = Entry(
            fact=Queued(post=post), at=now, conversation=place.conversation, key=f"post:{post.key}", cause=record
        )
        written, waiting = await self._store.append([record, queued])
        self._post(OutboxPost(seq=waiting.seq, at=now, post=post, parts=()))
        return written.seq

    async def left(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there, as of some moment during the call."""
        return dict(await self._store.due(AMBIENT + 1)).get(conversation, AMBIENT)

    def _line(self, stored: Stored) -> Line:
        message = stored.fact
        assert isinstance(message, Message)  # only messages are ever unread
        return Line(
            sender=message.sender.name,
            role=access.role_of(self._access, message.at.channel, message.sender),
            sent=message.sent,
            text=message.text,
            addressed=message.kind != "room",
        )

    def _place(self, place: Address, unread: Unread) -> Place:
        bound = self._bindings.of(place)
        able = self._capabilities.get(place.channel, UNKNOWN_PLATFORM)
        direct = any(isinstance(stored.fact, Message) and stored.fact.kind == "direct" for stored in unread.messages)
        return Place(
            platform=able.platform,
            channel=place.channel,
            room=place.room,
            kind="direct" if direct else "room",
            formatting=able.formatting,
            prompt=bound.prompt,
            language=bound.language,
        )


def _answered(unread: Unread) -> MessageId | None:
    """The newest message that was said to the agent; the newest of all if none was."""
    messages = [stored.fact for stored in unread.messages if isinstance(stored.fact, Message)]
    addressed = [message for message in messages if message.kind != "room"] or messages
    return addressed[-1].id if addressed else None
