"""Prompt context: the part of a prompt in front of the conversation: persona, binding and channel
card.

`PromptContextBuilder` builds it for each turn, and pins the channel card of each conversation. The
card stands in front of the cached history, so it must not change while that cache is worth
anything: a changed topic is rendered as a line, and the card is written anew when the cache is cold
anyway or at a fold.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, Literal

from agent.cache.prompt_cache import CacheWarmer
from agent.prompt import ChannelCard, PromptBinding, render_channel_card
from agent.prompts import load_prompt
from agent.tokens.counter import estimate_tokens
from agent.workspace.cache import WorkspaceCache
from agent.workspace.persona import DEFAULT_WORKSPACE, PersonaBundle, PersonaScope
from channels.base import Capabilities
from gateway.access.policy import decide
from gateway.context.history import HistoryTurn
from gateway.core.events import Address, ConversationId, Message, SenderId
from gateway.core.facts import MESSAGE_KINDS, ChannelCardPinned, is_inner
from gateway.core.frozen import frozen
from gateway.core.identity import identify
from gateway.core.labels import MEMORY_LABEL, TRUSTED_LABEL, Label, label_of_role
from gateway.core.scopes import PUBLIC, Visibility, is_shared_scope
from gateway.store import NewEntry, UnreadEntries
from gateway.stream.handle import GatewayHandle

COLD_AFTER = timedelta(hours=1)
"""Longest time after the last turn that a provider keeps an unused prefix."""
MAX_PEOPLE = 10
_CARD_TOPIC: Final = "\nTopic, in the words of people there: "
"""Start of the topic in a card (`agent.prompt.render_channel_card`)."""
_SOME_PEOPLE: Final = ((31, "more than 30"), (16, "about 20"), (8, "about 10"), (4, "about 5"))

FRAME_TOKENS = 400
"""Approximate size of protocol text, channel card and binding."""


@frozen(slots=False)
class PromptContext:
    """Part of a turn's prompt in front of the conversation."""

    persona: str
    binding: PromptBinding
    peer_name: str | None
    """Name of the other person in a direct chat. None: it is a room."""
    last_active_at: datetime | None
    """End of the newest turn in view, or the last time the cache was kept warm."""
    visibility: Visibility
    card: str = ""
    """Card in place of the pinned one, for the inner conversation."""
    tools_tokens: int = 0
    """Size of the tool specifications, which stand in front of everything."""
    label: Label = TRUSTED_LABEL
    """Label of USER and MEMORY."""

    @cached_property
    def tokens(self) -> int:
        """Approximate size."""
        text = f"{self.persona}\n{self.binding.prompt}\n{self.binding.private}"
        return FRAME_TOKENS + self.tools_tokens + estimate_tokens(text)


def _describe_readers(scope: str, writers: int) -> str:
    """Return who reads a room. The number of those who write is rounded: a card changes seldom."""
    opened = "open to the server" if is_shared_scope(scope) else ""
    readers = "public" if scope == PUBLIC else opened
    number = next((some for least, some in _SOME_PEOPLE if writers >= least), "")
    return ", ".join(filter(None, [readers, number and f"{number} people write here"]))


def refresh_reason(*, pinned: bool, last: datetime | None, now: datetime, folded: bool) -> str:
    """Return why the card is to be written anew; empty: it stays. `last`: end of the newest turn in
    view.
    """
    if not pinned:
        return "there was none"
    if folded:
        return "the view was folded"
    if last is None or now - last > COLD_AFTER:
        return "the cache is cold"
    return ""


class PromptContextBuilder:
    """Builds the prompt contexts of one agent, and pins the channel cards of its conversations.

    These are in the log, so a restart does not change them.
    """

    def __init__(
        self,
        agent: str,
        gateway: GatewayHandle,
        *,
        workspaces: WorkspaceCache,
        family: str,
        keep_warm: CacheWarmer,
    ) -> None:
        """`family`: of the agent's model, which the persona is written for."""
        self._agent, self._family = agent, family
        self._workspaces, self._keep_warm = workspaces, keep_warm
        self._store, self._clock, self._live = gateway.store, gateway.clock, gateway.live
        self._channels, self._access = gateway.channels, gateway.people
        self._places, self._titles = gateway.places, gateway.places.titles
        self._redactor = gateway.redactor
        self._bindings = gateway.places.bindings.snapshot()
        self._peers = tuple(sorted(one.id for one in self._live.settings.agents if one.id != agent))

    def own_names(self, place: Address) -> tuple[str, ...]:
        """Return what the agent is called there."""
        here = (self._titles.place_names(place).me or "").removeprefix("@")
        return tuple(filter(None, (self._agent, here)))

    async def load_persona(self, scope: PersonaScope) -> PersonaBundle:
        """Load the present persona. Raises OSError."""
        return await self._workspaces.get(
            self._live.agents[self._agent].workspace or DEFAULT_WORKSPACE,
            scope=scope,
            family=self._family,
            own=self._live.agent_directory(self._agent),
            cached="workspace_cache" in self._live.enabled[self._agent],
        )

    async def build(
        self,
        place: Address,
        unread: UnreadEntries,
        past: Sequence[HistoryTurn],
        tools_tokens: int,
    ) -> PromptContext:
        """Return everything but the card, which waits for the fold. `tools_tokens`: size of the
        tools that each request describes.
        """
        warmed_at = self._keep_warm.refreshed_at.get((self._agent, place.conversation))
        last_active_at = max(past[-1].at, warmed_at or past[-1].at) if past else None
        if is_inner(place.conversation):
            return PromptContext(
                persona=(await self.load_persona("public")).identity,
                binding=PromptBinding(peers=self._peers),
                peer_name=None,
                last_active_at=last_active_at,
                visibility=await self._places.visibility(place.conversation),
                card=load_prompt("inner"),
                tools_tokens=tools_tokens,
            )
        messages = [stored.fact for stored in unread.messages if isinstance(stored.fact, Message)]
        direct = await self._places.is_direct(place.conversation) is True
        if (
            direct
            and not messages
            and (newest := await self._places.newest_message(place.conversation)) is not None
        ):
            messages = [newest]  # nobody wrote just now, but the reader is the same
        # An owner gets everything the agent knows in a direct chat: USER and MEMORY are not for
        # others.
        roles = {identify(self._access, one.at, one.sender).role for one in messages}
        is_owner_only = direct and roles == {"owner"}
        persona = await self.load_persona("private" if is_owner_only else "public")
        bound = self._bindings.find(place)
        return PromptContext(
            persona=persona.identity,
            binding=PromptBinding(
                prompt=bound.prompt,
                language=bound.language,
                answers_all=not direct and bound.listen == "all",
                peers=self._peers,
                skills=bound.skills,
                private=persona.private,
            ),
            peer_name=messages[-1].sender.name if direct and messages else None,
            last_active_at=last_active_at,
            visibility=await self._places.visibility(place.conversation, everything=is_owner_only),
            tools_tokens=tools_tokens,
            label=MEMORY_LABEL if persona.private else TRUSTED_LABEL,
        )

    async def card(
        self, place: Address, prompt_context: PromptContext, *, folded: bool
    ) -> tuple[str, Label]:
        """Return the card of a place, durably pinned, and the label of its text.

        `folded`: the view just lost its beginning, so a new card costs nothing more.
        """
        if prompt_context.card:
            return prompt_context.card, TRUSTED_LABEL
        conversation, now = place.conversation, self._clock.now()
        pinned = await self._store.pinned_card(conversation)
        last = prompt_context.last_active_at
        if reason := refresh_reason(pinned=pinned is not None, last=last, now=now, folded=folded):
            card = await self._describe_place(
                place, prompt_context.peer_name, prompt_context.visibility.scope
            )
            text = self._redactor(render_channel_card(card))
            role = await self._least_role(place, card)
            if pinned is None or (text, role) != (pinned.text, pinned.least_role):
                pinned = ChannelCardPinned(text=text, reason=reason, least_role=role)
                await self._store.append([NewEntry(fact=pinned, at=now, conversation=conversation)])
        assert pinned is not None
        source = "the topic" if _CARD_TOPIC in pinned.text else "the name of this thread or person"
        return pinned.text, label_of_role(pinned.least_role, source)

    async def _describe_place(
        self, place: Address, peer_name: str | None, scope: str
    ) -> ChannelCard:
        channel = self._channels.get(place.channel)
        capabilities = (
            Capabilities(platform="unknown", formatting="Plain text.")
            if channel is None
            else channel.capabilities
        )
        await self._titles.load([place.conversation, replace(place, thread=None).conversation])
        names, titled = self._titles.place_names(place), self._titles.room_title(place)
        room = replace(place, thread=None).conversation
        is_foreign = (
            peer_name is None and titled != place.room and not self._titles.has_trusted_names(place)
        )
        topic = names.topic if peer_name is None else ""
        if topic is None:  # refused senders do not write cards either
            changed = await self._store.last_topic_change(place.conversation)
            is_allowed = changed is not None and decide(self._access, changed).allowed
            topic = self._redactor(changed.text or "") if changed is not None and is_allowed else ""
        kind: Literal["direct", "room", "unnamed"] = "room" if titled else "unnamed"
        people, writers = tuple[tuple[str, str], ...](), 0
        if peer_name is None:
            people, writers = await self._find_people(place.conversation)
        return ChannelCard(
            platform=capabilities.platform,
            channel=place.channel,
            # The id is a number on most platforms, and may be a private address in a direct chat.
            room=peer_name or (room if is_foreign else titled or self._titles.label(room)),
            kind=kind if peer_name is None else "direct",
            is_title=peer_name is None and bool(titled) and titled != place.room and not is_foreign,
            handle=names.handle or "",
            server="" if is_foreign else names.server or "",
            own_name=names.me or "",
            thread=None if place.thread is None else self._titles.thread_title(place),
            formatting=capabilities.formatting,
            topic=topic,
            readers=_describe_readers(scope, writers) if peer_name is None else "",
            people=people,
        )

    async def _least_role(self, place: Address, card: ChannelCard) -> str:
        """Return the lowest role of those who may have chosen words in it: a topic, the name of a
        thread or person.

        The names of a room do not count: those that strangers may have chosen are left out.
        """
        if card.kind == "direct":
            newest = await self._places.newest_message(place.conversation)
            return "guest" if newest is None else identify(self._access, place, newest.sender).role
        if card.thread and card.thread != place.thread:
            return "guest"
        if not card.topic:
            return "owner"
        changed = await self._store.last_topic_change(place.conversation)
        if changed is None or self._redactor(changed.text or "") != card.topic:
            return "guest"
        return identify(self._access, changed.at, changed.sender).role

    async def _find_people(
        self, conversation: ConversationId
    ) -> tuple[tuple[tuple[str, str], ...], int]:
        """Return name and role of the owners and admins who wrote there lately, the last writer
        last, and the number of all who did.
        """
        lines = await self._store.newest_entries(
            100, kinds=MESSAGE_KINDS, conversation=conversation
        )
        found, writers = dict[str, tuple[str, str]](), set[SenderId]()
        for message in [one.fact for one in lines if isinstance(one.fact, Message)]:
            role = identify(self._access, message.at, message.sender).role
            writers.add(message.sender.id)
            if role in {"owner", "admin"}:
                found.pop(message.sender.id, None)
                found[message.sender.id] = (message.sender.name, role)
        return tuple(found.values())[-MAX_PEOPLE:], len(writers)
