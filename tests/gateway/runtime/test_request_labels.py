"""Labels of requests over random histories: never higher than the texts that the requests hold, and
nothing shown where its readers are not.

Each piece of text has a word of its own, whose author and readers the test knows by itself: of what
people wrote, from who wrote it where; of what the model writes, from the words in its request. So
each request can be judged without the product's labels, whatever the words went through: turns,
summaries, notes, dreams, files, recall, digests, restarts.
"""

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from agent.cache.prompt_cache import CacheWarmer
from agent.models.adapt import append_suffix
from agent.models.base import (
    ModelRequest,
    StreamChunk,
    StreamEnd,
    TextPart,
    ToolResult,
)
from agent.prompt import PromptInput
from agent.prompts import load_prompt
from agent.workspace.cache import WorkspaceCache
from agent.workspace.persona import PersonaBundle, PersonaScope
from gateway.access.policy import ConversationBinding, decide
from gateway.context.conversation import ConversationLocks
from gateway.context.prompt_context import PromptContextBuilder
from gateway.context.workspace_fs import AgentFiles
from gateway.core.clock import ManualClock
from gateway.core.events import (
    Address,
    Alarm,
    EventId,
    MembershipChanged,
    Message,
    MessageEdited,
    MessageId,
    Notification,
    Post,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.facts import (
    AMBIENT,
    LOW,
    URGENT,
    Judgement,
    PostQueued,
    Seq,
    ViewFolded,
    dedup_key,
    is_inner,
)
from gateway.core.labels import Integrity, Label, rank_integrity
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_ANYBODY, ALLOW_MEMBERS, OUT
from gateway.core.permissions import OWN as STAYS
from gateway.core.scopes import OWNER_SCOPE, PUBLIC, group_scope
from gateway.core.tool import Tool, ToolContext, ToolOutput, build_tool, tools_of
from gateway.core.tool_spec import ToolCall
from gateway.plugins.evidence import EvidenceReader
from gateway.plugins.files import Files
from gateway.plugins.memory import Memory
from gateway.plugins.memory.dreams import DreamHost
from gateway.plugins.memory.memory_file import MemoryStore
from gateway.plugins.messaging import Messaging
from gateway.plugins.read_room import RoomReader
from gateway.plugins.recall import Recall, RecallSettings
from gateway.plugins.recap import Recap
from gateway.runtime.turn import TurnRun, TurnRunner
from gateway.runtime.turn_record import Turn
from gateway.store import LogEntry, NewEntry, Store
from gateway.stream.attention import InternalIntake
from gateway.stream.routing import BindingPattern, Bindings, PrivacyCache
from tests.kits.agent import digests_of
from tests.kits.examples import examples
from tests.kits.handle import handle_of
from tests.kits.places import PlayedChannels, privacy
from tests.kits.plugins import plugin_of, plugins_of
from tests.kits.policies import attention_of
from tests.kits.scripted_turn import ACCOUNT, USAGE, Played
from tests.kits.tools import NoApprovals, dispatcher
from tests.kits.turns import INNER, ROOM, WHEN, WHO, Desk, services_of

WORD: Final = re.compile(r"w\d{4}w")
SUMMARY: Final = "The window is nearly full: "
DREAM: Final = "You are dreaming: "
HANDLE: Final = re.compile(r"\b(?:e\d+|t\d+\.\d+|v\d+-\d+)\b")
ROLES: Final[dict[str, Literal["owner", "admin", "member", "guest"]]] = {
    "olga": "owner",
    "adam": "admin",
    "mia": "member",
    "gus": "guest",
}
FILLER: Final = "and so it goes on and on. " * 20
"""So that views are worth folding."""
TOPICS: Final = ("harbour", "lantern")
"""By these words, texts are found again."""


def place(name: str) -> Address:
    return replace(ROOM, room=RoomId(name))


HALL, CLOSED, CREW, MATES = place("#hall"), place("#closed"), place("#crew"), place("#mates")
OLGAS, GUSES = place("olga"), place("gus")
"""Direct chats."""
OWN: Final = Address.parse(INNER)
ROOMS: Final = (ROOM, HALL, CLOSED, CREW, MATES)
PEOPLE: Final = {
    **{one: tuple(ROLES) for one in (ROOM, HALL, CLOSED)},
    CREW: ("olga", "adam", "mia"),
    MATES: ("olga", "mia", "gus"),
    OLGAS: ("olga",),
    GUSES: ("gus",),
}
"""Who speaks where."""
Readers = frozenset[str]
SCOPES: Final[dict[Address, Readers]] = {
    ROOM: frozenset(),
    HALL: frozenset(),
    CLOSED: frozenset({CLOSED.conversation}),
    CREW: frozenset({group_scope("crew")}),
    MATES: frozenset({group_scope("crew")}),
    OLGAS: frozenset({OLGAS.conversation}),
    GUSES: frozenset({GUSES.conversation}),
    OWN: frozenset(),
}
"""Who may know what is said there: everybody, the people of a group, those of the place. The agent
by itself weighs what all rooms say, and what it says there is for nobody."""
POLICY: Final = replace(
    WHO,
    roles={f"{ROOM.channel}:{name}": role for name, role in ROLES.items() if role != "guest"},
    open_rooms={ROOM.channel: frozenset(one.room for one in ROOMS)},
)
BINDINGS: Final = Bindings(
    [
        BindingPattern(
            channel="*",
            room=room,
            thread=None,
            binding=ConversationBinding(
                listen="all", agent="ana", group="crew" if room != "*" else ""
            ),
        )
        for room in (CREW.room, MATES.room, "*")
    ]
)
Step = tuple[str, int]
"""Name of a tool, and a number that chooses its arguments."""
Action = tuple[object, ...]
"""What happens (see `act`), with whom and where."""


@dataclass
class Truth:
    """Authors and readers of all words."""

    integrity: dict[str, Integrity] = field(default_factory=dict)
    readers: dict[str, Readers] = field(default_factory=dict)

    def word(self, integrity: Integrity, readers: Readers = frozenset()) -> str:
        made = f"w{len(self.integrity):04}w"
        self.integrity[made], self.readers[made] = integrity, readers
        return made

    def of(self, text: str) -> tuple[Integrity, Readers]:
        """The lowest author of a text's words, and all that its readers must be able to read."""
        found = set(WORD.findall(text))
        lowest: Integrity = min(
            [self.integrity[one] for one in found], key=rank_integrity, default="owner"
        )
        return lowest, frozenset().union(*(self.readers[one] for one in found))


def may_know(at: Address, readers: Readers) -> bool:
    """Whether all who read there may know a text with these readers. Gus, alone with the agent, is
    in a closed room."""
    own = frozenset().union(*(SCOPES[one] for one in ROOMS)) if at == OWN else SCOPES[at]
    mine = SCOPES[CLOSED] if at == GUSES else frozenset()
    return at == OLGAS or readers <= own | {at.conversation} | mine


def names_readers(label: Label, readers: Readers) -> bool:
    """Whether nobody may read a text with this label who does not read all of these scopes. An
    owner may know all."""
    named = {
        Address.parse(one) for one in label.readers if not one.startswith(("space:", OWNER_SCOPE))
    }
    implied = frozenset(label.readers).union(*(SCOPES[one] for one in named))
    return readers <= implied or OWNER_SCOPE in label.readers or OLGAS in named


class Parrot(Played):
    """Does what the plan of a turn says, and repeats words. Each request is compared with its
    label."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth = truth
        self.plan: list[tuple[Step, ...]] = []
        self.contexts: list[ToolContext] = []
        self.newest = ""
        """All of the newest request of a turn."""
        self.handles: list[str] = []
        """Of whatever is in the log."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        said = [part for one in append_suffix(request) for part in one.parts]
        texts = [part.text for part in said if isinstance(part, TextPart | ToolResult)]
        texts += [part.arguments for part in said if isinstance(part, ToolCall)]
        everything = "\n".join([*texts, *(block.text for block in request.blocks)])
        words = sorted(set(WORD.findall(everything)))
        if DREAM in everything:
            lowest, readers = self.truth.of(everything)
            assert rank_integrity(lowest) >= rank_integrity("admin"), everything
            yield TextPart(
                text="\n".join(
                    f"- {TOPICS[0]} {one}" for one in [*words, self.truth.word(lowest, readers)]
                )
            )
        elif SUMMARY in everything:
            yield TextPart(text=" ".join(words) or "Nothing was said.")
        else:
            for part in self._answer(everything):
                yield part
        yield StreamEnd(stop_reason="end", usage=USAGE, model="played-1", account=ACCOUNT)

    def _answer(self, everything: str) -> list[TextPart | ToolCall]:
        self.newest, context = everything, self.contexts[-1]
        at, label = context.at, context.request.label
        integrity, readers = self.truth.of(everything)
        assert rank_integrity(label.integrity) <= rank_integrity(integrity), (
            label,
            integrity,
            everything,
        )
        assert names_readers(label, readers), (label, readers, everything)
        assert may_know(at, readers), (at, readers, everything)
        step = self.plan.pop(0) if self.plan else ()
        readers |= SCOPES[at]
        if not step:
            return [
                TextPart(
                    text=f"{TOPICS[len(self.truth.integrity) % 2]} "
                    f"{self.truth.word(integrity, readers)}"
                )
            ]
        return [
            TextPart(text=f"I say {self.truth.word(integrity, readers)}"),
            *(
                ToolCall(
                    id=f"c{len(self.truth.integrity)}x{number}",
                    name=name,
                    arguments=self._arguments(name, choice, self.truth.word(integrity, readers)),
                )
                for number, (name, choice) in enumerate(step)
            ),
        ]

    def _arguments(self, name: str, choice: int, word: str) -> str:
        text, other = (
            f"{TOPICS[choice % 2]} {word}",
            (*ROOMS, OLGAS, GUSES)[choice % 7].conversation,
        )
        shown = HANDLE.findall(self.newest) + self.handles[-8:]
        match name:
            case "remember":
                return f'{{"text":"{text}"}}'
            case "recall":
                return f'{{"query":"{TOPICS[choice % 2]}"}}'
            case "read_room":
                return f'{{"address":"{other}"}}'
            case "send_message":
                return f'{{"address":"{other}","text":"{text}"}}'
            case "attend":
                return f'{{"room":"{other}","reason":"{text}"}}'
            case "fetch_evidence":
                return f'{{"handle":"{shown[choice % len(shown)] if shown else "e1"}"}}'
            case "read_file":
                return f'{{"path":"{choice % 3}.txt"}}'
            case "write_file":
                return f'{{"path":"{choice % 2}.txt","text":"{text}"}}'
            case _:
                return f'{{"about":"{word}"}}'


class Seen(TurnRunner):
    """Keeps the contexts of all turns."""

    contexts: list[ToolContext]

    async def gather(self, turn: Turn) -> TurnRun:
        run = await super().gather(turn)
        self.contexts.append(run.tools)
        return run


class Persona(PromptContextBuilder):
    """Ana's, whose persona stands in no file; in private with the owner it holds MEMORY.md."""

    memory: MemoryStore

    async def load_persona(self, scope: PersonaScope) -> PersonaBundle:
        private = await self.memory.read("ana") if scope == "private" else ""
        return PersonaBundle(identity="You are Ana.", private=private)


class World(NoApprovals):
    """Several places of different audiences, and what happens there. Nobody can approve anything
    here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truth = Truth()
        self.name = self.truth.word("guest", SCOPES[GUSES])
        """Stands in the name that gus has chosen for himself in his direct chat."""
        self.model = Parrot(self.truth)
        self.clock = ManualClock(WHEN)
        self.seen = Counter[str]()
        """What happened how often."""
        self.wordings: dict[MessageId, list[str]] = {}
        """Words of each message, one of which it was told by."""
        self.messages: dict[Address, list[Message]] = {one: [] for one in PEOPLE}
        self.meanwhile: list[tuple[str, bool]] = []
        self.members = {"gus"}
        """People who are in the closed room now, as the platform says."""

    async def open(self) -> None:
        """Begin, as after a start: with what the store and the files hold."""
        self.store = store = await Store.open(self.folder / "reverie.db", self.clock)
        self.desk = desk = Desk(store, self.model, clock=self.clock, who=POLICY)
        live, clock = desk.live, self.clock
        live.put_in_force(
            live.settings.model_copy(update={"recall": RecallSettings(ambient_tokens=400)})
        )
        channels = PlayedChannels(
            scope_of=lambda at: PUBLIC if at in (ROOM, HALL) else None,
            space_of=lambda _: None,
            prefixes={},
            membership=lambda at, person: (
                "reads_all" if at == CLOSED and person in self.members else None
            ),
        )
        self.channels, self.places = channels, (places := privacy(store, BINDINGS, channels))
        named = PlayedChannels(dict.fromkeys([ROOM.channel], cast("Any", None)))
        gateway = handle_of(store, clock, live=live, places=places, people=POLICY, channels=named)
        internal = InternalIntake(store, clock, attention_of(store), BINDINGS)
        self.plugins = plugins_of(Memory, Recall, gateway=gateway, internal=internal)
        memory, recall = self.plugins.get(Memory), self.plugins.get(Recall)
        assert memory is not None
        self.memory = memory
        await memory.recover("ana")
        services = replace(services_of(gateway, desk.means.history.media), plugins=self.plugins)
        evidence = plugin_of(EvidenceReader, gateway=gateway, plugins={})
        reader = services.reader
        locks = ConversationLocks()
        digests = digests_of("ana", reader, store=store, clock=clock, places=places, locks=locks)
        speaking = plugins_of(
            RoomReader,
            Messaging,
            gateway=gateway,
            internal=internal,
            locks=locks,
            digests={"ana": digests},
        )
        workspace = AgentFiles(live, store.path, places)
        if not (strange := workspace.directory("ana") / "2.txt").exists():
            strange.parent.mkdir(parents=True, exist_ok=True)
            strange.write_text(self.truth.word("outside"))
        files = plugin_of(Files, files=workspace, media=desk.means.history.media)
        tools = [
            *self.tools(),
            *tools_of(
                memory,
                plugin_of(Recap, gateway=gateway),
                recall,
                evidence,
                files,
                *speaking.all,
            ),
        ]
        persona = Persona(
            "ana",
            gateway,
            workspaces=WorkspaceCache(clock),
            family="scripted",
            keep_warm=CacheWarmer(clock, budget_usd=lambda: 0.0),
        )
        persona.memory = memory.file
        mine = dispatcher(tools, self)
        desk.means = replace(desk.means, gateway=gateway, make_tools=lambda: mine, prompts=persona)
        desk.turns = turns = Seen(services, digests)
        turns.contexts = self.model.contexts
        store.subscribe(self._appended)

    async def close(self) -> None:
        await self.plugins.stop()
        await self.store.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    def _appended(self, entries: Sequence[LogEntry]) -> None:
        names = {
            "turn_ended": "t{}.1",
            "evidence": "e{}",
            "mention": "m{}",
            "direct": "m{}",
            "room": "m{}",
        }
        self.model.handles += [
            names[one.kind].format(one.seq) for one in entries if one.kind in names
        ]
        for one in entries:
            if isinstance(one.fact, PostQueued):
                self._said(one.fact.post)

    def _said(self, post: Post) -> None:
        """No word leaves beyond its readers, but by the word of an owner or admin."""
        for word in WORD.findall(post.text):
            readers = self.truth.readers[word]
            trusted = rank_integrity(self.truth.integrity[word]) >= rank_integrity("admin")
            assert trusted or may_know(post.to, readers), (post, readers)
            self.truth.readers[word] = SCOPES[post.to]

    def tools(self) -> list[Tool]:
        async def bash(context: ToolContext, *, about: str) -> str:  # noqa: ARG001 - as tools are called
            return "done"

        async def delete(context: ToolContext, *, about: str) -> str:  # noqa: ARG001 - as tools are called
            return "done"

        async def look(context: ToolContext, *, about: str) -> ToolOutput:  # noqa: ARG001 - as tools are called
            if self.meanwhile and context.at in PEOPLE:
                who, addressed = self.meanwhile.pop()
                await self.says(context.at, who, addressed=addressed)
                self.desk.lane.steer()
            readers = SCOPES[CLOSED] if context.at == OLGAS else SCOPES[context.at]
            return ToolOutput(
                text=self.truth.word("owner", readers), label=Label(readers=tuple(sorted(readers)))
            )

        async def fetch(context: ToolContext, *, about: str) -> ToolOutput:  # noqa: ARG001 - as tools are called
            return ToolOutput(
                text=self.truth.word("outside"), label=Label("outside"), is_untrusted=True
            )

        async def stay(context: ToolContext, *, about: str) -> str:  # noqa: ARG001 - as tools are called
            self.desk.lane.interrupt()
            await asyncio.Event().wait()
            return ""

        return [
            build_tool(bash, "Run.", ALLOW_ADMINS),
            build_tool(delete, "Delete.", ALLOW_MEMBERS),
            build_tool(look, "Look.", ALLOW_ANYBODY, effect=STAYS, parallel=True, polls=True),
            build_tool(fetch, "Fetch.", ALLOW_ANYBODY, effect=STAYS, parallel=True, polls=True),
            build_tool(stay, "Stay.", ALLOW_ANYBODY, effect=STAYS),
        ]

    async def authorize(self, tool: Tool, call: ToolCall, context: ToolContext) -> str:
        """No word of somebody below a tool's role may stand in the request of what leaves the
        place."""
        refusal = await super().authorize(tool, call, context)
        if not refusal:
            lowest, _ = self.truth.of(self.model.newest)
            is_high = rank_integrity(lowest) >= rank_integrity(tool.permit.role)
            assert is_high or tool.effect != OUT, (tool.spec.name, self.model.newest)
            self.seen[f"{tool.spec.name} ran"] += 1
        return refusal

    async def tell(self, event: Notification, at: Address, urgency: int) -> None:
        """Make something unread there, judged as the gateway does."""
        now, conversation = self.clock.now(), at.conversation
        came = NewEntry(fact=event, at=now, conversation=conversation, key=dedup_key(event))
        judged = Judgement(
            type="t",
            urgency=urgency,  # type: ignore[arg-type]
            fate="due" if urgency else "context",
            rule="test",
            role=decide(POLICY, event).role,
        )
        await self.store.append(
            [came, NewEntry(fact=judged, at=now, conversation=conversation, cause=came)]
        )

    async def says(
        self,
        at: Address,
        who: str,
        *,
        addressed: bool = True,
        how: str = "",
        topic: int = 0,
        pending: bool = False,
    ) -> None:
        """`how`: it carries a text from outside, replies to the last message there, or claims to be
        of another."""
        claimed = how == "claims"
        word = self.truth.word("member" if claimed else ROLES[who], SCOPES[at])
        before, carried = self.messages[at][-1:], ""
        self.wordings[MessageId(word)] = [word]
        if how == "carries":
            carried = (
                f"(forwarded from x)\n{TOPICS[topic]} {self.truth.word('outside', SCOPES[at])}"
            )
        message = Message(
            id=MessageId(word),
            at=at,
            sender=Sender(
                id=SenderId("olga" if claimed else who),
                # the name of whoever claims to be another is that person's, as far as we know
                name=f"{who} {self.name}" if at == GUSES and not claimed else who,
                verified=not claimed,
            ),
            text=f"{TOPICS[topic]} {word}\n{carried}\n{FILLER}".strip(),
            carried=carried,
            sent=self.clock.now(),
            kind="direct" if at in (OLGAS, GUSES) else "mention" if addressed else "room",
            reply_to=before[0].id if before and how == "replies" else None,
        )
        self.messages[at].append(message)
        await self.tell(
            message, at, URGENT if message.kind != "room" else LOW if pending else AMBIENT
        )

    async def rewords(self, at: Address, *, carries: bool) -> None:
        if self.messages[at]:
            message = self.messages[at][-1]
            carried = (
                f"(forwarded from x)\n{self.truth.word('outside', SCOPES[at])}" if carries else ""
            )
            word = self.truth.word(self.truth.integrity[message.id], SCOPES[at])
            self.wordings[message.id].append(word)
            edited = MessageEdited(
                id=EventId(word),
                at=at,
                sender=message.sender,
                message=message.id,
                text=f"{TOPICS[0]} {word}\n{carried}".strip(),
                sent=self.clock.now(),
                carried=carried,
            )
            await self.store.append(
                [
                    NewEntry(
                        fact=edited,
                        at=self.clock.now(),
                        conversation=at.conversation,
                        key=f"edited:{word}",
                    )
                ]
            )

    async def topic(self, at: Address, who: str) -> None:
        word = self.truth.word(ROLES[who], SCOPES[at])
        change = MembershipChanged(
            id=EventId(word),
            at=at,
            sender=Sender(id=SenderId(who), name=who, verified=True),
            change="topic",
            sent=self.clock.now(),
            text=word,
        )
        await self.tell(change, at, AMBIENT)

    async def reminder(self, at: Address, who: str) -> None:
        word, now = self.truth.word(ROLES[who], SCOPES[at]), self.clock.now()
        alarm = Alarm(
            id=EventId(word),
            text=word,
            sent=now,
            at=at,
            agent="ana",
            reminder=word,
            by=SenderId(who),
            role=ROLES[who],
            asked_by=who,
        )
        await self.tell(alarm, at, URGENT)

    async def turn(
        self,
        at: Address,
        plan: list[tuple[Step, ...]],
        meanwhile: list[tuple[str, bool]] | None = None,
    ) -> None:
        self.model.plan = list(plan)
        self.meanwhile = [one for one in meanwhile or () if one[0] in PEOPLE.get(at, ())]
        await self.desk.take(at.conversation, autonomous=is_inner(at.conversation))

    async def dream(self) -> None:
        brief = PromptInput(
            persona="You are Ana.",
            card=load_prompt("inner"),
            history=(),
            input_text="",
            conversation=INNER,
        )
        done = await self.memory.dreamer.dream(brief, DreamHost(self.desk.means))
        self.seen[f"a dream: {done.outcome}"] += 1

    async def compact(self, at: Address, *, summary: bool) -> None:
        if summary:
            self.desk.summarise()
        await self.desk.turns.compact(self.desk.means, at.conversation)

    async def begin_afresh(self, at: Address) -> None:
        view = await self.desk.means.history.view(at.conversation, simple=False)
        if view.turns:
            fresh = ViewFolded(
                start=Seq(view.turns[-1].seq + 1),
                reason="somebody asked for a fresh view",
                kinds=("new",),
            )
            await self.store.append(
                [NewEntry(fact=fresh, at=self.clock.now(), conversation=at.conversation)]
            )

    async def check(self) -> None:
        """What a turn has dealt with stands in the log as it was said, also what its request was
        without."""
        for at in PEOPLE:
            records = await self.desk.ended(at.conversation)
            told = "\n".join(
                text for one in records for text in (one.heard, *(step.heard for step in one.steps))
            )
            covered = {seq for one in records for seq in one.covers}
            for one in await self.store.entries(conversation=at.conversation):
                if one.seq in covered and isinstance(one.fact, Message):
                    assert any(word in told for word in self.wordings[one.fact.id]), one
            for record in records:
                self.seen["something came to mind"] += bool(record.recalled)
        self.seen["folded"] += len(await self.store.entries(kinds=["folded"]))


numbers = st.integers(0, 20)
names = st.sampled_from(
    [
        *(
            "bash",
            "delete",
            "look",
            "fetch",
            "stay",
            "remember",
            "recall",
            "read_room",
            "fetch_evidence",
        ),
        *("read_file", "write_file", "send_message", "remember", "recall", "bash", "attend"),
    ]
)
steps = st.lists(st.tuples(names, numbers), min_size=1, max_size=2).map(tuple)
plans = st.lists(steps, max_size=3)
people = st.sampled_from(sorted(ROLES))
spoken = st.sampled_from(list(PEOPLE)).flatmap(
    lambda at: st.tuples(st.just(at), st.sampled_from(PEOPLE[at]))
)
places = st.sampled_from([*PEOPLE, ROOM, CLOSED, OLGAS])
manners = st.sampled_from(["", "", "", "carries", "replies", "claims"])
actions = st.one_of(
    st.tuples(st.just("says"), spoken, st.booleans(), manners, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("says"), spoken, st.booleans(), manners, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("asks"), spoken, plans),
    st.tuples(st.just("asks"), spoken, plans),
    st.tuples(st.just("asks"), spoken, plans),
    st.tuples(
        st.just("turn"), places, plans, st.lists(st.tuples(people, st.booleans()), max_size=1)
    ),
    st.tuples(st.just("think"), plans),
    st.tuples(st.just("rewords"), places, st.booleans()),
    st.tuples(st.just("topic"), spoken),
    st.tuples(st.just("reminder"), spoken),
    st.tuples(st.just("compact"), places, st.booleans()),
    st.tuples(st.just("new"), places),
    st.just(("dream",)),
    st.just(("later",)),
    st.just(("restart",)),
)


async def act(world: World, action: Action) -> None:
    match action:
        case (
            "says",
            (Address() as at, str(who)),
            bool(addressed),
            str(how),
            int(topic),
            bool(pending),
        ):
            await world.says(at, who, addressed=addressed, how=how, topic=topic, pending=pending)
        case ("asks", (Address() as at, str(who)), list(plan)):
            await world.says(at, who, topic=len(plan) % 2)
            await world.turn(at, plan)
        case ("turn", Address() as at, list(plan), list(meanwhile)):
            await world.turn(at, plan, meanwhile)
        case ("think", list(plan)):
            await world.turn(OWN, plan)
        case ("rewords", Address() as at, bool(carries)):
            await world.rewords(at, carries=carries)
        case ("topic", (Address() as at, str(who))):
            await world.topic(at, who)
        case ("reminder", (Address() as at, str(who))):
            await world.reminder(at, who)
        case ("compact", Address() as at, bool(summary)):
            await world.compact(at, summary=summary)
        case ("new", Address() as at):
            await world.begin_afresh(at)
        case ("dream",):
            await world.dream()
        case ("later",):
            world.clock.advance(7_200)
        case ("restart",):
            await world.restart()


def asks(at: Address, who: str, *tools: str, topic: int = 0) -> list[Action]:
    """Somebody asks for tools, one in each answer; behind a colon stands the number that chooses
    the arguments."""
    calls = [
        (name, int(number or 0)) for name, _, number in (tool.partition(":") for tool in tools)
    ]
    return [says(at, who, topic=topic), ("turn", at, [(call,) for call in calls], [])]


def says(
    at: Address,
    who: str,
    how: str = "",
    *,
    topic: int = 0,
    addressed: bool = True,
    pending: bool = False,
) -> Action:
    return ("says", (at, who), addressed, how, topic, pending)


def overhears(at: Address, who: str) -> Action:
    return says(at, who, addressed=False)


def bash(at: Address) -> list[Action]:
    return asks(at, "olga", "bash")


SCENES: Final[dict[str, list[Action]]] = {
    "a topic in the card": [
        ("topic", (ROOM, "gus")),
        *asks(ROOM, "mia"),
        ("new", ROOM),
        ("later",),
        *bash(ROOM),
    ],
    "what the owner has said in a closed room": asks(OLGAS, "olga", "send_message:2"),
    "a line that the request was without": [overhears(ROOM, "gus"), *bash(ROOM), *bash(ROOM)],
    "an answer to less": [
        overhears(ROOM, "gus"),
        *asks(ROOM, "mia", "delete"),
        *asks(ROOM, "mia", "delete"),
        *bash(ROOM),
        *bash(ROOM),
    ],
    "a summary": [
        *asks(ROOM, "gus") * 4,
        ("compact", ROOM, True),
        *bash(ROOM),
        *asks(ROOM, "gus", "bash"),
    ],
    "a shortened view": [*asks(ROOM, "gus", "look") * 4, ("compact", ROOM, False), *bash(ROOM)],
    "a summary of a closed room": [
        *asks(CLOSED, "olga") * 4,
        ("compact", CLOSED, True),
        *bash(CLOSED),
    ],
    "recall": [*asks(ROOM, "gus"), ("later",), *asks(HALL, "olga", "recall", "bash", topic=1)],
    "recall of a closed room": [
        *asks(CLOSED, "mia"),
        ("later",),
        *asks(HALL, "olga", "recall", "bash", topic=1),
    ],
    "recall in private": [
        *asks(CLOSED, "mia"),
        ("later",),
        *asks(OLGAS, "olga", "recall", "send_message:0", topic=1),
    ],
    "recall of a forward": [
        says(ROOM, "olga", "carries"),
        ("later",),
        *asks(HALL, "olga", "recall", "bash", topic=1),
    ],
    "what comes to mind": [*asks(ROOM, "gus"), ("later",), *bash(HALL)],
    "what comes to mind from a closed room": [
        *asks(CLOSED, "gus"),
        ("later",),
        *bash(HALL),
        *bash(OLGAS),
    ],
    "a digest": [
        says(ROOM, "gus", addressed=False, pending=True),
        ("think", [(("bash", 0),), (("send_message", 0),)]),
    ],
    "an attended room": [
        says(ROOM, "gus", addressed=False, pending=True),
        ("think", [(("send_message", 0), ("attend", 0))]),
        ("turn", ROOM, [(("bash", 0),)], []),
        *bash(ROOM),
    ],
    "a closed room and an attended one": [
        says(CLOSED, "mia", addressed=False, pending=True),
        says(HALL, "gus", addressed=False, pending=True),
        ("think", [(("attend", 1), ("remember", 0)), (("attend", 2), ("bash", 0))]),
        ("turn", HALL, [(("bash", 0),)], []),
        ("turn", CLOSED, [(("bash", 0),)], []),
        ("later",),
        *asks(HALL, "gus", "recall"),
    ],
    "a note of what was weighed": [
        says(CLOSED, "olga", addressed=False, pending=True),
        ("think", [(("remember", 0),)]),
        ("later",),
        *asks(ROOM, "gus", "recall"),
        *asks(CREW, "mia", "recall"),
    ],
    "a dream": [
        *asks(OLGAS, "olga", "remember"),
        *asks(ROOM, "gus", "remember"),
        ("dream",),
        *asks(OLGAS, "olga", "recall:1", "bash"),
    ],
    "a dream of a closed room": [
        *asks(CLOSED, "olga", "remember"),
        ("dream",),
        ("restart",),
        ("new", OLGAS),
        says(OLGAS, "olga", "carries"),
        ("turn", OLGAS, [(("send_message", 0),), (("send_message", 2),)], []),
    ],
    "a restart": [*asks(ROOM, "gus"), ("restart",), *bash(ROOM)],
    "a restart after a summary": [
        *asks(ROOM, "gus") * 4,
        ("compact", ROOM, True),
        ("restart",),
        *bash(ROOM),
    ],
    "a word for what is in view": [
        *asks(ROOM, "gus"),
        *bash(ROOM),
        *asks(ROOM, "gus"),
        ("restart",),
        *bash(ROOM),
    ],
    "a name in a direct chat": [
        *asks(GUSES, "gus"),
        ("new", GUSES),
        ("later",),
        ("reminder", (GUSES, "olga")),
        ("turn", GUSES, [(("bash", 0),)], []),
    ],
    "a closed room, in private with somebody who is there": [
        *asks(CLOSED, "mia"),
        *asks(CREW, "mia"),
        ("later",),
        *asks(GUSES, "gus", "recall", "read_room:2", "read_room:3"),
        *asks(GUSES, "gus", "remember", "fetch_evidence:1"),
        *asks(ROOM, "gus", "recall", topic=1),
    ],
    "a quotation": [
        *asks(ROOM, "gus"),
        ("new", ROOM),
        says(ROOM, "olga", "replies"),
        ("turn", ROOM, [(("bash", 0),)], []),
    ],
    "a forward": [says(ROOM, "olga", "carries"), ("turn", ROOM, [(("bash", 0),)], [])],
    "an edited forward": [
        says(ROOM, "olga"),
        ("rewords", ROOM, True),
        ("turn", ROOM, [(("bash", 0),)], []),
    ],
    "a claim": [says(ROOM, "gus", "claims"), ("turn", ROOM, [(("bash", 0),)], [])],
    "a result": [*asks(ROOM, "olga", "fetch", "bash"), *bash(ROOM)],
    "an interrupted turn": [*asks(ROOM, "olga", "fetch", "stay"), *bash(ROOM)],
    "evidence": [
        action
        for number in range(8)
        for action in (
            *asks(ROOM, "gus", "look"),
            ("new", ROOM),
            *asks(ROOM, "olga", f"fetch_evidence:{number}", "bash"),
            ("new", ROOM),
        )
    ],
    "evidence of a closed room": [
        action
        for number in range(8)
        for action in (
            *asks(CLOSED, "mia", "look"),
            *asks(ROOM, "olga", f"fetch_evidence:{number}", "bash"),
        )
    ],
    "a file": [*asks(ROOM, "olga", "read_file:2", "bash")],
    "a file of a closed room": [
        *asks(CLOSED, "olga", "write_file"),
        *asks(CLOSED, "mia", "read_file"),
        *asks(ROOM, "mia", "read_file"),
        *asks(OLGAS, "olga", "read_file", "send_message:0"),
    ],
    "another room": [*asks(ROOM, "gus"), *asks(HALL, "olga", "read_room:0", "bash")],
    "a closed room": [
        *asks(CLOSED, "mia"),
        *asks(ROOM, "gus", "read_room:2"),
        *asks(GUSES, "gus", "read_room:2"),
    ],
    "a room of the group": [
        *asks(CREW, "mia"),
        *asks(MATES, "mia", "read_room:3"),
        *asks(CLOSED, "mia", "read_room:3"),
    ],
    "a closed room without a guest": [
        overhears(CLOSED, "gus"),
        *bash(CLOSED),
        *asks(CLOSED, "olga", "remember", "bash"),
    ],
    "a reminder": [("reminder", (ROOM, "gus")), ("turn", ROOM, [(("bash", 0),)], [])],
    "a word between": [
        says(ROOM, "olga"),
        ("turn", ROOM, [(("look", 0),), (("bash", 0),)], [("gus", True)]),
        *bash(ROOM),
    ],
    "a post from private": [
        says(OLGAS, "olga", "carries"),
        ("turn", OLGAS, [(("send_message", 0),)], []),
    ],
    "a note": [
        *asks(ROOM, "gus", "remember"),
        ("new", ROOM),
        ("later",),
        *asks(ROOM, "olga", "recall", "bash", topic=1),
        *bash(ROOM),
    ],
    "a note of a closed room": [
        *asks(CLOSED, "olga", "remember"),
        ("later",),
        *asks(ROOM, "olga", "recall", topic=1),
        *bash(ROOM),
    ],
    "a private talk": [
        *asks(OLGAS, "olga", "look"),
        ("later",),
        *asks(GUSES, "gus", "recall", topic=1),
        *asks(GUSES, "gus"),
    ],
}
"""Ways on which words travel. Each is played alone, and random histories are made of them, too."""


def run(story: Callable[[World], Awaitable[None]]) -> World:
    async def begin() -> World:
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            await world.open()
            try:
                await story(world)
                await world.check()
                return world
            finally:
                await world.close()

    return asyncio.run(begin())


def play(history: list[Action]) -> Counter[str]:
    """Let it happen, and the owner ask everywhere at the end. Return what happened how often."""

    async def story(world: World) -> None:
        for action in history:
            await act(world, action)
        for at in (ROOM, CLOSED, OLGAS):
            await world.says(at, "olga")
            await world.turn(at, [(("bash", 0),)])

    return run(story).seen


@pytest.mark.parametrize("scene", SCENES)
def test_words_keep_their_author_and_readers(scene: str) -> None:
    play(SCENES[scene])


@pytest.mark.parametrize("tool", ["recall", "read_room:2"])
def test_of_a_closed_room_somebody_is_told_in_private_while_they_are_in_it(tool: str) -> None:
    async def story(world: World) -> None:
        await world.says(CLOSED, "mia", topic=0)
        await world.turn(CLOSED, [])
        (secret,) = world.messages[CLOSED]
        world.clock.advance(7_200)

        async def is_told(at: Address, who: str) -> bool:
            for action in [("new", at), *asks(at, who, tool, topic=1)]:
                await act(world, action)
            return secret.id in world.model.newest

        assert await is_told(GUSES, "gus"), "alone with the agent"
        assert not await is_told(ROOM, "gus"), "where others read it"
        world.members.clear()
        assert not await is_told(GUSES, "gus"), "they were kicked"
        world.members.add("gus")
        closed = ConversationBinding(listen="all", agent="ana", private=True)
        bindings = Bindings(
            [BindingPattern(channel="*", room=CLOSED.room, thread=None, binding=closed)]
        )

        async def may_be_shown(places: PrivacyCache) -> bool:
            here = await places.visibility(GUSES.conversation)
            return (await places.with_memberships(here, [CLOSED.conversation])).can_see(
                CLOSED.conversation
            )

        assert await may_be_shown(world.places)
        assert not await may_be_shown(privacy(world.store, bindings, world.channels)), (
            "the operator's word goes first"
        )
        await world.says(GUSES, "gus", how="claims")
        assert not await may_be_shown(world.places), "somebody else claims to be them"

    run(story)


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.one_of(actions.map(lambda one: [one]), st.sampled_from(list(SCENES.values()))),
        max_size=8,
    )
)
def test_a_request_is_never_labelled_higher_than_the_words_in_it(
    history: list[list[Action]],
) -> None:
    for what in +play([action for actions in history for action in actions]):
        event(what)
