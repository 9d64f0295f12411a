"""One turn of one conversation: facts out of the store, to the agent, and what it did back into the store.

The turn's record and its post are written in one transaction. Until then the messages are unread, and a
crash only means that they are asked about again; afterwards they are dealt with and never asked again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent import view
from agent.brief import Brief
from agent.models.base import Malformed, Model, TooLong
from agent.outcome import Outcome
from agent.turn import Tools, take_turn
from gateway.briefing import Briefing
from gateway.clock import Clock
from gateway.events import Account, Address, ConversationId, Message, Post, PostKey
from gateway.fitting import Told, fit, tell
from gateway.hearing import Heard, Hearing, Standing, addressed, answered
from gateway.ids import new_id
from gateway.media import Media
from gateway.preview import Signs
from gateway.records import AMBIENT, Queued, Seq, TurnEnded, TurnId
from gateway.store import Entry, OutboxPost, Store, Unread
from gateway.views import Views

logger = logging.getLogger("reverie.turns")

MOST_LINES = 50
"""Unread lines told to one turn. Of what was overheard older ones are counted, so that a raid of thousands costs one
bounded prompt; what was said to the agent waits for the next turn."""
MAX_FOLDS = 2
"""Tries to make a conversation fit after the provider says that it does not."""
APOLOGY = "I could not answer this time (reference {}). The operator can look it up in the log."
FULL, TOO_LONG = "the window is full", "the provider said that it was too long"
DELETED = "all that wanted an answer was deleted before it was heard"


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
        briefing: Briefing,
        hearing: Hearing,
        media: Media,
        signs: Signs,
        post: Callable[[OutboxPost], None],
        answered: Callable[[str, Account], None],
    ) -> None:
        """`post` is called with every reply, after it is durable; `answered` with the agent and each model request."""
        self._store = store
        self._clock = clock
        self._model = model
        self._tools = tools
        self._agent_id = agent_id
        self._briefing = briefing
        self._hearing = hearing
        self._media = media
        self._signs = signs
        self._post = post
        self._answered = answered
        self._plain = model.family == "local"
        self._views = Views(store, clock, media)

    async def take(self, conversation: ConversationId, *, autonomous: bool) -> Report:
        """Deal with all that is unread there now.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is done.
        """
        unread = await self._store.unread(conversation, most=MOST_LINES)
        if not unread.messages:
            return Report(failed=False, used_tools=False, yielded=False)
        standing = await self._hearing.standing(unread)
        if not await self._hearing.owed(unread, standing):
            return await self._let_go(conversation, unread, standing, autonomous=autonomous)
        sign = self._signs.begin(Address.parse(conversation))
        try:
            report, queued = await self._answer(conversation, unread, standing, sign.glimpse, autonomous=autonomous)
        except BaseException as error:
            await sign.end(parked=isinstance(error, asyncio.CancelledError))
            raise
        await sign.end()  # before the whole answer comes what was shown of it goes
        if queued is not None:
            self._post(queued)
        return report

    async def _answer(
        self,
        conversation: ConversationId,
        unread: Unread,
        standing: Sequence[Standing],
        glimpse: Callable[[str], None],
        *,
        autonomous: bool,
    ) -> tuple[Report, OutboxPost | None]:
        """Ask the model, and write down what came of it."""
        place = Address.parse(conversation)
        past = await self._views.take(conversation)
        setting = await self._briefing.setting(place, unread, past)
        budget = view.budget_tokens(self._model.context_tokens, setting.tokens)
        lines = await self._hearing.tell(standing, sees=self._model.sees)
        outcome, told, tries = Outcome(outcome="failed"), Told(), 0
        seeing = news = self._model.sees  # what was shown before, and what is new: that is left out first
        while tries <= MAX_FOLDS:
            start, told = fit(
                past, lines, omitted=unread.omitted, budget=budget >> tries, plain=self._plain, force=tries > 0
            )
            if told.more:
                unread, told = await self._begin_with(told.covers, unread, lines)
            past = await self._views.fold(conversation, past, start, TOO_LONG if tries else FULL)
            told = told if news else replace(told, media=())
            brief = Brief(
                persona=setting.persona,
                binding=setting.binding,
                card=await self._briefing.card(place, setting, folded=start > 0),
                history=await self._views.history(past, seeing=seeing),
                heard=told.heard,
                images=await self._media.load(told.media),
                conversation=conversation,
            )
            try:
                outcome = await take_turn(brief, self._model, self._tools, key=self._agent_id, glimpse=glimpse)
                break
            except TooLong as error:
                outcome = Outcome(outcome="failed", reason=error.reason)
                tries += 1
            except Malformed as error:  # an image that looks whole and is not must not end all talk there
                logger.warning("%s: asked again without images: %s", conversation, error.reason)
                outcome = Outcome(outcome="failed", reason=error.reason)
                seeing, news = seeing and bool(told.media), False
        for account in outcome.accounts:
            self._answered(self._agent_id, account)
        ended = self._ended(outcome, unread, told, autonomous=autonomous)
        seq, queued = await self._write(place, unread, ended, standing)
        self._views.keep(conversation, past, seq, ended)
        return Report(failed=ended.outcome == "failed", used_tools=outcome.used_tools, yielded=outcome.yielded), queued

    async def _begin_with(self, covers: Sequence[Seq], unread: Unread, lines: Sequence[Heard]) -> tuple[Unread, Told]:
        """Only these lines, all said to the agent, where there is no room for the others: those stay unread."""
        first = [one for one in unread.messages if one.seq <= covers[-1] and addressed(one.fact)]
        assert first[0].conversation is not None
        unread = await self._store.unread(first[0].conversation, most=len(first))
        told = [one for one in lines if one.seq in covers]
        return unread, tell(told, omitted=unread.omitted, plain=self._plain)

    async def _let_go(
        self, conversation: ConversationId, unread: Unread, standing: Sequence[Standing], *, autonomous: bool
    ) -> Report:
        """Deal with what is left where all that wanted an answer was deleted: it is context, and costs nothing."""
        self._views.forget(conversation)
        told = tell(await self._hearing.tell(standing, sees=False), omitted=0, plain=self._plain)
        ended = self._ended(Outcome(outcome="silent", reason=DELETED), unread, told, autonomous=autonomous)
        await self._write(Address.parse(conversation), unread, ended, standing)
        return Report(failed=False, used_tools=False, yielded=False)

    async def give_up(self, conversation: ConversationId, reason: str, *, autonomous: bool) -> Report:
        """Deal with all that is unread there by saying once that there is no answer."""
        place, unread = Address.parse(conversation), await self._store.unread(conversation, most=MOST_LINES)
        self._views.forget(conversation)
        if not unread.messages:  # nobody waits for an answer, so nobody is told that there is none
            logger.error("%s: %s", conversation, reason)
            return Report(failed=True, used_tools=False, yielded=False)
        # Writing the lines out may be what broke; but a later prompt needs something between two replies.
        told = tell([], omitted=unread.omitted + len(unread.messages), plain=self._plain)
        outcome = Outcome(outcome="failed", reason=reason)
        ended = self._ended(outcome, unread, told, autonomous=autonomous)
        said = [Standing(one.seq, one.fact, edited=False) for one in unread.messages if isinstance(one.fact, Message)]
        _, queued = await self._write(place, unread, ended, said)
        if queued is not None:
            self._post(queued)
        return Report(failed=True, used_tools=False, yielded=False)

    def _ended(self, outcome: Outcome, unread: Unread, told: Told, *, autonomous: bool) -> TurnEnded:
        turn = TurnId(new_id(self._clock.now()))
        failed = outcome.outcome == "failed"
        if failed:
            logger.error("turn %s failed: %s", turn, outcome.reason)
        return TurnEnded(
            turn=turn,
            covers=told.covers,
            omitted=unread.omitted + len(unread.messages) - len(told.covers),
            heard=told.heard,
            upto=unread.upto,
            outcome=outcome.outcome,
            text=APOLOGY.format(turn) if failed else outcome.text,
            reason=outcome.reason,
            model=outcome.model,
            usage=outcome.usage,
            requests=outcome.requests,
            autonomous=autonomous,
            media=told.media,
            accounts=outcome.accounts,
            agent=self._agent_id,
            senders=told.senders,
        )

    async def _write(
        self, place: Address, unread: Unread, ended: TurnEnded, standing: Sequence[Standing]
    ) -> tuple[Seq, OutboxPost | None]:
        """The turn and its post, in one transaction: where the turn stands, and what the outbox is to deliver."""
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
            return written.seq, None
        post = Post(key=PostKey(ended.turn), to=place, text=ended.text, reply_to=answered(standing))
        queued = Entry(
            fact=Queued(post=post), at=now, conversation=place.conversation, key=f"post:{post.key}", cause=record
        )
        written, waiting = await self._store.append([record, queued])
        return written.seq, OutboxPost(seq=waiting.seq, at=now, post=post, parts=())

    async def left(self, conversation: ConversationId) -> int:
        """Highest urgency still unread there, as of some moment during the call."""
        return dict(await self._store.due(AMBIENT + 1)).get(conversation, AMBIENT)
