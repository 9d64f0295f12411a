"""Pairing: people ask to be let in by a code, admins approve it, and a person links their accounts.

A stranger who is refused is shown a code (`greeting`), which an admin hands in: for direct chats
with the agent, or for a room. Two accounts prove by codes that they are one person's (`linking`).
What comes of a code is a fact, and a code is used once (`codes`). Who has which role is known by
`gateway.access.roster`.

A code is shown once and never stored: the log has its salt and digest. Names and ids come from
others, so every text shows them as code.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
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
    list_accounts_of,
)
from gateway.access.texts import format_person, format_room, is_verifiable
from gateway.commands.context import CommandCall
from gateway.commands.definition import command
from gateway.commands.people import AssignableRole, find_named_person, suggest_people
from gateway.commands.rooms import suggest_rooms
from gateway.context.conversation import is_addressed
from gateway.core.events import (
    Address,
    ChannelName,
    Command,
    Message,
    MessageDeleted,
    MessageEdited,
)
from gateway.core.facts import (
    AMBIENT,
    MESSAGE_KINDS,
    CodeEnded,
    CodeIssued,
    RoleAssigned,
    RoomAccessChanged,
    Seq,
    dedup_key,
    event_kinds,
)
from gateway.core.i18n import _
from gateway.core.identity import (
    ADMIN_ROLES,
    Role,
    identify,
    is_bridged,
    normalize_person_key,
    person_key,
)
from gateway.core.ratelimit import SlidingWindows
from gateway.core.route import WAITING, route
from gateway.core.text_safety import inline_code
from gateway.plugin import Plugin, PluginContext, hook
from gateway.plugins.pairing import codes
from gateway.plugins.pairing.greeting import Greeter
from gateway.plugins.pairing.linking import AccountLinker
from gateway.store import LogEntry, StoreReader
from gateway.store.effects import CommandEffect, Decision, EffectFact, done, refuse
from gateway.stream.attention import assess

if TYPE_CHECKING:
    from gateway.core.api_models import WaitingItem

MAX_REFUSED_AGE: Final = timedelta(days=1)
"""Age of a question that is still answered after the approval."""
MAX_LATER_LINES: Final = 20
"""Lines of others after a question in a room with which the room has gone on without an answer."""
MAX_REFUSED_LINES: Final = 10
"""Lines that are told of somebody who was let in: the question, and those before it."""
_LET_IN: Final = "written before they were let in"
_SECRET: Final = Field(repr=False)


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
        self._roster, self._policy = gateway.roster, gateway.people
        self._held = set[str]()
        self._attempts = SlidingWindows(codes.ATTEMPT_WINDOW_S)
        """Wrong codes of each admin."""
        self._linker = AccountLinker(gateway, self._held)
        self._greeter = Greeter(gateway, self._linker, self._tell_owners)

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
        if (notice := self._greeter.greet(routed)) is None:
            return None
        post, change = notice
        effect = change if so_far.effect is None or change is None else so_far.effect + change
        return replace(so_far, post=post, effect=effect or so_far.effect)

    def _tell_owners(self, issued: CodeIssued) -> None:
        self._gateway.notices.tell(
            f"code:{issued.salt}",
            partial(self._render_request, issued),
            buttons=partial(codes.request_buttons, issued),
        )

    def _render_request(self, request: CodeIssued, to: Address | None) -> str:
        channels = self._gateway.channels
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
        request = self._find_request(call, code, "pair", *(("room",) if call.is_operator else ()))
        return request if isinstance(request, CommandEffect) else await self._approve(call, request)

    async def _approve(self, call: CommandCall, request: CodeIssued) -> CommandEffect:
        """Approve a request; what its person asked in vain is answered now."""
        asked = await self._find_refused_lines(request)
        if request not in self._roster.pending_requests(request.what):  # decided meanwhile
            return refuse(_(codes.BEING_DECIDED_TEXT))
        if request.room is not None:
            outcome = codes.approve_room(request, request.room, call.person)
        else:
            outcome = codes.approve_pairing(
                request, call.person, existing=self._roster.find_grant(request.person)
            )
            sure = codes.describe_verification(request.person, self._gateway.channels.capabilities)
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
        at, policy, now = request.at, self._policy, self._gateway.clock.now()
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
        able = self._gateway.channels.capabilities.get(ChannelName(name))
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
                effect = done(words, codes.build_code_over(request, "revoked", call.person))
                return codes.reserve_request(self._held, request, effect)
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
            request = self._find_request(call, code, "room")
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

    def _find_request(
        self, call: CommandCall, written: str, *kinds: RequestKind
    ) -> CodeIssued | CommandEffect:
        now_s = self._gateway.clock.monotonic()
        tried = self._attempts.count(call.person, now_s)
        if tried >= codes.MAX_ATTEMPTS and not call.is_operator:
            return refuse(_(codes.TRY_LATER_TEXT))
        request = codes.find_request(self._roster.pending_requests(*kinds), written)
        if request is None:
            self._attempts.add(call.person, now_s)
            return refuse(codes.render_unknown_request(written, call.prefix, kinds[0]))
        return request

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
        return self._linker.start_link(call)

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
        return self._linker.submit_code(call, code)

    @command("link list", "List your linked accounts.")
    async def list_links(self, call: CommandCall) -> CommandEffect:
        return self._linker.list_accounts(call)

    @command("link remove", "Unlink one of your accounts.")
    async def remove_link(
        self,
        call: CommandCall,
        account: Annotated[str, "As list shows it.", _suggest_accounts],
    ) -> CommandEffect:
        return self._linker.unlink(call, account)


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
