"""What a turn needs of its agent, and what is new to it.

- `AgentContext`: what the turns of one agent work with.
- `TurnInput`: unread messages of one turn, or its digest, and what of it the turn has consumed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.models.base import Model
from agent.prompt import NOTHING_NEW
from agent.tokens.counter import estimate_tokens
from agent.view import UNREAD_SHARE
from gateway.access.limits import UsageLimiter
from gateway.context.compaction import CompactionStats, Compactor
from gateway.context.conversation import (
    NO_VIEW,
    ConversationReader,
    CurrentMessage,
    RenderedInput,
    RenderedMessage,
    is_addressed,
    render_lines,
)
from gateway.context.digest import Digest, DigestBuilder
from gateway.context.history import HistoryStore, HistoryView
from gateway.context.prompt_context import PromptContextBuilder
from gateway.context.requesters import (
    to_requester,
)
from gateway.core.events import Alarm, ConversationId, Sender
from gateway.core.facts import Seq, is_inner
from gateway.core.frozen import frozen
from gateway.core.labels import TRUSTED_LABEL, Label, join
from gateway.core.tool import Requester
from gateway.hooks import Plugins
from gateway.runtime.models import AgentModel
from gateway.store import Store, UnreadEntries
from gateway.stream.handle import GatewayHandle
from gateway.stream.media import MediaStore
from gateway.stream.presence import PresenceTracker
from gateway.tools.dispatch import ToolDispatcher, ToolRegistry

if TYPE_CHECKING:
    from gateway.runtime.agent import Agent

MAX_UNREAD_LINES: Final = 50
"""Unread lines in one turn. Older lines not addressed to the agent are only counted, so that a raid
of thousands costs one bounded prompt; addressed ones wait for the next turn."""
PLAIN_FAMILY: Final = "local"
"""Family of the models that are so small that they need plain prompts."""
SMALL_WINDOW_TOKENS: Final = 16_384
"""Largest window of a model of llama.cpp that counts as small."""
NO_UNREAD: Final = UnreadEntries(messages=(), omitted=0, upto=Seq(0))


@frozen(eq=False)
class TurnServices:
    """What the turns of all agents share, beside the gateway's handle."""

    reader: ConversationReader
    media: MediaStore
    presence: PresenceTracker
    registry: ToolRegistry
    stats: CompactionStats
    limits: UsageLimiter
    plugins: Plugins


@frozen
class AgentContext:
    """What the turns of one agent work with. Made anew for another model; a turn that has begun
    ends with what it began.
    """

    gateway: GatewayHandle
    agent: "Agent"
    model: AgentModel
    make_tools: Callable[[], ToolDispatcher]
    """Always the same; made for the first turn, for a start needs none."""
    prompts: PromptContextBuilder
    compaction: Compactor
    history: HistoryStore
    limits: UsageLimiter

    @property
    def tools(self) -> ToolDispatcher:
        """Tools of the agent, as far as its model has room for them."""
        return self.make_tools()

    @property
    def max_tool_rounds(self) -> int:
        """Answers with tool calls in one turn: as configured, else one for a small model, which
        keeps to one step better than to a chain. What it leaves open, the next turn goes on with.
        """
        tools, model = self.gateway.live.settings.tools, self.model.model
        is_small = model.family == "llamacpp" and model.context_tokens <= SMALL_WINDOW_TOKENS
        return 1 if is_small and "max_rounds" not in tools.model_fields_set else tools.max_rounds

    async def render_skills(self, plugins: Plugins) -> str:
        """Return the block of skills, see `gateway.plugin.Hooks.skills`."""
        tools = self.tools.current_tools() if self.model.model.takes_tools else ()
        return await plugins.skills(self.agent.id, frozenset([one.spec.name for one in tools]))

    @property
    def specs_tokens(self) -> int:
        """Size of the tools that each request describes."""
        return self.tools.specs_tokens if self.model.model.takes_tools else 0


class TurnInput:
    """New input of one turn. What of it the turn has consumed so far can be read at any time."""

    def __init__(
        self, store: Store, reader: ConversationReader, conversation: ConversationId, model: Model
    ) -> None:
        self.unread = NO_UNREAD
        self.messages: tuple[CurrentMessage, ...] = ()
        """Unread messages that still exist, as the turn began."""
        self.digest: Digest | None = None
        """Input of the inner conversation, in place of both. None: nothing is pending, or it is
        another place."""
        self.lines: Sequence[RenderedMessage] = ()
        """New lines with their present texts. Empty before `render`."""
        self.rendered = RenderedInput()
        """What the turn has consumed; the same for the next five."""
        self.omitted = 0
        """Number of consumed entries that were not rendered."""
        self.upto = Seq(0)
        self.looked: tuple[tuple[ConversationId, Seq], ...] = ()
        """See `TurnRecord.looked`."""
        self.arrived: tuple[CurrentMessage, ...] = ()
        self.label: Label = TRUSTED_LABEL
        """Label of all that it holds so far."""
        self._store = store
        self._reader = reader
        self._conversation = conversation
        self._plain = model.family == PLAIN_FAMILY
        self._sees = model.takes_images
        self._view = NO_VIEW

    async def read(self, digests: DigestBuilder, plugins: Plugins, agent: str) -> None:
        """Read what is unread there now. `agent`: whose turn it is."""
        if is_inner(self._conversation):
            plans = await plugins.plans(agent, self._conversation)
            self.digest = await digests.build(
                plain=self._plain, plans=[(one.text, one.label) for one in plans]
            )
            return
        await self._store.activate(self._conversation)
        await self.read_unread()
        self.messages = await self._reader.read_current(self.unread)

    async def read_unread(self) -> None:
        """Read only which entries are unread there."""
        self.unread = await self._store.unread_entries(self._conversation, most=MAX_UNREAD_LINES)

    async def render(self, view: HistoryView) -> None:
        """Render all that is new. `view`: the earlier turns that the prompt holds."""
        self._view = view
        self.lines = await self._reader.render(self.messages, sees=self._sees, view=view)

    async def render_fitting(self, budget: int) -> tuple[UnreadEntries, RenderedInput]:
        """Return the new input that fits, and the unread entries that it consumes."""
        digest, unread = self.digest, self.unread
        if digest is not None:
            return unread, RenderedInput(
                text=digest.text, covers=digest.covers, senders=digest.senders
            )
        unread, rendered = await self._fit(self.lines, unread, budget)
        return unread, rendered if rendered.text else replace(rendered, text=NOTHING_NEW)

    def mark_read(self, unread: UnreadEntries, rendered: RenderedInput) -> None:
        """Record that the model may have read this from here on."""
        self.rendered = rendered
        if (digest := self.digest) is not None:
            self.label |= digest.label
            self.upto, self.omitted, self.looked = digest.upto, digest.omitted, digest.looked
        else:
            self.label |= _join_labels(self.lines, rendered)
            self.upto, self.omitted = unread.upto, _count_omitted(unread, rendered)

    async def consume_unasked(self) -> None:
        """Consume all of it without a request: it becomes context."""
        self.lines = await self._reader.render(self.messages, sees=False)
        self.mark_read(self.unread, render_lines(self.lines, omitted=0, plain=self._plain))

    async def forget_deleted(self) -> None:
        """Take what was deleted meanwhile out of what was read: later turns do not see it."""
        left = await self._reader.read_current(replace(self.unread, has_changes=True))
        lines = await self._reader.render(
            [one for one in left if one.seq in self.rendered.covers], sees=False
        )
        self.rendered = replace(
            self.rendered,
            text=render_lines(lines, omitted=self.omitted, plain=self._plain).text,
            media=(),
        )

    def consume_upto(self, upto: Seq) -> None:
        """Consume all up to there, also what was not read: it is only counted."""
        self.omitted, self.upto = _count_omitted(self.unread, self.rendered), upto

    def consume_unrendered(self) -> None:
        """Consume all of it, only counted: rendering may be what failed, but a later prompt needs
        something.
        """
        digest = self.digest
        if digest is None:
            self.omitted = self.unread.omitted + len(self.unread.messages)
        else:
            self.omitted, self.looked = digest.omitted + len(digest.covers), digest.looked
        self.rendered = render_lines([], omitted=self.omitted, plain=self._plain)
        self.upto = self.unread.upto

    def leave(self, *, heard: bool) -> None:
        """Consume nothing: a later turn reads it, or the record of the command that stopped the
        turn holds it.

        `heard`: the record holds the text, because tools were used for it. Else only the senders
        stay, who bear what the turn cost.
        """
        before = self.rendered
        self.rendered = (
            replace(before, covers=(), senders=())
            if heard
            else RenderedInput(senders=before.senders)
        )
        self.omitted, self.upto, self.looked = 0, Seq(0), ()
        self.messages = self.arrived = ()

    async def render_news(self, budget: int, room: int) -> tuple[str, Label]:
        """Return what has arrived meanwhile, rendered, and the label of the text.

        At most `room` tokens, and a share of `budget`: what does not fit stays unread, for another
        turn.
        """
        unread = await self._store.unread_entries(
            self._conversation, most=MAX_UNREAD_LINES, after=self.upto
        )
        if not unread.messages:
            return "", TRUSTED_LABEL
        current = await self._reader.read_current(unread)
        # Images cannot stand in a tool's results.
        lines = await self._reader.render(current, sees=False, view=self._view)
        budget = min(budget, int(room / UNREAD_SHARE))
        unread, rendered = await self._fit(lines, unread, budget, after=self.upto)
        if estimate_tokens(rendered.text) > room:
            return "", TRUSTED_LABEL
        self.rendered = replace(
            self.rendered,
            covers=(*self.rendered.covers, *rendered.covers),
            senders=(*self.rendered.senders, *rendered.senders),
        )
        self.omitted += _count_omitted(unread, rendered)
        label = _join_labels(lines, rendered)
        self.label |= label
        self.upto = unread.upto
        self.arrived = (*self.arrived, *current)
        self.lines = (*self.lines, *lines)
        return rendered.text, label

    def requesters(self) -> list[Requester]:
        """Return the senders of addressed messages that were rendered, oldest first."""
        covers = self.rendered.covers
        roles = {
            one.seq: one.line.role
            for one in self.lines
            if one.line.is_addressed and one.seq in covers
        }
        return [
            to_requester(one.message.sender, roles[one.seq])
            for one in (*self.messages, *self.arrived)
            if one.seq in roles and not one.notice
        ]

    @property
    def setters(self) -> Sequence[Sender]:
        """People who set its reminders: they bear the costs."""
        return [one.setter for one in (*self.messages, *self.arrived) if one.setter is not None]

    async def _fit(
        self,
        lines: Sequence[RenderedMessage],
        unread: UnreadEntries,
        budget: int,
        *,
        after: int = 0,
    ) -> tuple[UnreadEntries, RenderedInput]:
        """Return the lines that fit, and the entries that they stand for. Where some that are
        addressed to the agent do not, those in front of them alone are shown: the others stay
        unread.
        """
        rendered = render_lines(lines, omitted=unread.omitted, budget=budget, plain=self._plain)
        if not rendered.has_more:
            return unread, rendered
        covers = rendered.covers
        first = [  # as many as the store puts in front, alarms of all kinds among them
            one
            for one in unread.messages
            if one.seq <= covers[-1] and (isinstance(one.fact, Alarm) or is_addressed(one.fact))
        ]
        unread = await self._store.unread_entries(self._conversation, most=len(first), after=after)
        shown = [one for one in lines if one.seq in covers]
        return unread, render_lines(shown, omitted=unread.omitted, plain=self._plain)


def _join_labels(lines: Sequence[RenderedMessage], rendered: RenderedInput) -> Label:
    """Return the label of the rendered lines."""
    return join([one.label for one in lines if one.seq in rendered.covers])


def _count_omitted(unread: UnreadEntries, rendered: RenderedInput) -> int:
    """Return how many unread entries up to `UnreadEntries.upto` count as consumed without being
    rendered.
    """
    return unread.omitted + len(unread.messages) - len(rendered.covers)
