"""Prompts for strangers: how to be let in, and how a room is opened.

Each person and each room gets one code in an hour, and then nothing more unless they ask for help.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Final

from gateway.access.policy import Routed
from gateway.access.texts import NAME_CHARS, render_identity
from gateway.commands.context import CommandCall
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
from gateway.core.facts import CodeIssued, dedup_key
from gateway.core.format import format_time
from gateway.core.i18n import _
from gateway.core.identity import ADMIN_ROLES, MASK_PREFIX, stable_source
from gateway.core.ratelimit import SlidingWindows
from gateway.core.text_safety import inline_code
from gateway.plugins.pairing.codes import (
    CODE_LIFETIME,
    MAX_PENDING_CODES,
    TRY_LATER_TEXT,
    build_code_expirations,
    build_code_over,
    issue_code,
    render_login_needed,
)
from gateway.plugins.pairing.linking import AccountLinker
from gateway.store import AppendResult
from gateway.store.effects import CommandEffect, EffectFact
from gateway.stream.handle import GatewayHandle

logger = logging.getLogger("reverie.pairing")

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


Notice = tuple[Post, CommandEffect | None]
"""Notice to somebody who was refused, and what is appended with it, settled then. None: nothing."""


class Greeter:
    """Prompts on all channels. It takes no access decisions."""

    def __init__(
        self,
        gateway: GatewayHandle,
        linking: AccountLinker,
        on_issued: Callable[[CodeIssued], None],
    ) -> None:
        """`on_issued`: called with each code that was shown, once it is in the log."""
        self._clock, self._channels = gateway.clock, gateway.channels
        self._roster, self._policy = gateway.roster, gateway.people
        self._titles, self._linking = gateway.places.titles, linking
        self._on_issued = on_issued
        self._notified: dict[str, tuple[datetime, str]] = {}
        """Person or room that got a notice: time until which no other follows, and key of the event
        that caused it."""
        self._help_limiter = SlidingWindows()
        self._room_limiter = SlidingWindows(86_400.0)

    def greet(self, routed: Routed) -> Notice | None:
        """Return the notice for a refused event, with what is appended with it; None: none. Settle
        that in any case.
        """
        event, place, who = routed.event, routed.at, routed.person
        sender = getattr(event, "sender", None)
        if place is None or not isinstance(sender, Sender) or sender.is_bot:
            return None
        if routed.access.request_kind == "room":
            return self._prompt_room(routed, place, sender)
        code = _parse_link_code(event)
        if not code or not isinstance(event, Command):
            return self._prompt_pairing(event, place, sender, who)
        if not sender.verified:
            return self._prompt_login(event, place, who)
        outcome = self._linking.submit_code(CommandCall(command=event, role=routed.role), code)
        if outcome.answer == _(TRY_LATER_TEXT):
            return None
        return _build_notice_post(event, place, outcome.answer), outcome

    def _prompt_pairing(
        self, event: Notification, place: Address, sender: Sender, who: str
    ) -> Notice | None:
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
        if request is not None or self._was_notified(who, event):
            return self._answer_help(event, place, who, request)
        taken, now = self._roster.request_names, self._clock.now()
        code, issued = issue_code("pair", taken, now, person=who, name=sender.name, at=place)
        prefix = self._channels.command_prefix(place.channel)
        text = _identify_asker(event) + _(
            "Hi, I'm a bot. My operator has to approve you first. Send them this code (valid 1 "
            "hour): `{code}`. They approve it with `{approve}`. If I know you already on another "
            "platform, write `{link}` to me there instead."
        ).format(code=code, approve=f"{prefix}pair approve {code}", link=f"{prefix}link")
        return self._issue_code(event, issued, text)

    def _prompt_room(self, routed: Routed, place: Address, sender: Sender) -> Notice | None:
        event, room = routed.event, Address(channel=place.channel, room=place.room)
        if any(
            one.room == room for one in self._roster.pending_requests("room")
        ) or self._was_notified(room.conversation, event):
            return None
        if routed.role not in ADMIN_ROLES and not self._room_limiter.try_add(
            place.channel, self._clock.monotonic(), ROOMS_PER_DAY
        ):
            logger.info(
                "no notice in %s: there were %d of them on that channel in a day",
                room,
                ROOMS_PER_DAY,
            )
            return None
        to, about = place, self._titles.room_title(room)
        if isinstance(event, MembershipChanged):  # an invitation
            to, about = self._channels.private_address(place, sender), event.text or about
        code, issued = issue_code(
            "room",
            self._roster.request_names,
            self._clock.now(),
            person=routed.person,
            name=sender.name,
            at=to,
            room=room,
            about=about,
        )
        approve = f"{self._channels.command_prefix(place.channel)}room approve {code}"
        if to == place:
            text = _(
                "I'm a bot, and I may not talk in this room yet. {person} asked for it. One of my "
                "admins has to send me `{approve}`, in any chat. The code is valid for 1 hour."
            ).format(person=inline_code(sender.name, NAME_CHARS), approve=approve)
        else:
            text = _(
                "I'm a bot, and I may not enter {room} yet. One of my admins has to send me "
                "`{approve}`, in any chat. The code is valid for 1 hour."
            ).format(room=inline_code(about or room.room, NAME_CHARS), approve=approve)
        return self._issue_code(event, issued, text)

    def _answer_help(
        self, event: Notification, place: Address, who: str, request: CodeIssued | None
    ) -> Notice | None:
        if (
            self._notified.get(who, (None, ""))[1] == dedup_key(event)  # it was shown for this one
            or not _asks_for_help(event)
            or not self._may_help(who)
        ):
            return None
        text = _("I'm a bot, and I can answer you only after my operator has approved you.")
        if request is None:
            text += " " + _("Ask them for that.")
        else:
            text += " " + _(
                "Send them the code that I showed you; it is valid until {time}."
            ).format(time=format_time(request.until))
        return _build_notice_post(event, place, _identify_asker(event) + text), None

    def _may_help(self, who: str) -> bool:
        return self._help_limiter.try_add(
            stable_source(who), self._clock.monotonic(), HELP_PER_MINUTE
        )

    def _was_notified(self, subject: str, event: Notification) -> bool:
        """Return whether somebody got a notice within the hour, for another event than this."""
        now, key = self._clock.now(), dedup_key(event)
        self._notified = {one: told for one, told in self._notified.items() if now < told[0]}
        return self._notified.get(subject, (now, key))[1] != key

    def _evict_oldest_code(self, channel: ChannelName) -> tuple[EffectFact, ...]:
        """End the oldest code of the person with the most, if too many are pending: nobody can keep
        others out.
        """
        pending = self._roster.pending_requests("pair", "room")
        waiting = [one for one in pending if one.at.channel == channel]
        if len(waiting) < MAX_PENDING_CODES:
            return ()
        counts = Counter(stable_source(one.person) for one in waiting)
        oldest = min(waiting, key=lambda one: (-counts[stable_source(one.person)], one.until))
        return (build_code_over(oldest, "expired", ""),)

    def _issue_code(self, event: Notification, issued: CodeIssued, text: str) -> Notice:
        subject = issued.person if issued.room is None else issued.room.conversation
        self._notified[subject] = (issued.until, dedup_key(event))
        channel = issued.at.channel

        def settle(result: AppendResult | None) -> None:
            if result is None:  # it was not shown
                self._notified.pop(subject, None)
            elif result.is_new:
                self._on_issued(issued)

        facts = (
            *build_code_expirations(self._roster.expired_requests(channel)),
            *self._evict_oldest_code(channel),
            EffectFact(issued, issued.at.conversation, f"code:{dedup_key(event)}"),
        )
        change = CommandEffect(answer=text, facts=facts, settle=settle)
        return _build_notice_post(event, issued.at, text), change

    def _prompt_login(self, event: Notification, place: Address, who: str) -> Notice | None:
        subject = f"unsure:{who}"
        told = self._was_notified(subject, event)
        if told and not _asks_for_help(event):
            return None
        if (told or subject not in self._notified) and not self._may_help(who):
            return None
        if subject not in self._notified:
            if not self._help_limiter.try_add(
                f"unsure:{place.channel}", self._clock.monotonic(), LOGIN_NOTICES_PER_MINUTE
            ):
                return None
            self._notified[subject] = (self._clock.now() + CODE_LIFETIME, dedup_key(event))
        able = self._channels.capabilities.get(place.channel)
        command = able.login_command if able is not None else ""
        return _build_notice_post(event, place, render_login_needed(place.channel, command)), None


def _parse_link_code(event: Notification) -> str:
    if not isinstance(event, Command) or event.name != "link":
        return ""
    first, _sep, rest = event.args.strip().partition(" ")
    if first.lower() == "code":
        return rest.strip()
    return "" if first.lower() in {"start", "list", "remove"} else event.args.strip()


def _asks_for_help(event: Notification) -> bool:
    return isinstance(event, Command) and event.name in _HELP_COMMANDS


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
    reply_to = MessageId(event.id) if answerable else None
    return Post(key=key, to=to, text=text, reply_to=reply_to, style="notice")
