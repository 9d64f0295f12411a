"""Calls that wait for a word: a real store, desk, outbox and console; the clock and the tool are
the test's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, Self

from agent.models.base import ToolResult
from channels.base import PostPart, Rejected
from gateway.access.channels import Channels
from gateway.cluster.cluster import EVERYTHING, Cluster
from gateway.commands.context import CommandCall
from gateway.config.loader import parse_config
from gateway.config.reload import LiveSettings
from gateway.core import identity
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, Command, EventId, RoomId, SenderId
from gateway.core.facts import Fact, TurnId, inner_conversation
from gateway.core.labels import Label, RequestLabel
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_MEMBERS, OUT, ToolPermit
from gateway.core.redaction import Redactor
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, ToolContext, ToolOutput, build_tool
from gateway.core.tool_spec import ToolCall
from gateway.plugins.approvals import ApprovalEnded, ApprovalRequested, Approvals
from gateway.plugins.mcp import Mcp
from gateway.store import Store
from gateway.stream.outbox import Outbox
from gateway.tools.dispatch import PermissionGate
from reverie.testing.console import ConsoleChannel
from tests.kits.handle import handle_of
from tests.kits.intake import emits
from tests.kits.owners import NotedNotices
from tests.kits.places import privacy
from tests.kits.plugins import plugins_of
from tests.kits.policies import bindings_of, policy_of
from tests.kits.tasks import LooseTasks
from tests.kits.tools import dispatcher

P = ParamSpec("P")
HERE, THERE = ChannelName("here"), ChannelName("there")
LOBBY = Address(channel=HERE, room=RoomId("lobby"))
OFFICE = Address(channel=THERE, room=RoomId("office"))
ROLES = {
    "owner": ["here:olga"],
    "admin": ["here:root", "there:root", "here:rick"],
    "member": ["here:mia"],
}
TIMEOUT_S = 60.0
DONE = "it ran"


def asker(name: str, role: str) -> Requester:
    return Requester(id=SenderId(name), name=name, role=role, verified=role in ("admin", "owner"))


ROOT, RICK, MIA, GUS = (
    asker(name, role)
    for name, role in (("root", "admin"), ("rick", "admin"), ("mia", "member"), ("gus", "guest"))
)


class House:
    """A gateway without agents: what they would call is called by the test."""

    def __init__(
        self,
        store: Store,
        clock: ManualClock,
        folder: Path,
        *,
        cluster: Cluster | None = None,
        **more: Any,
    ) -> None:
        self.store, self.clock = store, clock
        self.ran: list[str] = []
        self.shown: list[PostPart] = []
        self.refuses: Callable[[PostPart], bool] = lambda _: False
        """What the platform does not take."""
        self._news = asyncio.Event()
        self._tasks = LooseTasks()
        self._calls: list[asyncio.Task[ToolResult]] = []
        settings = parse_config(
            {
                "channels": {
                    str(name): {"platform": "console", "rooms": ["lobby", "office"]}
                    for name in (HERE, THERE)
                },
                "agents": [
                    {"id": "reverie", "bindings": [{"match": {"channel": "*"}, "private": False}]}
                ],
                "llm": {
                    "providers": {"s": {"kind": "scripted"}},
                    "models": {"main": {"provider": "s"}},
                },
                "access": {"dm": "open", "roles": ROLES},
                "store": {"path": "reverie.db"},
                "tools": {"approvals": {"timeout": TIMEOUT_S}},
                **more,
            },
            folder,
        )
        self.consoles = {
            name: ConsoleChannel(name, self._show, now=clock.now) for name in (HERE, THERE)
        }
        live = self.live = LiveSettings(settings)
        who, bindings = policy_of(live), bindings_of(settings)
        places = privacy(store, bindings)
        self.outbox = Outbox(store, self.consoles, clock, self._tasks, redactor=Redactor())
        channels = Channels(live, self.consoles, cluster)
        gateway = handle_of(
            store,
            clock,
            live=live,
            places=places,
            people=who,
            channels=channels,
            tasks=self._tasks,
            notices=NotedNotices(),
        )
        plugins = plugins_of(Mcp, Approvals, gateway=gateway)
        mcp, approvals = plugins.get(Mcp), plugins.get(Approvals)
        assert mcp is not None
        assert approvals is not None
        self.mcp, self.approvals = mcp, approvals
        self.who: identity.AccessPolicy = who
        self._gate = PermissionGate(gateway, plugins)
        self.intakes = emits(
            store,
            clock,
            live,
            self.consoles,
            access_policy=who,
            bindings=bindings,
            plugins=plugins,
        )

    async def __aenter__(self) -> Self:
        await self.outbox.open()
        await self.approvals.on_lease(EVERYTHING)
        for name, console in self.consoles.items():
            self._tasks.create_task(console.run(self.intakes[name]))
            await console._up.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self.approvals.stop()
        await self.outbox.drain(2)
        await self.kill()

    async def kill(self) -> None:
        """As `kill -9` does: whatever is under way ends where it is."""
        for task in (*self._tasks.running, *self._calls):
            task.cancel()
        await asyncio.gather(*self._tasks.begun, *self._calls, return_exceptions=True)

    def call(
        self,
        *askers: Requester,
        at: Address = LOBBY,
        tool: str = "bash",
        written: str = "{}",
        turn: str = "t1",
        **more: Any,
    ) -> "asyncio.Task[ToolResult]":
        """The model calls the tool, for these people; `permit`: what it needs; `foreign`: what
        brought text in.

        `brings`: label of its result.
        """
        request = RequestLabel(Label("outside" if more.pop("foreign", "") else "owner"))
        brings = more.pop("brings", Label())
        permit: ToolPermit = more.pop(
            "permit",
            ALLOW_ADMINS if askers != (MIA,) else replace(ALLOW_MEMBERS, approval="always"),
        )

        async def does(_: ToolContext, *, command: str = "ls") -> ToolOutput:
            self.ran.append(command)
            return ToolOutput(text=DONE, label=brings)

        where = ToolContext(
            turn=TurnId(turn),
            agent="reverie",
            at=at,
            visibility=Visibility(scope=PUBLIC),
            autonomous=not askers,
            requesters=askers,
            request=request,
        )
        made = build_tool(does, "Runs it.", permit, name=tool, effect=more.pop("effect", OUT))
        hands = dispatcher([made], self._gate)
        call = asyncio.create_task(
            hands.call(ToolCall(id="c", name=tool, arguments=written), where)
        )
        self._calls.append(call)
        return call

    async def say(self, text: str, sender: str = "root", at: Address = LOBBY) -> str:
        """Somebody says something (in a direct chat, if the room is theirs); the answer, once it is
        shown."""
        count = len(self.shown)
        await self.consoles[at.channel].receive_message(
            text, sender=sender, room=None if at.room == sender else at.room
        )
        await self.until(lambda: len(self.shown) > count)
        return self.shown[-1].body

    async def asked(self, count: int = 1) -> list[ApprovalRequested]:
        """Return once so many approvals were asked for, and what they are about."""
        await self.until(lambda: sum(part.style == "notice" for part in self.shown) >= count)
        return [
            fact for fact in await self.log("approval_asked") if isinstance(fact, ApprovalRequested)
        ]

    async def asking(
        self, *askers: Requester, **more: Any
    ) -> "tuple[asyncio.Task[ToolResult], ApprovalRequested]":
        """Call the tool, and return once its approval was asked for, alone."""
        call = self.call(*askers, **more)
        (asked,) = await self.asked()
        return call, asked

    async def verdicts(self) -> list[tuple[str, str, str]]:
        ended = [
            fact for fact in await self.log("approval_ended") if isinstance(fact, ApprovalEnded)
        ]
        return [(fact.tool, fact.verdict, fact.by) for fact in ended]

    async def log(self, *kinds: str) -> list[Fact]:
        return [one.fact for one in await self.store.entries(kinds=kinds)]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Return once that holds; something is shown then."""
        while not ready():
            self._news.clear()
            await self._news.wait()

    async def sleeping(self, count: int = 1) -> None:
        """Return once so many wait on the clock."""
        while sum(not woken.done() for _, _, woken in self.clock._sleepers) < count:
            await asyncio.sleep(0)

    def _show(self, part: PostPart) -> None:
        if self.refuses(part):
            raise Rejected("it does not take that")
        self.shown.append(part)
        self._news.set()


@contextlib.asynccontextmanager
async def house(
    folder: Path, *, clock: ManualClock | None = None, access: object = None, **tools: Any
) -> AsyncIterator[House]:
    """Begin and end. `access`, `tools`: the configuration's sections."""
    clock = clock or ManualClock()
    tools["approvals"] = {"timeout": TIMEOUT_S, **tools.get("approvals", {})}
    more = {"tools": tools} if access is None else {"tools": tools, "access": access}
    async with (
        await Store.open(folder / "reverie.db", clock) as store,
        House(store, clock, folder, **more) as made,
    ):
        yield made


INNER = Address.parse(inner_conversation("reverie"))


def given_by(
    role: identity.Role,
    at: Address = LOBBY,
    *,
    direct: bool = False,
    everywhere: identity.Role | None = None,
) -> CommandCall:
    """A command of root, who has this role there."""
    given = Command(
        id=EventId("n1"),
        at=at,
        sender=ROOT,
        name="approve",
        args="",
        sent=ManualClock().now(),
        origin="text",
        direct=direct,
    )
    return CommandCall(command=given, role=role, global_role=everywhere or role)
