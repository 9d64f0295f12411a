"""The matrix: each cell goes through a platform's own reader, the intake and the desk, on a real
store; what can be seen of it afterwards is compared with what the oracle expects.

A `House` is a gateway without agents under one policy. Between two cells more than two hours pass, so
that no code and no limit of one is left to the next, neither that of ten strangers' rooms a day.
"""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from channels.base import Emit
from gateway.access.channels import Channels
from gateway.app import make_channel
from gateway.config.loader import parse_config
from gateway.config.models import Settings
from gateway.config.reload import LiveSettings
from gateway.core.clock import ManualClock
from gateway.core.events import Address, ChannelName, MembershipChanged, Notification, Post, RoomId
from gateway.core.facts import (
    AuditRecord,
    CodeIssued,
    Fact,
    IdentityLinked,
    Judgement,
    PostQueued,
    RoleAssigned,
    RoomAccessChanged,
)
from gateway.store import LogEntry, NewEntry, Store
from gateway.store.active import judged_events
from gateway.stream.inbox import ready_conversations
from tests.gateway.system.permission_matrix.oracle import (
    DMS,
    NOTHING,
    ROOMS,
    Cell,
    Dm,
    Outcome,
    Rooms,
    Said,
    expected,
)
from tests.gateway.system.permission_matrix.people import PLATFORMS, Person, Platform, people
from tests.gateway.system.permission_matrix.platform_payloads import (
    APPROVED_GUILD,
    FOREIGN,
    GUILD,
    LISTED_GUILD,
    NAMES,
    ROOM_IDS,
    Irc,
    Json,
    Reader,
    all_platforms,
    reached,
    ways,
)
from tests.kits.commands import TABLE
from tests.kits.intake import emits
from tests.kits.people import People
from tests.kits.policies import bindings_of
from tests.kits.tasks import LooseTasks

BETWEEN_S: Final = 9_000.0
"""Longer than a code holds."""
SHARE: Final = 15
ELSEWHERE: Final[dict[Platform, Platform]] = {
    "irc": "telegram",
    "telegram": "discord",
    "discord": "irc",
}
"""Where the account is that somebody of that platform is linked with."""


def cells(platforms: Sequence[Platform] = PLATFORMS) -> Iterator[Cell]:
    """All of them. What a policy has no say in is tried under each in turn."""
    turn = 0
    for platform in platforms:
        for number, person, place in reached(platform):
            for way in ways(platform, person, place):
                turn += 1
                if place == "direct":
                    some = [(dm, ROOMS[turn % len(ROOMS)]) for dm in DMS]
                else:
                    some = [(DMS[turn % len(DMS)], rooms) for rooms in ROOMS]
                for dm, rooms in some:
                    yield Cell(platform, number, person, place, way, dm, rooms)


def some_cells() -> list[Cell]:
    """Few of them, always the same, in no order: with every way, person and policy."""
    return sorted((cell for cell in cells() if _lot(cell) % SHARE == 0), key=_lot)


def _lot(cell: Cell) -> int:
    return zlib.crc32(str(cell).encode())


def other_account(platform: Platform, number: int) -> str:
    there = ELSEWHERE[platform]
    return f"{NAMES[there]}:{'account:q' if there == 'irc' else ''}{90_000 + number}"


def settings_of(
    tmp: Path, dm: Dm, rooms: Rooms, irc: Irc, readers: dict[Platform, Reader], **access: Any
) -> Settings:
    """What an operator would write for these people."""
    roles: dict[str, list[str]] = {}
    grants: list[Json] = []
    for platform, number, person in _everybody():
        for claim in person.claims:
            who = f"{NAMES[platform]}:{readers[platform].name_of(number, person)}"
            if claim.by == "link":
                who = other_account(platform, number)
            elif claim.by != "config":
                continue
            elif who.startswith("irc.net:mask:"):
                who = f"irc.net:mask:*!*@{irc.mask(number, person).partition('@')[2]}"
            if claim.where == "all":
                roles.setdefault(claim.role, []).append(who)
            elif claim.where in ("agent", "echo"):
                agent = "reverie" if claim.where == "agent" else "echo"
                grants.append({"who": who, "role": claim.role, "agent": agent})
            else:
                grants.append(
                    {"who": who, "role": claim.role, "room": _scope(platform, claim.where)}
                )
    others = [
        {"match": {"channel": NAMES[one], "room": ROOM_IDS[one]["other"]}} for one in PLATFORMS
    ]
    open_ = {one: [ROOM_IDS[one]["listed"], ROOM_IDS[one]["other"]] for one in PLATFORMS}
    return parse_config(
        {
            "channels": {
                "irc.net": {
                    "platform": "irc",
                    "host": "127.0.0.1",
                    "nick": "reverie",
                    "rooms": open_["irc"],
                },
                "telegram.main": {
                    "platform": "telegram",
                    "token": "1:t",
                    "rooms": open_["telegram"],
                },
                "discord.main": {
                    "platform": "discord",
                    "token": "t",
                    "rooms": [*open_["discord"], LISTED_GUILD],
                },
            },
            "agents": [
                {"id": "echo", "bindings": others},
                {"id": "reverie", "bindings": [{"private": False}]},
            ],
            "llm": {
                "providers": {"s": {"kind": "scripted"}},
                "models": {"main": {"provider": "s"}},
            },
            "attention": {"coalesce": 0},
            "access": {
                "dm": dm,
                "rooms": rooms,
                "roles": roles,
                "grants": grants,
                "platform_roles": _platform_roles(),
                "max_bot_exchanges": 1_000_000,
                **access,
            },
            "store": {"path": "reverie.db"},
            "ops": {"port": 0},
        },
        tmp,
    )


def _everybody() -> Iterator[tuple[Platform, int, Person]]:
    return (
        (platform, number, person) for platform in PLATFORMS for number, person in people(platform)
    )


def _scope(platform: Platform, where: str) -> str:
    rooms = ROOM_IDS[platform]
    room = {
        "here": rooms["listed"],
        "other": rooms["other"],
        "closed": rooms["closed"],
        "guild": GUILD,
    }[where]
    return str(Address(channel=NAMES[platform], room=RoomId(room)).conversation)


def _platform_roles() -> list[Json]:
    here = {platform: ROOM_IDS[platform]["listed"] for platform in PLATFORMS}
    rows = (
        ("irc.*", here["irc"], "op", "admin"),
        ("irc.*", "*", "voice", "member"),
        ("irc.*", "*", "halfop", "blocked"),
        ("telegram.*", "*", "protected", "admin"),
        ("telegram.main", here["telegram"], "administrator", "admin"),
        ("telegram.main", "*", "creator", "member"),
        ("discord.main", here["discord"], "role:21", "admin"),
        ("discord.*", "*", "role:22", "member"),
        ("discord.*", "*", "role:23", "blocked"),
        ("irc.*", "*", "role:25", "admin"),
        ("discord.main", GUILD, "role:26", "admin"),
    )
    return [
        {"channel": channel, "room": room, "has": has, "role": role}
        for channel, room, has, role in rows
    ]


def decided(readers: dict[Platform, Reader]) -> Iterator[Fact]:
    """What was decided at run time, before the matrix begins."""
    for platform, number, person in _everybody():
        who = f"{NAMES[platform]}:{readers[platform].name_of(number, person)}"
        for claim in person.claims:
            if claim.by == "run":
                scope = "" if claim.where == "all" else _scope(platform, claim.where)
                yield RoleAssigned(
                    person=who, role=claim.role, scope=scope, by="operator", why="role"
                )
            elif claim.by == "link":
                one, other = sorted((who, other_account(platform, number)))
                yield IdentityLinked(one=one, other=other, joined=True, by="operator")
    for platform in PLATFORMS:
        approved = [
            ROOM_IDS[platform]["approved"],
            *([APPROVED_GUILD] if platform == "discord" else []),
        ]
        for room in approved:
            yield RoomAccessChanged(
                room=Address(channel=NAMES[platform], room=RoomId(room)), open=True, by="operator"
            )


@dataclass
class Seen:
    at: Address | None = None
    """Where it came in."""
    facts: list[Fact] = field(default_factory=list)
    arrivals: int = 0
    joined: int = 0

    @property
    def outcome(self) -> Outcome:
        judged = [fact for fact in self.facts if isinstance(fact, Judgement)]
        if not judged:
            return NOTHING
        assert len(judged) == 1, judged
        acts = {_act(fact) for fact in self.facts} - {""} | ({"join"} if self.joined else set())
        audited = sum(isinstance(fact, AuditRecord) for fact in self.facts)
        fate, due = ("refused" if judged[0].fate == "refused" else "heard"), judged[0].fate == "due"
        assert audited < 2
        assert due == bool(self.arrivals), "only what is due wakes an agent, and all of that"
        posts = [fact.post for fact in self.facts if isinstance(fact, PostQueued)]
        assert len(posts) < 2, posts
        said, aside = (
            self._said(posts, refused=fate == "refused"),
            any(post.to != self.at for post in posts),
        )
        return Outcome(fate, due, said, "+".join(sorted(acts)), bool(audited), aside)  # type: ignore[arg-type]

    def _said(self, posts: Sequence[Post], *, refused: bool) -> Said:
        if any(
            isinstance(fact, CodeIssued) and fact.what in ("pair", "room") for fact in self.facts
        ):
            assert posts
            return "code"
        if not posts:
            return ""
        if "\n" not in posts[0].text and "works only in a direct chat" in posts[0].text:
            return "not here"
        return "notice" if refused else "answer"


def _act(fact: Fact) -> str:
    return (
        "role"
        if isinstance(fact, RoleAssigned)
        else "room"
        if isinstance(fact, RoomAccessChanged)
        else ""
    )


class House:
    """Real parts, on a real store; nothing is delivered, and no model is asked."""

    def __init__(
        self, store: Store, clock: ManualClock, tmp: Path, dm: Dm, rooms: Rooms, **access: Any
    ) -> None:
        self.store, self.clock = store, clock
        self.seen, self._tasks = Seen(), LooseTasks()
        self.irc = Irc(clock)
        self.readers: dict[Platform, Reader] = {}
        bare = parse_config({"channels": _BARE, "agents": [{"id": "reverie"}], "llm": _LLM}, tmp)
        self.channels = {
            name: make_channel(name, bare, clock, None, commands=TABLE.specs())
            for name in NAMES.values()
        }
        self.readers = all_platforms(self.irc, clock, self.channels)
        made = settings_of(tmp, dm, rooms, self.irc, self.readers, **access)
        live = LiveSettings(made)
        self.people = People(live, store, clock, Channels(live, self.channels))
        store.subscribe(self._wrote)
        self.intakes = self._intakes(made)

    def _intakes(self, made: Settings) -> dict[ChannelName, Emit]:
        people_, bindings = self.people, bindings_of(made)
        return emits(
            self.store,
            self.clock,
            LiveSettings(made),
            self.channels,
            access_policy=people_.policy,
            bindings=bindings,
            people=people_,
        )

    def _wrote(self, entries: Sequence[LogEntry]) -> None:
        # What owners are told of it has no cause, and comes at some time.
        self.seen.facts += [
            one.fact for one in entries if one.cause or not isinstance(one.fact, PostQueued)
        ]
        self.seen.arrivals += len([*ready_conversations(entries)])
        self.seen.joined += sum(
            isinstance(event, MembershipChanged)
            and event.change == "invite"
            and judged.fate != "refused"
            for event, _, judged in judged_events(entries)
        )

    async def write(self, *facts: Fact) -> None:
        """As another door would: the command line, a gateway before."""
        now = self.clock.now()
        await self.store.append([NewEntry(fact=fact, at=now) for fact in facts])

    async def take(self, *events: Notification) -> Seen:
        """These come in together; what came of them."""
        self.seen = Seen(at=events[0].at if events else None)
        for name in {_channel(event) for event in events}:
            await self.intakes[name]([event for event in events if _channel(event) == name])
        seen, self.seen = self.seen, Seen()
        if self._tasks.begun:  # owners are told of what waits
            await asyncio.gather(*self._tasks.begun)
            self._tasks.begun.clear()
        return seen

    async def played(self, cell: Cell) -> tuple[Outcome, set[str]]:
        """What comes of one cell, and by which rules. Afterwards everything is as before."""
        self.clock.advance(BETWEEN_S)
        seen = await self.take(
            *self.readers[cell.platform].read(cell.number, cell.person, cell.place, cell.way)
        )
        for fact in seen.facts:
            if isinstance(fact, RoleAssigned):
                assert fact.person.endswith(f":{FOREIGN}"), fact
                await self.write(
                    RoleAssigned(
                        person=fact.person, role="", scope=fact.scope, by="operator", why="role"
                    )
                )
            elif isinstance(fact, RoomAccessChanged):
                await self.write(RoomAccessChanged(room=fact.room, open=False, by="operator"))
        return seen.outcome, {fact.rule for fact in seen.facts if isinstance(fact, Judgement)}


_LLM: Final = {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}}
_BARE: Final = {
    "irc.net": {"platform": "irc", "host": "127.0.0.1", "nick": "reverie"},
    "telegram.main": {"platform": "telegram", "token": "1:t"},
    "discord.main": {"platform": "discord", "token": "t"},
}


def _channel(event: Notification) -> ChannelName:
    at = getattr(event, "at", None)
    assert isinstance(at, Address)
    return at.channel


@contextlib.asynccontextmanager
async def house(
    folder: Path,
    dm: Dm = "pairing",
    rooms: Rooms = "approval",
    *,
    begun: bool = True,
    **access: Any,
) -> AsyncIterator[House]:
    """Open, with all that was decided. `begun`: and read."""
    clock = ManualClock()
    folder.mkdir(parents=True, exist_ok=True)
    async with await Store.open(folder / "reverie.db", clock) as store:
        made = House(store, clock, folder, dm, rooms, **access)
        if begun:
            await made.people.load()
            await made.write(*decided(made.readers))
        yield made


@dataclass
class Report:
    cells: int = 0
    decisions: set[Outcome] = field(default_factory=set)
    """What was seen from outside."""
    rules: set[str] = field(default_factory=set)
    """What the log says decided."""
    wrong: list[str] = field(default_factory=list)


async def play(folder: Path, chosen: Iterable[Cell], *, most_wrong: int = 50) -> Report:
    """Each cell under its policy. Ends early once so many are wrong."""
    report, by_policy = Report(), dict[tuple[Dm, Rooms], list[Cell]]()
    for cell in chosen:
        by_policy.setdefault((cell.dm, cell.rooms), []).append(cell)
    for (dm, rooms), some in by_policy.items():
        async with house(folder / f"{dm}-{rooms}", dm, rooms) as open_:
            for cell in some:
                outcome, rules = await open_.played(cell)
                report.cells += 1
                report.decisions.add(outcome)
                report.rules |= rules
                if outcome != (right := expected(cell)):
                    report.wrong.append(f"{cell}: {outcome}, not {right}")
                    if len(report.wrong) >= most_wrong:
                        return report
    return report
