"""What the gateway tells the agent about a turn: facts, already filtered by access and scope.

The agent never sees the store. A `PromptInput` is everything that a prompt is made from, so the same brief
always gives the same bytes.

What becomes of a turn. Pure.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from agent.models.base import FailureCause, MessagePart, Model, ModelMessage, StreamEnd, TextPart
from agent.steps import arrived_texts, render_steps
from agent.tokens.calibration import count_prompt_tokens
from agent.tools.surface import ToolSurface
from gateway.core.events import RequestUsage, TurnStep, Usage
from gateway.core.text_safety import NameWarning
from gateway.core.tool_spec import Image

NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOutcome:
    """How a turn ended."""

    outcome: Literal["replied", "silent", "yielded", "failed", "interrupted"]
    text: str = ""
    """To be posted; empty unless replied."""
    reason: str = ""
    """Why it failed, or why the model was not asked; empty otherwise. Holds no secrets."""
    cause: FailureCause = "broken"
    """Of a failure, for people."""
    yielded: bool = False
    """The agent wants to rest; it may have replied too."""
    used_tools: bool = False
    """It worked on a task (`ToolSpec.task`): a call that was refused, failed or was made before is no work."""
    is_over_budget: bool = False
    """What it would have asked for next could not be afforded."""
    model: str = ""
    usage: Usage = NO_USAGE
    requests: int = 0
    accounts: tuple[RequestUsage, ...] = ()
    """Of the requests whose cache was kept account of."""
    steps: tuple[TurnStep, ...] = ()
    """Each answer with tool calls, and what the model was told then."""
    prompt_tokens: int = 0
    """Of the last request, as billed. 0: it was not told."""
    prompt_estimate: int = 0
    """Of the same, as `agent.turn_context.ContextWindow` thought."""


@dataclass(slots=True)
class TurnProgress:
    """What a turn has come to so far. Where it is cut off, this is what there is to write down."""

    current: TurnOutcome = field(default_factory=lambda: TurnOutcome(outcome="interrupted"))

    def record_answer(self, end: StreamEnd, model: Model, estimate: int) -> None:
        """One more request has been answered, which was thought to have so many tokens."""
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
        """Requests that broke off were billed as well."""
        done = self.current
        self.current = replace(
            done,
            usage=sum((account.usage for account in accounts), start=done.usage),
            requests=done.requests + len(accounts),
            accounts=(*done.accounts, *accounts),
        )

    def record_step(self, step: TurnStep, *, worked: bool) -> None:
        """Tools were used, or cut off."""
        self.current = replace(
            self.current, steps=(*self.current.steps, step), used_tools=self.current.used_tools or worked
        )

    def add_arrivals(self, heard: str) -> TurnStep:
        """This arrived meanwhile, and is told behind the results of the last step. Returns that step."""
        *before, step = self.current.steps
        step = replace(step, heard=heard)
        self.current = replace(self.current, steps=(*before, step))
        return step

    def replace_steps(self, steps: tuple[TurnStep, ...]) -> None:
        """The last steps are told like this instead."""
        self.current = replace(
            self.current, steps=(*self.current.steps[: len(self.current.steps) - len(steps)], *steps)
        )

    def finish(self, ending: TurnOutcome) -> TurnOutcome:
        """The whole outcome of a turn that ended like this."""
        return replace(
            self.current,
            outcome=ending.outcome,
            text=ending.text,
            reason=ending.reason,
            cause=ending.cause,
            yielded=ending.yielded,
        )


NOTHING_NEW = "(nothing new)"
"""What a turn is told that goes on by itself: sides alternate, the first is the user's, and so is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLine:
    """One message as the agent reads it."""

    sender: str
    """Display name. Untrusted."""
    role: str
    """owner, admin, member, guest."""
    is_bot: bool = False
    """The platform says that it is a machine."""
    sent: datetime
    text: str
    """Untrusted; may hold line breaks."""
    is_addressed: bool
    """True: said to the agent (direct, mention, reply). False: overheard in a room."""
    reply_to: tuple[str, str] | None = None
    """Whom it replies to (`you`: the agent), and how that began. Untrusted. None: nobody, or it is not known."""
    is_edited: bool = False
    """`text` is not what was said first."""
    attachments: tuple[str, ...] = ()
    """What came beside the text, a line each, as `gateway.core.media_types` writes it."""
    is_topic_change: bool = False
    """Nothing was said: the sender changed the topic to `text`."""
    is_title_change: bool = False
    """With `topic`: it was the name of the room or thread instead."""
    lookalike: NameWarning | None = None
    """Whom `sender` may be taken for by their name. None: nobody."""
    event: tuple[tuple[Literal["own", "name", "quoted"], str], ...] = ()
    """Nothing was said: this happened. The gateway's own words, and between them names and words of people, untrusted.
    With it `sender`, `role` and `text` mean nothing. Empty: something was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTurn:
    """A past turn."""

    input_text: str
    """What was new then, as `agent.prompt.render_prompt_lines` wrote it then."""
    reply: str
    """Empty: the agent said nothing."""
    images: tuple[Image, ...] = ()
    """What was shown then, in the order of the lines. Empty for a model that does not see."""
    steps: tuple[TurnStep, ...] = ()
    """The tools that were used, answer by answer."""
    without_tools: bool = False
    """For a model that takes no tools, or where `loop` stands in for them: of the steps only what arrived meanwhile is
    repeated."""
    loop_summary: str = ""
    """What is told in place of the tools, behind all that was heard. Empty: nothing."""
    tool_images: tuple[tuple[str, Image], ...] = ()
    """What the tools brought to be seen, by the hash of its bytes. Empty for a model that does not see."""
    messages: tuple[ModelMessage, ...] = field(init=False, compare=False, repr=False)
    """The same, ready for a request. Made once, so that what goes over a request again knows it by its identity."""

    def __post_init__(self) -> None:
        parts: tuple[MessagePart, ...] = (*([TextPart(text=self.input_text)] if self.input_text else []), *self.images)
        parts = (*parts, *arrived_texts(self.steps)) if self.without_tools else parts
        parts = (*parts, TextPart(text=self.loop_summary)) if self.loop_summary else parts
        steps = () if self.without_tools else render_steps(self.steps, dict(self.tool_images))
        reply = (ModelMessage(role="assistant", parts=(TextPart(text=self.reply),)),) if self.reply else ()
        if not parts and (steps or reply):  # it spoke unasked
            parts = (TextPart(text=NOTHING_NEW),)
        heard = (ModelMessage(role="user", parts=parts),) if parts else ()
        object.__setattr__(self, "messages", (*heard, *steps, *reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelCard:
    """What the channel card tells of where a conversation is: facts that change rarely or never."""

    platform: str
    channel: str
    """The account, e.g. `irc.libera`."""
    room: str
    """As people there call it; of a direct chat: who the other one is. Untrusted."""
    kind: Literal["direct", "room", "unnamed"]
    """unnamed: nobody told what it is called, and `room` is a description in the gateway's own words."""
    is_title: bool = False
    """`room` is a title, told as a quotation. False: it is the name by which its platform finds it."""
    handle: str = ""
    """Of a direct chat: by which the platform finds the other one, e.g. `@ann`. Empty: not known."""
    server: str = ""
    """The guild or network. Untrusted. Empty: there is none, or it is not known."""
    own_name: str = ""
    """What the agent is called there: a nick, or `@name`. Empty: not known."""
    thread: str | None = None
    """Its title; empty: that is not known. None: it is no thread."""
    formatting: str
    """One sentence: what becomes of Markdown there, and how long a message may be."""
    topic: str = ""
    """Untrusted. Empty: there is none, or it is not known."""
    people: tuple[tuple[str, str], ...] = ()
    """Notable people: display name (untrusted) and role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBinding:
    """What the operator says of this kind of place."""

    prompt: str = ""
    """The operator's own words."""
    language: str | None = None
    peers: tuple[str, ...] = ()
    """Other agents of the same gateway."""
    skills: tuple[str, ...] | None = None
    """Those of the catalogue that are for there. None: all."""
    private: str = ""
    """USER and MEMORY, where nobody else listens. Empty everywhere else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInput:
    """One turn, before anything is decided about it."""

    persona: str
    """Identity text, the same for every place and hour."""
    skills: str = ""
    """The catalogue of skills and capabilities, the same for every place and hour."""
    binding: PromptBinding = PromptBinding()
    card: str
    """The channel card as it was pinned (`agent.prompt.render_channel_card`)."""
    history: tuple[PromptTurn, ...]
    """Oldest first; only ever grows at its end between folds."""
    input_text: str
    """What is unread now, as `agent.prompt.render_prompt_lines` writes it."""
    images: tuple[Image, ...] = ()
    """What is shown with it, in the order of the lines."""
    aside: str = ""
    """What was called to mind for this turn only: words of people, which no later prompt repeats."""
    now: str = ""
    """What holds for this turn only, in the operator's weight, and no later prompt repeats."""
    tool_surface: ToolSurface = "native"
    """How tools are told."""
    has_late_tools: bool = False
    """Tools may come that the model is not told of by themselves."""
    conversation: str = ""
    """Which one it is, for caches: never shown."""
