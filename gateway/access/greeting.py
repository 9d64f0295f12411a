"""Prompts for strangers: how to be let in, and how a room is opened.

Each person gets one code in an hour and one reminder of it, and then nothing more unless they ask
for help.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, Literal

from gateway.access.approval_texts import inline_code
from gateway.access.channels import Channels
from gateway.access.linking import AccountClaim, AccountLinker
from gateway.access.pairing import build_code_expirations, build_code_over, generate_code
from gateway.access.place_names import PlaceTitles
from gateway.access.policy import AccessDecision
from gateway.access.roster import Roster
from gateway.access.texts import (
    BEING_DECIDED_TEXT,
    CODE_LIFETIME,
    MAX_CODES_PER_SOURCE,
    MAX_PENDING_CODES,
    NAME_CHARS,
    TRY_LATER_TEXT,
    render_identity,
    render_invite_request,
    render_login_needed,
    render_not_approved,
    render_pairing_prompt,
    render_pairing_reminder,
    render_room_request,
)
from gateway.core.clock import Clock
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    MembershipChanged,
    Message,
    MessageId,
    Notification,
    Post,
    PostKey,
    Sender,
)
from gateway.core.facts import CodeIssued, address_of, dedup_key
from gateway.core.i18n import _, current_language
from gateway.core.identity import (
    ADMIN_ROLES,
    MASK_PREFIX,
    AccessPolicy,
    has_administrator,
    person_key,
    stable_source,
)
from gateway.core.ratelimit import SlidingWindows
from gateway.store import AppendResult
from gateway.store.effects import CommandEffect, EffectFact

logger = logging.getLogger("reverie.roster")

LOGIN_NOTICES_PER_MINUTE: Final = 10
"""Login notices on one channel. An unidentified person may use any number of names."""
HELP_PER_MINUTE: Final = 3
"""Answers to a stranger who asks for help, and login notices to one host."""
ROOMS_PER_DAY: Final = 10
"""Rooms of one channel in which strangers have the agent post its notice in a day. Admins always
get it."""
_HELP_COMMANDS: Final = frozenset({"help", "commands", "start", "about", "whoami"})
_WILDCARDS: Final = frozenset("*?")
"""A mask with one of these would match other people too."""
_LINK_SUBCOMMANDS: Final = frozenset({"start", "list", "remove"})
"""First arguments of `link` that are no code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingNotice:
    """Notice to somebody who was refused."""

    post: Post
    change: CommandEffect | None = None
    """Facts to append with it, settled then. None: none."""


class Greeter:
    """Prompts on all channels. It takes no access decisions."""

    def __init__(
        self,
        roster: Roster,
        policy: AccessPolicy,
        clock: Clock,
        *,
        linking: AccountLinker,
        channels: Channels,
        titles: PlaceTitles,
    ) -> None:
        self._roster = roster
        self._policy = policy
        self._clock = clock
        self._linking = linking
        self._channels = channels
        self._titles = titles
        self._notified: dict[str, tuple[datetime, str]] = {}
        """Person or room that got a notice: time until which no other follows, and key of the event
        that caused it."""
        self._reminded: dict[str, tuple[datetime, str]] = {}
        """As `_notified`, for reminders of a code."""
        self._replaced: dict[str, datetime] = {}
        """Person or room whose code was replaced: time until which a second replacement gives them
        no third code."""
        self._help_limiter = SlidingWindows()
        self._room_limiter = SlidingWindows(86_400.0)
        self._codes_being_written: Counter[ChannelName] = Counter()
        """Codes of each channel that are being appended."""
        self._warned = False

    def greet(self, event: Notification, decision: AccessDecision) -> PairingNotice | None:
        """Return the notice for a refused event, with its facts; None: none. Returns at once.

        The change must be settled in any case. Raises StoreError before the roster is loaded.
        """
        place, sender = address_of(event), getattr(event, "sender", None)
        if (
            not decision.request_kind
            or place is None
            or not isinstance(sender, Sender)
            or sender.is_bot
        ):
            return None
        if decision.request_kind == "room":
            return self._prompt_room(event, place, sender, decision.role)
        code = self._parse_link_code(event)
        return (
            self._submit_link_code(event, place, sender, decision, code)
            if code
            else self._prompt_pairing(event, place, sender)
        )

    def _parse_link_code(self, event: Notification) -> str:
        """Return the link code that the stranger submits; empty: none."""
        if not isinstance(event, Command) or event.name != "link":
            return ""
        first, _, rest = event.args.strip().partition(" ")
        if first.lower() == "code":
            return rest.strip()
        return "" if first.lower() in _LINK_SUBCOMMANDS else event.args.strip()

    def _submit_link_code(
        self,
        event: Notification,
        place: Address,
        sender: Sender,
        decision: AccessDecision,
        code: str,
    ) -> PairingNotice | None:
        who = person_key(place.channel, sender.id)
        if not sender.verified:
            return self._prompt_login(event, place, who)
        claim = AccountClaim(who, sender.name, place, sender.verified, decision.role)
        outcome = self._linking.submit_code(claim, code)
        if outcome.answer == _(TRY_LATER_TEXT):
            return None
        settle = self._roster.reserve_request(outcome.request)
        if settle is None:
            return PairingNotice(post=_build_notice_post(event, place, _(BEING_DECIDED_TEXT)))
        change = replace(outcome, settle=settle)
        return PairingNotice(post=_build_notice_post(event, place, outcome.answer), change=change)

    def _prompt_pairing(
        self, event: Notification, place: Address, sender: Sender
    ) -> PairingNotice | None:
        who = person_key(place.channel, sender.id)
        named = (
            self._policy.allow_masks
            and sender.id.startswith(MASK_PREFIX)
            and not _WILDCARDS.intersection(sender.id)
        )
        if not (sender.verified or named):
            return self._prompt_login(event, place, who)
        request = next(
            (one for one in self._roster.pending_requests("pair") if one.person == who), None
        )
        if request is not None or not self._can_issue_code(event, place, who, who):
            return self._remind(event, place, who, request)
        minted = generate_code(self._roster.request_names)
        prompt = render_pairing_prompt(minted.code, self._channels.command_prefix(place.channel))
        text = _identify_asker(event) + prompt
        issued = CodeIssued(
            request=minted.request,
            what="pair",
            person=who,
            name=sender.name,
            at=place,
            salt=minted.salt,
            digest=minted.digest,
            until=self._clock.now() + CODE_LIFETIME,
            language=current_language(),
        )
        return self._issue_code(event, issued, text)

    def _prompt_room(
        self, event: Notification, place: Address, sender: Sender, role: str
    ) -> PairingNotice | None:
        room = Address(channel=place.channel, room=place.room)
        who = person_key(place.channel, sender.id)
        if any(
            one.room == room for one in self._roster.pending_requests("room")
        ) or not self._can_issue_code(event, place, room.conversation, who):
            return None
        if role not in ADMIN_ROLES and not self._room_limiter.try_add(
            place.channel, self._clock.monotonic(), ROOMS_PER_DAY
        ):
            logger.info(
                "no notice in %s: there were %d of them on that channel in a day",
                room,
                ROOMS_PER_DAY,
            )
            return None
        minted, prefix = (
            generate_code(self._roster.request_names),
            self._channels.command_prefix(place.channel),
        )
        invited = isinstance(event, MembershipChanged)
        to = self._channels.private_address(place, sender) if invited else place
        about = (
            event.text if isinstance(event, MembershipChanged) else None
        ) or self._titles.room_title(room)
        if to == place:
            text = render_room_request(minted.code, prefix, inline_code(sender.name, NAME_CHARS))
        else:
            text = render_invite_request(
                minted.code, prefix, inline_code(about or room.room, NAME_CHARS)
            )
        issued = CodeIssued(
            request=minted.request,
            what="room",
            person=who,
            name=sender.name,
            at=to,
            room=room,
            about=about,
            salt=minted.salt,
            digest=minted.digest,
            until=self._clock.now() + CODE_LIFETIME,
            language=current_language(),
        )
        return self._issue_code(event, issued, text)

    def _remind(
        self, event: Notification, place: Address, who: str, request: CodeIssued | None
    ) -> PairingNotice | None:
        """Return a reminder to somebody with a code: once, and always if they ask for help."""
        now, key = self._clock.now(), dedup_key(event)
        if self._notified.get(who, (now, ""))[1] == key:  # the code was shown for the same event
            return None
        if isinstance(event, Command) and event.name in _HELP_COMMANDS:
            if not self._help_limiter.try_add(
                stable_source(who), self._clock.monotonic(), HELP_PER_MINUTE
            ):
                return None
            text = (
                render_pairing_reminder(request) if request is not None else render_not_approved()
            )
            return PairingNotice(
                post=_build_notice_post(event, place, _identify_asker(event) + text)
            )
        self._reminded = {
            one: notified for one, notified in self._reminded.items() if now < notified[0]
        }
        if request is None or self._reminded.get(who, (now, key))[1] != key:
            return None
        self._reminded[who] = (request.until, key)
        return PairingNotice(
            post=_build_notice_post(event, place, render_pairing_reminder(request))
        )

    def _can_issue_code(self, event: Notification, place: Address, whom: str, asker: str) -> bool:
        """Return whether a code may be shown: one in an hour for each subject, and few pending ones
        from one person.
        """
        now, key = self._clock.now(), dedup_key(event)
        self._notified = {
            one: notified for one, notified in self._notified.items() if now < notified[0]
        }
        if whom in self._notified and self._notified[whom][1] != key:
            return False
        waiting = [
            one
            for one in self._pending_requests(place.channel)
            if stable_source(one.person) == stable_source(asker)
        ]
        if (
            len(waiting) >= MAX_CODES_PER_SOURCE
            or self._codes_being_written[place.channel] >= MAX_PENDING_CODES
        ):
            logger.info(
                "no code for %s: %d of them wait on that channel already",
                stable_source(asker),
                len(waiting),
            )
            return False
        return True

    def _pending_requests(self, channel: ChannelName) -> list[CodeIssued]:
        return [
            one
            for one in self._roster.pending_requests("pair", "room")
            if one.at.channel == channel
        ]

    def _evict_oldest_code(
        self, channel: ChannelName
    ) -> tuple[tuple[EffectFact, ...], Callable[[AppendResult | None], None]]:
        """End the oldest code of the person with the most, if too many are pending: nobody can keep
        others out.
        """
        waiting = self._pending_requests(channel)
        if len(waiting) + self._codes_being_written[channel] < MAX_PENDING_CODES:
            return (), lambda _: None
        counts = Counter(stable_source(one.person) for one in waiting)
        for one in sorted(waiting, key=lambda one: (-counts[stable_source(one.person)], one.until)):
            release = self._roster.reserve_request(one.request)
            if release is not None:  # nobody is approving it at present
                return (build_code_over(one, "expired", ""),), partial(
                    self._on_code_replaced, one, release
                )
        return (), lambda _: None

    def _on_code_replaced(
        self,
        request: CodeIssued,
        release: Callable[[AppendResult | None], None],
        result: AppendResult | None,
    ) -> None:
        """After a code was replaced, let its owner ask for one more, once in an hour."""
        release(result)
        subject = request.person if request.room is None else request.room.conversation
        now = self._clock.now()
        self._replaced = {one: until for one, until in self._replaced.items() if now < until}
        if result is not None and result.is_new and subject not in self._replaced:
            self._replaced[subject] = now + CODE_LIFETIME
            self._notified.pop(subject, None)

    def _issue_code(self, event: Notification, issued: CodeIssued, text: str) -> PairingNotice:
        self._warn_without_admins()
        subject = issued.person if issued.room is None else issued.room.conversation
        self._notified[subject] = (issued.until, dedup_key(event))
        channel = issued.at.channel
        replaced, freed = self._evict_oldest_code(channel)
        self._codes_being_written[channel] += 1

        def settle(result: AppendResult | None) -> None:
            self._codes_being_written[channel] -= 1
            freed(result)
            if result is None:  # it was not shown
                self._notified.pop(subject, None)

        facts = (
            *build_code_expirations(self._roster.expired_requests(channel)),
            *replaced,
            EffectFact(issued, issued.at.conversation, f"code:{dedup_key(event)}"),
        )
        return PairingNotice(
            post=_build_notice_post(event, issued.at, text),
            change=CommandEffect(answer=text, facts=facts, settle=settle),
        )

    def _prompt_login(self, event: Notification, place: Address, who: str) -> PairingNotice | None:
        now, key = self._clock.now(), dedup_key(event)
        self._notified = {
            one: notified for one, notified in self._notified.items() if now < notified[0]
        }
        mine = f"unsure:{place.channel}:"
        previous = self._notified.get(f"{mine}{who}")
        helped = isinstance(event, Command) and event.name in _HELP_COMMANDS
        if previous is not None and previous[1] != key and not helped:
            return None
        now_s, is_new = self._clock.monotonic(), previous is None
        if (helped or is_new) and not self._help_limiter.try_add(
            stable_source(who), now_s, HELP_PER_MINUTE
        ):
            return None
        if is_new:
            if not self._help_limiter.try_add(mine, now_s, LOGIN_NOTICES_PER_MINUTE):
                return None
            self._notified[f"{mine}{who}"] = (now + CODE_LIFETIME, key)
        return PairingNotice(
            post=_build_notice_post(
                event,
                place,
                render_login_needed(place.channel, self._channels.platforms.get(place.channel, "")),
            )
        )

    def _warn_without_admins(self) -> None:
        """Log a warning, once, if nobody can approve the code."""
        if (
            self._warned
            or has_administrator(self._policy)
            or any(one.role in ADMIN_ROLES for one in self._policy.platform_roles)
        ):
            return
        self._warned = True
        logger.warning(
            "nobody is an owner or admin: only `reverie pair` can approve people and rooms"
        )


def _identify_asker(event: Notification) -> str:
    """Return the beginning of the answer to a stranger who asks for their id: whoever sets up a
    gateway needs it.
    """
    if not isinstance(event, Command) or event.name != "whoami":
        return ""
    return f"{render_identity(event.at.channel, event.sender)} "


def _build_notice_post(event: Notification, to: Address, text: str) -> Post:
    key = PostKey(hashlib.sha256(f"greeting:{dedup_key(event)}".encode()).hexdigest()[:26])
    answerable = isinstance(event, Message | Command) and event.at == to
    style: Literal["message", "notice"] = "notice"
    return Post(
        key=key,
        to=to,
        text=text,
        reply_to=MessageId(event.id) if answerable else None,
        style=style,
    )
