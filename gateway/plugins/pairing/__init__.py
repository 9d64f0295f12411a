"""Pairing: people ask to be let in by a code, admins approve it, and a person links their accounts.

A stranger who is refused is shown a code, which an admin hands in: for direct chats with the
agent, or for a room. Each person and each room gets one code in an hour, and then nothing more
unless they ask for help. What comes of a code is a fact, and a code is used once (`codes`). Who has
which role is known by `gateway.access.roster`.

Two accounts prove by codes that they are one person's: each is shown a code, and submits that of
the other. So somebody who is talked into submitting one code links nobody, and is shown the other
account before the second. Only verified accounts of people who are not blocked can be linked.

A code is shown once and never stored: the log has its salt and digest. Names and ids come from
others, so every text shows them as code. The order of this file: what strangers are told, then the
commands `pair`, `room` and `link`.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from channels.base import CommandCompletion
from gateway.access.policy import AccessDecision, Routed, is_room_allowed, is_room_configured
from gateway.access.roster import (
    BRIDGED_NO_ROLE_TEXT,
    MASK_NOT_ADMIN_TEXT,
    RECENT_LINES,
    RequestKind,
    explain_invalid_id,
    explain_role_refusal,
    is_blocked_anywhere,
    list_accounts_of,
)
from gateway.access.texts import (
    MAX_LINKED_ACCOUNTS,
    NAME_CHARS,
    format_person,
    format_room,
    group_linked_accounts,
    is_verifiable,
    render_identity,
)
from gateway.commands.context import CommandCall
from gateway.commands.definition import command
from gateway.commands.people import AssignableRole, find_named_person, suggest_people
from gateway.commands.rooms import suggest_rooms
from gateway.context.conversation import is_addressed
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    MembershipChanged,
    Message,
    MessageDeleted,
    MessageEdited,
    MessageId,
    Notification,
    Post,
    PostKey,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    AMBIENT,
    MESSAGE_KINDS,
    CodeEnded,
    CodeIssued,
    IdentityLinked,
    RoleAssigned,
    RoomAccessChanged,
    Seq,
    dedup_key,
    event_kinds,
)
from gateway.core.format import format_moment
from gateway.core.i18n import N_, _, use_language
from gateway.core.identity import (
    ADMIN_ROLES,
    MASK_PREFIX,
    Role,
    identify,
    is_bridged,
    normalize_person_key,
    person_key,
    stable_source,
)
from gateway.core.ratelimit import SlidingWindows
from gateway.core.route import WAITING, route
from gateway.core.text_safety import inline_code
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.pairing import codes
from gateway.store import AppendResult, LogEntry, StoreReader
from gateway.store.effects import CommandEffect, Decision, EffectFact, done, refuse
from gateway.stream.attention import assess

if TYPE_CHECKING:
    from gateway.core.api_models import WaitingItem

logger = logging.getLogger("reverie.pairing")

MAX_REFUSED_AGE: Final = timedelta(days=1)
"""Age of a question that is still answered after the approval."""
MAX_LATER_LINES: Final = 20
"""Lines of others after a question in a room with which the room has gone on without an answer."""
MAX_REFUSED_LINES: Final = 10
"""Lines that are told of somebody who was let in: the question, and those before it."""
_LET_IN: Final = "written before they were let in"
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
_SECRET: Final = Field(repr=False)
Notice = tuple[Post, CommandEffect | None]
"""Notice to somebody who was refused, and what is appended with it, settled then. None: nothing."""
_UNVERIFIED_TEXT: Final = N_(
    "I cannot link this account, because the platform does not confirm who you are. Log in to your "
    "account first."
)


class Pairing(Plugin):
    """Codes of all channels, the commands about them, and what strangers are told."""

    name = "pairing"
    summary = "lets people in by codes that an admin approves, and links the accounts of a person"
    watches = (CodeEnded,)
    judged_kinds = tuple(event_kinds())
    judged_fates = ("refused",)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        self._gateway = gateway = context.gateway
        self._clock, self._channels = gateway.clock, gateway.channels
        self._roster, self._policy = gateway.roster, gateway.people
        self._held = set[str]()
        """Names of requests about which somebody is deciding."""
        self._attempts = SlidingWindows(codes.ATTEMPT_WINDOW_S)
        """Wrong codes of each person."""
        self._notified: dict[str, tuple[datetime, str]] = {}
        """Person or room that got a notice: time until which no other follows, and key of the event
        that caused it."""
        self._help_limiter = SlidingWindows()
        self._room_limiter = SlidingWindows(86_400.0)

    @hook(trylast=True)
    async def judge(self, routed: Routed, so_far: Decision) -> Decision | None:
        """Answer whoever was refused and can ask for approval."""
        event = routed.event
        is_tap = isinstance(event, Command) and event.origin == "button"
        if (
            not routed.access.request_kind
            or so_far.post is not None
            or getattr(event, "history", False)
            or is_tap
        ):
            return None
        if (notice := self._greet(routed)) is None:
            return None
        post, change = notice
        effect = change if so_far.effect is None or change is None else so_far.effect + change
        return replace(so_far, post=post, effect=effect or so_far.effect)

    def _greet(self, routed: Routed) -> Notice | None:
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
        prefix = self._channels.command_prefix(place.channel)
        call = CommandCall(command=event, role=routed.role, prefix=prefix)
        outcome = self._submit_link_code(call, code)
        if outcome.answer == _(codes.TRY_LATER_TEXT):
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
        code, issued = codes.issue_code("pair", taken, now, person=who, name=sender.name, at=place)
        prefix = self._channels.command_prefix(place.channel)
        text = _identify_asker(event) + _(
            "Hi, I'm a bot. My operator has to approve you first. Send them this code (valid 1 "
            "hour): `{code}`. They approve it with `{approve}`. If I know you already on another "
            "platform, write `{link}` to me there instead."
        ).format(code=code, approve=f"{prefix}pair approve {code}", link=f"{prefix}link")
        return self._issue_code(event, issued, text)

    def _prompt_room(self, routed: Routed, place: Address, sender: Sender) -> Notice | None:
        event, room = routed.event, _room_address(place)
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
        to, about = place, self._gateway.places.titles.room_title(room)
        if isinstance(event, MembershipChanged):  # an invitation
            to, about = self._channels.private_address(place, sender), event.text or about
        code, issued = codes.issue_code(
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
        now = self._gateway.live.to_local(self._clock.now())
        if request is None:
            text += " " + _("Ask them for that.")
        else:
            text += " " + _(
                "Send them the code that I showed you; it is valid until {time}."
            ).format(time=format_moment(request.until, now))
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
        if len(waiting) < codes.MAX_PENDING_CODES:
            return ()
        counts = Counter(stable_source(one.person) for one in waiting)
        oldest = min(waiting, key=lambda one: (-counts[stable_source(one.person)], one.until))
        return (codes.build_code_over(oldest, "expired"),)

    def _issue_code(self, event: Notification, issued: CodeIssued, text: str) -> Notice:
        subject = issued.person if issued.room is None else issued.room.conversation
        self._notified[subject] = (issued.until, dedup_key(event))
        channel = issued.at.channel

        def settle(result: AppendResult | None) -> None:
            if result is None:  # it was not shown
                self._notified.pop(subject, None)
            elif result.is_new:
                self._tell_owners(issued)

        facts = (
            *codes.build_code_expirations(self._roster.expired_requests(channel)),
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
            self._notified[subject] = (self._clock.now() + codes.CODE_LIFETIME, dedup_key(event))
        able = self._channels.capabilities.get(place.channel)
        command = able.login_command if able is not None else ""
        return _build_notice_post(
            event, place, codes.render_login_needed(place.channel, command)
        ), None

    def _tell_owners(self, issued: CodeIssued) -> None:
        self._gateway.notices.tell(
            f"code:{issued.salt}",
            partial(self._render_request, issued),
            buttons=partial(codes.request_buttons, issued),
        )

    def _render_request(self, request: CodeIssued, to: Address | None) -> str:
        channels = self._channels
        able = channels.capabilities.get(to.channel) if to is not None else None
        prefix = "reverie " if to is None else channels.command_prefix(to.channel)
        has_buttons = able is not None and able.buttons
        return codes.render_request_for_owners(request, prefix, has_buttons=has_buttons)

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        """Say under the notice about a request what came of it."""
        for entry in entries:
            if isinstance(ended := entry.fact, CodeEnded):
                key = (entry.key or "").replace("code_over:", "code:")
                text = partial(codes.render_request_outcome, ended)
                self._gateway.notices.tell(key, text, "decided")

    async def _suggest_people(self, typed: CommandCompletion) -> list[str]:
        return await suggest_people(self._gateway, typed)

    async def _suggest_accounts(self, typed: CommandCompletion) -> list[str]:
        own = person_key(typed.at.channel, typed.sender.id)
        return sorted(self._policy.roster_state().links.get(own, ()))

    async def _suggest_requests(self, typed: CommandCompletion) -> list[str]:
        kind: RequestKind = "room" if typed.name == "room" else "pair"
        return [one.request for one in self._roster.pending_requests(kind) if one.request]

    async def _suggest_rooms(self, _typed: CommandCompletion) -> list[str]:
        return await suggest_rooms(self._gateway)

    PAIR = command(
        "pair",
        "Decide who may write to me in private.",
        group="people",
        role="admin",
        needs_global_role=True,
    )

    @route("GET", WAITING)
    async def list_waiting(self) -> "list[WaitingItem]":
        """Return who asks to be let in, with what they wrote in vain, and which rooms."""
        from gateway.core.api_models import WaitingAction, WaitingItem  # noqa: PLC0415 - pages alone ask

        items = list[WaitingItem]()
        for one in self._roster.pending_requests("pair", "room"):
            refused = [fact.fact for fact in await self._find_refused_lines(one)]
            room, request = one.room, one.request
            items.append(
                WaitingItem(
                    id=request,
                    kind="pairing" if room is None else "room",
                    who=one.name or one.person,
                    place=(room or one.at).conversation,
                    place_title="" if room is None else one.about,
                    what="wants to talk to me in private" if room is None else "wants me in a room",
                    words="\n".join(fact.text for fact in refused if isinstance(fact, Message)),
                    since=one.until - codes.CODE_LIFETIME,
                    until=one.until,
                    actions=(
                        WaitingAction(
                            label="Approve", words=("pair", "approve", request), style="yes"
                        ),
                        WaitingAction(
                            label="Refuse", words=("pair", "revoke", request), style="no"
                        ),
                    ),
                )
            )
        return items

    @command("pair list", "List who waits for approval, and who is approved.")
    async def list_pairings(self, call: CommandCall) -> CommandEffect:
        """List who waits for approval, and who is approved; to the operator also the rooms."""
        roster = self._roster
        asking = roster.pending_requests("pair")
        lines = [
            *codes.format_requests(asking, "pair", call.prefix),
            *codes.format_paired_people(roster.roles),
        ]
        if not call.is_operator:
            return done("\n".join(lines))
        waiting = roster.pending_requests("room")
        lines += [
            *codes.format_requests(waiting, "room", call.prefix),
            *codes.format_open_rooms(roster.rooms, self._policy),
        ]
        data = {
            "requests": [
                {
                    "request": one.request,
                    "person": one.person,
                    "name": one.name,
                    "room": one.room and one.room.conversation,
                    "until": one.until,
                }
                for one in (*asking, *waiting)
            ],
            "roles": [
                {"person": one.person, "role": one.role, "scope": one.scope, "by": one.by}
                for one in roster.roles
            ],
            "rooms": [{"room": one.room.conversation, "by": one.by} for one in roster.rooms],
        }
        return done("\n".join(lines), data=data)

    @command("pair approve", "Approve a person who waits.")
    async def approve_pairing(
        self,
        call: CommandCall,
        *,
        code: Annotated[
            str,
            "The code, or the id of the request or person, as in list.",
            _suggest_requests,
            _SECRET,
        ],
    ) -> CommandEffect:
        """Approve a person who asked; for the operator also a room that somebody asked for."""
        request = await self._find_request(
            call, code, "pair", *(("room",) if call.is_operator else ())
        )
        return request if isinstance(request, CommandEffect) else await self._approve(call, request)

    async def _approve(self, call: CommandCall, request: CodeIssued) -> CommandEffect:
        """Approve a request; what its person asked in vain is answered now."""
        asked = await self._find_refused_lines(request)
        if request not in self._roster.pending_requests(request.what):  # decided meanwhile
            return refuse(_(codes.BEING_DECIDED_TEXT))
        if request.room is not None:
            outcome = codes.approve_room(request, request.room, call)
        else:
            outcome = codes.approve_pairing(
                request, call, existing=self._roster.find_grant(request.person)
            )
            sure = codes.describe_verification(request.person, self._channels.capabilities)
            outcome = replace(outcome, answer=f"{outcome.answer} {sure}")
        facts = (*outcome.facts, *asked) if outcome.ok else outcome.facts
        return codes.reserve_request(self._held, request, replace(outcome, facts=facts))

    async def _find_refused_lines(self, request: CodeIssued) -> tuple[EffectFact, ...]:
        """Return what somebody wrote in vain where they asked to be let in, to be appended once
        more with their approval.

        The newest line to the agent is due, and their lines before it are context. Each enters
        once, at a new position: a turn that is under way covers no later one. Nothing of somebody
        who is or was blocked, or was heard since, and nothing in a room that has gone on.
        """
        at, policy, now = request.at, self._policy, self._clock.now()
        if request.room is not None and _room_address(at) != request.room:
            at = request.room
        found, later = list[EffectFact](), 0
        recent = await self._gateway.store.newest_entries(
            RECENT_LINES, kinds=MESSAGE_KINDS, conversation=at.conversation
        )
        for entry in reversed(recent):
            message = entry.fact
            if (
                not isinstance(message, Message)
                or person_key(at.channel, message.sender.id) != request.person
            ):
                later += 1
                continue
            if not found and later > MAX_LATER_LINES:
                break
            before = await self._gateway.store.find_judgement(entry.seq)
            if (
                before is None
                or before.fate != "refused"
                or message.sender.is_bot
                or len(found) == MAX_REFUSED_LINES
            ):
                break
            role = identify(policy, at, message.sender).role
            if "blocked" in (role, before.role) or now - message.sent > MAX_REFUSED_AGE:
                break
            text = await _read_current_text(self._gateway.store, entry.seq, message)
            if text is None or message.history or not (found or is_addressed(message)):
                continue
            message = replace(message, text=text, as_guest=before.role == "guest")
            listen = self._gateway.places.bindings.find(message.at).listen
            decision = AccessDecision(allowed=True, role=role, rule=_LET_IN)
            judged = assess(self.context.attention.policy, message, decision, listen)
            if judged.fate not in ("due", "context"):
                break
            judged = replace(judged, role=before.role, rule=f"{judged.rule}; {_LET_IN}")
            judged = replace(judged, fate="context", urgency=AMBIENT) if found else judged
            found.append(
                EffectFact(message, at.conversation, f"let_in:{dedup_key(message)}", judged)
            )
        return tuple(reversed(found))

    @command("pair seed", "Approve a person who never asked.", operator=True)
    async def seed_person(
        self,
        call: CommandCall,
        who: Annotated[str, "channel:id, as whoami shows it."],
        role: Annotated[AssignableRole, "The role. Without one: member."] = "member",
    ) -> CommandEffect:
        name, __, number = who.partition(":")
        channels = self._gateway.live.settings.channels
        if not (name and number):
            return refuse(
                _("Write channel:id, as `whoami` shows it, for example telegram.main:1001.")
            )
        if name not in channels:
            known = ", ".join(map(inline_code, channels)) or _("none")
            text = _("There is no channel {channel}. The channels are: {channels}.")
            return refuse(text.format(channel=inline_code(name), channels=known))
        able = self._channels.capabilities.get(ChannelName(name))
        if able is not None and (wrong := explain_invalid_id(who, able)):
            return refuse(wrong)
        whom = normalize_person_key(who)
        if is_bridged(whom):
            return refuse(_(BRIDGED_NO_ROLE_TEXT))
        if role in ADMIN_ROLES and not is_verifiable(whom):
            return refuse(_(MASK_NOT_ADMIN_TEXT))
        if why := self._explain_refusal(call, whom, role):
            return refuse(why)
        given = self._roster.find_grant(whom)
        if given is not None and given.role == role:
            return refuse(
                _("{person} is already {role}.").format(
                    person=format_person(whom, given.name), role=role
                )
            )
        fact = RoleAssigned(
            person=whom, role=role, name=given.name if given else "", by=call.person, why="seed"
        )
        words = _("{person} is {role} from now on.").format(person=format_person(whom), role=role)
        return done(words, fact)

    @command("pair revoke", "Refuse a person who waits, or withdraw an approval.")
    async def revoke_pairing(
        self,
        call: CommandCall,
        who: Annotated[
            str,
            "A person: an id as in whoami, or a name that was active here lately.",
            _suggest_people,
        ],
    ) -> CommandEffect:
        roster, name = self._roster, who.strip("` ").lower()
        for request in roster.pending_requests("pair", "room"):
            if request.request == name:
                words = _("Refused: the code of {person} is not valid any more.").format(
                    person=format_person(request.person, request.name)
                )
                effect = done(words, codes.build_code_over(request, "revoked", call))
                return codes.reserve_request(self._held, request, effect)
        if (decided := await self._find_decided(who)) is not None:
            return decided
        whom = await find_named_person(self._gateway, call.command.at, who)
        if isinstance(whom, CommandEffect):
            return whom
        if why := self._explain_refusal(call, whom.person, "", whom.last_role):
            return refuse(why)
        outcome = codes.revoke_pairing(whom.person, roster.find_grant(whom.person), call.person)
        if outcome.ok and (others := list_accounts_of(self._policy, whom.person)[1:]):
            accounts = ", ".join(map(format_person, others))
            stay = _("Their roles as {accounts} stay.").format(accounts=accounts)
            return replace(outcome, answer=f"{outcome.answer} {stay}")
        return outcome

    def _explain_refusal(
        self,
        call: CommandCall,
        whom: str,
        wants: Role | Literal[""],
        last_role: Role = "guest",
    ) -> str:
        """As `explain_role_refusal`. Empty for the operator with an owner's power."""
        role = call.global_role
        if call.is_operator and role == "owner":
            return ""
        return explain_role_refusal(
            self._policy, by=call.person, role=role, whom=whom, wants=wants, last_role=last_role
        )

    ROOM = command(
        "room",
        "Decide in which rooms I may speak.",
        group="rooms",
        role="admin",
        needs_global_role=True,
    )

    @command("room list", "List rooms that are approved, and rooms that wait.")
    async def list_open_rooms(self, call: CommandCall) -> CommandEffect:
        roster = self._roster
        waiting = codes.format_requests(roster.pending_requests("room"), "room", call.prefix)
        return done("\n".join([*waiting, *codes.format_open_rooms(roster.rooms, self._policy)]))

    @command("room approve", "Approve a room that waits. Without a code or an id: this room.")
    async def approve_room(
        self,
        call: CommandCall,
        *,
        code: Annotated[
            str,
            "The code, or the id of the request or room, as in list.",
            _suggest_requests,
            _SECRET,
        ] = "",
    ) -> CommandEffect:
        if code:
            request = await self._find_request(call, code, "room")
            if isinstance(request, CommandEffect):
                return request
            return await self._approve(call, request)
        if call.command.direct:
            return refuse(_("Write that in the room, or add the code that I showed there."))
        return await self._open_here(call, _room_address(call.command.at))

    async def _open_here(self, call: CommandCall, room: Address) -> CommandEffect:
        if is_room_allowed(self._policy, room):
            return refuse(_("This room is already approved."))
        for request in self._roster.pending_requests("room"):
            if request.room == room:
                return await self._approve(call, request)
        opened = RoomAccessChanged(room=room, open=True, by=call.person)
        words = _("Approved: {room}.").format(room=format_room(room.conversation))
        return done(words, EffectFact(opened, room.conversation))

    @command("room revoke", "Withdraw the approval of a room. Without a name: this room.")
    async def close_room(
        self,
        call: CommandCall,
        room: Annotated[str, "The room, as in rooms.", _suggest_rooms] = "",
    ) -> CommandEffect:
        at, written = call.command.at, room.strip("` ")
        if not written and call.command.direct:
            return refuse(_("Write the name of the room, as `room list` shows it."))
        wanted = written.casefold() or _room_address(at).conversation.casefold()
        for one in self._roster.rooms:
            own = one.room.room.casefold() if one.room.channel == at.channel else ""
            if wanted in (one.room.conversation.casefold(), own):
                return self._close_room(one, call.person)
        shown = format_room(written or _room_address(at).conversation)
        text = _(
            "{room} was not approved by a command. Only the configuration can close a room that it "
            "opens."
        )
        return refuse(text.format(room=shown))

    def _close_room(self, one: RoomAccessChanged, by: str) -> CommandEffect:
        closed = RoomAccessChanged(room=one.room, open=False, by=by, about=one.about)
        configured = is_room_configured(self._policy, one.room)
        text = (
            _("I took back the approval of {room}. The configuration still opens it.")
            if configured
            else _("I took back the approval of {room}. I leave it, if the platform lets me.")
        ).format(room=format_room(one.room.conversation, one.about))
        return done(text, EffectFact(closed, one.room.conversation))

    async def _find_request(
        self, call: CommandCall, written: str, *kinds: RequestKind
    ) -> CodeIssued | CommandEffect:
        now_s = self._clock.monotonic()
        tried = self._attempts.count(call.person, now_s)
        if tried >= codes.MAX_ATTEMPTS and not call.is_operator:
            return refuse(_(codes.TRY_LATER_TEXT))
        request = codes.find_request(self._roster.pending_requests(*kinds), written)
        if request is None:
            if (decided := await self._find_decided(written)) is not None:
                return decided
            self._attempts.add(call.person, now_s)
            return refuse(codes.render_unknown_request(written, call.prefix, kinds[0]))
        return request

    async def _find_decided(self, written: str) -> CommandEffect | None:
        """Return the answer to whoever names a request that has ended lately, as its buttons do;
        None: there is none.
        """
        text, request = _("That is decided already: {outcome}"), written.strip("` ").lower()
        for one in await self._gateway.store.newest_entries(RECENT_LINES, kinds=["code_over"]):
            if isinstance(one.fact, CodeEnded) and one.fact.request == request:
                return refuse(text.format(outcome=codes.render_request_outcome(one.fact, None)))
        return None

    LINK = command(
        "link",
        "Show that you are the same person on another platform.",
        group="me and you",
        default_sub="code",
        direct_only=True,
        needs_gateway=True,
    )

    @command("link start", "Get a code. Send it to me from your other account.")
    async def start_link(self, call: CommandCall) -> CommandEffect:
        """Issue the first code. An earlier one of the same account is revoked."""
        if not call.command.sender.verified:
            return refuse(_(_UNVERIFIED_TEXT))
        earlier = [
            one for one in self._roster.pending_requests("link") if one.person == call.person
        ]
        code, issued = self._issue_link_code("link", call)
        facts = (
            *codes.build_code_expirations(self._roster.expired_requests(call.command.at.channel)),
            *(codes.build_code_over(one, "revoked", call) for one in earlier),
            EffectFact(issued, call.command.at.conversation),
        )
        text = _(
            "Your code is `{code}`. Send me `{command}` from your other account. I show you a "
            "second code there, which you send me here. Give these codes to nobody: whoever is "
            "linked with you may do all that you may do. The code is valid for 1 hour."
        )
        return done(text.format(code=code, command=f"{call.prefix}link {code}"), *facts)

    @command("link code", "Send me a code that I showed you.")
    async def submit_link_code(
        self, call: CommandCall, *, code: Annotated[str, "The code.", _SECRET]
    ) -> CommandEffect:
        """Link the account that showed this code.

        Of a code of `pair` or `room` an admin is shown the request. It is not approved at once: the
        code may come from a link that somebody else made.
        """
        if call.global_role in ADMIN_ROLES:
            asked = codes.find_by_code(self._roster.pending_requests("pair", "room"), code)
            if asked is not None:
                text = codes.render_request_for_owners(asked, call.prefix, has_buttons=False)
                return replace(refuse(text), buttons=codes.request_buttons(asked))
        return self._submit_link_code(call, code)

    @command("link list", "List your linked accounts.")
    async def list_links(self, call: CommandCall) -> CommandEffect:
        linked = (
            sorted(self._roster.known.links.get(call.person, ()))
            if call.command.sender.verified
            else []
        )
        if not linked:
            text = _(
                "Your account {person} is not linked with another one. Write `{command}` to link "
                "one."
            )
            return done(
                text.format(person=format_person(call.person), command=f"{call.prefix}link")
            )
        lines = [f"- {format_person(one)}" for one in linked]
        head = _("These accounts are linked with this one. `{command}` unlinks one.")
        return done("\n".join([head.format(command=f"{call.prefix}link remove"), *lines]))

    @command("link remove", "Unlink one of your accounts.")
    async def remove_link(
        self,
        call: CommandCall,
        account: Annotated[str, "As list shows it.", _suggest_accounts],
    ) -> CommandEffect:
        """Take an account out of its links. Any of the linked accounts may do so, unless that would
        evade a block.

        `account`: as `list_accounts` shows it, with or without its channel.
        """
        written = account.strip("` ")
        accounts = {
            call.person,
            *(
                self._roster.known.links.get(call.person, ())
                if call.command.sender.verified
                else ()
            ),
        }
        meant = {
            one
            for one in accounts
            if written.lower() in (one.lower(), one.partition(":")[2].lower())
        }
        if len(meant) != 1 or len(accounts) == 1:
            text = _("{account} is not linked with this account. Write it as `link list` shows it.")
            return refuse(text.format(account=inline_code(written)))
        (removed,) = meant
        if is_blocked_anywhere(self._policy, removed):
            return refuse(
                _("One of these accounts is blocked. I cannot unlink them while the block lasts.")
            )
        removed_links = [link for link in self._roster.links if removed in (link.one, link.other)]
        remaining = group_linked_accounts(
            link for link in self._roster.links if link not in removed_links
        ).get(call.person, frozenset())
        text = _("{account} is not linked any more, and has only its own roles.").format(
            account=format_person(removed)
        )
        if call.person != removed and (others := accounts - remaining - {removed, call.person}):
            more = _("This also unlinks {accounts}.").format(
                accounts=", ".join(map(format_person, sorted(others)))
            )
            text = f"{text} {more}"
        facts = (
            IdentityLinked(one=one.one, other=one.other, joined=False, by=call.person)
            for one in removed_links
        )
        return done(text, *facts)

    def _submit_link_code(self, call: CommandCall, written: str) -> CommandEffect:
        """Accept a code: that of the person's other account, or the confirmation that this account
        must submit.
        """
        if not call.command.sender.verified:
            return refuse(_(_UNVERIFIED_TEXT))
        now_s = self._clock.monotonic()
        if self._attempts.count(call.person, now_s) >= codes.MAX_ATTEMPTS:
            return refuse(_(codes.TRY_LATER_TEXT))
        request = codes.find_by_code(self._roster.pending_requests("link", "confirm"), written)
        refusal = self._explain_link_refusal(request, call)
        if request is None or refusal:
            self._attempts.add(call.person, now_s)
            return refuse(refusal)
        answer = (
            self._request_confirmation(request, call)
            if request.what == "link"
            else self._link_accounts(request, call)
        )
        return codes.reserve_request(self._held, request, answer)

    def _explain_link_refusal(self, request: CodeIssued | None, call: CommandCall) -> str:
        if request is not None and request.person == call.person:
            if request.what == "link":
                return _("Send me that code from your other account, not from this one.")
            return _("Send me that code from {account}, not from this one.").format(
                account=format_person(request.other)
            )
        if request is None or (request.what == "confirm" and request.other != call.person):
            return _(codes.UNKNOWN_CODE_TEXT)
        links = self._roster.known.links
        if call.person in links.get(request.person, ()):
            return _("These two accounts are already linked.")
        both = (
            {request.person, call.person}
            | set(links.get(request.person, ()))
            | set(links.get(call.person, ()))
        )
        if len(both) > MAX_LINKED_ACCOUNTS:
            return _("A person can link at most {count} accounts.").format(
                count=MAX_LINKED_ACCOUNTS
            )
        other = Sender(
            id=SenderId(request.person.partition(":")[2]), name=request.name, verified=True
        )
        blocked = "blocked" in (call.role, identify(self._policy, request.at, other).role)
        return _(codes.UNKNOWN_CODE_TEXT) if blocked else ""

    def _request_confirmation(self, request: CodeIssued, call: CommandCall) -> CommandEffect:
        code, issued = self._issue_link_code("confirm", call, other=request.person)
        with use_language(request.language):
            notice = _(
                "{person} sent me your code, and I showed them a second one. If that was you, send "
                "me the second code here: then both accounts are linked, and whoever uses that "
                "account may do all that you may do. If it was not you, send nothing, and nothing "
                "happens."
            ).format(person=format_person(call.person, call.command.sender.name))
        facts = (
            codes.build_code_over(request, "used", call),
            EffectFact(issued, call.command.at.conversation, f"confirm:{request.salt}"),
            codes.build_requester_notice(request, notice),
        )
        other = format_person(request.person, request.name)
        prefix = self._channels.command_prefix(request.at.channel)
        answer = _(
            "You are about to link {other} with this account. Whoever uses that account may then "
            "do here all that you may do (your role: {role}). **Did somebody ask you to send this "
            "code? Then they want to take over your rights. Stop here, and nothing happens.** If "
            "both accounts are yours, send me `{command}` from the other one. The code is valid "
            "for 1 hour."
        ).format(other=other, role=call.role, command=f"{prefix}link {code}")
        return done(answer, *facts)

    def _link_accounts(self, request: CodeIssued, call: CommandCall) -> CommandEffect:
        one, other = sorted((request.person, call.person))
        linked = IdentityLinked(one=one, other=other, joined=True, by=call.person)
        text = N_("{person} and you are now linked as one person. `{command}` undoes that.")
        command = f"{call.prefix}link remove"
        with use_language(request.language):
            notice = _(text).format(
                person=format_person(call.person, call.command.sender.name), command=command
            )
        facts = (
            EffectFact(linked, None, f"linked:{request.salt}"),
            codes.build_code_over(request, "used", call),
            codes.build_requester_notice(request, notice),
        )
        text = _(
            "{person} and you are now linked as one person, with the roles of both. `{command}` "
            "undoes that."
        )
        answer = text.format(person=format_person(request.person, request.name), command=command)
        return done(answer, *facts)

    def _issue_link_code(
        self, what: Literal["link", "confirm"], call: CommandCall, other: str = ""
    ) -> tuple[str, CodeIssued]:
        """`other`: the account that must submit the code; empty: any."""
        taken, now = self._roster.request_names, self._clock.now()
        return codes.issue_code(
            what,
            taken,
            now,
            person=call.person,
            name=call.command.sender.name,
            at=call.command.at,
            other=other,
        )


async def _read_current_text(reader: StoreReader, seq: Seq, message: Message) -> str | None:
    """Return the text of a message as it reads now: its author's edits were refused as well. None:
    it was deleted.
    """
    text = message.text
    for change in await reader.message_changes(
        message.at.conversation, after=seq, newest=RECENT_LINES
    ):
        if isinstance(change.fact, MessageDeleted) and change.fact.message == message.id:
            return None
        if isinstance(change.fact, MessageEdited) and change.fact.message == message.id:
            text = change.fact.text if change.fact.sender.id == message.sender.id else text
    return text


def _room_address(at: Address) -> Address:
    return Address(channel=at.channel, room=at.room)


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
