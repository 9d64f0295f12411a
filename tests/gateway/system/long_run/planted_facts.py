"""Facts that are planted early in a conversation, and by which ways they can be told after it was compacted."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from agent.view import extract_exact_names
from gateway.context.evidence import EvidenceStore
from gateway.core.clock import ManualClock
from gateway.core.facts import TurnId, ViewFolded
from gateway.core.scopes import Visibility
from gateway.core.tool import ToolContext
from gateway.core.tool_spec import ToolCall
from gateway.stream.media import MediaStore
from tests.gateway.system.long_run.conversation_script import WORDS
from tests.kits.model_gateway import BEGIN, ROOM, Home, Provider, at_home, settings
from tests.kits.settings import live_settings
from tests.servers.messages_prompt import blocks
from tests.servers.model_api import Answer, Json

ASK: Final = "will leave your view"
"""In what asks for a summary."""
SIGHT: Final = Visibility(scope=ROOM.conversation)
COMPACTIONS: Final = 3
MOST_TURNS: Final = 150
Way = Literal["summary", "word for word", "called to mind", "journal", "recall", "handle"]
WAYS: Final[tuple[Way, ...]] = ("summary", "word for word", "called to mind", "journal", "recall", "handle")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One of them."""

    value: str
    """What must not be lost."""
    told: str
    """How it is said; holds the value."""
    asked: str
    """How somebody asks for it; does not hold it."""
    by: Literal["person", "file", "journal", "agent"]
    """Who tells it: a person, a file that the agent reads, the agent in its journal, or in its answer."""


FACTS: Final = (
    Fact(
        value="Marguerite Oyelaran",
        told="the harbour master is called Marguerite Oyelaran",
        asked="who is the harbour master?",
        by="person",
    ),
    Fact(value="48317", told="the locker has the number 48317", asked="which number has the locker?", by="person"),
    Fact(
        value="/srv/boats/ledger-2019.ods",
        told="the ledger is kept at /srv/boats/ledger-2019.ods",
        asked="where is the ledger kept?",
        by="person",
    ),
    Fact(
        value="tidal-gate-07",
        told="the sluice machine is named tidal-gate-07",
        asked="how is the sluice machine named?",
        by="file",
    ),
    Fact(
        value="31,250 EUR",
        told="the offer of the shipyard is 31,250 EUR",
        asked="what is the shipyard's offer?",
        by="file",
    ),
    Fact(value="2027-04-19", told="the inspection is on 2027-04-19", asked="when is the inspection?", by="journal"),
    Fact(
        value="Theodora",
        told="the white cat on the pier answers to Theodora",
        asked="to what does the cat on the pier answer?",
        by="journal",
    ),
    Fact(value="v3.14.2", told="the firmware I found is v3.14.2", asked="which firmware was found?", by="agent"),
    Fact(
        value="https://tides.example/station/4471",
        told="the tide table is at https://tides.example/station/4471",
        asked="where is the tide table?",
        by="agent",
    ),
)


def filler(number: int) -> str:
    """Talk that says nothing."""
    return " ".join(WORDS[(number * 31 + place * place) % len(WORDS)] for place in range(60))


def forgetful(text: str) -> str:
    """A summariser that keeps every other fact of those that it is told."""
    kept = [fact.told for fact in FACTS[::2] if fact.value in text]
    return "They spoke of boats. " + " ".join(f"Somebody said that {one}." for one in kept)


@dataclass
class Brain:
    """The model: plants the facts that are its own to tell, and summarises as it is told to."""

    summarise: Callable[[str], str] = forgetful
    newest: str = ""
    """All words of the last request."""
    calls: int = 0
    _reply: str = "Yes."

    def __call__(self, body: Json) -> Answer:
        texts = [
            str(block.get("text") or block.get("content") or "")
            for message in body["messages"]
            for block in blocks(message["content"])
        ]
        self.newest = "\n".join(texts)
        last = next(message for message in reversed(body["messages"]) if message["role"] == "user")
        content = blocks(last["content"])
        words = "\n".join(block["text"] for block in content if block["type"] == "text")
        if ASK in words:
            return Answer(text=self.summarise(self.newest))
        if content[-1]["type"] == "tool_result" or "fact " not in words:
            return Answer(text=self._reply)
        fact = FACTS[int(re.findall(r"fact (\d+)", words)[-1])]
        self._reply = f"Noted: {fact.told}." if fact.by == "agent" else "Noted."
        if fact.by == "journal":
            return self._call("journal", {"title": "", "text": f"I learnt that {fact.told}."})
        if fact.by == "file":
            return self._call("read_file", {"path": f"/srv/facts/{FACTS.index(fact)}.txt"})
        return Answer(text=self._reply)

    def _call(self, name: str, arguments: Json) -> Answer:
        self.calls += 1
        return Answer(calls=((f"toolu_{self.calls}", name, json.dumps(arguments)),))


def file(path: str) -> str:
    """A long one, in the middle of which a fact stands."""
    number = int(Path(path).stem)
    return f"{filler(number)}\n" * 8 + f"By the way, {FACTS[number].told}.\n" + f"{filler(number + 1)}\n" * 8


@dataclass(kw_only=True)
class Kept:
    """What became of the facts."""

    ways: dict[str, set[Way]] = field(default_factory=dict)
    """By value."""
    compactions: int = 0
    turns: int = 0
    head: str = ""
    """What stands in front of the view in the end."""
    found: dict[str, str] = field(default_factory=dict)
    """By value, all that a question brought before the model's eyes."""

    def table(self) -> str:
        """For people."""
        lines = [f"{'fact':38}{'told by':9}" + "".join(f"{way:>16}" for way in WAYS)]
        for fact in FACTS:
            marks = "".join(f"{'yes' if way in self.ways[fact.value] else '-':>16}" for way in WAYS)
            lines.append(f"{fact.value:38}{fact.by:9}{marks}")
        return "\n".join(lines)


async def keep(folder: Path, summarise: Callable[[str], str] = forgetful) -> Kept:
    """Plant them, talk on until the conversation was compacted often enough, and look for them."""
    clock, brain, kept = ManualClock(BEGIN), Brain(summarise), Kept()
    provider = Provider(brain, clock, window=16_000)
    compaction = {"enabled": True, "compact_at_pct": 0.7, "tail_keep_tokens": 1_000}
    made = settings(folder, window=16_000, output=1_000, compaction=compaction)
    async with at_home(Home(made, clock, provider, file)) as home:
        for number, fact in enumerate(FACTS):
            told = f": {fact.told}" if fact.by == "person" else ""
            await _speak(home, f"reverie, fact {number}{told}")
        folds = list[ViewFolded]()
        while kept.compactions < COMPACTIONS and kept.turns < MOST_TURNS:
            kept.turns += 1
            await _speak(home, f"reverie, {filler(kept.turns)} {filler(kept.turns + 7)}")
            folds = [one.fact for one in await home.log("folded") if isinstance(one.fact, ViewFolded)]
            kept.compactions = sum(fold.summary is not None for fold in folds)
        newest = folds[-1]
        kept.head = newest.head
        for fact in FACTS:
            kept.ways[fact.value] = await _ways(home, fact, newest, brain, kept)
    assert not provider.complaints, provider.complaints[0]
    return kept


async def _speak(home: Home, text: str) -> None:
    home.clock.advance(45)
    await home.say(text)
    assert not (await home.take()).has_failed


async def _ways(home: Home, fact: Fact, newest: ViewFolded, brain: Brain, kept: Kept) -> set[Way]:
    ways = set[Way]()
    if fact.value in newest.carried and fact.value in newest.head:
        ways.add("summary")
    if fact.value in extract_exact_names(newest.head):
        ways.add("word for word")
    query = " ".join(fact.told.replace(fact.value, "").split()[1:3])
    where = ToolContext(turn=TurnId("t"), agent="ana", at=ROOM, visibility=SIGHT, autonomous=False)
    call = ToolCall(id="c", name="recall", arguments=json.dumps({"query": query}))
    hits = (await home.minds.agent_for(ROOM.conversation).tools.call(call, where)).text
    lines = [line for line in hits.splitlines() if fact.value in line]
    if any("journal" in line for line in lines):
        ways.add("journal")
    if any("journal" not in line for line in lines):
        ways.add("recall")
    if fact.value in await _followed(home, newest.head):
        ways.add("handle")
    await _speak(home, f"reverie, {fact.asked}")
    mind = "\n".join(re.findall(r"\[RECALLED\].*(?:\n\[.*)*", brain.newest))
    if fact.value in mind:
        ways.add("called to mind")
    kept.found[fact.value] = f"{newest.head}\n{mind}\n{hits}"
    return ways


async def _followed(home: Home, head: str) -> str:
    """All that is found by handles alone: of the turns that left, of those before, and of what their tools brought."""
    media = MediaStore(live_settings(), Path("/nonexistent"), {}, home.clock)
    opener, texts = EvidenceStore(home.store, home.clock, home.minds.places, media), list[str]()
    todo, known = re.findall(r"v\d+-\d+", head)[:1], set[str]()
    while todo:
        handle = todo.pop()
        if handle in known:
            continue
        known.add(handle)
        found = await opener.find(handle, SIGHT, ROOM.conversation)
        texts.append(found.text)
        if handle.startswith("v"):
            todo += re.findall(r"(?<![\w.])(?:v\d+-\d+|t\d+\.\d+|e\d{1,6})(?!\w)", found.text)
    return "\n".join(texts)
