"""Turns of one agent: run, recorded, stopped, and their replies posted.

- `TurnRunner.run` is a turn from top to bottom: unread messages, context, compaction, request,
  model and tools, record and post. `Turn` is its state, and has the steps.
- `write_record` writes the turn's record and its post in one transaction. Until then the messages
  are unread, and a crash only means that the model is asked again; afterwards they are consumed and
  never asked again.
- `build_stop_record` says what `/stop` leaves unanswered.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.cache.prices import ASSUMED_PRICE
from agent.models.base import FailureCause, ModelRequest, PromptTooLong, RequestRefused, ToolResult
from agent.prompt import NOTHING_NEW, PromptInput, may_begin_prefix, strip_line_prefix
from agent.prompts import load_prompt
from agent.tools import carried_out, find_next_step
from agent.turn import take_turn
from agent.turn_context import (
    SizeHints,
    TurnHost,
    TurnOutcome,
    TurnProgress,
    build_first_request,
    call_key,
)
from channels.aio import run_to_completion
from gateway.access.limits import LimitHit
from gateway.context import compaction
from gateway.context.conversation import (
    CurrentMessage,
    RenderedInput,
    find_reply_to,
    is_addressed,
)
from gateway.context.digest import Digest, DigestBuilder
from gateway.context.history import HistoryView
from gateway.context.intentions import has_open_work
from gateway.context.observer import RunningTurn, TurnTracker
from gateway.context.recall import RecallResult
from gateway.context.recap import compose_note
from gateway.context.requesters import (
    BLOCKED_REASON,
    deduplicate_requesters,
    find_inherited_requesters,
)
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    EvidenceRef,
    Message,
    MessageId,
    Post,
    PostKey,
    Sender,
    SenderId,
    TurnStep,
)
from gateway.core.facts import (
    AMBIENT,
    REPEATED_TURN,
    PostQueued,
    PreviewEnded,
    Seq,
    TurnCause,
    TurnId,
    TurnRecord,
    is_inner,
)
from gateway.core.format import format_time
from gateway.core.i18n import N_, _, current_language, language_for, use_language
from gateway.core.identity import BRIDGE_PREFIX, name_to_address
from gateway.core.labels import (
    OUTSIDE_LABEL,
    TRUSTED_LABEL,
    Label,
    RequestLabel,
    readers_of,
)
from gateway.core.logging import log_context
from gateway.core.permissions import lowest_role
from gateway.core.text_safety import escape_markdown
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall, ToolSpec
from gateway.runtime.loop import TurnHandle, TurnInterrupted, TurnResult
from gateway.runtime.turn_input import MAX_UNREAD_LINES, AgentContext, TurnInput, count_omitted
from gateway.store import NewEntry, StoreError, total_cost_usd
from gateway.stream.preview import TurnPreview, TurnPreviews
from gateway.tools.dispatch import are_blocked, render_tool_status

logger = logging.getLogger("reverie.turns")

MIN_FOLD_TOKENS: Final = 300
"""Smallest view that is folded: the text that stands for less takes as much."""
MAX_FOLDS: Final = 2
"""Tries to make a conversation fit after the provider has refused it as too long."""

NEXT_STEP: Final = 'You said that you would do this next: "{step}"'
MAX_SAME_TURNS: Final = 3
"""Times that a task goes on with the same turn."""

FAILURE_TEXTS: Mapping[FailureCause, str] = {
    "overloaded": N_("My model is overloaded right now. Please ask again in a few minutes."),
    "unreachable": N_("I cannot reach my model right now. Please ask again in a few minutes."),
    "misconfigured": N_(
        "My model refuses my requests, because something is not set up correctly. My operator must "
        "correct it before you ask again."
    ),
    "budget": N_(
        "My account at the provider of my model has no credit left. My operator must add some "
        "before you ask again."
    ),
    "too_long": N_("That is too long for me to read at once. Please ask again with less text."),
    "tools": N_(
        "I used many tools for this and did not find an answer. Please ask again, best for one "
        "part of it."
    ),
    "refused": N_(
        "My model declined to answer this. Asking the same again will hardly help; please use "
        "other words."
    ),
    "nothing": N_("My model gave no answer to this. Please ask again."),
    "cut": N_(
        "My answer to this became longer than I am allowed to write. Please ask for less at a time."
    ),
    "conversation": N_(
        "My model fails at this again and again, and answers elsewhere. Please use other words; if "
        "that does not help, begin a new conversation."
    ),
    "broken": N_(
        "An error in my program kept me from answering. Please ask again; if it happens twice, "
        "tell my operator."
    ),
}
"""Texts posted instead of an answer: the cause, and whether to ask again."""
PUT_OFF_TEXTS: Mapping[FailureCause, str] = {
    "overloaded": N_("My model is overloaded right now. I will answer as soon as it works again."),
    "unreachable": N_("I cannot reach my model right now. I will answer as soon as I can."),
}
"""Texts posted once where a question waits for a model: causes that pass by themselves."""

PUT_OFF_UNTIL_TEXTS: Mapping[FailureCause, str] = {
    "overloaded": N_(
        "My model is overloaded until about {time}. I will answer as soon as it works again."
    ),
    "unreachable": N_(
        "I cannot reach my model until about {time}. I will answer as soon as I can."
    ),
}
"""The same where its provider says for how long."""
MIN_TOLD_WAIT_S: Final = 90.0
"""A shorter wait is told without a time."""
IMAGES_REFUSED_TEXT = N_("*(My model could not be shown the picture: its provider refused it.)*")
"""Stands behind an answer to a picture that the model has not seen."""
CUT_TEXT = N_(
    "*(This answer is not complete: it reached the limit of what I may write at once. Ask me to go "
    "on.)*"
)
"""Stands behind an answer of which the output limit has left only the beginning."""
_TITLE: Final = re.compile(
    r"\s*[#*_ ]*Title:[*_ ]*(\S[^\n]{0,200}?)[*_ ]*\n\s*(?=\S)", re.IGNORECASE
)
"""Answer to the prompt `thread_title`."""
RENDER_TIMEOUT_S = 2.0
"""Time for rendering, less than `gateway.commands.dispatcher.ANSWER_TIMEOUT_S`: the person waits
for an answer."""
NOTHING_TO_ANSWER = (
    "nothing asks for an answer: what did was deleted, or it only tells what happened"
)
COMPACTION_REASON = "somebody wanted the view folded"


class TurnRunner:
    """Runs the turns of one agent."""

    def __init__(
        self,
        *,
        previews: TurnPreviews,
        digests: DigestBuilder,
        tracker: TurnTracker,
    ) -> None:
        self._previews = previews
        self._digests = digests
        self._tracker = tracker
        self._told_people = set[SenderId]()
        """People who were told that no model answers, since one has."""
        self._model_back_at: datetime | None = None
        """When the provider that asked to wait wants to be asked again. None: none did, or a model
        has answered since.
        """
        self._last_digest: Digest | None = None
        """The newest digest, for the record if its turn fails."""

    async def run(
        self,
        context: AgentContext,
        conversation: ConversationId,
        *,
        autonomous: bool,
        continuing: bool = False,
        handle: TurnHandle,
    ) -> TurnResult:
        """Consume all that is unread there. `continuing`: go on even if nothing is.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is
        complete. A turn that has used tools is recorded as interrupted, so that the next one knows
        what they did. Interrupted by its handle, it is recorded as far as it came.
        """
        turn = Turn(
            context,
            conversation,
            handle,
            self._tracker,
            autonomous=autonomous,
            continuing=continuing,
        )
        with log_context(agent=context.agent.id, conversation=conversation, turn=turn.id):
            return await self._run(turn)

    async def _run(self, turn: "Turn") -> TurnResult:
        # Unread messages.
        await turn.input.read(self._digests)
        turn.hear(turn.input.messages)
        with use_language(_find_language(turn)):
            return await self._run_read(turn)

    async def _run_read(self, turn: "Turn") -> TurnResult:
        context, handle = turn.context, turn.handle
        self._last_digest = turn.input.digest if turn.is_inner else self._last_digest
        if not await turn.is_needed():
            return await self._leave_unanswered(turn)
        away = context.agent.outage
        if away is not None and _may_wait(turn):
            await handle.begin_ending()
            failed = TurnOutcome(outcome="failed", reason=away.reason, cause=away.cause)
            return replace(await self._end(turn, failed), model="unasked")
        with self._tracker.track(turn.describe()):
            # The preview becomes the answer when that is recorded: from then on the outbox sends
            # it.
            reply_to = find_reply_to(turn.input.messages)
            rings = reply_to is None and any(
                isinstance(one.fact, Alarm) for one in turn.input.unread.messages
            )
            async with self._previews.start(
                turn.place, reply_to=reply_to, grows=not rings
            ) as turn.preview:
                turn.expect_answer()
                try:
                    with handle.interruptible():
                        await turn.read_context()
                        outcome: TurnOutcome | None = None
                        while outcome is None:
                            await turn.compact_if_due()
                            prompt_input = await turn.build_request()
                            if turn.is_blocked():
                                outcome = TurnOutcome(
                                    outcome="yielded", reason=BLOCKED_REASON, yielded=True
                                )
                                break
                            try:  # Model and tools.
                                outcome = await take_turn(
                                    prompt_input,
                                    context.model.model,
                                    turn,
                                    turn,
                                    key=context.agent.id,
                                    max_tool_rounds=context.max_tool_rounds,
                                    progress=turn.progress,
                                    evidence=turn,
                                    fits=turn.size_hints(),
                                )
                            except (PromptTooLong, RequestRefused) as error:
                                outcome = turn.retry_with_less(error)
                except TurnInterrupted:
                    outcome = turn.progress.current
                except asyncio.CancelledError:
                    await self._record_parked(turn)
                    raise
                # Record and post.
                await handle.begin_ending()
                return await self._end(turn, outcome)

    async def _end(self, turn: "Turn", outcome: TurnOutcome) -> TurnResult:
        outcome = await self._conclude(turn, outcome)
        if (
            turn.preview is not None
            and outcome.outcome == "interrupted"
            and not turn.handle.stop_reason
        ):
            await turn.preview.end(leaves=True)  # the next turn goes on in it
        has_no_model = outcome.outcome == "failed" and outcome.cause in PUT_OFF_TEXTS
        if has_no_model and _may_wait(turn):
            return await self._put_off(turn, outcome)
        result = _to_result(outcome, autonomous=turn.autonomous)
        if result.used_tools and not result.has_open_work:  # who does nothing for it has stopped
            store, agent = turn.context.store, turn.context.agent.id
            is_open = await has_open_work(store, agent, turn.conversation)
            result = replace(result, has_open_work=is_open)
        if result.has_open_work and turn.is_repetition(outcome):
            outcome = replace(outcome, reason=REPEATED_TURN)  # owners are told of it
            result = replace(result, has_open_work=False, has_yielded=True)
        if has_no_model and turn.context.agent.is_faulty(turn.conversation):
            outcome = replace(outcome, cause="conversation")
        if outcome.outcome == "replied":
            self._model_back_at = None
            self._told_people.clear()
        await self._record(turn, outcome)
        return result

    async def _leave_unanswered(self, turn: "Turn") -> TurnResult:
        """End a turn that has nothing to answer.

        Where all that asked for an answer was deleted, the rest is consumed: it becomes context,
        without a request.
        """
        if not turn.is_inner:
            await turn.handle.begin_ending()
            if turn.input.unread.messages and not turn.handle.stop_reason:
                await turn.input.consume_unasked()
                await write_record(turn, TurnOutcome(outcome="silent", reason=NOTHING_TO_ANSWER))
        return TurnResult(autonomous=turn.autonomous)

    async def _put_off(self, turn: "Turn", outcome: TurnOutcome) -> TurnResult:
        """Leave the input to a turn that begins once a model may answer. Everybody who waits is
        told once.
        """
        is_awaited = _is_answer_awaited(turn)
        waiting = _first_awaited(turn) if is_awaited else []
        is_first = not turn.context.agent.is_put_off(turn.conversation)
        turn.is_put_off = True
        if not outcome.steps:  # with steps, its record holds the input and what was done for it
            turn.input.leave_all()
        elif turn.is_inner:
            turn.input.leave_pending()
        now, entries = (
            turn.context.clock.now(),
            [_to_entry(turn, replace(outcome, outcome="interrupted"))],
        )
        for awaited in waiting:
            named = f"put off:{turn.conversation}:{awaited.seq}".encode()
            key = PostKey(hashlib.sha256(named).hexdigest()[:26])
            is_told = not is_first and awaited.sender in self._told_people
            if is_told or await turn.context.store.entry_by_key(f"post:{key}"):
                continue
            if awaited.sender is not None:
                self._told_people.add(awaited.sender)
            text = self._build_put_off_text(outcome, now)
            post = Post(key=key, to=turn.place, text=text, reply_to=awaited.message, style="notice")
            entries += await _build_post_entries(turn, post, now, awaited.seq)
        if is_awaited or outcome.requests or outcome.steps:
            await turn.context.store.append(entries)
        result = _to_result(outcome, autonomous=turn.autonomous)
        return replace(result, put_off=outcome, is_awaited=is_awaited)

    def _build_put_off_text(self, outcome: TurnOutcome, now: datetime) -> str:
        """Return the text for whoever waits, with the time until which the provider asks to
        wait.
        """
        if outcome.retry_after_s is not None:
            self._model_back_at = now + timedelta(seconds=outcome.retry_after_s)
        back_at = self._model_back_at
        if back_at is None or (back_at - now).total_seconds() < MIN_TOLD_WAIT_S:
            return _(PUT_OFF_TEXTS[outcome.cause])
        return _(PUT_OFF_UNTIL_TEXTS[outcome.cause]).format(time=format_time(back_at))

    async def _conclude(self, turn: "Turn", outcome: TurnOutcome) -> TurnOutcome:
        if turn.limit_hit is not None and outcome.is_over_budget:
            outcome = replace(outcome, is_over_budget=False, reason=turn.limit_hit.rule)
            await self._record_over_budget(turn, turn.limit_hit)
        if turn.is_blocked():
            turn.handle.drop_reason = turn.handle.drop_reason or BLOCKED_REASON
        return turn.handle.override_outcome(
            turn.with_preparation_cost(turn.take_title(turn.without_prefix(outcome)))
        )

    async def _record_over_budget(self, turn: "Turn", limit_hit: LimitHit) -> None:
        assert turn.context.limits is not None
        addressed = [one.message for one in turn.input.messages if is_addressed(one.message)]
        entries = turn.context.limits.build_unpaid_entries(
            turn.place, addressed[-1] if addressed else None, limit_hit
        )
        await turn.context.store.append(entries)

    async def _record_parked(self, turn: "Turn") -> None:
        if turn.progress.current.steps:
            with contextlib.suppress(
                StoreError
            ):  # the error may be the reason for the cancellation
                outcome = turn.with_preparation_cost(turn.progress.current)
                await self._record(turn, turn.handle.override_outcome(outcome))

    async def _record(self, turn: "Turn", outcome: TurnOutcome) -> None:
        stopped = bool(turn.handle.stop_reason)
        if turn.input.digest is not None and outcome.outcome == "interrupted":
            turn.input.leave_pending()
        if stopped:
            turn.input.leave_all()
        interrupted = outcome.outcome == "interrupted" or stopped
        never_asked = outcome.is_over_budget or (
            interrupted and turn.input.rendered.text in ("", NOTHING_NEW)
        )
        if never_asked and not outcome.requests and not outcome.steps:
            return
        await write_record(turn, outcome)

    async def give_up(
        self, context: AgentContext, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnResult:
        """Consume all that is unread there, with one message about the failure for whoever waits
        for an answer.
        """
        turn = Turn(context, conversation, TurnHandle(), self._tracker, autonomous=autonomous)
        turn.input.unread = unread = await context.store.unread_entries(
            conversation, most=MAX_UNREAD_LINES
        )
        if turn.is_inner:
            turn.input.digest, self._last_digest = self._last_digest, None
        # Nobody waits for an answer, so there is no message about the failure.
        if not unread.messages and turn.input.digest is None:
            logger.error("%s: %s", conversation, reason)
            return TurnResult(has_failed=True, autonomous=autonomous)
        turn.input.messages = tuple(
            CurrentMessage(one.seq, one.fact, is_edited=False)
            for one in unread.messages
            if isinstance(one.fact, Message)
        )
        turn.input.consume_unrendered()
        await write_record(turn, TurnOutcome(outcome="failed", reason=reason))
        return TurnResult(has_failed=True, autonomous=autonomous)

    async def compact(self, context: AgentContext, conversation: ConversationId) -> str:
        """Fold the view of a place. Return the result in words. The costs are recorded as a turn of
        its own.
        """
        work, recorded = [
            Turn(
                context,
                conversation,
                TurnHandle(),
                self._tracker,
                autonomous=False,
                is_compaction=True,
            )
            for _ in range(2)
        ]
        try:
            return await work.compact_on_request()
        finally:  # the requests so far are paid for, also if this was cut off
            outcome = work.with_preparation_cost(
                TurnOutcome(outcome="silent", reason=COMPACTION_REASON)
            )
            if outcome.requests:
                await run_to_completion(write_record(recorded, outcome))


class Turn(TurnHost):
    """One turn: its steps in their order, and what it has done so far, which can be read at any
    time.

    To `agent.turn.take_turn` it is the host, the tools, and the archive of their results.
    """

    has_refused_images = False
    """The provider has refused pictures of its new input."""

    def __init__(
        self,
        context: AgentContext,
        conversation: ConversationId,
        handle: TurnHandle,
        tracker: TurnTracker,
        *,
        autonomous: bool,
        continuing: bool = False,
        is_compaction: bool = False,
    ) -> None:
        """`is_compaction`: it only folds the view, on request."""
        self.id = TurnId(new_id(context.clock.now()))
        self.conversation = conversation
        self.place = Address.parse(conversation)
        self.context = context
        self.handle = handle
        self.autonomous = autonomous
        self.continuing = continuing
        self.input = TurnInput(context, self.place)
        self.view: HistoryView | None = None
        """The view of earlier turns. None: not read yet."""
        self.recalled = RecallResult()
        self.nudged = False
        """It was asked to write down what it needs, because the window is nearly full. Never in a
        request whose view has just been folded."""
        self.request: RequestLabel | None = None
        """Label of its requests so far. None: nothing was read yet."""
        self.preparation = TurnProgress()
        """Costs of summaries, also of one that was cut off."""
        self.progress = TurnProgress()
        self.limit_hit: LimitHit | None = None
        """The budget that the turn would exceed. None: none so far."""
        self.preview: TurnPreview | None = None
        self.is_put_off = False
        """No model answered, and a later turn is to answer."""
        self._surface = context.live.agent_config(context.agent.id).surface
        self._tracker = tracker
        self._is_compaction = is_compaction
        self._directives = ""
        self._meanwhile = ""
        """What happened while the owner was away."""
        self.thread_title: str | None = (
            None  # of the thread that its answer opens; None: the model is not asked for it
        )
        self._rendered = RenderedInput()
        """New input of the next request."""
        self._card_label = TRUSTED_LABEL
        self._tries = 0
        """Requests that the provider refused as too long."""
        self._with_images = self._with_past_images = context.model.model.takes_images
        self._is_folded = False
        """The view was folded for the next request."""

    @property
    def is_inner(self) -> bool:
        """The turn belongs to the inner conversation."""
        return is_inner(self.conversation)

    @property
    def cause(self) -> TurnCause:
        """Cause that the turn's record names."""
        if self._is_compaction:
            return "compact"
        if not self.autonomous:
            return "addressed"
        if self.continuing:
            return "continued"
        if self.is_inner:
            return "digest"
        alarms = [one.fact for one in self.input.unread.messages if isinstance(one.fact, Alarm)]
        if not alarms:
            return "noticed"
        return "attended" if all(one.attended for one in alarms) else "alarm"

    def describe(self) -> RunningTurn:
        """Return the turn as observers see it."""
        return RunningTurn(
            turn=self.id,
            agent=self.context.agent.id,
            conversation=self.conversation,
            autonomous=self.autonomous,
            cause=self.cause,
            since=self.context.clock.now(),
        )

    @property
    def label(self) -> Label:
        """Label of all that its requests held so far."""
        return self.request.label if self.request is not None else OUTSIDE_LABEL

    async def is_needed(self) -> bool:
        """Return whether a person still waits for an answer, also because an earlier turn was
        interrupted.

        A turn that began by itself is theirs if a person waits.
        """
        said = [one for one in self.input.messages if not (one.is_topic_change or one.notice)]
        if self.autonomous and any(one.message.kind != "room" for one in said):
            self.autonomous = await self.context.store.unread_urgency(self.conversation) <= AMBIENT
        if self.continuing or await self.input.is_answer_owed():
            return True
        self.view = await self.context.view(self.conversation)
        # Work that was open when the process ended goes on.
        self.continuing = self.autonomous and bool(self.view.next_step)
        return self.continuing or (self.view.interrupted and not self.is_inner)

    def hear(self, messages: Sequence[CurrentMessage]) -> None:
        """Let changes of the messages to the agent reach the turn from now on."""
        said = [one.message for one in messages if is_addressed(one.message)]
        self.handle.heard |= {one.id: (one.sender.id, one.text) for one in said}

    async def read_context(self) -> None:
        """Read all that the prompt holds besides the new input, and the people on whose behalf the
        turn acts.
        """
        context, new = self.context, self.input
        history = self.view = self.view or await context.view(self.conversation)
        self._prompt_context = prompt = await context.prompt_context.build(
            self.place, new.unread, history.turns, context.specs
        )
        await new.render(history)
        self._inherited = await find_inherited_requesters(
            context.store, context.reader.access_policy, history.turns, continuing=self.continuing
        )
        self._base_tool_context = self._build_tool_context()
        self.request = self._base_tool_context.request
        self.request.add(
            history.label | prompt.label | Label(readers=readers_of(prompt.visibility.scope))
        )
        self._directives = await self._read_directives()
        self.recalled = await new.recall(history, self._base_tool_context, prompt.binding.private)
        if not self.autonomous:
            self._meanwhile, label = await context.guidance.meanwhile(
                self.conversation, new.unread, history, prompt.visibility
            )
            self.request.add(label)
            if self._meanwhile:
                self._directives = f"{load_prompt('returned')}\n{self._directives}".strip()

    async def _read_directives(self) -> str:
        """Return the instructions for this turn only; usually empty."""
        context, takes_tools = self.context, self.context.model.model.takes_tools
        directives = await context.guidance.directives(
            self.conversation, autonomous=self.autonomous, continuing=self.continuing
        )
        step = self.view.next_step if self.continuing and self.view is not None else ""
        step = NEXT_STEP.format(step=step.replace('"', "'")) if step else ""
        status = render_tool_status(*context.tools.changed_names) if takes_tools else ""
        opens_thread = any(one.message.opens_thread for one in self.input.messages)
        grows = (
            self.preview is not None and self.preview.grows
        )  # then the thread is there before the answer
        title = ""
        if opens_thread and not grows and not context.is_small_model:
            self.thread_title, title = "", load_prompt("thread_title")
        return "\n".join(filter(None, [directives, step, status, title]))

    def is_repetition(self, outcome: TurnOutcome) -> bool:
        """Return whether it goes on as the last ones went on: with the same calls and the same
        text, in vain.
        """
        earlier = [one.record for one in self.view.turns] if self.view is not None else []
        run = earlier[-(MAX_SAME_TURNS - 1) :]
        done = _list_calls(outcome.steps), self.context.reader.redactor(outcome.text)
        is_run = (
            self.continuing and len(run) == MAX_SAME_TURNS - 1 and all(one.continued for one in run)
        )
        return is_run and all((_list_calls(one.steps), one.text) == done for one in run)

    @property
    def _own_names(self) -> tuple[str, ...]:
        return tuple(
            filter(
                None,
                (self.context.agent.id, self.context.prompt_context.cards.own_name(self.place)),
            )
        )

    def without_prefix(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome without a copy of our line form in front of its text."""
        text = strip_line_prefix(outcome.text, self._own_names) if outcome.text else ""
        return replace(outcome, text=text) if text != outcome.text else outcome

    def take_title(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome without the title of the thread in front of its text."""
        if self.thread_title is None or (found := _TITLE.match(outcome.text)) is None:
            return outcome
        self.thread_title = self.context.reader.redactor(found[1])
        return replace(outcome, text=outcome.text[found.end() :])

    async def compact_if_due(self) -> None:
        """Choose the new input that fits, and fold the view where that is due."""
        self._unread, rendered = await self.input.render_fitting(
            self._budget_tokens() >> self._tries
        )
        self._rendered = rendered if self._with_images else replace(rendered, media=())
        await self._fold(self._rendered, self._tries)

    async def _fold(
        self, rendered: RenderedInput, tries: int, *, is_requested: bool = False
    ) -> None:
        assert self.view is not None
        result = await self.context.compaction.fold_if_due(
            self.place,
            self.view,
            self,
            fixed_tokens=self._prompt_context.tokens,
            rendered=rendered,
            attempts=tries,
            is_requested=is_requested,
        )
        self.view, self._is_folded, self.nudged = result.view, result.is_folded, result.nudges

    async def build_request(self) -> PromptInput:
        """Build the turn's prompt, and record who may have caused what it leads to."""
        assert self.view is not None
        prompt_input = await self._build_prompt_input(
            self.view, self._rendered, folded=self._is_folded
        )
        self.input.mark_read(self._unread, self._rendered)
        self._tool_context = self._with_requesters(self._base_tool_context)
        self._tools = self.context.tools.for_turn(self._tool_context)
        self._add_labels()
        return prompt_input

    def _add_labels(self) -> None:
        assert self.view is not None
        assert self.request is not None
        self.request.add(self.view.label | self.input.label | self._card_label)

    def retry_with_less(self, error: PromptTooLong | RequestRefused) -> TurnOutcome | None:
        """Prepare another try after the first request was refused. None: there is one; else the
        outcome.
        """
        self.preparation.record_lost(error.accounts)
        if isinstance(error, PromptTooLong):
            self._tries += 1
        else:  # an image that looks whole and is not must not end all conversation there
            logger.warning("%s: asked again without images: %s", self.conversation, error.reason)
            if self._rendered.media and not self.has_refused_images:
                self.has_refused_images = True
                self._directives = "\n".join(
                    filter(None, [self._directives, load_prompt("images_refused")])
                )
            self._with_past_images = self._with_past_images and bool(self._rendered.media)
            self._with_images = False
        if self._tries <= MAX_FOLDS:
            return None
        return TurnOutcome(outcome="failed", reason=error.reason, cause=error.cause)

    async def compact_on_request(self) -> str:
        """Fold the view. Return the result in words. Raises StoreError."""
        context = self.context
        history = self.view = await context.view(self.conversation)
        if history.tokens < MIN_FOLD_TOKENS:
            return _("This conversation is already short: about {count} tokens.").format(
                count=history.tokens
            )
        self._prompt_context = await context.prompt_context.build(
            self.place, self.input.unread, history.turns, context.specs
        )
        self.request = RequestLabel(history.label | self._prompt_context.label)
        await self._fold(RenderedInput(), 0, is_requested=True)
        await context.prompt_context.card(self.place, self._prompt_context, folded=self._is_folded)
        folded = self.view
        if folded is history:
            return _("There is nothing that I could shorten.")
        return _(
            "Done: I replaced {count} of {total} turns by a summary. I now see about {tokens} "
            "tokens instead of {before}."
        ).format(
            count=len(history.turns) - len(folded.turns),
            total=len(history.turns),
            tokens=folded.tokens,
            before=history.tokens,
        )

    @property
    def budget_tokens(self) -> int:
        """See `agent.turn_context.ResultArchive`."""
        return compaction.ACTIVE_EVIDENCE_TOKENS

    @property
    def max_result_tokens(self) -> int:
        """See `agent.turn_context.ResultArchive`."""
        share = self.context.live.optimization.compaction.tool_result_max_pct
        return int(self.context.compaction.usable_tokens * share)

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef:
        """See `agent.turn_context.ResultArchive`. Raises StoreError."""
        return await self.context.evidence.keep(self.id, self.conversation, call, result)

    def record_cut(self) -> None:
        """See `agent.turn_context.ResultArchive`."""
        self.context.compaction.stats.count(self.context.agent.id, "tool_result_truncated")

    def size_hints(self) -> SizeHints:
        """Return what is known of the sizes of the turn's requests."""
        assert self.view is not None
        return SizeHints(scale=self.view.scale, was_refused=self._tries > 0)

    def is_blocked(self) -> bool:
        """Return whether all requesters are blocked by now: then nothing is posted."""
        return are_blocked(self.context.reader.access_policy, self.place, self.handle.requesters)

    def with_preparation_cost(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome with the costs of making room for the turn."""
        room = self.preparation.current
        return replace(
            outcome,
            usage=room.usage + outcome.usage,
            requests=room.requests + outcome.requests,
            accounts=(*room.accounts, *outcome.accounts),
        )

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """See `agent.turn.Toolset`."""
        return self._tools.specs

    async def call(self, call: ToolCall) -> ToolResult:
        """See `agent.turn.Toolset`. A person who speaks during the turn has a say in what may be
        called.
        """
        self.handle.is_drafting = False
        if self.preview is not None:
            self.preview.expect_nothing()
            if _is_answer_awaited(self):
                self.preview.show_tool(call)
        self.handle.running_calls += 1
        try:
            return await self._tools.call(call)
        finally:
            self.handle.running_calls -= 1

    def answer_grew(self, text: str) -> None:
        self.handle.is_drafting = bool(text.strip()) and not self.progress.current.steps
        if self.handle.is_drafting and self.handle.is_corrected:
            # Not here, in the turn itself: it may be about to write its record.
            asyncio.get_running_loop().call_soon(self.handle.interrupt)
            return
        if may_begin_prefix(text, self._own_names):
            return
        text = strip_line_prefix(text, self._own_names)
        if self.preview is not None:
            self.preview.update(text)
        self._tracker.answer_grew(self.id, text)

    def thinking_grew(self, text: str) -> None:
        self._tracker.thinking_grew(self.id, text)

    async def can_afford(self, request: ModelRequest) -> bool:
        context, cost_usd = self.context, self.context.model.ceiling_usd(request)
        payers, spent_usd = self._find_payers(), self._spent_usd()
        if context.limits is not None:
            await context.limits.wait_for_budget(
                self.place, context.agent.id, payers, cost_usd, spent_usd
            )
        is_covered = self._reserve(cost_usd, payers, spent_usd)
        await context.store.wait_until_writable()
        if is_covered:
            self.expect_answer()
        return is_covered

    def expect_answer(self) -> None:
        """Have whoever waits for an answer told if the model is slow from now on."""
        if self.preview is not None and _is_answer_awaited(self):
            self.preview.expect_answer(_oldest_awaited(self).seq)

    async def fetch_arrivals(self, room: int) -> str:
        """See `agent.turn_context.TurnHost`. News of the inner conversation wait for its next
        digest.
        """
        has_news = self.handle.take_news() or self.context.agent.may_take_arriving(
            self.conversation
        )
        if self.is_inner or not has_news:
            return ""
        text, requesters, label = await self.input.render_news(self._budget_tokens(), room)
        self.hear(self.input.arrived)
        before = self._tool_context
        before.request.add(label)
        if requesters:  # the turn is theirs now, whatever began it
            self.is_addressed, self.autonomous = True, False
            before = replace(before, autonomous=False)
        updated = self._with_requesters(
            replace(before, requesters=(*before.requesters, *requesters))
        )
        if updated != before:  # a person who speaks during the turn is a requester, too
            self._tools = self.context.tools.for_turn(updated)
        self._tool_context = updated
        return text

    async def shorten(self, times: int) -> PromptInput | None:
        await self._fold(self.input.rendered, times)
        assert self.view is not None
        prompt_input = await self._build_prompt_input(
            self.view, self.input.rendered, folded=self._is_folded
        )
        self._add_labels()
        return prompt_input

    async def can_afford_now(self, request: ModelRequest) -> bool:
        """Return whether the budgets cover the request without waiting for others', and reserve its
        highest cost.
        """
        ceiling_usd = self.context.model.ceiling_usd(request)
        is_writable = self.context.store.outage is None
        payers, spent_usd = self._find_payers(), self._spent_usd()
        return is_writable and self._reserve(ceiling_usd, payers, spent_usd)

    def _reserve(self, cost_usd: float, payers: list[Sender], spent_usd: float) -> bool:
        context = self.context
        if self.autonomous and not context.agent.reserve(self.conversation, cost_usd):
            return False
        if context.limits is not None:
            self.limit_hit = context.limits.reserve(
                self.place, context.agent.id, payers, cost_usd, spent_usd
            )
        return self.limit_hit is None

    def _spent_usd(self) -> float:
        accounts = (*self.preparation.current.accounts, *self.progress.current.accounts)
        costs = (
            ASSUMED_PRICE.cost_usd(one.usage) if one.cost_usd is None else one.cost_usd
            for one in accounts
        )
        return sum(cost or 0.0 for cost in costs)

    def _find_payers(self) -> list[Sender]:
        """Return the people whose budgets pay: authors of addressed messages, and setters of
        reminders.
        """
        addressed = [one.message.sender for one in self.input.messages if is_addressed(one.message)]
        requesters = [
            Sender(
                id=one.id, name=one.name, verified=one.verified, ranks=one.ranks, is_bot=one.is_bot
            )
            for one in self.handle.requesters
        ]
        people = {one.id: one for one in [*addressed, *requesters]}
        return [*people.values(), *self.input.reminder_setters.values()]

    def _budget_tokens(self) -> int:
        """Return how many tokens the conversation and the new input may take."""
        usable = int(self.context.compaction.usable_tokens * compaction.FOLD_AT)
        return max(256, usable - self._prompt_context.tokens)

    async def build_summary_request(self, history: HistoryView) -> ModelRequest:
        """Return the request of the turn with this view and no new input, for the summarizer."""
        context = self.context
        prompt_input = await self._build_prompt_input(history, RenderedInput(), folded=False)
        return build_first_request(
            prompt_input, context.model.model, context.tools.specs, context.agent.id
        )

    async def _build_prompt_input(
        self, history: HistoryView, rendered: RenderedInput, *, folded: bool
    ) -> PromptInput:
        context, prompt_context = self.context, self._prompt_context
        card, self._card_label = await context.prompt_context.card(
            self.place, prompt_context, folded=folded
        )
        nudge = load_prompt("write_down") if self.nudged else ""
        return PromptInput(
            persona=prompt_context.persona,
            skills=await context.guidance.skill_catalogue(context.tools)
            if context.model.model.takes_tools
            else "",
            binding=prompt_context.binding,
            card=card,
            history=await context.history.load_exchanges(history, seeing=self._with_past_images),
            input_text=rendered.text,
            images=await context.history.media.load_images(rendered.media),
            aside="\n\n".join(filter(None, [self._meanwhile, self.recalled.text]))
            if rendered.text
            else "",
            now="\n".join(filter(None, [self._directives, nudge])) if rendered.text else "",
            tool_surface=self._surface,
            has_late_tools=context.guidance.has_late_tools,
            conversation=self.conversation,
        )

    def _build_tool_context(self) -> ToolContext:
        """Return the context in which the turn uses its tools, before anybody is known to ask for
        something.
        """
        context = self.context
        return ToolContext(
            turn=self.id,
            agent=context.agent.id,
            at=self.place,
            visibility=self._prompt_context.visibility,
            autonomous=self.autonomous,
        )

    def _with_requesters(self, tool_context: ToolContext) -> ToolContext:
        """Return the context with all people who may have caused what the turn does."""
        new, inherited = self.input, self._inherited
        requesters = deduplicate_requesters(
            [*inherited.requesters, *tool_context.requesters, *new.requesters()]
        )
        self.handle.requesters = requesters
        return replace(
            tool_context,
            requesters=requesters,
            unasked_role=lowest_role([inherited.unasked_role, new.unasked_role()]),
        )


def _list_calls(steps: Sequence[TurnStep]) -> list[str]:
    """Return a key for each call of a turn, equal for calls with the same effect."""
    return [
        call_key(ToolCall(id="", name=call.name, arguments=call.arguments))
        for step in steps
        for call in step.calls
    ]


def _find_language(turn: Turn) -> str | None:
    """Return the tag of the language of what the gateway itself says in this turn. None:
    English.
    """
    messages = turn.input.messages
    newest = messages[-1].message if messages else None
    person, direct = (
        (newest.language, newest.kind == "direct") if newest is not None else (None, False)
    )
    return language_for(turn.context.prompt_context.language(turn.place), person, direct=direct)


def build_record(turn: Turn, outcome: TurnOutcome) -> TurnRecord:
    """Return the record of a turn, with the text for whoever waits for an answer."""
    context, consumed, redact = turn.context, turn.input, turn.context.reader.redactor
    text = redact(outcome.text)
    if outcome.outcome == "failed":
        logger.error("turn %s failed: %s", turn.id, outcome.reason)
        text = _(FAILURE_TEXTS[outcome.cause]) if _is_answer_awaited(turn) else ""
    return TurnRecord(
        turn=turn.id,
        covers=consumed.rendered.covers,
        omitted=consumed.omitted,
        heard=consumed.rendered.text,
        upto=consumed.upto,
        outcome=outcome.outcome,
        text=text,
        reason=redact(outcome.reason),
        failure=outcome.cause
        if outcome.outcome == "failed" or outcome.cause == "cut" or turn.is_put_off
        else "",
        model=outcome.model,
        usage=outcome.usage,
        requests=outcome.requests,
        instead_of=redact(outcome.instead_of),
        autonomous=turn.autonomous,
        media=consumed.rendered.media,
        accounts=outcome.accounts,
        agent=context.agent.id,
        senders=consumed.rendered.senders,
        steps=outcome.steps,
        cause=turn.cause,
        continued=turn.continuing,
        looked=consumed.looked,
        prompt_tokens=outcome.prompt_tokens,
        prompt_estimate=outcome.prompt_estimate,
        recalled=turn.recalled.names if consumed.rendered.text else (),
        nudged=turn.nudged,
        label=turn.request.label | consumed.label if turn.request is not None else consumed.label,
        note=redact(compose_note(outcome.steps, outcome.text if turn.is_inner else ""))
        if turn.autonomous
        else "",
    )


async def write_record(turn: Turn, outcome: TurnOutcome) -> None:
    """Append the turn and its post."""
    store, place, record = turn.context.store, turn.place, _to_entry(turn, outcome)
    now, ended = record.at, record.fact
    assert isinstance(ended, TurnRecord)
    if not ended.text or turn.is_inner:  # a reply in the inner conversation has no reader
        await store.append([record])
        return
    reply_to = find_reply_to((*turn.input.messages, *turn.input.arrived))
    post = Post(
        key=PostKey(ended.turn),
        to=place,
        text=_name_askers(turn, _add_marks(turn, ended)),
        reply_to=reply_to,
        notify=_find_notified(turn),
        thread_title=turn.thread_title or "",
        language=current_language(),
    )
    await store.append([record, *await _build_post_entries(turn, post, now, record)])


def _add_marks(turn: Turn, ended: TurnRecord) -> str:
    """Return the text to post, which says what is wrong with the answer; the model does not read
    that.
    """
    if ended.outcome != "replied":
        return ended.text
    marks = [_(CUT_TEXT)] if ended.failure == "cut" else []
    marks += [_(IMAGES_REFUSED_TEXT)] if turn.has_refused_images else []
    return "\n\n".join([ended.text, *marks])


MAX_NOTIFIED: Final = 5
"""Most people whom one post notifies."""
MAX_NAMED_ASKERS: Final = 5
"""Most people whose names an answer begins with. More are a crowd, which no list of names helps."""
_BLOCK_START: Final = re.compile(r"\s*(?:[`~]{3}|[-*+#>|]|\d+[.)])")
"""Beginning of Markdown that is no paragraph, so that nothing may stand in front of it on its
line."""


def _find_askers(turn: Turn) -> list[Sender]:
    """Return who has addressed the agent in what the turn covers; whoever did so twice is there
    twice.
    """
    said = [
        one
        for one in (*turn.input.messages, *turn.input.arrived)
        if one.seq in turn.input.rendered.covers
    ]
    return [
        one.message.sender for one in said if is_addressed(one.message) and one.message.sender.id
    ]


def _find_notified(turn: Turn) -> tuple[Sender, ...]:
    people = {one.id: Sender(id=one.id, name=one.name) for one in _find_askers(turn)}
    people |= {
        one.id: Sender(id=one.id, name=one.name) for one in turn.input.reminder_setters.values()
    }
    return tuple(people.values())[:MAX_NOTIFIED]


def _name_askers(turn: Turn, text: str) -> str:
    """Return the answer with the names of those whom it answers in front, if they are several and
    it does not tell.

    Also where the post is shown as a reply: that shows one of them. One person behind a bridge is
    named, too: there nothing else tells them.
    """
    people = {one.id: one for one in _find_askers(turn)}
    senders = {who: name_to_address(one) for who, one in people.items()}
    is_bridged = any(who.startswith(BRIDGE_PREFIX) for who in senders)
    names = list(dict.fromkeys(senders.values()))
    is_told = all(
        re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) for name in names
    )
    is_few = (0 if is_bridged else 1) < len(senders) <= MAX_NAMED_ASKERS
    if not is_few or is_told:
        return text
    gap = "\n\n" if _BLOCK_START.match(text) else " "
    return f"{', '.join(map(escape_markdown, names))}:{gap}{text}"


async def _build_post_entries(
    turn: Turn, post: Post, now: datetime, cause: Seq | NewEntry | None
) -> list[NewEntry]:
    """Return the entries that post this in place of the turn's preview, which has ended then."""
    shown, place = (
        await turn.preview.finish(post) if turn.preview is not None else (),
        turn.conversation,
    )
    queued = PostQueued(post=replace(post, previews=shown))
    ended = (PreviewEnded(at=post.to, message=message, reason="") for message in shown)
    return [
        NewEntry(fact=queued, at=now, conversation=place, key=f"post:{post.key}", cause=cause),
        *(NewEntry(fact=fact, at=now, conversation=post.to.conversation) for fact in ended),
    ]


def _to_entry(turn: Turn, outcome: TurnOutcome) -> NewEntry:
    ended, upto = build_record(turn, outcome), turn.input.upto
    now = turn.context.clock.now()
    return NewEntry(
        fact=ended,
        at=now,
        conversation=turn.conversation,
        key=f"turn:{ended.turn}",
        cause=upto or None,
    )


async def build_stop_record(
    context: AgentContext, conversation: ConversationId, why: str
) -> TurnRecord:
    """Return the record for a stop: everything unread there counts as consumed.

    This includes the input of a turn that runs there. Entries that cannot be rendered in time are
    only counted.
    """
    turn = Turn(context, conversation, TurnHandle(), TurnTracker(), autonomous=False)
    new = turn.input
    new.unread = unread = await context.store.unread_entries(conversation, most=MAX_UNREAD_LINES)
    new.messages = await context.reader.read_current(unread)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RENDER_TIMEOUT_S):  # attachments may have to be fetched first
            await new.consume_unasked()
    upto = max(
        unread.upto, await context.store.last_position()
    )  # there may be more unread entries than one turn takes
    new.omitted, new.upto = count_omitted(unread, new.rendered), Seq(upto)
    return build_record(turn, TurnOutcome(outcome="yielded", reason=why))


class _Awaited(NamedTuple):
    seq: Seq | None
    """None: it is not known."""
    at: datetime
    message: MessageId | None = None
    """Its id on the platform. None: not known."""
    sender: SenderId | None = None
    """None: not known."""


def _oldest_awaited(turn: Turn) -> _Awaited:
    """Return the oldest message for which somebody waits, or the interrupted turn that had it."""
    for one in turn.input.unread.messages:
        if is_addressed(one.fact):
            return _Awaited(one.seq, one.at)
    for earlier in reversed(turn.view.turns if turn.view is not None else ()):
        return _Awaited(earlier.seq, earlier.at)
    return _Awaited(None, turn.context.clock.now())


def _first_awaited(turn: Turn) -> list[_Awaited]:
    """Return the first unread message of each person who waits, or what an interrupted turn had."""
    first = dict[SenderId, _Awaited]()
    for one in turn.input.unread.messages:
        if isinstance(one.fact, Message) and is_addressed(one.fact):
            sender = one.fact.sender.id
            first.setdefault(sender, _Awaited(one.seq, one.at, one.fact.id, sender))
    reply_to = find_reply_to((*turn.input.messages, *turn.input.arrived))
    return [*first.values()] or [_oldest_awaited(turn)._replace(message=reply_to)]


def _may_wait(turn: Turn) -> bool:
    """Return whether the turn may wait for a model: as long as people who wait may, for ever if
    nobody does.
    """
    agent, handle = turn.context.agent, turn.handle
    if handle.stop_reason or handle.drop_reason or agent.is_faulty(turn.conversation):
        return False
    if not _is_answer_awaited(turn):
        return turn.autonomous
    waited_s = (turn.context.clock.now() - _oldest_awaited(turn).at).total_seconds()
    return waited_s < turn.context.live.settings.llm.overload_wait


def _is_answer_awaited(turn: Turn) -> bool:
    """Return whether a person waits for an answer: only they get a message about a failure."""
    addressed = any(
        is_addressed(one.message) for one in (*turn.input.messages, *turn.input.arrived)
    )
    return not turn.is_inner and (turn.cause in ("addressed", "alarm") or addressed)


def _to_result(outcome: TurnOutcome, *, autonomous: bool) -> TurnResult:
    has_failed = outcome.outcome == "failed"
    has_no_model = has_failed and outcome.cause in PUT_OFF_TEXTS
    return TurnResult(
        has_failed=has_failed,
        used_tools=bool(carried_out(outcome.steps)),
        has_open_work=bool(find_next_step(outcome.steps)) or outcome.wants_more,
        has_yielded=outcome.yielded,
        was_interrupted=outcome.outcome == "interrupted",
        model="failed"
        if has_no_model
        else "answered"
        if outcome.requests or has_failed
        else "unasked",
        autonomous=autonomous,
        is_over_budget=outcome.is_over_budget,
        cost_usd=total_cost_usd(outcome.accounts),
    )
