"""Pins the channel card to each conversation.

The card stands in front of the cached history, so it must not change while that cache is worth anything: a
changed topic is told as a line, and the card is written anew when the cache is cold anyway or at a fold.

What stands in front of a conversation: who the agent is, what the operator says of the place, and its card.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from agent.brief import ChannelCard, PromptBinding
from agent.prompt import render_channel_card
from agent.prompts import load_prompt
from agent.view import estimate_tokens
from agent.workspace.persona import PersonaBundle, PersonaScope
from channels.base import Capabilities
from gateway.access.policy import decide
from gateway.context.history import HistoryTurn
from gateway.core.clock import Clock
from gateway.core.events import Address, ChannelName, ConversationId, Message
from gateway.core.facts import MESSAGE_KINDS, ChannelCardPinned, is_inner
from gateway.core.identity import AccessPolicy, role_of
from gateway.core.permissions import proven_role
from gateway.core.redaction import Redact, Redactor
from gateway.core.scopes import Visibility
from gateway.core.tool_spec import ToolSpec
from gateway.core.trust import ANYBODY_ROLE, TRUSTED_LABEL, TrustLabel, label_of_card
from gateway.store import NewEntry, Store, UnreadEntries
from gateway.stream.place_names import PlaceTitles
from gateway.stream.routing import Bindings, PrivacyCache

COLD_AFTER = timedelta(hours=1)
"""After the last turn: the longest that a provider keeps a prefix nobody uses."""
SCANNED_LINES = 100
"""Looked through for notable people."""
MAX_PEOPLE = 10
MAX_PINNED_CARDS = 1_000
UNKNOWN_PLATFORM = Capabilities(platform="unknown", formatting="Plain text.")


def refresh_reason(*, pinned: bool, last: datetime | None, now: datetime, folded: bool) -> str:
    """Why the card is to be written anew; empty: it stays as it is. `last`: when the newest turn in view ended."""
    if not pinned:
        return "there was none"
    if folded:
        return "the view was folded"
    if last is None or now - last > COLD_AFTER:
        return "the cache is cold"
    return ""


class ChannelCards:
    """The cards of all conversations. What is pinned is in the log, and the same after a restart."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        capabilities: Mapping[ChannelName, Capabilities],
        who: AccessPolicy,
        redact: Redact | None = None,
        *,
        titles: PlaceTitles | None = None,
    ) -> None:
        """`titles`: what places are called. None: as the log has it."""
        self._titles = titles or PlaceTitles(store, platform=self._platform)
        self._store = store
        self._clock = clock
        self._capabilities = capabilities
        self._access = who
        self._redact = redact or Redactor()
        self._pinned: OrderedDict[ConversationId, ChannelCardPinned] = OrderedDict()

    async def card(
        self, place: Address, *, whom: str | None, last: datetime | None, folded: bool
    ) -> tuple[str, TrustLabel]:
        """What the model is told about the place, durably pinned, and whose words are in it.

        `whom`: of a direct chat, who the other one is.
        """
        conversation, now = place.conversation, self._clock.now()
        pinned = self._pinned.get(conversation) or await self._store.pinned_card(conversation)
        if reason := refresh_reason(pinned=pinned is not None, last=last, now=now, folded=folded):
            about = await self._describe_place(place, whom)
            written, role = self._redact(render_channel_card(about)), await self._least_role(place, about)
            if pinned is None or (written, role) != (pinned.text, pinned.least_role):
                pinned = ChannelCardPinned(text=written, reason=reason, least_role=role)
                await self._store.append([NewEntry(fact=pinned, at=now, conversation=conversation)])
        assert pinned is not None
        self._pinned[conversation] = pinned
        self._pinned.move_to_end(conversation)
        if len(self._pinned) > MAX_PINNED_CARDS:
            self._pinned.popitem(last=False)
        return pinned.text, label_of_card(pinned)

    async def _describe_place(self, place: Address, whom: str | None) -> ChannelCard:
        able = self._capabilities.get(place.channel, UNKNOWN_PLATFORM)
        await self._titles.load([place.conversation, replace(place, thread=None).conversation])
        names, titled = self._titles.place_names(place), self._titles.room_title(place)
        topic = names.topic if whom is None else ""
        kind: Literal["direct", "room", "unnamed"] = "room" if titled else "unnamed"
        return ChannelCard(
            platform=able.platform,
            channel=place.channel,
            # Not the id, which is a number on most platforms, and of a direct chat perhaps somebody's address.
            room=whom or titled or self._titles.label(replace(place, thread=None).conversation),
            kind=kind if whom is None else "direct",
            is_title=whom is None and bool(titled) and titled != place.room,
            handle=names.handle or "",
            server=names.server or "",
            own_name=names.me or "",
            thread=None if place.thread is None else self._titles.thread_title(place),
            formatting=able.formatting,
            topic=await self._find_topic(place.conversation) if topic is None else topic,
            people=() if whom is not None else await self._find_notable_people(place.conversation),
        )

    def _platform(self, name: ChannelName) -> str:
        return self._capabilities.get(name, UNKNOWN_PLATFORM).platform

    async def _find_topic(self, conversation: ConversationId) -> str:
        changed = await self._store.last_topic_change(conversation)
        if changed is None or not decide(self._access, changed).allowed:  # who is not heard writes no cards either
            return ""
        return self._redact(changed.text or "")

    async def _least_role(self, place: Address, about: ChannelCard) -> str:
        """The lowest role of those who may have chosen words in the card: a topic, a thread's name.

        Whoever administers a room on its platform names it, and the operator has let the agent act there.
        """
        if about.thread and about.thread != place.thread:
            return ANYBODY_ROLE
        if not about.topic:
            return "owner"
        changed = await self._store.last_topic_change(place.conversation)
        if changed is None or self._redact(changed.text or "") != about.topic:
            return ANYBODY_ROLE
        return proven_role(role_of(self._access, changed.at, changed.sender), verified=changed.sender.verified)

    async def _find_notable_people(self, conversation: ConversationId) -> tuple[tuple[str, str], ...]:
        """Who of the owners and admins has spoken there lately, the last speaker last."""
        lines = await self._store.newest_entries(SCANNED_LINES, kinds=MESSAGE_KINDS, conversation=conversation)
        found: dict[str, tuple[str, str]] = {}
        for message in [one.fact for one in lines if isinstance(one.fact, Message)]:
            role = role_of(self._access, message.at, message.sender)
            if role in {"owner", "admin"}:
                found.pop(message.sender.id, None)
                found[message.sender.id] = (message.sender.name, role)
        return tuple(found.values())[-MAX_PEOPLE:]


FRAME_TOKENS = 400
"""Protocol text, channel card and binding, roughly."""
FULL_ACCESS_ROLE = "owner"
"""Who may be told all that the agent knows, where nobody else listens: what USER and MEMORY say is not for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptContext:
    """What one turn has in front of its conversation."""

    persona: str
    binding: PromptBinding
    peer_name: str | None
    """Of a direct chat: who the other one is. None: it is a room."""
    last_active_at: datetime | None
    """When the newest turn in view ended, or was last kept warm."""
    visibility: Visibility
    """What may be told there."""
    card: str = ""
    """In place of the pinned one: of the inner conversation."""
    tools_tokens: int = 0
    """Of the tools, which stand in front of everything."""
    label: TrustLabel = TRUSTED_LABEL
    """Of whoever wrote what USER and MEMORY say."""

    @property
    def tokens(self) -> int:
        """Roughly."""
        texts = (self.persona, self.binding.prompt, self.binding.private)
        return FRAME_TOKENS + self.tools_tokens + sum(estimate_tokens(text) for text in texts)


class PromptContextBuilder:
    """Briefs one agent."""

    def __init__(
        self,
        *,
        me: Callable[[PersonaScope], Awaitable[PersonaBundle]],
        peers: tuple[str, ...],
        bindings: Bindings,
        who: AccessPolicy,
        cards: ChannelCards,
        places: PrivacyCache,
        kept: Callable[[str], datetime | None] = lambda _: None,
        tools: Callable[[], Sequence[ToolSpec]] = tuple,
    ) -> None:
        """`me`: who the agent is by now. `peers`: the other agents of this gateway.

        `kept`: when a conversation was last kept warm though nobody spoke there. `tools`: what each request is told of.
        """
        self._kept_warm_at = kept
        self._tools = tools
        self._load_bundle = me
        self._peers = peers
        self._bindings = bindings
        self._access = who
        self._cards = cards
        self._places = places

    async def build(self, place: Address, unread: UnreadEntries, past: Sequence[HistoryTurn]) -> PromptContext:
        """All but the card, which waits for what is folded."""
        if is_inner(place.conversation):
            return await self._build_inner(place, past)
        said = [stored.fact for stored in unread.messages if isinstance(stored.fact, Message)]
        direct = await self._places.is_direct(place.conversation) is True
        if direct and not said and (newest := await self._places.newest_message(place.conversation)) is not None:
            said = [newest]  # nobody spoke just now, but it is the same who listens
        everything = direct and bool(said) and all(self._is_owner(message) for message in said)
        me, bound = await self._load_bundle("private" if everything else "public"), self._bindings.find(place)
        return PromptContext(
            persona=me.identity,
            binding=PromptBinding(
                prompt=bound.prompt,
                language=bound.language,
                peers=self._peers,
                skills=bound.skills,
                private=me.private,
            ),
            peer_name=said[-1].sender.name if direct and said else None,
            last_active_at=self._last_active_at(place, past),
            visibility=await self._places.visibility(place.conversation, everything=everything),
            tools_tokens=self._estimate_tools_tokens(),
        )

    async def _build_inner(self, place: Address, past: Sequence[HistoryTurn]) -> PromptContext:
        return PromptContext(
            persona=(await self._load_bundle("public")).identity,
            binding=PromptBinding(peers=self._peers),
            peer_name=None,
            last_active_at=self._last_active_at(place, past),
            visibility=await self._places.visibility(place.conversation),
            card=load_prompt("inner"),
            tools_tokens=self._estimate_tools_tokens(),
        )

    def _estimate_tools_tokens(self) -> int:
        return sum([estimate_tokens(one.name + one.description + one.schema) for one in self._tools()])

    def _last_active_at(self, place: Address, past: Sequence[HistoryTurn]) -> datetime | None:
        return max(past[-1].at, self._kept_warm_at(place.conversation) or past[-1].at) if past else None

    def _is_owner(self, message: Message) -> bool:
        return role_of(self._access, message.at, message.sender) == FULL_ACCESS_ROLE

    async def card(self, place: Address, setting: PromptContext, *, folded: bool) -> tuple[str, TrustLabel]:
        """The card, which is pinned, and whose words are in it.

        `folded`: the view just lost its beginning, so a new card costs nothing more.
        """
        if setting.card:
            return setting.card, TRUSTED_LABEL
        return await self._cards.card(place, whom=setting.peer_name, last=setting.last_active_at, folded=folded)
