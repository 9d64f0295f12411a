"""Who is answered, and with what: from a command to its judgement and its post.

What commands answer, and what they change, is known before anything is written: so the command, what was decided about
it, the answer and the facts that it makes become durable together, and a command that comes twice is answered once, and
changes something once.
"""

import asyncio
import hashlib
import logging
from dataclasses import dataclass

from gateway import access, attention
from gateway.attention import Listen
from gateway.commands import handlers, parse
from gateway.commands.handlers import HANDLERS
from gateway.commands.pace import Pace
from gateway.commands.table import BY_NAME
from gateway.commands.world import Answer, Ask, World
from gateway.events import Command, Message, MessageId, Post, PostKey
from gateway.records import LOW, Judged, key_of
from gateway.rewinds import Change

logger = logging.getLogger("reverie.commands")

ANSWER_S = 5.0
"""Nothing else of the channel is taken in meanwhile; longer than a busy disk takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """What becomes of a command."""

    judged: Judged
    post: Post | None = None
    """None: it is not answered."""
    change: Change | None = None
    """What becomes durable with it, and is to be settled then. None: nothing."""


class Desk:
    """Where commands are handed in."""

    def __init__(self, world: World, access_policy: access.Policy, prefix: str, per_minute: int) -> None:
        self._world = world
        self._access = access_policy
        self._prefix = prefix
        self._pace = Pace(per_minute)

    async def command(self, message: Message, listen: Listen) -> Command | None:
        """The command that a message is; None: it is an ordinary one. Where nothing is listened to, none is."""
        if listen == "off":
            return None
        read = parse.read(message, self._prefix, BY_NAME)
        if read is None or (read.only_if_more and not await self._has_more(read.command)):
            return None
        return read.command

    async def _has_more(self, command: Command) -> bool:
        if not access.decide(self._access, command).allowed:
            return False
        try:
            async with asyncio.timeout(ANSWER_S):
                page = await handlers.next_page(self._world, command.at.conversation, look_back=1)
        except Exception:  # as for a handler: the word is then an ordinary one
            logger.exception("whether there is more to show in %s cannot be told", command.at.conversation)
            return False
        return page is not None

    async def handle(self, command: Command) -> Handled:
        """Decide, and answer. Raises nothing but cancellation: a handler's failure is an answer, too.

        What comes with a `change` must be written down before anything else is handled, and then be settled.
        """
        decision = access.decide(self._access, command)
        row = BY_NAME.get(command.name)
        name = row.name if row else command.name
        refusal = None if decision.allowed else decision.rule
        if decision.allowed and command.sender.is_bot:
            refusal = "bots give no commands"
        elif decision.allowed and row is not None and not row.open_to(decision.role, direct=command.direct):
            refusal = f"command {name} is for {row.role} and above"
        if refusal is not None:
            return Handled(judged=_judged(command, decision.role, refusal, refused=True))
        if row is None and not command.direct:
            return Handled(judged=_judged(command, decision.role, "no such command"))
        if row is not None and row.direct_only and not command.direct:
            return Handled(judged=_judged(command, decision.role, f"command {name} is for direct chats"))
        if not self._pace.admits(f"{command.at.channel}:{command.sender.id}", self._world.clock.monotonic()):
            return Handled(judged=_judged(command, decision.role, "commands.per_minute"))
        ask = Ask(command=command, role=decision.role, rule=decision.rule)
        key = answer_key(command)
        answer = await self._answer(name if row else None, ask, key)
        post = Post(
            key=key,
            to=command.at,
            text=answer.text,
            reply_to=MessageId(command.id),
            private=row.private if row else True,
            page=answer.page,
        )
        judged = _judged(command, decision.role, f"command {name}" if row else "no such command")
        return Handled(judged=judged, post=post, change=answer.change)

    async def _answer(self, name: str | None, ask: Ask, key: PostKey) -> Answer:
        if name is None:
            prefix = self._world.prefix[ask.command.at.channel]
            return Answer(text=handlers.unknown(ask, ask.command.name, prefix))
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await HANDLERS[name](ask, self._world)
            return answer if isinstance(answer, Answer) else Answer(text=answer)
        except Exception:  # a bug, or a store that cannot be read: the stream goes on, and the asker is told
            reference = key[:8]
            logger.exception("command %s broke (reference %s)", name, reference)
            return Answer(text=f"That did not work (reference {reference}). The operator can look it up in the log.")


def answer_key(command: Command) -> PostKey:
    """The key of the one post that answers a command: always the same, as long as a ULID."""
    return PostKey(hashlib.sha256(key_of(command).encode()).hexdigest()[:26])


def _judged(command: Command, role: access.Role, rule: str, *, refused: bool = False) -> Judged:
    return Judged(
        type=attention.type_of(command),
        urgency=LOW if not refused else 0,
        fate="refused" if refused else "noted",
        rule=rule,
        role=role,
    )
