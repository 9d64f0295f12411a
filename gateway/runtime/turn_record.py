"""What a turn leaves behind: its record, its post, and the texts in place of an answer.

- `Turn` is what one turn is and what it has done so far.
- `write_record` writes its record and its post in one transaction. Until then the messages are
  unread, and a crash only means that the model is asked again; afterwards they are consumed and
  never asked again.
- `post_notice` says at once what belongs to no turn.
- `build_post_entries` lets plugins have their say in a post, such as that a preview becomes it.
"""

import asyncio
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, NamedTuple

from agent.models.base import FailureCause
from agent.prompt import strip_line_prefix
from agent.signals import TurnEnded
from agent.tools import ENDING_TOOL_NAMES, carried_out, find_next_step, read_call
from agent.turn_context import TurnOutcome, TurnProgress, call_key
from gateway.access.limits import LimitHit
from gateway.context.conversation import (
    NO_VIEW,
    ConversationReader,
    CurrentMessage,
    find_reply_to,
    is_addressed,
)
from gateway.context.observer import RunningTurn, TurnTracker
from gateway.core.clock import new_id
from gateway.core.events import (
    Address,
    Alarm,
    ConversationId,
    Message,
    MessageId,
    Post,
    PostKey,
    Sender,
    SenderId,
    TaskFinished,
    TurnStep,
)
from gateway.core.facts import (
    PostQueued,
    PreviewEnded,
    Seq,
    TurnCause,
    TurnId,
    TurnRecord,
    is_inner,
)
from gateway.core.i18n import N_, _, current_language
from gateway.core.identity import BRIDGE_PREFIX, name_to_address
from gateway.core.labels import RequestLabel
from gateway.core.text_safety import escape_markdown, name_in_front, to_single_line
from gateway.core.tool_spec import ToolCall
from gateway.hooks import Plugins
from gateway.runtime.turn_handle import TurnHandle
from gateway.runtime.turn_input import AgentContext, TurnInput
from gateway.store import NewEntry
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.turns")

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
    "overloaded": N_(
        "My model is overloaded right now. I will answer once it works again, or tell you if that "
        "takes too long."
    ),
    "unreachable": N_(
        "I cannot reach my model right now. I will answer once I can, or tell you if that takes "
        "too long."
    ),
}
"""Texts posted once where a question waits for a model: causes that pass by themselves."""

WAIT_TEXT: Final = N_("Its provider asks me to wait until about {time}.")
"""Stands behind one of them where a provider has just said for how long."""
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
MAX_NOTIFIED: Final = 5
"""Most people whom one post notifies."""
MAX_NAMED_ASKERS: Final = 5
"""Most people whose names an answer begins with. More are a crowd, which no list of names helps."""
SLOW_S: Final = 20.0
"""Seconds that people wait for a model without a word."""
UNSEEN_S: Final = 40.0
"""Seconds for which an answer that grows unseen does not count as slow."""
SLOW_TEXT: Final = N_("My model is slow right now. I am still waiting for its answer.")
QUEUED_TEXT: Final = N_(
    "I have a lot of questions to answer right now. I will answer as soon as it is your turn."
)
"""Posted where a turn waits for others to end."""


class Awaited(NamedTuple):
    """Message for which somebody waits."""

    seq: Seq | None
    """None: it is not known."""
    at: datetime
    message: MessageId | None = None
    """Its id on the platform. None: not known."""
    sender: SenderId | None = None
    """None: not known."""


MAX_NOTE_CHARS: Final = 200
_MAX_DETAIL_CHARS: Final = 100
_ACTIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "attend": ("attended", "room", "reason"),
    "tell": ("told", "who", "text"),
    "send_message": ("wrote to", "address", "text"),
    "intend": ("intends", "", "what"),
    "remind": ("set a reminder", "", "text"),
    "journal": ("wrote down", "", "title"),
    "remember": ("wrote down", "", "text"),
}
"""Tool -> what it did in words, and its arguments that say where or whom, and what or why."""


class Turn:
    """One turn: what it is, and what it has done so far, which can be recorded at any time."""

    def __init__(
        self,
        context: AgentContext,
        conversation: ConversationId,
        handle: TurnHandle,
        reader: ConversationReader,
        *,
        autonomous: bool,
        continuing: bool = False,
        is_compaction: bool = False,
    ) -> None:
        """`is_compaction`: it only folds the view, on request."""
        self.began = context.gateway.clock.now()
        self.id = TurnId(new_id(self.began))
        self.conversation = conversation
        self.place = Address.parse(conversation)
        self.is_inner = is_inner(conversation)
        self.context = context
        self.handle = handle
        self.autonomous = autonomous
        self.continuing = continuing
        self.input = TurnInput(context.gateway.store, reader, conversation, context.model.model)
        self.view = NO_VIEW
        """The earlier turns, as it sees them."""
        self.own_names = context.prompts.own_names(self.place)
        """What the agent is called there."""
        self.recalled: tuple[str, ...] = ()
        """Names of the recalled items, see `gateway.plugin.Part.names`."""
        self.nudged = False
        """It was asked to write down what it needs, because the window is nearly full. Never in a
        request whose view has just been folded."""
        self.label = RequestLabel()
        self.preparation = TurnProgress()
        """Costs of summaries, also of one that was cut off."""
        self.progress = TurnProgress()
        self.limit_hit: LimitHit | None = None
        """The budget that the turn would exceed. None: none so far."""
        self.running: RunningTurn | None = None
        """As plugins and operators see it. None: no model is to be asked for an answer."""
        self.waits_since_s = math.inf
        """Time (monotonic) of the last piece of the answer, or since when people wait for it. inf:
        they do not, or it is not the model that they wait for."""
        self.slow_task: asyncio.Task[None] | None = None
        """Tells people who wait that the model is slow."""
        self.is_put_off = False
        """No model answered, and a later turn is to answer."""
        self.has_refused_images = False
        """The provider has refused pictures of its new input."""
        self.thread_title: str | None = None
        """Title of the thread that its answer opens. None: the model is not asked for it."""
        self._is_compaction = is_compaction

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

    @property
    def is_awaited(self) -> bool:
        """A person waits for an answer: only they get a message about a failure."""
        return not self.is_inner and (
            self.cause in ("addressed", "alarm")
            or any(is_addressed(one.message) for one in self._said())
        )

    @property
    def due(self) -> Sequence[Alarm]:
        """Reminders and intentions that are new to it."""
        facts = [one.fact for one in self.input.unread.messages]
        return [one for one in facts if isinstance(one, Alarm) and not one.attended]

    @property
    def is_promised(self) -> bool:
        """The result of a call is new to it, and people were told that they get it."""
        facts = [one.fact for one in self.input.unread.messages]
        return any(isinstance(one, TaskFinished) and one.promised for one in facts)

    @property
    def is_only_due(self) -> bool:
        """True: it is for reminders and intentions, and nobody has spoken to the agent."""
        said = [one for one in self._said() if not one.notice and is_addressed(one.message)]
        return bool(self.due) and not said

    def hear(self, messages: Sequence[CurrentMessage]) -> None:
        """Let changes of the messages to the agent reach the turn from now on."""
        said = [one.message for one in messages if is_addressed(one.message)]
        self.handle.heard |= {one.id: (one.sender.id, one.text) for one in said}

    def expect_answer(self, tracker: TurnTracker) -> None:
        """Say once that the model is slow if somebody waits, and nothing more of the answer comes
        for `SLOW_S`, or they see nothing of it for that and `UNSEEN_S`.

        It is said where the answer is shown as it grows; where it is not, in a post of its own.
        """
        if (
            self._is_compaction
            or self.is_only_due
            or not self.is_awaited
            or self.context.agent.is_put_off(self.conversation)  # they were told of it
        ):
            return
        self.waits_since_s = self.context.gateway.clock.monotonic()
        if self.slow_task is None:
            self.slow_task = self.context.gateway.tasks.create_task(self._tell_slow(tracker))

    async def _tell_slow(self, tracker: TurnTracker) -> None:
        gateway, unseen_until_s = self.context.gateway, self.waits_since_s + UNSEEN_S
        while True:
            since_s = self.waits_since_s
            is_shown = self.running is not None and self.running.is_shown
            if not is_shown and since_s < math.inf:  # it is the model that they wait for
                since_s = min(since_s, unseen_until_s)
            left_s = since_s + SLOW_S - gateway.clock.monotonic()
            if left_s <= 0:
                break
            await gateway.clock.sleep(min(left_s, SLOW_S))
        if self.running is not None and self.running.is_shown:
            tracker.tell(self.id, "slow")
        else:
            await post_notice(gateway, self.place, _(SLOW_TEXT), self.oldest_awaited().seq)

    def oldest_awaited(self) -> Awaited:
        """Return the oldest message for which somebody waits, or the interrupted turn that had
        it.
        """
        for one in self.input.unread.messages:
            if isinstance(one.fact, Message) and is_addressed(one.fact):
                return Awaited(one.seq, one.at)
        if self.view.turns:
            earlier = self.view.turns[-1]
            return Awaited(earlier.seq, earlier.at)
        return Awaited(None, self.context.gateway.clock.now())

    def first_awaited(self) -> list[Awaited]:
        """Return the first unread message of each person who waits, or what an interrupted turn
        had.
        """
        first = dict[SenderId, Awaited]()
        for one in self.input.unread.messages:
            if isinstance(one.fact, Message) and is_addressed(one.fact):
                sender = one.fact.sender.id
                first.setdefault(sender, Awaited(one.seq, one.at, one.fact.id, sender))
        return [*first.values()] or [
            self.oldest_awaited()._replace(message=find_reply_to(self._said()))
        ]

    def may_wait(self) -> bool:
        """Return whether the turn may wait for a model: as long as people who wait may, for ever if
        nobody does. A reminder does not wait, an intention does.
        """
        gateway, agent = self.context.gateway, self.context.agent
        if self.handle.stop_reason or self.handle.drop_reason or agent.is_faulty(self.conversation):
            return False
        if not self.is_awaited:
            return self.autonomous
        if self.is_only_due:
            return all(one.intended for one in self.due)
        waited_s = (gateway.clock.now() - self.oldest_awaited().at).total_seconds()
        return waited_s < gateway.live.settings.llm.overload_wait

    def is_repetition(self, outcome: TurnOutcome) -> bool:
        """Return whether it goes on as the last ones went on: with the same calls and the same
        text, in vain.
        """
        run = [one.record for one in self.view.turns][-(MAX_SAME_TURNS - 1) :]
        done = _list_calls(outcome.steps), self.context.gateway.redactor(outcome.text)
        is_run = (
            self.continuing and len(run) == MAX_SAME_TURNS - 1 and all(one.continued for one in run)
        )
        return is_run and all((_list_calls(one.steps), one.text) == done for one in run)

    def conclude(self, outcome: TurnOutcome) -> TurnOutcome:
        """Return the outcome as it is recorded: without a copy of our line form and the title of
        the thread in front of its text, with the costs of making room. One that was stopped or
        dropped has yielded.
        """
        if text := outcome.text and strip_line_prefix(outcome.text, self.own_names):
            if self.thread_title is not None and (found := _TITLE.match(text)) is not None:
                self.thread_title = self.context.gateway.redactor(found[1])
                text = text[found.end() :]
            outcome = replace(outcome, text=text)
        room = self.preparation.current
        if room.requests:
            outcome = replace(
                outcome,
                usage=room.usage + outcome.usage,
                requests=room.requests + outcome.requests,
                accounts=(*room.accounts, *outcome.accounts),
            )
        why = self.handle.stop_reason or self.handle.drop_reason
        if why:
            outcome = replace(outcome, outcome="yielded", text="", reason=why, yielded=True)
        return outcome

    def build_record(self, outcome: TurnOutcome) -> TurnRecord:
        """Return the record of the turn, with the text for whoever waits for an answer."""
        consumed, redact = self.input, self.context.gateway.redactor
        text = redact(outcome.text)
        if outcome.outcome == "failed":
            logger.error("turn %s failed: %s", self.id, outcome.reason)
            text = self._explain_failure(outcome.cause) if self.is_awaited else ""
        return TurnRecord(
            turn=self.id,
            covers=consumed.rendered.covers,
            omitted=consumed.omitted,
            heard=consumed.rendered.text,
            upto=consumed.upto,
            outcome=outcome.outcome,
            text=text,
            reason=redact(outcome.reason),
            failure=outcome.cause
            if outcome.outcome == "failed" or outcome.cause == "cut" or self.is_put_off
            else "",
            model=outcome.model,
            usage=outcome.usage,
            requests=outcome.requests,
            instead_of=redact(outcome.instead_of),
            autonomous=self.autonomous,
            media=consumed.rendered.media,
            accounts=outcome.accounts,
            agent=self.context.agent.id,
            senders=consumed.rendered.senders,
            steps=outcome.steps,
            cause=self.cause,
            continued=self.continuing,
            looked=consumed.looked,
            prompt_tokens=outcome.prompt_tokens,
            prompt_estimate=outcome.prompt_estimate,
            recalled=self.recalled if consumed.rendered.text else (),
            nudged=self.nudged,
            label=self.label.label | consumed.label,
            note=redact(compose_note(outcome.steps, outcome.text if self.is_inner else ""))
            if self.autonomous
            else "",
        )

    def render_due(self) -> str:
        """Return what people are told of what is due without a model."""
        promise, reminder = _("I could not do what I intended: {text}"), _("Reminder: {text}")
        texts = [self.context.gateway.redactor(one.text) for one in self.due]
        return "\n".join(
            (promise if one.intended else reminder).format(text=escape_markdown(text, len(text)))
            for one, text in zip(self.due, texts, strict=True)
        )

    def _explain_failure(self, cause: FailureCause) -> str:
        """Return what whoever waits is told: of a reminder, its text."""
        is_told = self.is_only_due and not any(one.intended for one in self.due)
        return f"{self.render_due()}\n{'' if is_told else _(FAILURE_TEXTS[cause])}".strip()

    def to_entry(self, outcome: TurnOutcome) -> NewEntry:
        """Return the entry of its record."""
        ended = self.build_record(outcome)
        return NewEntry(
            fact=ended,
            at=self.context.gateway.clock.now(),
            conversation=self.conversation,
            key=f"turn:{ended.turn}",
            cause=self.input.upto or None,
        )

    def end(self, outcome: TurnOutcome) -> TurnEnded:
        """Return what the agent's DMN learns of an outcome, but for what is left unread there."""
        has_failed, steps = outcome.outcome == "failed", outcome.steps
        is_unanswered = not outcome.requests or (has_failed and outcome.cause in PUT_OFF_TEXTS)
        return TurnEnded(
            at=self.context.gateway.clock.now(),
            conversation=self.conversation,
            failed=has_failed,
            used_tools=bool(steps and carried_out(steps)),
            open_work=outcome.wants_more or bool(steps and find_next_step(steps)),
            yielded=outcome.yielded,
            interrupted=outcome.outcome == "interrupted",
            autonomous=self.autonomous,
            model=self.context.model.name,
            answered=None if is_unanswered else self.began,
        )

    def _said(self) -> Sequence[CurrentMessage]:
        return (*self.input.messages, *self.input.arrived)


async def write_record(turn: Turn, outcome: TurnOutcome, plugins: Plugins) -> None:
    """Append the turn, what plugins record of it, and its post."""
    store, record = turn.context.gateway.store, turn.to_entry(outcome)
    ended = record.fact
    assert isinstance(ended, TurnRecord)
    entries = [record]
    for fact in await plugins.after_turn(ended):
        where = record.conversation
        entries.append(NewEntry(fact=fact, at=record.at, conversation=where, cause=record))
    if not ended.text or turn.is_inner:  # a reply in the inner conversation has no reader
        await store.append(entries)
        return
    said = (*turn.input.messages, *turn.input.arrived)
    covers = turn.input.rendered.covers
    askers = [  # whoever spoke to the agent twice is there twice
        one.message.sender
        for one in said
        if one.seq in covers and is_addressed(one.message) and one.message.sender.id
    ]
    marks = [ended.text]  # behind the answer, for people; the model does not read them
    if ended.outcome == "replied":
        marks += [_(CUT_TEXT)] if ended.failure == "cut" else []
        marks += [_(IMAGES_REFUSED_TEXT)] if turn.has_refused_images else []
    notified = {one.id: Sender(id=one.id, name=one.name) for one in (*askers, *turn.input.setters)}
    post = Post(
        key=PostKey(ended.turn),
        to=turn.place,
        text=_name_askers(askers, "\n\n".join(marks)),
        reply_to=find_reply_to(said),
        notify=tuple(notified.values())[:MAX_NOTIFIED],
        thread_title=turn.thread_title or "",
        language=current_language(),
    )
    entries += await build_post_entries(turn, post, record.at, record, plugins)
    await store.append(entries)


def _name_askers(askers: Sequence[Sender], text: str) -> str:
    """Return the answer with the names of those whom it answers in front, if they are several and
    it does not tell.

    Also where the post is shown as a reply: that shows one of them. One person behind a bridge is
    named, too: there nothing else tells them.
    """
    senders = {one.id: name_to_address(one) for one in askers}
    is_bridged = any(who.startswith(BRIDGE_PREFIX) for who in senders)
    is_few = (0 if is_bridged else 1) < len(senders) <= MAX_NAMED_ASKERS
    return name_in_front(text, list(dict.fromkeys(senders.values()))) if is_few else text


async def post_notice(gateway: GatewayHandle, at: Address, text: str, cause: Seq | None) -> None:
    """Append a post that belongs to no turn, so that no model reads it. `cause`: the message that
    waits.
    """
    now = gateway.clock.now()
    post = Post(key=PostKey(new_id(now)), to=at, text=text, style="notice")
    fact, key = PostQueued(post=post), f"post:{post.key}"
    await gateway.store.append(
        [NewEntry(fact=fact, at=now, conversation=at.conversation, key=key, cause=cause)]
    )


async def build_post_entries(
    turn: Turn, post: Post, now: datetime, cause: Seq | NewEntry | None, plugins: Plugins
) -> list[NewEntry]:
    """Return the entries that post this, which plugins may change. Its previews have ended then."""
    if turn.running is not None:
        channel = turn.context.gateway.channels.get(post.to.channel)
        post = await plugins.before_post(channel, turn.running, post)
    ended = [PreviewEnded(at=post.to, message=message, reason="") for message in post.previews]
    place, key = turn.conversation, f"post:{post.key}"
    return [
        NewEntry(fact=PostQueued(post=post), at=now, conversation=place, key=key, cause=cause),
        *[NewEntry(fact=fact, at=now, conversation=post.to.conversation) for fact in ended],
    ]


def _list_calls(steps: Sequence[TurnStep]) -> list[str]:
    return [
        call_key(ToolCall(id="", name=call.name, arguments=call.arguments))
        for step in steps
        for call in step.calls
    ]


def compose_note(steps: Sequence[TurnStep], text: str = "") -> str:
    """Return the line of an autonomous turn (`TurnRecord.note`): as the agent wrote it when it
    ended the turn, else made of what it did; else `text`.

    `text`: what the agent wrote where nobody reads it.
    """
    calls = [call for step in steps for call in step.calls if not call.error]
    read = [read_call(call) for call in calls]
    notes = [str(given.get("note") or "") for name, given in read if name in ENDING_TOOL_NAMES]
    done = [_describe_action(name, given) for name, given in read if name in _ACTIONS]
    line = next(filter(str.strip, reversed(notes)), "") or "; ".join(done) or text
    return to_single_line(line, MAX_NOTE_CHARS)


def _describe_action(name: str, given: Mapping[str, object]) -> str:
    verb, target, detail = _ACTIONS[name]
    where = to_single_line(str(given.get(target) or ""), _MAX_DETAIL_CHARS)
    what = to_single_line(str(given.get(detail) or ""), _MAX_DETAIL_CHARS)
    return f"{f'{verb} {where}'.rstrip()}{f': {what}' if what else ''}"
