"""Turns of one agent, from top to bottom: read -> gather -> build -> model and tools -> record.

- `TurnRunner.run` is a turn; its steps stand below it in their order. Each returns what the next
  one needs: `Turn` (what is unread, and the view), `TurnRun`, `PromptInput`, `TurnOutcome`.
- `TurnRun` is what `agent.turn` works with meanwhile: all else that the prompt holds, the tools,
  budgets and arrivals of the turn.
- `gateway.runtime.turn_record` says what is recorded and posted.
"""

import asyncio
import contextlib
import hashlib
import logging
import math
from dataclasses import replace
from datetime import timedelta
from typing import Final

from agent.dmn import find_outage
from agent.models.base import ModelRequest, PromptTooLong, RequestRefused, ToolResult
from agent.prompt import NOTHING_NEW, PromptInput, may_begin_prefix, strip_line_prefix
from agent.prompts import load_prompt
from agent.signals import MAX_TOLD_WAIT_S, BudgetSpent, DmnMode, TurnEnded
from agent.tokens.counter import estimate_tokens
from agent.turn import take_turn
from agent.turn_context import TurnHost, TurnOutcome, build_first_request, usable_tokens
from channels.aio import is_cancellation, run_to_completion
from gateway.access.limits import Payers
from gateway.context import compaction
from gateway.context.conversation import (
    CurrentMessage,
    RenderedInput,
    find_reply_to,
    is_addressed,
)
from gateway.context.digest import Digest, DigestBuilder
from gateway.context.evidence import keep_result
from gateway.context.history import HistoryView
from gateway.context.observer import AnswerGrew, RunningTurn, ThinkingGrew
from gateway.context.prompt_context import PromptContext
from gateway.context.requesters import (
    BLOCKED_REASON,
    are_blocked,
    deduplicate_requesters,
    find_inherited_requesters,
)
from gateway.core.context_var import log_context
from gateway.core.events import (
    Alarm,
    ConversationId,
    EvidenceRef,
    Message,
    Post,
    PostKey,
    SenderId,
)
from gateway.core.facts import AMBIENT, REPEATED_TURN, Seq, TurnRecord
from gateway.core.format import format_moment
from gateway.core.i18n import _, language_for, use_language
from gateway.core.identity import lowest_role
from gateway.core.labels import TRUSTED_LABEL, Label, RequestLabel, readers_of, role_of_integrity
from gateway.core.scopes import Visibility
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.plugin import Part, TurnView
from gateway.runtime.turn_handle import DELETED_REASON, TurnHandle, TurnInterrupted
from gateway.runtime.turn_input import PLAIN_FAMILY, AgentContext, TurnServices
from gateway.runtime.turn_record import (
    PUT_OFF_TEXTS,
    WAIT_TEXT,
    Turn,
    build_post_entries,
    write_record,
)
from gateway.store import StoreError
from gateway.store.spending import budgeted_usd
from gateway.tools.dispatch import render_tool_status

logger = logging.getLogger("reverie.turns")

MIN_FOLD_TOKENS: Final = 300
"""Smallest view that is folded: the text that stands for less takes as much."""
MAX_FOLDS: Final = 2
"""Tries to make a conversation fit after the provider has refused it as too long."""
MIN_TOLD_WAIT_S = 90.0
"""A shorter wait for a model is told without a time."""
RENDER_TIMEOUT_S = 2.0
"""Time for rendering, less than `gateway.commands.dispatcher.ANSWER_TIMEOUT_S`: the person waits
for an answer."""

NEXT_STEP: Final = 'You said that you would do this next: "{step}"'
NOTHING_TO_ANSWER = (
    "nothing asks for an answer: what did was deleted, or it only tells what happened"
)


class TurnRunner:
    """Runs the turns of one agent."""

    def __init__(self, services: TurnServices, digests: DigestBuilder) -> None:
        self.services, self.digests = services, digests
        self._tracker = services.registry.running.tracker
        self._told_people = set[SenderId]()
        """People who were told that no model answers, since one has."""
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
    ) -> TurnEnded:
        """Consume all that is unread there. `continuing`: go on even if nothing is.

        Cancelled before the turn's record is durable, it leaves everything unread; after that it is
        complete. A turn that has used tools is recorded as interrupted, so that the next one knows
        what they did. Interrupted by its handle, it is recorded as far as it came.
        """
        turn = Turn(
            context,
            conversation,
            handle,
            self.services.reader,
            autonomous=autonomous,
            continuing=continuing,
        )
        agent, now = context.agent, context.gateway.clock.now()
        with contextlib.ExitStack() as ending:
            ending.callback(context.limits.settle, turn.id)  # its record has counted what it cost
            ending.enter_context(
                log_context(agent=agent.id, conversation=conversation, turn=turn.id)
            )
            ending.enter_context(use_language(await self._read(turn)))
            if not await self._is_needed(turn):
                return await self._leave_unanswered(turn)
            away = find_outage(agent.state, context.model.name, now)
            if away is not None and turn.may_wait():
                await handle.begin_ending()
                failed = TurnOutcome(
                    outcome="failed",
                    reason=away.reason,
                    cause=away.cause,
                    retry_after_s=(away.until - now).total_seconds(),
                )
                return replace(await self._record(turn, failed), asked=False)
            reply_to = find_reply_to(turn.input.messages)
            alarms = [one for one in turn.input.unread.messages if isinstance(one.fact, Alarm)]
            channel = context.gateway.channels.get(turn.place.channel)
            turn.running = RunningTurn(
                turn=turn.id,
                agent=agent.id,
                conversation=conversation,
                autonomous=turn.autonomous,
                cause=turn.cause,
                since=now,
                reply_to=reply_to,
                may_grow=reply_to is not None or not alarms,
                is_awaited=turn.is_awaited,
                listeners=self.services.plugins.progress_listeners(channel),
            )
            ending.enter_context(self._tracker.track(turn.running))
            outcome = await self._answer(turn)
            await handle.begin_ending()
            return await self._record(turn, outcome)

    async def _read(self, turn: Turn) -> str | None:
        """Read what is unread, and the view of the earlier turns. Return the tag of the language of
        what the gateway itself says in this turn; None: English.
        """
        context, new, model = turn.context, turn.input, turn.context.model.model
        await new.read(self.digests, self.services.plugins, context.agent.id)
        simple = not model.takes_tools or model.family == PLAIN_FAMILY
        turn.view = await context.history.view(turn.conversation, simple=simple)
        turn.hear(new.messages)
        if turn.is_inner:
            self._last_digest = new.digest
        room = context.gateway.places.bindings.find(turn.place).language
        newest = new.messages[-1].message if new.messages else None
        person = newest.language if newest is not None else None
        direct = newest is not None and newest.kind == "direct"
        return language_for(room, person, direct=direct)

    async def _answer(self, turn: Turn) -> TurnOutcome:
        context, people = turn.context, turn.context.gateway.people
        turn.expect_answer(self._tracker)
        try:
            with turn.handle.interruptible():
                run = await self.gather(turn)
                outcome: TurnOutcome | None = None
                while outcome is None:
                    prompt_input = await run.build()
                    if are_blocked(people, turn.place, turn.handle.requesters):
                        return TurnOutcome(outcome="yielded", reason=BLOCKED_REASON, yielded=True)
                    try:
                        outcome = await take_turn(
                            prompt_input,
                            context.model.model,
                            run,
                            key=context.agent.id,
                            max_tool_rounds=context.max_tool_rounds,
                            scale=turn.view.scale,
                            was_refused=run.tries > 0,
                        )
                    except (PromptTooLong, RequestRefused) as error:
                        outcome = run.retry_with_less(error)
                return outcome
        except TurnInterrupted:
            return turn.progress.current
        except asyncio.CancelledError as error:
            if is_cancellation(error):
                await self._record_parked(turn)
            raise
        finally:
            if turn.slow_task is not None:
                turn.slow_task.cancel()

    async def _is_needed(self, turn: Turn) -> bool:
        """Return whether a person still waits for an answer, also because an earlier turn was
        interrupted.

        A turn that began by itself is theirs if a person waits.
        """
        is_spoken_to = any(
            one.message.kind != "room" for one in turn.input.messages if not one.notice
        )
        if turn.autonomous and is_spoken_to:
            urgency = await turn.context.gateway.store.unread_urgency(turn.conversation)
            turn.autonomous = urgency <= AMBIENT
        new, reader = turn.input, self.services.reader
        if turn.continuing or new.digest is not None:
            return True
        if await reader.is_answer_owed(new.unread, new.messages):
            return True
        # Work that was open when the process ended goes on.
        turn.continuing = turn.autonomous and bool(turn.view.next_step)
        return turn.continuing or (turn.view.interrupted and not turn.is_inner)

    async def gather(self, turn: Turn) -> "TurnRun":
        """Read all that the prompt holds besides the new input, and the people on whose behalf the
        turn acts.
        """
        context, new, view = turn.context, turn.input, turn.view
        prompt = await context.prompts.build(
            turn.place, new.unread, view.turns, context.specs_tokens
        )
        await new.render(view)
        tools = _build_tool_context(turn, prompt.visibility)
        if turn.continuing or view.is_unfinished:
            requesters, unasked_role = await find_inherited_requesters(
                context.gateway.store,
                context.gateway.people,
                view.turns,
                continuing=turn.continuing,
            )
            tools = replace(tools, requesters=requesters, unasked_role=unasked_role)
        readers = Label(readers=readers_of(prompt.visibility.scope))
        turn.label.label |= view.label | prompt.label | readers
        parts = await self._find_parts(turn, tools, prompt.binding.private)
        asides = [one.text for one in parts if one.block == "recall"]
        nows = [*(one.text for one in parts if one.block == "now"), _find_directives(turn)]
        return TurnRun(
            self.services,
            turn,
            prompt,
            tools,
            aside="\n\n".join(asides),
            directives="\n".join(filter(None, nows)),
        )

    async def _find_parts(self, turn: Turn, tools: ToolContext, memory: str) -> list[Part]:
        """Return what plugins add to the prompt. `memory`: part of MEMORY.md that it holds
        anyway.
        """
        view = TurnView(
            context=tools,
            unread=turn.input.unread.messages,
            lines=turn.input.lines,
            past=turn.view.turns,
            memory=memory,
            is_plain=turn.context.model.model.family == PLAIN_FAMILY,
        )
        parts = await self.services.plugins.parts(view)
        for one in parts:
            turn.label.label |= one.label
            turn.recalled = (*turn.recalled, *one.names)
        return parts

    async def _record(self, turn: Turn, outcome: TurnOutcome) -> TurnEnded:
        """Record how the turn ended, and post its answer; or leave its input to another turn."""
        if outcome.is_over_budget:
            outcome = await self._settle_over_budget(turn, outcome)
        people = turn.context.gateway.people
        if are_blocked(people, turn.place, turn.handle.requesters):
            turn.handle.drop_reason = turn.handle.drop_reason or BLOCKED_REASON
        outcome, agent = turn.conclude(outcome), turn.context.agent
        if turn.running is not None and not turn.handle.stop_reason:
            turn.running.goes_on = outcome.outcome == "interrupted"
        has_no_model = outcome.outcome == "failed" and outcome.cause in PUT_OFF_TEXTS
        if has_no_model and turn.may_wait():
            return await self._put_off(turn, outcome)
        ended = turn.end(outcome)
        if ended.used_tools and not ended.open_work:  # who does nothing for it has stopped
            plans = await self.services.plugins.plans(agent.id, turn.conversation)
            ended = replace(ended, open_work=any(one.is_open for one in plans))
        if ended.open_work and turn.is_repetition(outcome):
            outcome = replace(outcome, reason=REPEATED_TURN)  # owners are told of it
            ended = replace(ended, open_work=False, yielded=True)
        if has_no_model and agent.is_faulty(turn.conversation):
            outcome = replace(outcome, cause="conversation")
        if outcome.outcome == "replied":
            self._told_people.clear()
        await self._write(turn, outcome)
        return ended

    async def _write(self, turn: Turn, outcome: TurnOutcome) -> None:
        stopped = bool(turn.handle.stop_reason)
        interrupted = outcome.outcome == "interrupted" or stopped
        if stopped:
            turn.input.leave(heard=False)
        elif interrupted and turn.input.digest is not None:
            turn.input.leave(heard=True)
        elif turn.handle.drop_reason == DELETED_REASON:
            await turn.input.forget_deleted()
        never_asked = outcome.is_over_budget or (
            interrupted and turn.input.rendered.text in ("", NOTHING_NEW)
        )
        if not never_asked or outcome.requests or outcome.steps:
            await write_record(turn, outcome, self.services.plugins)

    async def _settle_over_budget(self, turn: Turn, outcome: TurnOutcome) -> TurnOutcome:
        """Return what comes of a turn whose request no budget covers: people are told which one
        of theirs, and of what is due. What the agent intends waits for money of its own.
        """
        hit = turn.limit_hit
        if hit is not None and not hit.is_own:
            outcome = replace(outcome, is_over_budget=False, reason=hit.rule)
            said = [
                one.message
                for one in turn.input.messages
                if is_addressed(one.message) and one.message.sender.id
            ]
            newest = said[-1] if said else None
            await turn.context.gateway.store.append(
                turn.context.limits.build_unpaid_entries(turn.place, newest, hit)
            )
        else:
            logger.warning("no more turns of its own today: dmn.daily_cost_usd")
            turn.context.agent.send(BudgetSpent(at=turn.context.gateway.clock.now()))
        is_later = outcome.is_over_budget and all(one.intended for one in turn.due)
        if not turn.is_only_due or is_later:
            return outcome
        return replace(outcome, is_over_budget=False, outcome="replied", text=turn.render_due())

    async def _record_parked(self, turn: Turn) -> None:
        if turn.progress.current.steps:
            with contextlib.suppress(
                StoreError
            ):  # the error may be the reason for the cancellation
                await self._write(turn, turn.conclude(turn.progress.current))

    async def _leave_unanswered(self, turn: Turn) -> TurnEnded:
        """End a turn that has nothing to answer.

        Where all that asked for an answer was deleted, the rest is consumed: it becomes context,
        without a request.
        """
        if not turn.is_inner:
            await turn.handle.begin_ending()
            if turn.input.unread.messages and not turn.handle.stop_reason:
                await turn.input.consume_unasked()
                await write_record(
                    turn,
                    TurnOutcome(outcome="silent", reason=NOTHING_TO_ANSWER),
                    self.services.plugins,
                )
        return turn.end(TurnOutcome(outcome="silent"))

    async def _put_off(self, turn: Turn, outcome: TurnOutcome) -> TurnEnded:
        """Leave the input to a turn that begins once a model may answer. Everybody who waits is
        told once, unless for what comes by itself: a reminder, or the end of a call that was
        promised.
        """
        store, is_awaited = turn.context.gateway.store, turn.is_awaited
        facts = [one.fact for one in turn.input.unread.messages]
        is_silent = turn.is_only_due or (
            turn.is_promised
            and not any(isinstance(one, Message) and is_addressed(one) for one in facts)
        )
        waiting = turn.first_awaited() if is_awaited and not is_silent else []
        is_first = not turn.context.agent.is_put_off(turn.conversation)
        turn.is_put_off, wait_s = True, outcome.retry_after_s or 0.0
        if not outcome.steps or turn.is_inner:
            # With steps, its record holds the input and what was done for it.
            turn.input.leave(heard=bool(outcome.steps))
        record = turn.to_entry(replace(outcome, outcome="interrupted"))
        entries = [record]
        for awaited in waiting:
            named = f"put off:{turn.conversation}:{awaited.seq}".encode()
            key = PostKey(hashlib.sha256(named).hexdigest()[:26])
            is_told = not is_first and awaited.sender in self._told_people
            if is_told or await store.entry_by_key(f"post:{key}"):
                continue
            if awaited.sender is not None:
                self._told_people.add(awaited.sender)
            text = _(PUT_OFF_TEXTS[outcome.cause])
            if wait_s >= MIN_TOLD_WAIT_S:
                until = record.at + timedelta(seconds=min(wait_s, MAX_TOLD_WAIT_S))
                now = turn.context.gateway.live.to_local(record.at)
                text += " " + _(WAIT_TEXT).format(time=format_moment(until, now))
            post = Post(key=key, to=turn.place, text=text, reply_to=awaited.message, style="notice")
            entries += await build_post_entries(
                turn, post, record.at, awaited.seq, self.services.plugins
            )
        if is_awaited or outcome.requests or outcome.steps:
            await store.append(entries)
        return replace(
            turn.end(outcome),
            continues=not is_awaited and (turn.continuing or bool(outcome.steps)),
            no_model=outcome.cause,
            reason=outcome.reason,
            retry_after_s=wait_s,
            awaited=is_awaited or turn.is_promised,
        )

    async def give_up(
        self, context: AgentContext, conversation: ConversationId, reason: str, *, autonomous: bool
    ) -> TurnEnded:
        """Consume all that is unread there, with one message about the failure for whoever waits
        for an answer.
        """
        turn = Turn(
            context, conversation, TurnHandle(), self.services.reader, autonomous=autonomous
        )
        new, failed = turn.input, TurnOutcome(outcome="failed", reason=reason)
        await new.read_unread()
        if turn.is_inner:
            new.digest, self._last_digest = self._last_digest, None
        # Nobody waits for an answer, so there is no message about the failure.
        if not new.unread.messages and new.digest is None:
            logger.error("%s: %s", conversation, reason)
            return turn.end(failed)
        new.messages = tuple(
            CurrentMessage(one.seq, one.fact, is_edited=False)
            for one in new.unread.messages
            if isinstance(one.fact, Message)
        )
        new.consume_unrendered()
        await write_record(turn, failed, self.services.plugins)
        return turn.end(failed)

    async def build_stop_record(
        self, context: AgentContext, conversation: ConversationId, why: str
    ) -> TurnRecord:
        """Return the record for a stop: everything unread there counts as consumed.

        This includes the input of a turn that runs there. Entries that cannot be rendered in time
        are only counted.
        """
        turn = Turn(context, conversation, TurnHandle(), self.services.reader, autonomous=False)
        new = turn.input
        await new.read_unread()
        new.messages = await self.services.reader.read_current(new.unread)
        with contextlib.suppress(TimeoutError):
            # Attachments may have to be fetched first.
            async with asyncio.timeout(RENDER_TIMEOUT_S):
                await new.consume_unasked()
        # There may be more unread entries than one turn takes.
        new.consume_upto(Seq(max(new.unread.upto, await context.gateway.store.last_position())))
        return turn.build_record(TurnOutcome(outcome="yielded", reason=why))

    async def compact(self, context: AgentContext, conversation: ConversationId) -> str:
        """Fold the view of a place. Return the result in words. The costs are recorded as a turn of
        its own. Raises StoreError.
        """
        turn = Turn(
            context,
            conversation,
            TurnHandle(),
            self.services.reader,
            autonomous=False,
            is_compaction=True,
        )
        model = context.model.model
        simple = not model.takes_tools or model.family == PLAIN_FAMILY
        before = turn.view = await context.history.view(conversation, simple=simple)
        if before.tokens < MIN_FOLD_TOKENS:
            return _("This conversation is already short: about {count} tokens.").format(
                count=before.tokens
            )
        prompt = await context.prompts.build(
            turn.place, turn.input.unread, before.turns, context.specs_tokens
        )
        turn.label.label |= before.label | prompt.label
        tools = _build_tool_context(turn, prompt.visibility)
        run = TurnRun(self.services, turn, prompt, tools)
        try:
            await run.fold(RenderedInput(), 0, is_requested=True)
            await context.prompts.card(turn.place, prompt, folded=run.is_folded)
        finally:  # the requests so far are paid for, also if this was cut off
            outcome = turn.conclude(
                TurnOutcome(outcome="silent", reason="somebody wanted the view folded")
            )
            if outcome.requests:
                turn.label = RequestLabel()  # the record holds no text
                await run_to_completion(write_record(turn, outcome, self.services.plugins))
        if turn.view is before:
            return _("There is nothing that I could shorten.")
        return _(
            "Done: I replaced {count} of {total} turns by a summary. I now see about {tokens} "
            "tokens instead of {before}."
        ).format(
            count=len(before.turns) - len(turn.view.turns),
            total=len(before.turns),
            tokens=turn.view.tokens,
            before=before.tokens,
        )


class TurnRun(TurnHost):
    """A turn under way, as `agent.turn.take_turn` and the compactor see it: its prompt, its tools
    and the archive of their results, its budgets and arrivals.
    """

    def __init__(
        self,
        services: TurnServices,
        turn: Turn,
        prompt: PromptContext,
        tools: ToolContext,
        *,
        aside: str = "",
        directives: str = "",
    ) -> None:
        """`prompt`: the part in front of the conversation. `aside`: what was recalled, and what
        happened while the owner was away. `directives`: instructions for this turn only, with the
        operator's authority.
        """
        super().__init__(turn.progress)
        self._turn, self._context, self._prompt = turn, turn.context, prompt
        self.tools = tools
        """Context of the tools, with all who ask for something, as far as they are known."""
        self._aside, self._directives = aside, directives
        self._tracker, self._plugins = services.registry.running.tracker, services.plugins
        model, settings = turn.context.model.model, turn.context.gateway.live.optimization
        self._usable_tokens = usable_tokens(model.context_tokens, model.max_output_tokens)
        self.specs = turn.context.tools.specs
        self.budget_tokens = compaction.ACTIVE_EVIDENCE_TOKENS
        self.max_result_tokens = int(self._usable_tokens * settings.compaction.tool_result_max_pct)
        self.preparation = turn.preparation
        self.tries = 0
        """Requests that the provider refused as too long."""
        self.is_folded = False
        self._budget_tokens = max(
            256, int(self._usable_tokens * compaction.FOLD_AT) - prompt.tokens
        )
        """Tokens that the conversation and the new input may take."""
        self._rendered = RenderedInput()
        """New input of the next request."""
        self._card_label = TRUSTED_LABEL
        self._with_images = self._with_past_images = model.takes_images

    async def build(self) -> PromptInput:
        """Build the turn's prompt with the new input that fits, and record who may have caused what
        it leads to. The view is folded where that is due.
        """
        new = self._turn.input
        unread, rendered = await new.render_fitting(self._budget_tokens >> self.tries)
        self._rendered = rendered if self._with_images else replace(rendered, media=())
        self.is_folded = self._turn.nudged = False
        if self.tries or not self._has_room():
            await self.fold(self._rendered, self.tries)
        prompt_input = await self._build_prompt_input(
            self._turn.view, self._rendered, folded=self.is_folded
        )
        new.mark_read(unread, self._rendered)
        self._add_requesters()
        self._turn.label.label |= self._turn.view.label | new.label | self._card_label
        return prompt_input

    def retry_with_less(self, error: PromptTooLong | RequestRefused) -> TurnOutcome | None:
        """Prepare another try after the first request was refused. None: there is one; else the
        outcome.
        """
        turn, has_media = self._turn, bool(self._rendered.media)
        turn.preparation.record_lost(error.accounts)
        if isinstance(error, PromptTooLong):
            self.tries += 1
        else:  # an image that looks whole and is not must not end all conversation there
            logger.warning("%s: asked again without images: %s", turn.conversation, error.reason)
            if has_media and not turn.has_refused_images:
                turn.has_refused_images = True
                self._directives = f"{self._directives}\n{load_prompt('images_refused')}".strip()
            self._with_past_images = self._with_past_images and has_media
            self._with_images = False
        if self.tries <= MAX_FOLDS:
            return None
        return TurnOutcome(outcome="failed", reason=error.reason, cause=error.cause)

    def _has_room(self) -> bool:
        """Return whether the window is so far from full that no fold can be due, and the view has
        nothing else to leave out.
        """
        view, settings = self._turn.view, self._context.gateway.live.optimization.compaction
        if self._rendered.media or not view.is_plain:
            return False
        new_tokens = estimate_tokens(self._rendered.text)
        expected = (self._prompt.tokens + view.tokens + new_tokens) * view.scale
        billed = view.turns[-1].record.prompt_tokens if view.turns else 0
        full = min(compaction.NUDGE_AT, settings.compact_at_pct)
        return max(expected, billed) < int(full * self._usable_tokens)

    async def fold(
        self, rendered: RenderedInput, tries: int, *, is_requested: bool = False
    ) -> None:
        """Fold the view where that is due, see `Compactor.fold_if_due`."""
        turn = self._turn
        turn.view, self.is_folded, turn.nudged = await self._context.compaction.fold_if_due(
            turn.place,
            turn.view,
            self,
            fixed_tokens=self._prompt.tokens,
            rendered=rendered,
            attempts=tries,
            is_requested=is_requested,
        )

    async def _build_prompt_input(
        self, view: HistoryView, rendered: RenderedInput, *, folded: bool
    ) -> PromptInput:
        turn, context, prompt = self._turn, self._context, self._prompt
        card, self._card_label = await context.prompts.card(turn.place, prompt, folded=folded)
        nudge = load_prompt("write_down") if turn.nudged else ""
        nows = [self._directives, nudge] if rendered.text else []
        images = await context.history.media.load_images(rendered.media) if rendered.media else ()
        return PromptInput(
            persona=prompt.persona,
            skills=await context.render_skills(self._plugins),
            binding=prompt.binding,
            card=card,
            history=await context.history.load_exchanges(view, seeing=self._with_past_images),
            input_text=rendered.text,
            images=images,
            aside=self._aside if rendered.text else "",
            now="\n".join(filter(None, nows)),
            conversation=turn.conversation,
        )

    def _add_requesters(self) -> None:
        """Have the tools act for all people who may have caused what the turn does."""
        turn, tools = self._turn, self.tools
        turn.handle.requesters = deduplicate_requesters(
            [*tools.requesters, *turn.input.requesters()]
        )
        role = role_of_integrity(turn.input.label.integrity)
        self.tools = replace(
            tools,
            requesters=turn.handle.requesters,
            unasked_role=lowest_role([tools.unasked_role, role]),
        )

    @property
    def label(self) -> Label:
        """Label of all that the turn's requests held so far."""
        return self._turn.label.label

    async def build_summary_request(self, history: HistoryView) -> ModelRequest:
        """Return the request of the turn with this view and no new input, for the summarizer."""
        context = self._context
        prompt_input = await self._build_prompt_input(history, RenderedInput(), folded=False)
        return build_first_request(
            prompt_input, context.model.model, context.tools.specs, context.agent.id
        )

    async def keep(self, call: ToolCall, result: ToolResult) -> EvidenceRef | None:
        turn = self._turn
        return await keep_result(self._context.gateway, turn.id, turn.conversation, call, result)

    def record_cut(self) -> None:
        agent = self._context.agent.id
        self._context.compaction.stats.count(agent, "tool_result_truncated")

    async def call(self, call: ToolCall) -> ToolResult:
        """Carry out one call. A person who speaks during the turn has a say in what may be
        called.
        """
        turn, handle = self._turn, self._turn.handle
        handle.is_drafting = False
        turn.waits_since_s = math.inf
        handle.running_calls += 1
        try:
            return await self._context.tools.call(call, self.tools)
        finally:
            handle.running_calls -= 1

    def answer_grew(self, text: str) -> None:
        turn, handle = self._turn, self._turn.handle
        handle.is_drafting = bool(text.strip()) and not turn.progress.current.steps
        if handle.is_drafting and handle.is_corrected:
            # Not here, in the turn itself: it may be about to write its record.
            asyncio.get_running_loop().call_soon(handle.interrupt)
            return
        if may_begin_prefix(text, turn.own_names):
            return
        text = strip_line_prefix(text, turn.own_names)
        if text and not text.isspace():
            turn.waits_since_s = self._context.gateway.clock.monotonic()
        self._tracker.tell(turn.id, AnswerGrew(text))

    def thinking_grew(self, text: str) -> None:
        self._tracker.tell(self._turn.id, ThinkingGrew(text))

    async def fetch_arrivals(self, room: int) -> str:
        """See `TurnHost`. News of the inner conversation wait for its next digest."""
        turn, agent = self._turn, self._context.agent
        has_news = turn.handle.take_news() or agent.may_take_arriving(turn.conversation)
        if turn.is_inner or not has_news:
            return ""
        known = len(turn.input.requesters())
        text, label = await turn.input.render_news(self._budget_tokens, room)
        turn.hear(turn.input.arrived)
        if turn.running is not None:
            turn.running.is_awaited = turn.is_awaited
        turn.label.label |= label
        if len(turn.input.requesters()) > known:  # the turn is theirs now, whatever began it
            self.is_addressed, turn.autonomous = True, False
            self.tools = replace(self.tools, autonomous=False)
        self._add_requesters()
        return text

    async def shorten(self, times: int) -> PromptInput | None:
        await self.fold(self._turn.input.rendered, times)
        prompt_input = await self._build_prompt_input(
            self._turn.view, self._turn.input.rendered, folded=self.is_folded
        )
        self._turn.label.label |= self._turn.view.label | self._turn.input.label | self._card_label
        return prompt_input

    async def can_afford(self, request: ModelRequest) -> bool:
        is_covered = await self._reserve(request, waits=True)
        await self._context.gateway.store.wait_until_writable()
        if is_covered:
            self._turn.expect_answer(self._tracker)
        return is_covered

    async def can_afford_now(self, request: ModelRequest) -> bool:
        """Return whether the budgets cover the request without waiting for others', and reserve its
        highest cost.
        """
        is_writable = self._context.gateway.store.outage is None
        return is_writable and await self._reserve(request, waits=False)

    async def _reserve(self, request: ModelRequest, *, waits: bool) -> bool:
        """Reserve money of those who pay: authors of addressed messages, and setters of
        reminders.
        """
        context, turn, new = self._context, self._turn, self._turn.input
        addressed = [one.message.sender for one in new.messages if is_addressed(one.message)]
        people = {one.id: one for one in (*addressed, *turn.handle.requesters) if one.id}
        askers = [*people.values(), *new.setters]
        turn.limit_hit = await context.limits.reserve(
            turn.id,
            Payers(turn.place, context.agent.id, askers, turn.autonomous),
            context.model.ceiling_usd(request),
            budgeted_usd((*self.preparation.current.accounts, *self.progress.current.accounts)),
            waits=waits,
        )
        return turn.limit_hit is None


def _build_tool_context(turn: Turn, visibility: Visibility) -> ToolContext:
    """Return the context in which the turn uses its tools, before anybody is known to ask for
    something.
    """
    return ToolContext(
        turn=turn.id,
        agent=turn.context.agent.id,
        at=turn.place,
        visibility=visibility,
        autonomous=turn.autonomous,
        request=turn.label,
    )


def _find_directives(turn: Turn) -> str:
    """Return the instructions for this turn only, with the operator's authority; usually empty."""
    context = turn.context
    texts, state = list[str](), context.agent.state
    if not turn.autonomous:
        if state.mode in (DmnMode.PAUSED, DmnMode.OFF):
            texts.append(load_prompt(state.mode.value))
    elif turn.is_inner:
        mode = DmnMode.STORED if state.woken else state.mode
        texts.append(load_prompt(DmnMode.WORKING if turn.continuing else mode))
    else:
        texts.append(load_prompt("working" if turn.continuing else "own"))
        places = context.gateway.places
        is_spoken_to = turn.continuing or places.direct.get(turn.conversation, False)
        if not is_spoken_to and places.bindings.find(turn.place).speaks_up != "never":
            texts.append(load_prompt("speak_up"))
    if turn.autonomous and state.quiet_until is not None and not (turn.due or turn.is_promised):
        texts.append(load_prompt("quiet"))
    step = turn.view.next_step if turn.continuing else ""
    if step:
        texts.append(NEXT_STEP.format(step=step.replace('"', "'")))
    if context.model.model.takes_tools and context.tools.may_change:
        texts.append(render_tool_status(*context.tools.changed_names))
    opens_thread = any(one.message.opens_thread for one in turn.input.messages)
    is_shown = turn.running is not None and turn.running.is_shown
    # Where the answer grows, the thread is there before it.
    if opens_thread and not is_shown and context.model.model.family != PLAIN_FAMILY:
        turn.thread_title = ""
        texts.append(load_prompt("thread_title"))
    return "\n".join(filter(None, texts))
