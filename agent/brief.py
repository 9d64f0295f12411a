"""Input and outcome of a turn: what the gateway passes to the agent (`PromptInput`) and what it gets back. Pure.

The agent never reads the store. A `PromptInput` holds everything that a prompt is made from, already filtered by access
and scope, so that the same input always gives the same bytes.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from agent.models.base import FailureCause, MessagePart, Model, ModelMessage, StreamEnd, TextPart
from agent.steps import arrived_texts, render_steps
from agent.tokens.calibration import count_prompt_tokens
from agent.tools import ToolSurface
from gateway.core.events import RequestUsage, TurnStep, Usage
from gateway.core.text_safety import NameWarning
from gateway.core.tool_spec import Image

NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """Result of a turn."""

    outcome: Literal["replied", "silent", "yielded", "failed", "interrupted"]
    text: str = ""
    """Text to post. Empty unless `replied`."""
    reason: str = ""
    """Reason for a failure, or for not asking the model; otherwise empty. Holds no secrets."""
    cause: FailureCause = "broken"
    """Cause of a failure, from which messages to people are made."""
    yielded: bool = False
    """True: the agent wants to rest. It may have replied too."""
    used_tools: bool = False
    """True: a tool worked on a task (`ToolSpec.is_task`). Calls that were refused, failed or repeated do not count."""
    is_over_budget: bool = False
    """True: the next request would have cost more than is left."""
    model: str = ""
    usage: Usage = NO_USAGE
    requests: int = 0
    accounts: tuple[RequestUsage, ...] = ()
    """Accounts of the requests for which cache accounting is done."""
    steps: tuple[TurnStep, ...] = ()
    """Answers with tool calls, each with the results and arrivals that the model received after it."""
    prompt_tokens: int = 0
    """Billed tokens of the last prompt. 0: not reported."""
    prompt_estimate: int = 0
    """Tokens of the same prompt as `agent.turn_context.ContextWindow` estimated them."""


@dataclass(slots=True)
class TurnProgress:
    """Progress of a turn so far. If the turn is interrupted, this is what gets recorded."""

    current: TurnOutcome = field(default_factory=lambda: TurnOutcome(outcome="interrupted"))

    def record_answer(self, end: StreamEnd, model: Model, estimate: int) -> None:
        """Record that a request was answered. `estimate`: its tokens as estimated before."""
        self.record_lost(end.lost_accounts)
        done, usage = self.current, end.usage
        self.current = replace(
            done,
            usage=done.usage + usage,
            prompt_tokens=count_prompt_tokens(usage),
            prompt_estimate=estimate,
            requests=done.requests + 1,
            model=end.model or model.name,
            accounts=done.accounts if end.account is None else (*done.accounts, end.account),
        )

    def record_lost(self, accounts: tuple[RequestUsage, ...]) -> None:
        """Record requests that broke off: they are billed as well."""
        done = self.current
        self.current = replace(
            done,
            usage=sum((account.usage for account in accounts), start=done.usage),
            requests=done.requests + len(accounts),
            accounts=(*done.accounts, *accounts),
        )

    def record_step(self, step: TurnStep, *, worked: bool) -> None:
        """Record a step with tools, also one that was interrupted. `worked`: as `TurnOutcome.used_tools`."""
        self.current = replace(
            self.current, steps=(*self.current.steps, step), used_tools=self.current.used_tools or worked
        )

    def add_arrivals(self, arrivals: str) -> TurnStep:
        """Add messages that arrived meanwhile behind the results of the last step. Return that step."""
        *before, step = self.current.steps
        step = replace(step, heard=arrivals)
        self.current = replace(self.current, steps=(*before, step))
        return step

    def replace_steps(self, steps: tuple[TurnStep, ...]) -> None:
        """Replace the last steps by these, which stand for them with shorter results."""
        self.current = replace(
            self.current, steps=(*self.current.steps[: len(self.current.steps) - len(steps)], *steps)
        )

    def finish(self, ending: TurnOutcome) -> TurnOutcome:
        """Return the complete outcome of a turn that ended like this."""
        return replace(
            self.current,
            outcome=ending.outcome,
            text=ending.text,
            reason=ending.reason,
            cause=ending.cause,
            yielded=ending.yielded,
        )


NOTHING_NEW = "(nothing new)"
"""User text of a turn that starts without new messages: sides alternate, and the first and the last are the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """One message as the model reads it."""

    sender: str
    """Display name. Untrusted."""
    role: str
    """Role of the sender: owner, admin, member or guest."""
    is_bot: bool = False
    """True: the platform marks the sender as a bot."""
    sent: datetime
    text: str
    """Untrusted; may hold line breaks."""
    is_addressed: bool
    """True: sent to the agent (direct, mention, reply). False: overheard in a room."""
    reply_to: tuple[str, str] | None = None
    """Author (`you`: the agent) and beginning of the message that it replies to. Untrusted. None: no reply, or not
    known."""
    is_edited: bool = False
    """True: `text` is not the original text."""
    attachments: tuple[str, ...] = ()
    """Descriptions of the attachments, one line each, as `gateway.core.media_types` writes them."""
    is_topic_change: bool = False
    """True: no message, but a change of the topic to `text` by the sender."""
    is_title_change: bool = False
    """With `is_topic_change`: the name of the room or thread changed, not its topic."""
    lookalike: NameWarning | None = None
    """Another name that `sender` may be mistaken for. None: no such name."""
    event: tuple[tuple[Literal["own", "name", "quoted"], str], ...] = ()
    """No message, but an event: pieces in the gateway's own words, and between them names and words of people,
    untrusted. With it `sender`, `role` and `text` have no meaning. Empty: a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTurn:
    """A past turn."""

    input_text: str
    """New lines of that turn, as `agent.prompt.render_prompt_lines` wrote them then."""
    reply: str
    """Reply of the agent. Empty: the agent was silent."""
    images: tuple[Image, ...] = ()
    """Images shown in that turn, in the order of the lines. Empty for a model without vision."""
    steps: tuple[TurnStep, ...] = ()
    """Steps with tools, answer by answer."""
    without_tools: bool = False
    """True: of the steps only the messages that arrived meanwhile are repeated. For a model without tools, or if
    `loop_summary` stands for them."""
    loop_summary: str = ""
    """Summary that stands for the tool calls, behind all messages. Empty: none."""
    tool_images: tuple[tuple[str, Image], ...] = ()
    """Images that tools returned, by the SHA-256 of their bytes. Empty for a model without vision."""
    messages: tuple[ModelMessage, ...] = field(init=False, compare=False, repr=False)
    """The turn as messages of a request. Built once, so that their identity (`is`) shows what two requests have in
    common."""

    def __post_init__(self) -> None:
        parts: tuple[MessagePart, ...] = (*([TextPart(text=self.input_text)] if self.input_text else []), *self.images)
        parts = (*parts, *arrived_texts(self.steps)) if self.without_tools else parts
        parts = (*parts, TextPart(text=self.loop_summary)) if self.loop_summary else parts
        steps = () if self.without_tools else render_steps(self.steps, dict(self.tool_images))
        reply = (ModelMessage(role="assistant", parts=(TextPart(text=self.reply),)),) if self.reply else ()
        if not parts and (steps or reply):  # the agent began by itself
            parts = (TextPart(text=NOTHING_NEW),)
        input_messages = (ModelMessage(role="user", parts=parts),) if parts else ()
        object.__setattr__(self, "messages", (*input_messages, *steps, *reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCard:
    """Description of the place of a conversation, in facts that change rarely or never."""

    platform: str
    channel: str
    """Account id, e.g. `irc.libera`."""
    room: str
    """Name of the room as people use it; for a direct chat, the name of the other person. Untrusted."""
    kind: Literal["direct", "room", "unnamed"]
    """unnamed: the name is not known, and `room` is a description in the gateway's own words."""
    is_title: bool = False
    """True: `room` is a title, shown as a quotation. False: it is the room's identifier on its platform."""
    handle: str = ""
    """Identifier of the other person in a direct chat, e.g. `@ann`. Empty: not known."""
    server: str = ""
    """Guild or network. Untrusted. Empty: none, or not known."""
    own_name: str = ""
    """Name of the agent there: a nick, or `@name`. Empty: not known."""
    thread: str | None = None
    """Title of the thread. Empty: not known. None: not a thread."""
    formatting: str
    """One sentence on how Markdown is shown there, and how long a message may be."""
    topic: str = ""
    """Untrusted. Empty: none, or not known."""
    people: tuple[tuple[str, str], ...] = ()
    """Display names (untrusted) and roles of notable people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBinding:
    """Settings of the operator for this kind of place."""

    prompt: str = ""
    """Instructions in the operator's own words."""
    language: str | None = None
    peers: tuple[str, ...] = ()
    """Other agents of the same gateway."""
    skills: tuple[str, ...] | None = None
    """Skills of the catalogue that are meant for this place. None: all."""
    private: str = ""
    """USER and MEMORY, in direct chats with the owner. Empty everywhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """Everything that the prompt of one turn is made from."""

    persona: str
    """Identity text, the same for every place and hour."""
    skills: str = ""
    """Catalogue of skills and capabilities, the same for every place and hour."""
    binding: PromptBinding = PromptBinding()
    card: str
    """Channel card as it was pinned (`agent.prompt.render_channel_card`)."""
    history: tuple[PromptTurn, ...]
    """Past turns, oldest first. Between folds it only grows at its end."""
    input_text: str
    """Unread messages, as `agent.prompt.render_prompt_lines` writes them."""
    images: tuple[Image, ...] = ()
    """Images of these messages, in the order of the lines."""
    aside: str = ""
    """Recalled words of people, for this turn only: later prompts do not repeat them."""
    now: str = ""
    """Instructions with the operator's authority, for this turn only: later prompts do not repeat them."""
    tool_surface: ToolSurface = "native"
    """Form in which tools are offered."""
    has_late_tools: bool = False
    """True: tools may be added that the request does not list by themselves."""
    conversation: str = ""
    """Id of the conversation, for caches. Never shown."""
