"""What strangers are told: how to be let in, and how a room is opened.

One code each in an hour, one reminder of it, and then nothing more but for who asks for help.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, Literal

from gateway.access import Decision, Policy
from gateway.changes import Change, Made
from gateway.clock import Clock
from gateway.commands.pace import Pace
from gateway.events import (
    Address,
    ChannelName,
    Command,
    Membership,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    Sender,
)
from gateway.records import CodeGiven, address_of, key_of
from gateway.roster import words
from gateway.roster.codes import LIFE, MOST_OF_SOURCE, MOST_PENDING
from gateway.roster.linking import Claim, Linking
from gateway.roster.manners import Manners
from gateway.roster.minting import mint
from gateway.roster.pairing import expired, over
from gateway.roster.roster import Roster
from gateway.standing import ADMINS, MASK, administered, person, source
from gateway.store import Appended
from gateway.tools.consent import code as quoted

logger = logging.getLogger("reverie.roster")

MOST_NOTICES: Final = 10
"""In an hour on one channel, to people of whom nobody knows who they are: each may have any number of names."""
HELP_PER_MINUTE: Final = 3
"""So often a stranger who asks for help is answered."""
_HELP: Final = frozenset({"help", "commands", "start", "about"})
_PATTERN: Final = frozenset("*?")
"""A mask with one of these would stand for others, too."""
_LINK: Final = frozenset({"start", "list", "remove"})
"""Behind `link`: no code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What whoever was refused is told."""

    post: Post
    change: Change | None = None
    """What becomes durable with it, and is to be settled then. None: nothing."""


class Greeter:
    """For all channels. Decides nothing about who is heard."""

    def __init__(
        self,
        roster: Roster,
        policy: Policy,
        clock: Clock,
        *,
        linking: Linking,
        manners: Manners,
        reach: Callable[[Address, Sender], Address] = lambda at, _: at,
        title: Callable[[Address], str] = lambda _: "",
    ) -> None:
        """`reach`: where to write to somebody who invites to a room: the room itself where we are in it already.

        `title`: what a room calls itself. Empty: that is not known.
        """
        self._roster = roster
        self._policy = policy
        self._clock = clock
        self._linking = linking
        self._channel_style = manners
        self._reach = reach
        self._title = title
        self._notified: dict[str, tuple[datetime, str]] = {}
        """Who was told something, or in which room: until when nothing more is said, and by which event."""
        self._reminded: dict[str, tuple[datetime, str]] = {}
        """The same of who was reminded of a code."""
        self._replaced: dict[str, datetime] = {}
        """Whose code was replaced by another's: until when that does not give them a third one."""
        self._help_limiter = Pace()
        self._codes_being_written: Counter[ChannelName] = Counter()
        """Codes of each channel that are being written down."""
        self._warned = False

    def greet(self, event: Notification, decision: Decision) -> Greeting | None:
        """What to tell, and to write down with the event; None: nothing. Returns at once. To be settled in any case.

        Raises StoreError before the log was read.
        """
        place, sender = address_of(event), getattr(event, "sender", None)
        if not decision.request_kind or place is None or not isinstance(sender, Sender) or sender.is_bot:
            return None
        if decision.request_kind == "room":
            return self._prompt_room(event, place, sender)
        code = self._parse_link_code(event)
        return (
            self._submit_link_code(event, place, sender, decision, code)
            if code
            else self._prompt_pairing(event, place, sender)
        )

    def _parse_link_code(self, event: Notification) -> str:
        """The code that shows who a stranger is to us elsewhere; empty: it is none."""
        if not isinstance(event, Command) or event.name != "link":
            return ""
        first, _, rest = event.args.strip().partition(" ")
        if first.lower() == "code":
            return rest.strip()
        return "" if first.lower() in _LINK else event.args.strip()

    def _submit_link_code(
        self, event: Notification, place: Address, sender: Sender, decision: Decision, code: str
    ) -> Greeting | None:
        who = person(place.channel, sender.id)
        if not sender.verified:
            return self._prompt_login(event, place, who)
        claim = Claim(who, sender.name, place, sender.verified, decision.role)
        outcome = self._linking.submit_code(claim, code)
        if outcome.text == words.TRY_LATER:
            return None
        settle = self._roster.reserve_request(outcome.request)
        if settle is None:
            return Greeting(post=_post(event, place, words.UNDER_WAY))
        change = Change(answer=outcome.text, facts=outcome.facts, settle=settle)
        return Greeting(post=_post(event, place, outcome.text), change=change)

    def _prompt_pairing(self, event: Notification, place: Address, sender: Sender) -> Greeting | None:
        who = person(place.channel, sender.id)
        named = self._policy.allow_masks and sender.id.startswith(MASK) and not _PATTERN.intersection(sender.id)
        if not (sender.verified or named):
            return self._prompt_login(event, place, who)
        request = next((one for one in self._roster.pending_requests("pair") if one.person == who), None)
        if request is not None or not self._can_issue_code(event, place, who, who):
            return self._remind(event, place, who, request)
        minted = mint(self._roster.request_names)
        text = words.pairing(minted.code, self._channel_style.command_prefix(place.channel))
        given = CodeGiven(
            request=minted.request,
            what="pair",
            person=who,
            name=sender.name,
            at=place,
            salt=minted.salt,
            digest=minted.digest,
            until=self._clock.now() + LIFE,
        )
        return self._issue_code(event, given, text)

    def _prompt_room(self, event: Notification, place: Address, sender: Sender) -> Greeting | None:
        room = Address(channel=place.channel, room=place.room)
        who = person(place.channel, sender.id)
        if any(one.room == room for one in self._roster.pending_requests("room")) or not self._can_issue_code(
            event, place, room.conversation, who
        ):
            return None
        minted, prefix = mint(self._roster.request_names), self._channel_style.command_prefix(place.channel)
        invited = isinstance(event, Membership)
        to = self._reach(place, sender) if invited else place
        about = (event.text if isinstance(event, Membership) else None) or self._title(room)
        if to == place:
            text = words.opening(minted.code, prefix, quoted(sender.name, words.NAME_CHARS))
        else:
            text = words.inviting(minted.code, prefix, quoted(about or room.room, words.NAME_CHARS))
        given = CodeGiven(
            request=minted.request,
            what="room",
            person=who,
            name=sender.name,
            at=to,
            room=room,
            about=about,
            salt=minted.salt,
            digest=minted.digest,
            until=self._clock.now() + LIFE,
        )
        return self._issue_code(event, given, text)

    def _remind(self, event: Notification, place: Address, who: str, request: CodeGiven | None) -> Greeting | None:
        """To whoever was shown a code in this hour: once that it waits, and always if they ask for help."""
        now, key = self._clock.now(), key_of(event)
        if self._notified.get(who, (now, ""))[1] == key:  # the code was shown for the same event
            return None
        if isinstance(event, Command) and event.name in _HELP:
            if not self._help_limiter.try_acquire(source(who), self._clock.monotonic(), HELP_PER_MINUTE):
                return None
            text = words.reminding(request) if request is not None else words.not_yet()
            return Greeting(post=_post(event, place, text))
        self._reminded = {one: told for one, told in self._reminded.items() if now < told[0]}
        if request is None or self._reminded.get(who, (now, key))[1] != key:
            return None
        self._reminded[who] = (request.until, key)
        return Greeting(post=_post(event, place, words.reminding(request)))

    def _can_issue_code(self, event: Notification, place: Address, whom: str, asker: str) -> bool:
        """Whether a code may be shown there: nobody gets two in an hour, and few wait that one person asked for."""
        now, key = self._clock.now(), key_of(event)
        self._notified = {one: told for one, told in self._notified.items() if now < told[0]}
        if whom in self._notified and self._notified[whom][1] != key:
            return False
        waiting = [one for one in self._pending_requests(place.channel) if source(one.person) == source(asker)]
        if len(waiting) >= MOST_OF_SOURCE or self._codes_being_written[place.channel] >= MOST_PENDING:
            logger.info("no code for %s: %d of them wait on that channel already", source(asker), len(waiting))
            return False
        return True

    def _pending_requests(self, channel: ChannelName) -> list[CodeGiven]:
        return [one for one in self._roster.pending_requests("pair", "room") if one.at.channel == channel]

    def _evict_oldest_code(self, channel: ChannelName) -> tuple[tuple[Made, ...], Callable[[Appended | None], None]]:
        """Where too many codes wait, end the oldest of whoever has the most: nobody keeps others out by asking."""
        waiting = self._pending_requests(channel)
        if len(waiting) + self._codes_being_written[channel] < MOST_PENDING:
            return (), lambda _: None
        counts = Counter(source(one.person) for one in waiting)
        for one in sorted(waiting, key=lambda one: (-counts[source(one.person)], one.until)):
            release = self._roster.reserve_request(one.request)
            if release is not None:  # nobody is approving it in this moment
                return (over(one, "expired", ""),), partial(self._on_code_replaced, one, release)
        return (), lambda _: None

    def _on_code_replaced(
        self, request: CodeGiven, release: Callable[[Appended | None], None], asked: Appended | None
    ) -> None:
        """A code was replaced: whoever had it may ask for one more, once in an hour."""
        release(asked)
        subject = request.person if request.room is None else request.room.conversation
        now = self._clock.now()
        self._replaced = {one: until for one, until in self._replaced.items() if now < until}
        if asked is not None and asked.is_new and subject not in self._replaced:
            self._replaced[subject] = now + LIFE
            self._notified.pop(subject, None)

    def _issue_code(self, event: Notification, given: CodeGiven, text: str) -> Greeting:
        self._warn_without_admins()
        subject = given.person if given.room is None else given.room.conversation
        self._notified[subject] = (given.until, key_of(event))
        channel = given.at.channel
        replaced, freed = self._evict_oldest_code(channel)
        self._codes_being_written[channel] += 1

        def settle(asked: Appended | None) -> None:
            self._codes_being_written[channel] -= 1
            freed(asked)
            if asked is None:  # nobody is shown it
                self._notified.pop(subject, None)

        facts = (
            *expired(self._roster.expired_requests(channel)),
            *replaced,
            Made(given, given.at.conversation, f"code:{key_of(event)}"),
        )
        return Greeting(post=_post(event, given.at, text), change=Change(answer=text, facts=facts, settle=settle))

    def _prompt_login(self, event: Notification, place: Address, who: str) -> Greeting | None:
        now, key = self._clock.now(), key_of(event)
        self._notified = {one: told for one, told in self._notified.items() if now < told[0]}
        mine = f"unsure:{place.channel}:"
        told = self._notified.get(f"{mine}{who}")
        if told is None and sum(one.startswith(mine) for one in self._notified) >= MOST_NOTICES:
            return None
        helped = isinstance(event, Command) and event.name in _HELP
        if told is not None and told[1] != key and not helped:
            return None
        if helped and not self._help_limiter.try_acquire(source(who), self._clock.monotonic(), HELP_PER_MINUTE):
            return None
        if told is None:
            self._notified[f"{mine}{who}"] = (now + LIFE, key)
        return Greeting(
            post=_post(event, place, words.unsure(place.channel, self._channel_style.platform_name(place.channel)))
        )

    def _warn_without_admins(self) -> None:
        """Once, if nobody can do what the code is for."""
        if self._warned or administered(self._policy) or any(one.role in ADMINS for one in self._policy.platform_roles):
            return
        self._warned = True
        logger.warning("nobody is an owner or admin: only `reverie pair` can let people in and open rooms")


def _post(event: Notification, to: Address, text: str) -> Post:
    key = PostKey(hashlib.sha256(f"greeting:{key_of(event)}".encode()).hexdigest()[:26])
    said = isinstance(event, Message | Command) and event.at == to
    style: Literal["message", "notice"] = "notice"
    return Post(
        key=key,
        to=to,
        text=text,
        reply_to=MessageId(event.id) if said else None,
        style=style,
    )
