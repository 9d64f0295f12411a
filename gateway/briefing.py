"""What stands in front of a conversation: who the agent is, what the operator says of the place, and its card."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from agent.brief import PromptBinding
from agent.models.base import ToolSpec
from agent.prompts import load_prompt
from agent.view import estimate_tokens
from agent.workspace.bundle import PersonaBundle, PersonaScope
from gateway.bindings import Bindings
from gateway.cards import ChannelCards
from gateway.events import Address, Message
from gateway.labels import TRUSTED_LABEL, TrustLabel
from gateway.past import HistoryTurn
from gateway.places import PrivacyCache
from gateway.records import is_inner
from gateway.scopes import Visibility
from gateway.standing import AccessPolicy, role_of
from gateway.store import UnreadEntries

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
