"""What a command handler gets: call and context; rooms by name, and what may be shown where."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from gateway.commands.definition import CommandDefinition
from gateway.core.control_messages import OPERATOR
from gateway.core.events import (
    Address,
    Command,
    ConversationId,
    MessageId,
    Post,
    PostKey,
    RoomId,
)
from gateway.core.facts import OPERATOR_CHANNEL, PostQueued, Seq, TurnId, dedup_key, is_inner
from gateway.core.frozen import frozen
from gateway.core.i18n import _
from gateway.core.identity import Role, person_key
from gateway.core.scopes import Visibility
from gateway.core.text_safety import PLACE_CHARS, inline_code
from gateway.core.tool import ToolContext
from gateway.hooks import Plugins
from gateway.runtime.agents import Agents
from gateway.runtime.model_choice import ModelSelector
from gateway.store import NewEntry
from gateway.stream.attention import LiveAttention
from gateway.stream.handle import GatewayHandle
from gateway.stream.rooms import RoomMembership
from gateway.stream.routing import PrivacyCache
from gateway.stream.supervisor import ChannelSupervisor

if TYPE_CHECKING:
    from gateway.commands.table import CommandTable


@frozen
class CommandContext:
    """What command handlers may read and use."""

    gateway: GatewayHandle
    attention: LiveAttention
    agents: Agents
    models: ModelSelector
    membership: RoomMembership
    supervisor: ChannelSupervisor
    plugins: Plugins
    commands: "CommandTable"

    def agent_at(self, at: Address) -> str:
        """Return the agent of a place."""
        return self.agents.agent_for(at.conversation).id


@frozen
class CommandCall:
    """One command to answer."""

    command: Command
    role: Role
    global_role: Role = "guest"
    """Role of this person in all places."""
    sub: str = ""
    """Name of the subcommand. Empty: the command has none."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Given arguments by name; they fit the table."""
    prefix: str = ""
    """What is written in front of a command there."""
    available: Sequence[CommandDefinition] = ()
    """Commands that this person may use here."""
    is_operator: bool = False
    """True: the operator gives it, from the shell or through the API."""
    agent: str = ""
    """Agent that it is about: the one that the operator names, or that of the place."""
    names_agent: bool = False
    """True: the operator names it."""

    @property
    def person(self) -> str:
        """The sender, as `gateway.core.identity.person_key`."""
        return person_key(self.command.at.channel, self.command.sender.id)

    @property
    def author(self) -> str:
        """The sender, for people. The operator's name is not verified."""
        return self.command.sender.name if self.is_operator else self.person


logger = logging.getLogger("reverie.commands")

OPERATOR_PLACE: Final = Address(channel=OPERATOR_CHANNEL, room=RoomId(OPERATOR))
"""Place of the operator's commands that name no other."""


def sees_everything(call: CommandCall) -> bool:
    """Return whether an owner asks in a direct chat."""
    return call.command.direct and call.global_role == "owner"


async def find_visibility(call: CommandCall, places: PrivacyCache) -> Visibility:
    """Return what may be shown where the command was given. A direct chat is private, whatever its
    history.
    """
    here, everything = call.command.at.conversation, sees_everything(call)
    if call.command.direct:
        return Visibility(scope=here, is_private=True, sees_everything=everything)
    return await places.visibility(here, everything=everything)


async def build_tool_context(call: CommandCall, places: PrivacyCache) -> ToolContext:
    """Return the context that a turn there would have."""
    return ToolContext(
        turn=TurnId(""),
        agent=call.agent,
        at=call.command.at,
        visibility=await find_visibility(call, places),
        autonomous=False,
    )


async def find_hidden(
    call: CommandCall, places: PrivacyCache, named: Iterable[ConversationId]
) -> frozenset[ConversationId]:
    """Return those of these conversations that must not be named there, because others could read
    it.
    """
    if sees_everything(call):
        return frozenset()
    sight = await find_visibility(call, places)
    others = [place for place in dict.fromkeys(named) if not is_inner(place)]
    return frozenset([place for place in others if not sight.can_see(await places.scope(place))])


def format_place(conversation: ConversationId) -> str:
    """Return a place as text for people."""
    if is_inner(conversation):
        return _("{agent} on its own").format(agent=inline_code(Address.parse(conversation).room))
    return inline_code(conversation, PLACE_CHARS)


async def send_follow_up(
    gateway: GatewayHandle, call: CommandCall, cause: Seq, words: str, *, private: bool = True
) -> None:
    """Post a later result to whoever gave the command, once; to the operator it is only logged.
    Not `private`: in the room.

    `cause`: the command's entry. Raises `StoreError`.
    """
    command, text = call.command, gateway.places.titles.add_titles(words)
    if call.is_operator:
        logger.warning("%s", text)
        return
    to = command.at
    if private and not command.direct:
        to = gateway.channels.private_address(command.at, command.sender)
    post = Post(
        key=follow_up_key(command, "later"),
        to=to,
        text=text,
        reply_to=MessageId(command.id) if to == command.at else None,
        style="message" if to == command.at else "notice",
        private=private,
    )
    entry = NewEntry(
        fact=PostQueued(post=post),
        at=gateway.clock.now(),
        conversation=to.conversation,
        key=f"post:{post.key}",
        cause=cause,
    )
    await gateway.store.append([entry])


def follow_up_key(command: Command, what: str) -> PostKey:
    """Return the key of a post that a command makes besides its answer: always the same, as long as
    a ULID.
    """
    return PostKey(hashlib.sha256(f"{what}:{dedup_key(command)}".encode()).hexdigest()[:26])
