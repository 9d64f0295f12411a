"""The tools of a turn, carried out where it may use them.

The list of tools is the same in every turn, so that it never changes what is cached; what is not allowed is refused
at the call, with a reason that the model understands.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal, Protocol

from agent.journal import to_single_line
from agent.models.base import ToolCall, ToolResult, ToolSpec
from agent.tools.schema import ToolCallRefused, parse_arguments
from gateway.events import ConversationId
from gateway.hands import Tool, ToolContext, ToolOutput
from gateway.labels import TrustLabel
from gateway.ops.onlookers import ToolProgress
from gateway.records import TurnId
from gateway.redaction import Redact, Redactor
from gateway.store import StoreError
from gateway.tools.permits import PermissionRequest, ToolPermit, decide_permission
from gateway.tools.under_way import RunningCalls

logger = logging.getLogger("reverie.tools")

MAX_RESULT_CHARS: Final = 1_000_000
"""Of one result: what is more is not even kept."""
MAX_TOOL_NAME_CHARS: Final = 80


class ToolGate(Protocol):
    """Where every call has to pass."""

    async def authorize(self, hand: Tool, call: ToolCall, where: ToolContext) -> str:
        """Whether it may be carried out. Empty: it may; else why not, for the model. May wait for an admin's word.

        Raises StoreError.
        """


class NoApprovalGate:
    """The gate where nobody can be asked: what needs a word is refused."""

    async def authorize(self, hand: Tool, call: ToolCall, where: ToolContext) -> str:
        now = PermissionRequest(
            roles=[asker.role for asker in where.requesters],
            unasked_role="guest",
            overheard_roles=(*where.overheard_roles, *where.reminder_roles, where.trust.role),
            is_private=where.visibility.is_private,
            foreign=where.trust.foreign,
            is_recovered=call.is_recovered,
            risk=await hand.find_risk(call, where),
        )
        verdict = decide_permission(hand.spec.name, hand.permit, now)
        return "" if verdict.outcome == "allowed" else f"Refused: {verdict.rule}. Nothing was done."


class DynamicTools(Protocol):
    """Tools that come and go while the gateway runs."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that are there now."""

    def all_tools(self) -> Mapping[str, Tool]:
        """Those that are or were there, by name: one that has gone says so itself."""


ToolCallCounter = Callable[[str, Literal["ok", "error", "refused", "timeout", "unknown"], float], None]
"""Told of each call: its tool, what came of it, and how many seconds it took once it was allowed."""


ToolUseListener = Callable[[TurnId, ToolProgress], None]
"""Told of each call, when it begins and when it has ended."""
KILLED_BY_OPERATOR: Final = "The operator ended it. It may have had an effect all the same."


class ToolDispatcher:
    """All tools of an agent.

    What a model is told of them is pinned: it stands in front of all that is cached. What comes and goes meanwhile can
    be called at once all the same, and `news` tells of it.
    """

    def __init__(
        self,
        hands: Sequence[Tool],
        gate: ToolGate | None = None,
        *,
        late: DynamicTools | None = None,
        counted: ToolCallCounter = lambda *_: None,
        off: Sequence[str] = (),
        doing: RunningCalls | None = None,
        redact: Redact | None = None,
        used: ToolUseListener = lambda _turn, _tool: None,
    ) -> None:
        """`gate`: None, where nobody can be asked. `off`: globs of tools that there are not. `redact` is given results.

        `doing`: where it is noted what is carried out, if others note it there, too.
        """
        self._gate = gate or NoApprovalGate()
        self._off = tuple(off)
        self._tools = {hand.spec.name: hand for hand in self._enabled(hands)}
        self._dynamic = late
        self._count_call = counted
        self._on_use = used
        self._redact = redact or Redactor()
        self._running = doing or RunningCalls()
        self.specs: tuple[ToolSpec, ...] = ()
        """As the model is told of them."""
        self.pin_specs()

    def pin_specs(self) -> None:
        """Tell the model of those that are there now, from the next request on."""
        names = {name: hand.spec for name, hand in (self._tools | self._dynamic_by_name()).items()}
        self.specs = tuple([names[name] for name in sorted(names)])

    @property
    def changed_names(self) -> tuple[list[str], list[str]]:
        """Names of the tools that came, and of those that went, since the model was told of them."""
        told, now = {spec.name for spec in self.specs}, {*self._tools, *self._dynamic_by_name()}
        return sorted(now - told), sorted(told - now)

    def permits(self) -> dict[str, ToolPermit]:
        """What each that is there needs, by name."""
        return {name: hand.permit for name, hand in sorted((self._tools | self._dynamic_by_name()).items())}

    def running_calls(self, conversation: ConversationId) -> list[str]:
        """What is carried out there just now, in a few words each, the oldest first."""
        return self._running.describe(conversation)

    def for_turn(self, where: ToolContext) -> "TurnTools":
        """For one turn."""
        return TurnTools(self, where)

    async def call(self, call: ToolCall, where: ToolContext) -> ToolResult:
        """Carry out one call. Raises `StoreError` and cancellation only."""
        told = ToolProgress(call=call.id, name=call.name, arguments=call.arguments, state="started")
        self._on_use(where.turn, told)
        result = ToolResult(id=call.id, text="It was cut off.", is_error=True)
        try:
            carried = await self._running.run(where.at.conversation, call.name, self._call(call, where))
            result = carried or replace(result, text=KILLED_BY_OPERATOR)
        finally:
            self._on_use(where.turn, replace(told, state="ended", result=result.text, error=result.is_error))
        return result

    async def _call(self, call: ToolCall, where: ToolContext) -> ToolResult:
        hand = self._find_tool(call.name)
        if hand is not None and self._asks_for_schema(hand, call):
            where.trust.add(TrustLabel(foreign=call.name))  # a server wrote it
            said = f"{hand.spec.description}\nIt takes: {hand.spec.schema}"
            return ToolResult(
                id=call.id, text=said, kind="text", origin="what the tool says of itself", is_untrusted=True
            )
        if hand is None:
            self._count_call(call.name, "unknown", 0.0)
            name = to_single_line(call.name[: 2 * MAX_TOOL_NAME_CHARS], MAX_TOOL_NAME_CHARS)
            return ToolResult(id=call.id, text=f"There is no tool named {name!r}.", is_error=True)
        try:
            asked: object = (
                call.arguments if hand.arguments_type is None else parse_arguments(hand.arguments_type, call.arguments)
            )
            refusal = await self._gate.authorize(hand, call, where)
        except ToolCallRefused as refused:
            asked, refusal = None, str(refused)
        if refusal:
            self._count_call(call.name, "refused", 0.0)
            return ToolResult(id=call.id, text=refusal, is_error=True)
        began = time.monotonic()
        told, outcome = await self._run(hand, asked, where)
        self._count_call(call.name, outcome, time.monotonic() - began)
        given = ToolOutput(text=told) if isinstance(told, str) else told
        return self._build_result(call, given, where, error=outcome != "ok" or given.is_error)

    async def _run(
        self, hand: Tool, asked: object, where: ToolContext
    ) -> tuple[str | ToolOutput, Literal["ok", "error", "refused", "timeout"]]:
        name = hand.spec.name
        try:
            async with asyncio.timeout(hand.timeout_s):
                return await hand.handler(asked, where), "ok"
        except ToolCallRefused as refused:
            logger.info("%s: %s is refused: %s", where.turn, name, refused)
            return str(refused), "refused"
        except StoreError:
            raise  # without its log the gateway cannot go on
        except TimeoutError:
            logger.warning("%s: %s took longer than %g s", where.turn, name, hand.timeout_s)
            took = f"It took longer than {hand.timeout_s:g} s and was ended. It may have had an effect all the same."
            return took, "timeout"
        except Exception as error:  # a bug in that tool: the model goes on without it
            logger.exception("%s: %s broke", where.turn, name)
            return f"That did not work (internal error: {type(error).__name__}).", "error"

    def _find_tool(self, name: str) -> Tool | None:
        found = self._tools.get(name)
        if found is None and self._dynamic is not None and not is_off(name, self._off):
            found = self._dynamic.all_tools().get(name)
        return found

    def _asks_for_schema(self, hand: Tool, call: ToolCall) -> bool:
        """It came after the model was told of its tools, and is asked what it takes."""
        told = any(spec.name == hand.spec.name for spec in self.specs)
        return not told and '"required"' in hand.spec.schema and call.arguments.strip() in ("", "{}")

    def _dynamic_by_name(self) -> dict[str, Tool]:
        return (
            {hand.spec.name: hand for hand in self._enabled(self._dynamic.tools)} if self._dynamic is not None else {}
        )

    def _enabled(self, hands: Sequence[Tool]) -> list[Tool]:
        return [hand for hand in hands if not is_off(hand.spec.name, self._off)]

    def _build_result(self, call: ToolCall, given: ToolOutput, where: ToolContext, *, error: bool) -> ToolResult:
        where.trust.add(TrustLabel(given.role, call.name if given.is_foreign else ""))
        whole = self._redact(given.text)
        text, beyond = whole[:MAX_RESULT_CHARS], len(whole) - MAX_RESULT_CHARS
        return ToolResult(
            id=call.id,
            text=text if beyond <= 0 else f"{text}\n[{beyond} more characters are lost: ask for less at once]",
            is_error=error,
            kind=given.kind,
            origin=self._redact(given.origin),
            excerpt=given.excerpt,
            is_untrusted=given.is_untrusted,
            images=given.images,
        )


@dataclass(frozen=True, slots=True)
class TurnTools:
    """`agent.turn.Toolset` for one turn."""

    dispatcher: ToolDispatcher
    context: ToolContext

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return self.dispatcher.specs

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.dispatcher.call(call, self.context)


def is_off(name: str, off: Sequence[str]) -> bool:
    """Whether one of the globs matches the tool."""
    return any(fnmatchcase(name, glob) for glob in off)
