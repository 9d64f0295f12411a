"""Asks for approvals where they are to be given, and writes down what becomes of them."""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from gateway.clock import Clock
from gateway.events import Address, ChannelName, Post, PostKey
from gateway.ops.report import format_duration
from gateway.records import ApprovalEnded, ApprovalRequested, ApprovalVerdict, PostQueued, Seq
from gateway.store import NewEntry, OutboxPost, Store
from gateway.tools import consent
from gateway.tools.gate import ApprovalRequest
from gateway.tools.grants import CallProvenance, ToolGrant, digest_arguments

_NO_SEQ: Final = Seq(0)
ID_TRIES: Final = 8
"""At an id that is not taken, before they get longer."""


@dataclass(slots=True, kw_only=True)
class PendingApproval:
    """A call that waits."""

    request: ApprovalRequest
    room: Address
    """Where it is asked for."""
    fact: ApprovalRequested | None = None
    """None: that is not durable yet."""
    seq: Seq = _NO_SEQ
    """Where that stands."""
    deadline_s: float = 0.0
    """On the clock's `monotonic`."""
    waiters: int = 0
    """How many wait for it. 0: nobody does any more."""
    claimed: bool = False
    """A verdict is being written down."""
    granted_by: str = ""
    """Who meanwhile approved the tool for longer. Empty: nobody."""
    verdict: ApprovalVerdict | None = None
    post: PostKey | None = None
    """Of the notice. None: it is not durable yet."""
    delivered: bool | None = None
    """Whether all of the notice was shown. None: that is not known yet."""
    delivery_known: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is known."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with each change of these."""

    @property
    def grant(self) -> ToolGrant:
        """What a word that holds for longer is about."""
        return ToolGrant(self.request.agent, self.request.tool, self.request.at.conversation)

    @property
    def provenance(self) -> CallProvenance:
        """For calls like which."""
        wanted = self.request
        return CallProvenance(
            wanted.least_role, wanted.foreign, digest_arguments(consent.normalize_arguments(wanted.arguments))
        )

    def set_delivered(self, *, whole: bool) -> None:
        """What became of the notice."""
        self.delivered = whole
        self.delivery_known.set()
        self.changed.set()


class ApprovalNotices:
    """For all agents."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        timeout_s: Callable[[], float],
        post: Callable[[OutboxPost], None],
        prefix: Mapping[ChannelName, str],
        *,
        named: Callable[[str], str] = str,
    ) -> None:
        """`named` puts the titles of places into a text."""
        self._add_titles = named
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._post = post
        self._command_prefixes = prefix

    async def recover(self) -> None:
        """As `Approvals.recover`."""
        left = await self._store.undecided()
        entries = [
            self._build_end_entry(one.fact, "dropped", Address.parse(one.conversation or ""), one.seq)
            for one in left
            if isinstance(one.fact, ApprovalRequested)
        ]
        await self._store.append(entries)

    async def post_request(self, one: PendingApproval) -> ApprovalRequested:
        """Ask, in one transaction with the fact that it is asked for."""
        wanted, now, tries, timeout_s = one.request, self._clock.now(), 0, self._timeout_s()
        shape = one.provenance
        while True:
            name = "".join(
                secrets.choice(consent.APPROVAL_ID_ALPHABET)
                for _ in range(consent.APPROVAL_ID_CHARS + tries // ID_TRIES)
            )
            asked = ApprovalRequested(
                approval=name,
                agent=wanted.agent,
                tool=wanted.tool,
                arguments=consent.format_arguments(wanted.arguments),
                turn=wanted.turn,
                asked_by=tuple(asker.id for asker in wanted.requesters),
                room=one.room.conversation,
                until=now + timedelta(seconds=timeout_s),
            )
            text = consent.render_approval_request(
                asked,
                askers=wanted.requesters,
                rule=wanted.rule,
                covers=consent.describe_coverage(shape.least_role, wanted.required_role, foreign=shape.foreign),
                place=wanted.at.conversation if one.room != wanted.at else "",
                named=self._add_titles,
                prefix=self._command_prefixes[one.room.channel],
                span=format_duration(timeout_s),
            )
            first = NewEntry(fact=asked, at=now, conversation=wanted.at.conversation, key=approval_key(name))
            key = PostKey(hashlib.sha256(f"{first.key}:{wanted.turn}".encode()).hexdigest()[:26])
            post = Post(key=key, to=one.room, text=text, style="notice")
            queued = NewEntry(
                fact=PostQueued(post=post), at=now, conversation=one.room.conversation, key=f"post:{key}", cause=first
            )
            became, sent = await self._store.append([first, queued])
            if became.is_new:  # else somebody had that id, at some time
                one.post = key
                one.fact, one.seq, one.deadline_s = asked, became.seq, self._clock.monotonic() + timeout_s
                self._post(OutboxPost(seq=sent.seq, at=now, post=post, parts=()))
                return asked
            tries += 1

    async def record_end(
        self, one: PendingApproval, asked: ApprovalRequested, verdict: ApprovalVerdict, by: str = ""
    ) -> ApprovalVerdict:
        one.claimed = True
        await self._store.append([self._build_end_entry(asked, verdict, one.request.at, one.seq, by)])
        stands = await self._store.entry_by_key(approval_ended_key(asked.approval))
        assert stands is not None
        assert isinstance(stands.fact, ApprovalEnded)
        one.verdict = stands.fact.verdict  # what an admin said may be there though we were not told so
        return one.verdict

    def _build_end_entry(
        self, asked: ApprovalRequested, verdict: ApprovalVerdict, at: Address, cause: Seq, by: str = ""
    ) -> NewEntry:
        fact = ApprovalEnded(approval=asked.approval, agent=asked.agent, tool=asked.tool, verdict=verdict, by=by)
        place, key = at.conversation, approval_ended_key(asked.approval)
        return NewEntry(fact=fact, at=self._clock.now(), conversation=place, key=key, cause=cause)


def approval_key(name: str) -> str:
    """Of the entry that asks for the approval of that name."""
    return f"approval:{name}"


def approval_ended_key(name: str) -> str:
    """Of the one entry that says what became of it."""
    return f"{approval_key(name)}:ended"
