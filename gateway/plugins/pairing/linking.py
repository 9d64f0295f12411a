"""Linking of accounts: a person proves that two accounts are theirs.

Each account is shown a code, and submits the code of the other. So somebody who is talked into
submitting one code links nobody, and is shown the other account before the second. Only verified
accounts of people who are not blocked can be linked.
"""

from typing import Final, Literal

from gateway.access.roster import is_blocked_anywhere
from gateway.access.texts import MAX_LINKED_ACCOUNTS, format_person, group_linked_accounts
from gateway.commands.context import CommandCall
from gateway.core.events import Sender, SenderId
from gateway.core.facts import CodeIssued, IdentityLinked
from gateway.core.i18n import N_, _, use_language
from gateway.core.identity import identify
from gateway.core.ratelimit import SlidingWindows
from gateway.core.text_safety import inline_code
from gateway.plugins.pairing.codes import (
    ATTEMPT_WINDOW_S,
    MAX_ATTEMPTS,
    TRY_LATER_TEXT,
    UNKNOWN_CODE_TEXT,
    build_code_expirations,
    build_code_over,
    build_requester_notice,
    find_by_code,
    issue_code,
    reserve_request,
)
from gateway.store.effects import CommandEffect, EffectFact, done, refuse
from gateway.stream.handle import GatewayHandle

_UNVERIFIED_TEXT: Final = N_(
    "I cannot link this account, because the platform does not confirm who you are. Log in to your "
    "account first."
)


class AccountLinker:
    """Link commands of all channels."""

    def __init__(self, gateway: GatewayHandle, held: set[str]) -> None:
        """`held`: see `reserve_request`."""
        self._clock, self._channels = gateway.clock, gateway.channels
        self._roster, self._policy, self._held = gateway.roster, gateway.people, held
        self._attempts = SlidingWindows(ATTEMPT_WINDOW_S)

    def start_link(self, call: CommandCall) -> CommandEffect:
        """Issue the first code. An earlier one of the same account is revoked."""
        if not call.command.sender.verified:
            return refuse(_(_UNVERIFIED_TEXT))
        earlier = [
            one for one in self._roster.pending_requests("link") if one.person == call.person
        ]
        code, issued = self._issue_code("link", call)
        facts = (
            *build_code_expirations(self._roster.expired_requests(call.command.at.channel)),
            *(build_code_over(one, "revoked", call.person) for one in earlier),
            EffectFact(issued, call.command.at.conversation),
        )
        text = _(
            "Your code is `{code}`. Send me `{command}` from your other account. I show you a "
            "second code there, which you send me here. Give these codes to nobody: whoever is "
            "linked with you may do all that you may do. The code is valid for 1 hour."
        )
        return done(text.format(code=code, command=f"{self._prefix(call)}link {code}"), *facts)

    def _prefix(self, call: CommandCall) -> str:
        return self._channels.command_prefix(call.command.at.channel)

    def submit_code(self, call: CommandCall, written: str) -> CommandEffect:
        """Accept a code: that of the person's other account, or the confirmation that this account
        must submit.
        """
        if not call.command.sender.verified:
            return refuse(_(_UNVERIFIED_TEXT))
        now_s = self._clock.monotonic()
        if self._attempts.count(call.person, now_s) >= MAX_ATTEMPTS:
            return refuse(_(TRY_LATER_TEXT))
        request = find_by_code(self._roster.pending_requests("link", "confirm"), written)
        refusal = self._explain_refusal(request, call)
        if request is None or refusal:
            self._attempts.add(call.person, now_s)
            return refuse(refusal)
        answer = (
            self._request_confirmation(request, call)
            if request.what == "link"
            else self._link_accounts(request, call)
        )
        return reserve_request(self._held, request, answer)

    def list_accounts(self, call: CommandCall) -> CommandEffect:
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
                text.format(person=format_person(call.person), command=f"{self._prefix(call)}link")
            )
        lines = [f"- {format_person(one)}" for one in linked]
        head = _("These accounts are linked with this one. `{command}` unlinks one.")
        return done("\n".join([head.format(command=f"{self._prefix(call)}link remove"), *lines]))

    def unlink(self, call: CommandCall, account: str) -> CommandEffect:
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

    def _explain_refusal(self, request: CodeIssued | None, call: CommandCall) -> str:
        if request is not None and request.person == call.person:
            if request.what == "link":
                return _("Send me that code from your other account, not from this one.")
            return _("Send me that code from {account}, not from this one.").format(
                account=format_person(request.other)
            )
        if request is None or (request.what == "confirm" and request.other != call.person):
            return _(UNKNOWN_CODE_TEXT)
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
        return _(UNKNOWN_CODE_TEXT) if blocked else ""

    def _request_confirmation(self, request: CodeIssued, call: CommandCall) -> CommandEffect:
        code, issued = self._issue_code("confirm", call, other=request.person)
        with use_language(request.language):
            notice = _(
                "{person} sent me your code, and I showed them a second one. If that was you, send "
                "me the second code here: then both accounts are linked, and whoever uses that "
                "account may do all that you may do. If it was not you, send nothing, and nothing "
                "happens."
            ).format(person=format_person(call.person, call.command.sender.name))
        facts = (
            build_code_over(request, "used", call.person),
            EffectFact(issued, call.command.at.conversation, f"confirm:{request.salt}"),
            build_requester_notice(request, notice),
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
        command = f"{self._prefix(call)}link remove"
        with use_language(request.language):
            notice = _(text).format(
                person=format_person(call.person, call.command.sender.name), command=command
            )
        facts = (
            EffectFact(linked, None, f"linked:{request.salt}"),
            build_code_over(request, "used", call.person),
            build_requester_notice(request, notice),
        )
        text = _(
            "{person} and you are now linked as one person, with the roles of both. `{command}` "
            "undoes that."
        )
        answer = text.format(person=format_person(request.person, request.name), command=command)
        return done(answer, *facts)

    def _issue_code(
        self, what: Literal["link", "confirm"], call: CommandCall, other: str = ""
    ) -> tuple[str, CodeIssued]:
        """`other`: the account that must submit the code; empty: any."""
        taken, now = self._roster.request_names, self._clock.now()
        return issue_code(
            what,
            taken,
            now,
            person=call.person,
            name=call.command.sender.name,
            at=call.command.at,
            other=other,
        )
