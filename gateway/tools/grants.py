"""Grants: approvals for longer than one call, and the calls that they cover.

A grant holds for one tool of one agent in one conversation, for calls of one shape, and for those who asked. It never
covers a request of lower integrity than the one it was given for.

`shape_of` and `covers` are pure. `ToolGrants` keeps the grants of this process in memory and finds the permanent ones
in the store.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from gateway.access.approval_texts import LINE_CHARS, escape_invisible
from gateway.core.events import Address, ConversationId
from gateway.core.facts import ApprovalEnded, ApprovalRequested, TurnRecord, ViewFolded
from gateway.core.identity import person_key
from gateway.core.labels import rank_integrity
from gateway.store import LogEntry, Store

ANYTHING: Final = "…"
"""Stands in a shape for what may differ: a name without a folder, or the text of a file."""
MAX_SHAPE_CHARS: Final = LINE_CHARS
"""Longest shape that stands for more than one call: people have to read it."""

_DATA_PROGRAMS: Final = frozenset({"cat", "cut", "du", "echo", "grep", "head", "ls", "stat", "tail", "wc"})
"""Programs that neither start others nor change anything, whatever their words."""
_PLAIN_COMMAND: Final = re.compile(r"[\w.,:@%+=/-]+(?: [\w.,:@%+=/-]+)*", re.ASCII)
"""Words in which nothing has a meaning to the shell."""
_URL: Final = re.compile(r"(https?://[a-z0-9.-]+(?::\d+)?)(?:[/?][!-\[\]-~]*)?")
"""An address without user, password or backslash, of which all readers see the same host."""
_FREE_ARGUMENTS: Final = {
    "read_file": {"offset", "limit"},
    "view_image": set[str](),
    "write_file": {"text"},
    "edit_file": {"old", "new", "all"},
}
"""Tools for one file, with the arguments that do not say which."""


def shape_of(tool: str, arguments: str) -> str:
    """Return the shape of a call: calls of one tool with equal shapes run the same program or reach the same place.

    `arguments`: as people are shown them. With `ANYTHING` in place of names of files in the same folder, of what is
    written into a file, of the words of a command that only shows something, and of all behind the host of an address.
    Any other call has no shape but its exact arguments.
    """
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    changed = _find_free_values(tool, values) if isinstance(values, dict) else {}
    shape = escape_invisible(json.dumps(values | changed, ensure_ascii=False)) if changed else arguments
    return shape if len(shape) <= MAX_SHAPE_CHARS else arguments


def _find_free_values(tool: str, values: dict[str, Any]) -> dict[str, str]:
    match tool, values:
        case "bash", {"command": str(command)} if _PLAIN_COMMAND.fullmatch(command):
            program, *words = command.split(" ")
            if program in _DATA_PROGRAMS:
                return {"command": " ".join([program, *map(_shape_of_word, words)])}
        case "web_fetch", {"url": str(url)} if found := _URL.fullmatch(url):
            return {"url": f"{found[1]}/{ANYTHING}"}
        case _, {"path": str(path)} if tool in _FREE_ARGUMENTS:
            free = dict.fromkeys(values.keys() & _FREE_ARGUMENTS[tool], ANYTHING)
            return {"path": _shape_of_path(path)} | free
        case _:
            pass
    return {}


def _shape_of_word(word: str) -> str:
    return word if word.startswith("-") else _shape_of_path(word)


def _shape_of_path(path: str) -> str:
    """Return the folder of a path, for any file in it. A path that leads elsewhere or is hidden stays as it is."""
    folder, slash, name = path.rpartition("/")
    parts = folder.removeprefix("/").split("/") if folder else []
    if not name or name.startswith(".") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        return path
    return f"{folder}{slash}{ANYTHING}"


class CallScope(NamedTuple):
    """What decides whether a grant for one call covers another."""

    agent: str
    tool: str
    conversation: ConversationId
    shape: str
    askers: frozenset[str]
    """Everybody who asked, by `person_key`. Empty: nobody did."""
    integrity: str
    """Integrity of the request that led to it."""


def scope_of(requested: ApprovalRequested, conversation: ConversationId, shape: str) -> CallScope:
    """Return the scope of a call that was asked for in this conversation."""
    channel = Address.parse(conversation).channel
    askers = frozenset(person_key(channel, one) for one in requested.asked_by)
    integrity = requested.label.integrity if requested.label is not None else "owner"
    return CallScope(requested.agent, requested.tool, conversation, shape, askers, integrity)


def covers(granted: CallScope, call: CallScope) -> bool:
    """Return True if an approval for one call covers another.

    The same agent, tool, conversation and shape; nobody asks who did not ask then; no lower integrity.
    """
    same = granted[:4] == call[:4] and bool(granted.askers) == bool(call.askers) and call.askers <= granted.askers
    return same and rank_integrity(call.integrity) >= rank_integrity(granted.integrity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGrant:
    """An approval for longer than one call."""

    approval: str
    """Id of the approval."""
    scope: CallScope
    lasting: Literal["session", "always"]
    standing: str = "outside"
    """It ends, if it is one of the session, once text below this integrity comes in."""


class ToolGrants:
    """Permanent grants, from the store, and grants of this process, in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._session: list[ToolGrant] = []
        store.subscribe(self._on_view_changed, TurnRecord, ViewFolded)

    async def is_granted(self, call: CallScope) -> bool:
        """Return True if such a call is approved there now. Ends the grants of the session that it is too low for."""
        self._end_below(call.conversation, call.integrity)
        return any(covers(grant.scope, call) for grant in await self.list_grants())

    def add_session_grant(self, approval: str, scope: CallScope, standing: str) -> None:
        """Approve until a fresh start, the end of the process, or less trusted text.

        That is text of a lower integrity than that of the call in view, or any new text below `standing`.
        """
        self._session.append(ToolGrant(approval=approval, scope=scope, lasting="session", standing=standing))

    def end_foreign(self, conversation: ConversationId, integrity: str, *, tool: str = "") -> None:
        """End the grants of the session there, but those of `tool`, that hold until text of this integrity comes in."""
        self._session = [
            one
            for one in self._session
            if one.scope.conversation != conversation
            or one.scope.tool == tool
            or rank_integrity(integrity) >= rank_integrity(one.standing)
        ]

    def drop_session_grant(self, grant: ToolGrant) -> None:
        """Drop a grant of the session; a permanent one stays."""
        self._session = [one for one in self._session if one != grant]

    def drop_session_grants(self, approval: str) -> None:
        """Drop what this approval gave for the session."""
        self._session = [one for one in self._session if one.approval != approval]

    def reset_conversation(self, conversation: ConversationId) -> None:
        """Drop the grants of a conversation that is started afresh."""
        self._session = [one for one in self._session if one.scope.conversation != conversation]

    async def list_grants(self) -> list[ToolGrant]:
        """Return all grants, oldest first; permanent ones first."""
        found = list[ToolGrant]()
        for entry in await self._store.current_facts("approval_ended"):
            assert isinstance(entry.fact, ApprovalEnded)
            requested = await self._store.entry_by_key(approval_key(entry.fact.approval))
            if requested is not None and isinstance(requested.fact, ApprovalRequested) and requested.conversation:
                scope = scope_of(requested.fact, requested.conversation, entry.fact.shape)
                found.append(ToolGrant(approval=entry.fact.approval, scope=scope, lasting="always"))
        return [*found, *self._session]

    def _on_view_changed(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            if entry.conversation is None:
                continue
            if isinstance(entry.fact, TurnRecord) and entry.fact.label is not None:
                self._end_below(entry.conversation, entry.fact.label.integrity)
                if entry.fact.cause == "digest":  # it showed what came in elsewhere
                    self.end_foreign(entry.conversation, entry.fact.label.integrity)
            elif isinstance(entry.fact, ViewFolded) and "new" in entry.fact.kinds:
                self.reset_conversation(entry.conversation)

    def _end_below(self, conversation: ConversationId, integrity: str) -> None:
        rank = rank_integrity(integrity)
        self._session = [
            one
            for one in self._session
            if one.scope.conversation != conversation or rank_integrity(one.scope.integrity) <= rank
        ]


def approval_key(name: str) -> str:
    """Return the key of the entry that requests the approval with this id."""
    return f"approval:{name}"
