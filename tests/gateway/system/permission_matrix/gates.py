"""Every gate, and the product without it: what is left out of which file, so that somebody gets in who may not.

`killer` plays scenes, spoofs and the matrix in a process whose product lacks one gate, until something is wrong. A gate
whose removal nothing notices is a missing cell.
"""

import asyncio
import importlib
import json
import logging
import subprocess
import sys
import tempfile
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final, Literal, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[4]
PATIENCE_S: Final = 180.0
DMS: Final[tuple[Literal["pairing", "open"], ...]] = ("pairing", "open")
"""Under which spoofs are tried."""


class Gate(NamedTuple):
    name: str
    module: str
    has: str
    """Stands once in that file."""
    lacks: str
    """What stands there instead."""


def _in(module: str, *rows: tuple[str, str, str]) -> tuple[Gate, ...]:
    return tuple(Gate(name, module, has, lacks) for name, has, lacks in rows)


GATES: Final[tuple[Gate, ...]] = (
    *_in(
        "gateway.core.identity",
        (
            "blocked counts before all other roles",
            'if role == "blocked":\n            return',
            "if False:\n            return",
        ),
        ("administration needs an id that is vouched for", "if sender.verified or one[0] not in ADMIN_ROLES]", "]"),
        (
            "links count only for whom the platform vouches",
            "sorted(roster.links.get(own_key, ())) if sender.verified else ()",
            "sorted(roster.links.get(own_key, ()))",
        ),
        ("a role holds in its scope", "if scope_covers(policy, grant.scope, at):", "if True:"),
        ("a role of a place is none everywhere", "grant.rule + via, not grant.scope", "grant.rule + via, True"),
        (
            "a rank counts only if the person has it",
            "if (\n            rule.platform_role in sender.ranks\n            and",
            "if (",
        ),
        ("a rank counts only on that channel", "fnmatchcase(at.channel, rule.channel)\n            and", ""),
        ("a rank counts only in that room", " and _is_in_room(policy, rule.room, at)\n        ):", "):"),
        ("a rank gives nothing everywhere", "yield rule.role, rule.rule, False", "yield rule.role, rule.rule, True"),
        (
            "ranks count only where the operator wants it",
            "for rule in policy.platform_roles if sender.ranks else ():",
            (
                'for rule in (*policy.platform_roles, PlatformRoleRule("*", "*", sender.ranks[0], "admin", ""))'
                " if sender.ranks else ():"
            ),
        ),
        ("an agent's role is with that agent", "policy.agent_of(at) == scope.removeprefix(AGENT_SCOPE_PREFIX)", "True"),
        ("a room's role is on that channel", "place.channel == at.channel and", ""),
        ("a room's role is in that room", "return room in (ANY_ROOM, at.room) or", "return True or"),
        ("a guild's role is in that guild", "(policy.space_of(at) == room)", "(policy.space_of(at) is not None)"),
        ("a guild's role is in its rooms", " or (policy.space_of(at) == room)", ""),
        ("a mask fits only its pattern", "_mask_pattern(key).fullmatch(person)", "True"),
        ("masks are patterns", 'if f":{MASK_PREFIX}" in person:', "if False:"),
        (
            "an account is the same in any case",
            "sender_id = sender_id.translate(_ASCII_LOWER)",
            "pass",
        ),
    ),
    *_in(
        "gateway.access.policy",
        ("whoever is blocked is not heard", 'if who.role == "blocked":', "if False:"),
        ("bots without a role are not heard", 'if sender.is_bot and who.role == "guest":', "if False:"),
        ("bots with a role are heard", 'if sender.is_bot and who.role == "guest":', "if sender.is_bot:"),
        ("direct chats have their policy", "if _is_direct(event):", "if False:"),
        (
            "what is edited in a direct chat is direct",
            "Command | MessageEdited | MessageDeleted | ReactionChanged) and",
            "Command) and",
        ),
        ("dm: disabled", 'if policy.dm_policy == "disabled":', "if False:"),
        ("dm: open", 'if policy.dm_policy == "open":', "if False:"),
        ("dm: allowlist lets in whoever has a role", 'if who.role != "guest":', "if False:"),
        ("dm: allowlist keeps out whoever has none", 'if who.role != "guest":', "if True:"),
        (
            "only pairing shows codes",
            '"pair" if spoken and policy.dm_policy == "pairing" else ""',
            '"pair" if spoken else ""',
        ),
        (
            "only who speaks is shown a code",
            '"pair" if spoken and policy.dm_policy == "pairing" else ""',
            '"pair" if policy.dm_policy == "pairing" else ""',
        ),
        ("pairing shows codes", '"pair" if spoken and policy.dm_policy == "pairing" else ""', '""'),
        ("invited only where it is open", "if not is_room_allowed(policy, place):", "if False:"),
        ("invited only by admins", "if who.role not in ADMIN_ROLES:", "if False:"),
        ("invitations are their own case", 'event.change == "invite":', "False:"),
        ("rooms are closed unless opened", "    if is_room_allowed(policy, place):", "    if True:"),
        ("rooms that are listed are open", "return is_room_configured(policy, place) or", "return"),
        (
            "rooms that were approved are open",
            "return is_room_configured(policy, place) or _is_room_approved(policy, place)",
            "return is_room_configured(policy, place)",
        ),
        (
            "only rooms that were approved are",
            "in approved for name in names)",
            "in approved or approved for name in names)",
        ),
        ("a guild may be listed", "ANY_ROOM in rooms or policy.space_of(place) in rooms", "ANY_ROOM in rooms"),
        (
            "only that guild is",
            "ANY_ROOM in rooms or policy.space_of(place) in rooms",
            "ANY_ROOM in rooms or policy.space_of(place)",
        ),
        ("a guild may be approved", "[place.room] if space is None else [place.room, space]", "[place.room]"),
        (
            "a closed room is closed to all but admins",
            "isinstance(event, Command) and who.role in ADMIN_ROLES",
            "isinstance(event, Command)",
        ),
        (
            "a closed room takes only an admin's commands",
            "isinstance(event, Command) and who.role in ADMIN_ROLES",
            "who.role in ADMIN_ROLES",
        ),
        ("a closed room takes an admin's commands", "isinstance(event, Command) and who.role in ADMIN_ROLES", "False"),
        (
            "rooms are shown codes only with approval",
            '"room" if spoken and _rooms_need_approval(policy) else ""\n    )',
            '"room" if spoken else "")',
        ),
        (
            "rooms are shown codes only when spoken to",
            '"room" if spoken and _rooms_need_approval(policy) else ""\n    )',
            '"room" if _rooms_need_approval(policy) else "")',
        ),
        ("talk among others is not to us", 'and event.kind != "room")', ")"),
        (
            "who invites is shown a code only with approval",
            '"room" if _rooms_need_approval(policy) else "")\n    if who',
            '"room")\n    if who',
        ),
    ),
    *_in(
        "gateway.commands.definition",
        (
            "commands that act everywhere need a role everywhere",
            "self.needs_global_role and everywhere is not None",
            "False",
        ),
        ("commands need their role", "ROLE_ORDER.index(has) >= ROLE_ORDER.index(needs) or", "True or"),
        (
            "own is for direct chats",
            "(\n            self.allowed_in_own_chat and direct and",
            "(self.allowed_in_own_chat and",
        ),
        (
            "own is for everybody in direct chats",
            ' or (\n            self.allowed_in_own_chat and direct and role != "blocked"\n        )',
            "",
        ),
    ),
    *_in(
        "gateway.commands.dispatcher",
        (
            "who is not heard is not answered",
            "if not decision.allowed:\n            return decision.rule",
            "if False:\n            return ''",
        ),
        ("bots give no commands", "if command.sender.is_bot:", "if False:"),
        ("some commands are for direct chats", "if row.direct_only and not command.direct:", "if False:"),
        ("without a prefix it must be allowed", "if read.only_if_allowed:", "if False:"),
        ("without a prefix it must be answered there", "return None if alone or", "return None if"),
        ("what was meant a while ago is not carried out", "if age_s <= MAX_COMMAND_AGE_S:", "if True:"),
        (
            "commands have a pace",
            "if not trusted and not self._rate_limiter.try_add(",
            "if False and not self._rate_limiter.try_add(",
        ),
        (
            "the pace is each person's",
            "return stable_source(person_key(command.at.channel, command.sender.id))",
            'return "all"',
        ),
        (
            "what is refused is written down",
            "if row is not None else ()\n            change",
            "if False else ()\n            change",
        ),
        ("what is done is written down", "if row is not None and (facts :=", "if False and (facts :="),
    ),
    *_in(
        "gateway.commands.parser",
        ("what bots write is no command", "if message.sender.is_bot:", "if False:"),
        (
            "a command stands at the beginning",
            "if prefix and body.startswith(prefix) else None",
            "if prefix and prefix in body and (body := body[body.index(prefix):]) else None",
        ),
    ),
    *_in(
        "gateway.ingest.intake",
        ("messages have limits", "or self._check_limit(event, judged)", "or CommandResult(judgement=judged)"),
        (
            "bots are not answered for ever",
            "return break_loop(judged, now, self._live.settings.access.max_bot_exchanges)",
            "return judged",
        ),
    ),
    *_in(
        "gateway.ingest.intake",
        ("an event has a name", "conversation=place, key=dedup_key(event))", "conversation=place)"),
        (
            "what came before does nothing again",
            "fresh = [one for one in decided if written[id(one.entries[0])].is_new]",
            "fresh = decided",
        ),
        ("what is refused leads nowhere", 'if judged.fate == "refused":', "if False:"),
    ),
    *_in(
        "gateway.access.greeting",
        ("codes only for whom somebody vouches", "if not (sender.verified or named):", "if False:"),
        (
            "masks are paired only where that is wanted",
            "named = (\n            self._policy.allow_masks and",
            "named = (",
        ),
        (
            "bots are told nothing",
            "or not isinstance(sender, Sender) or sender.is_bot:",
            "or not isinstance(sender, Sender):",
        ),
        ("few codes of one person wait", ">= MAX_CODES_PER_SOURCE or", ">= 2_000 or"),
        (
            "one code more ends the oldest",
            "if len(waiting) + self._codes_being_written[channel] < MAX_PENDING_CODES:",
            "if True:",
        ),
        (
            "there is one reminder of a code",
            "if request is None or self._reminded.get(who, (now, key))[1] != key:",
            "if request is None:",
        ),
        (
            "nobody gets a second code",
            "if request is not None or not self._can_issue_code(",
            "if not self._can_issue_code(",
        ),
    ),
    *_in(
        "gateway.access.roster",
        (
            "without the log nobody is known",
            'raise StoreError("who may do what was not read from the log")',
            "return RosterState()",
        ),
    ),
    *_in(
        "gateway.access.roster",
        (
            "admins make no admins",
            'return _("Only an owner can make somebody admin or owner.") if wants in ADMIN_ROLES else ""',
            'return ""',
        ),
        (
            "admins are changed by owners",
            "if last_role in ADMIN_ROLES or find_strongest_role(policy, whom) in ADMIN_ROLES:",
            "if False:",
        ),
        (
            "the configuration's owners stay",
            'if any("owner" in given for given in _iter_configured_roles(policy, whom)):',
            "if False:",
        ),
        ("nobody makes a mask an admin", "if wants in ADMIN_ROLES and not is_verifiable(whom):", "if False:"),
    ),
    *_in(
        "gateway.access.roles",
        (
            "masks get roles only where that is wanted",
            "if not is_verifiable(whom.person) and not policy.allow_masks:",
            "if False:",
        ),
    ),
    *_in(
        "gateway.commands.people",
        (
            "who administers a room acts there only",
            'return reject(_("You are {role} only here. Write `here` at the end.").format(role=call.role))',
            "return RoleScope(None, call.role)",
        ),
    ),
    *_in(
        "gateway.commands.people",
        ("guesses are counted", "if not context.code_attempts.is_allowed(call.person, now_s)", "if False"),
        (
            "a code must be right",
            'find_request(context.roster.pending_requests(*kinds), call.arguments["code"])',
            "next(iter(context.roster.pending_requests(*kinds)), None)",
        ),
    ),
    *_in("gateway.access.texts", ("codes end", "if now < one.until]", "]")),
    *_in(
        "gateway.access.linking",
        (
            "only whom somebody vouches for is linked",
            "return reject(_(_UNVERIFIED_TEXT))\n        now_s =",
            "pass\n        now_s =",
        ),
        (
            "the second code is for the first account",
            '(request.what == "confirm" and request.other != claim.person)',
            "False",
        ),
        (
            "one code links nobody",
            'self._request_confirmation(request, claim)\n            if request.what == "link"\n            else',
            "",
        ),
    ),
    *_in(
        "channels.telegram.wire",
        (
            "what was forwarded is no command",
            "is_foreign = bool(forward_origin_name(message)) or",
            "is_foreign =",
        ),
        ("what a bot sent for somebody is no command", "message.via_bot is not None or", ""),
        (
            "a command may be for another bot",
            "addressee.casefold() == context.username.casefold()\n        if addressee\n        else",
            "True if addressee else",
        ),
        (
            "only what Telegram marks is a command",
            'if first is None or first.type != "bot_command" or',
            "if first is None or",
        ),
    ),
    *_in(
        "channels.telegram.people",
        (
            "who writes for a chat is the chat",
            "if chat is not None and (user is None or user.id in _PLACEHOLDER_USERS):",
            "if False:",
        ),
        (
            "nobody vouches for who writes for a chat",
            "name=full_name(chat) or str(chat.id))",
            "name=full_name(chat) or str(chat.id), verified=True)",
        ),
        (
            "what a business's bot says is the bot's",
            "message.sender_business_bot or message.from_user",
            "message.from_user",
        ),
        ("bots are known for bots", "is_bot=user.is_bot is True,", ""),
    ),
    *_in(
        "channels.telegram.people",
        ("a rank is that person's", "group.ranks.get(user)", "next(iter(group.ranks.values()), None)"),
    ),
    *_in(
        "channels.discord.wire",
        ("a webhook is itself", 'if webhook_id and webhook_id != get_snowflake(data, "application_id"):', "if False:"),
        (
            "nobody vouches for a webhook's name",
            "name=display_name(author) or webhook_id, is_bot=True)",
            "name=display_name(author) or webhook_id, verified=True)",
        ),
        ("bots are known for bots", 'is_bot = get_bool(author, "bot") or bool(webhook_id)', "is_bot = False"),
        ("what Discord says nobody said", 'return (get_int(data, "type") or 0) in _USER_MESSAGE_TYPES', "return True"),
        (
            "only slash commands are commands",
            'if (get_int(data, "type"), get_int(command, "type")) != _SLASH_COMMAND or not',
            "if not",
        ),
        (
            "what is in a guild is not direct",
            'return not get_snowflake(data, "guild_id") and directory.is_direct(',
            "return True or directory.is_direct(",
        ),
        ("an edit is no command", "found = parse_edit(data, directory, now)", "found = parse_message(data, directory)"),
    ),
    *_in(
        "channels.discord.directory",
        ("a chat between others is not direct", 'and get_int(data, "context") != _PRIVATE_CONTEXT', ""),
    ),
    *_in(
        "channels.discord.directory",
        ("threads follow their room", "if place is not None and place.parent:", "if False:"),
    ),
    *_in(
        "channels.irc.people",
        ("nobody vouches for an account that is not there", "verified=bool(account),", "verified=True,"),
        (
            "what a bridge relays is the bridge's",
            "(tag for tag in _RELAY_TAGS if tag in line.tags)",
            "(tag for tag in ())",
        ),
        (
            "only the tag counts where there are tags",
            '(None if tagged in {"*", "0"} else tagged) if account_tag else known',
            "tagged or known",
        ),
        (
            "what a client puts into a tag counts for nothing",
            '(None if tagged in {"*", "0"} else tagged) if account_tag else known_account',
            'tagged or line.tags.get("+account") or (None if account_tag else known_account)',
        ),
        (
            "bots are known for bots",
            "account=account or None,\n        is_bot=is_bot,",
            "account=account or None,",
        ),
        (
            "who somebody is says the account, not the nick",
            'f"account:{account}" if account else',
            'f"account:{account}" if account else f"account:{mask.partition(\'!\')[0]}" if "!" in mask else',
        ),
    ),
    *_in(
        "channels.irc.inbound",
        ("what was played back is the past's", "now - sent_at(line, now) < _STALE_AGE", "True"),
        (
            "a notice is no message",
            "    if line.command not in {",
            '    line = replace(line, command=line.command.replace("NOTICE", "PRIVMSG"))\n    if line.command not in {',
        ),
        ("CTCP is no message", ' if command == "ACTION" and argument.strip() else ""', ""),
        (
            "our own words are nobody's",
            "context.isupport.fold(line.source.nick) == context.isupport.fold(context.own_nick):",
            "False:",
        ),
    ),
    *_in(
        "channels.irc.people",
        (
            "who quit is gone",
            "nicks.pop(nick, None)\n                self._forget_unseen([nick])",
            "nicks.pop(nick, None)",
        ),
        (
            "who left is gone",
            "            if not self._is_visible(nick):\n                self._accounts.pop(nick, None)",
            "            if not self._is_visible(nick):",
        ),
        (
            "a nick takes its account along",
            'account = self._accounts.pop(old, "")',
            'account = self._accounts.get(old, "")',
        ),
        (
            "who logs out has no account",
            'if account not in {"", "*", "0"} and',
            'if account == "*":\n            account = nick\n        if',
        ),
    ),
    *_in(
        "channels.irc.people",
        (
            "who loses a rank has lost it",
            "nicks[nick] | {letter} if on else nicks[nick] - {letter}",
            "nicks[nick] | {letter}",
        ),
    ),
)


def source(gate: Gate) -> str:
    """Of the file that it stands in."""
    return (ROOT / f"{gate.module.replace('.', '/')}.py").read_text(encoding="utf-8")


class _Without(SourceFileLoader):
    """Loads one module without its gate; also what finds it."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(gate.module, str(ROOT / f"{gate.module.replace('.', '/')}.py"))
        self._gate = gate

    def find_spec(self, fullname: str, _path: object, _target: object = None, /) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, origin=str(self.path)) if fullname == self._gate.module else None

    def get_code(self, fullname: str) -> CodeType:
        text, has = Path(self.path).read_text(encoding="utf-8"), self._gate.has
        assert text.count(has) == 1, f"{has!r} stands {text.count(has)} times in {fullname}"
        return compile(text.replace(has, self._gate.lacks), str(self.path), "exec")


def killer(gate: Gate | None) -> str:
    """The first thing that is wrong without it, found in a process of its own; empty: nothing is.

    None: nothing is left out. Raises AssertionError where the product cannot be loaded without it.
    """
    index = -1 if gate is None else GATES.index(gate)
    done = subprocess.run(  # the product must be imported anew
        [sys.executable, "-c", f"from tests.gateway.system.permission_matrix import gates; gates.main({index})"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{gate}: {done.stderr[-2_000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(found, str)
    return found


def main(index: int) -> None:
    """In that process: print what is wrong, as JSON."""
    logging.disable(logging.CRITICAL)
    if index >= 0:
        sys.meta_path.insert(0, _Without(GATES[index]))
        importlib.import_module(GATES[index].module)  # what cannot be loaded is no mutant
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(_found(Path(folder)))))


async def _found(folder: Path) -> str:
    from tests.gateway.system.permission_matrix.impersonations import SPOOFS, attempted, came_through  # noqa: PLC0415 - the same
    from tests.gateway.system.permission_matrix.matrix_kit import house, play, some_cells  # noqa: PLC0415 - only once the gate is gone
    from tests.gateway.system.permission_matrix.scenes import SCENES, wrongs  # noqa: PLC0415 - the same

    try:
        for name, scene in SCENES.items():
            if wrong := await wrongs(scene, folder / name):
                return f"scene {wrong[0]}"
        for dm in DMS:
            async with house(folder / dm, dm) as home:
                for name, spoof in SPOOFS.items():
                    if what := came_through(await attempted(home, spoof)):
                        return f"spoof {name}: {what}"
        report = await play(folder / "cells", some_cells(), most_wrong=1)
        if report.wrong:
            return f"cell {report.wrong[0]}"
    except AssertionError as error:
        return f"assertion {str(error).partition(chr(10))[0]}"
    return ""
