"""The model of a talk full of tools: what it calls follows from a seed, and what it is told of that has to be true.

People say `ask-17-`, and the turn that answers it goes as `Script` plans it: up to eight rounds of up to six calls, by
the provider's own way. Nothing is raised in here, for that would only break the connection:
`wrong` says what is not as it must be.
"""

import json
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.turn_context import MAX_SAME_CALLS
from tests.servers.model_api import Answer, Json

ASK = re.compile(r"ask-(\d+)-")
HANDLE = re.compile(r"handle ([et]\d+(?:\.\d+)?)")
PART = "[TOOL RESULT SUMMARY]"
CUT = "cut here, for want of room"
ROUNDS = 8
CALLS = 6
UNKNOWN = "no_such_tool"
PICTURE = "pictures/red.png"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A call, and what has to stand in its result unless that is told in part."""

    name: str
    args: Json
    brings: str = ""
    images: int = 0


@dataclass(frozen=True, kw_only=True)
class News:
    """What is new in a request."""

    place: str
    """Whose conversation it is, in the words of the card."""
    words: str
    results: list[tuple[str, str]]
    """Ids and texts, in their order."""
    images: int


def news(body: Json) -> News:
    """Of a request in either dialect."""
    if isinstance(body.get("system"), list):
        last = next(message for message in reversed(body["messages"]) if message["role"] == "user")
        found = last["content"]
        results = [(one["tool_use_id"], one["content"]) for one in found if one["type"] == "tool_result"]
        words, place = [one["text"] for one in found if one["type"] == "text"], body["system"][-1]["text"]
    else:
        behind = [n for n, message in enumerate(body["messages"]) if message["role"] == "assistant"]
        tail = body["messages"][behind[-1] + 1 if behind else 1 :]
        found = [part for message in tail if isinstance(message["content"], list) for part in message["content"]]
        results = [(one["tool_call_id"], one["content"]) for one in tail if one["role"] == "tool"]
        words = [one["content"] for one in tail if one["role"] == "user" and isinstance(one["content"], str)]
        words += [one["text"] for one in found if one["type"] == "text"]
        place = body["messages"][0]["content"]
    shown = sum(one["type"] in {"image", "image_url"} for one in found)
    told = "\n".join(text for text in words if not text.startswith("[RECALLED]"))
    return News(place=place, words=told, results=results, images=shown)


@dataclass
class Script:
    """See the top of the file. `pages`: how many the site has, under `site`/0, `site`/1, ..."""

    seed: int
    site: str
    pages: int
    surface: Literal["native", "capability"] = "native"
    sees: bool = True
    thinks: bool = True
    wrong: list[str] = field(default_factory=list)
    turns: int = 0
    calls: int = 0
    rounds: int = 0
    told: int = 0
    """Results that were what they had to be."""
    parts: int = 0
    """Results that were told in part."""
    images: int = 0
    _files: dict[str, str] = field(default_factory=dict)
    _plans: dict[str, list[list[Planned]]] = field(default_factory=dict)
    """By place, what is still to be called."""
    _asked: dict[str, list[Planned]] = field(default_factory=dict)
    """By place, what was called last."""
    _known: set[str] = field(default_factory=set)
    _handles: list[str] = field(default_factory=list)
    _number: int = 0

    def __call__(self, body: Json) -> Answer:
        new = news(body)
        self._held(new, self._asked.pop(new.place, []))
        fresh = [one for one in ASK.findall(new.words) if one not in self._known]
        if fresh:
            self._known.update(fresh)
            self.turns += 1
            self._plans[new.place] = self._plan(int(fresh[-1]))
        elif not new.results:  # nobody has said anything: it goes on by itself, or is by itself
            self._plans.pop(new.place, None)
            return Answer(calls=((self._id(), *self._wire(Planned(name="yield_to_user", args={}))),))
        left = self._plans.get(new.place, [])
        return self._call(new.place, left.pop(0)) if left else Answer(text=f"That is all of {self.turns}.")

    def _held(self, new: News, asked: list[Planned]) -> None:
        """Hold what is told of the last calls to what they had to bring."""
        if not asked:
            if new.results:
                self.wrong.append(f"results that nobody asked for: {str(new.results)[:300]}")
            return
        if len(asked) != len(new.results):
            self.wrong.append(f"{len(asked)} calls, {len(new.results)} results: {asked} {str(new.results)[:300]}")
        for one, (_, text) in zip(asked, new.results, strict=False):
            self._handles += HANDLE.findall(text)
            if PART in text or CUT in text:
                self.parts += 1
            elif one.brings not in text:
                self.wrong.append(f"{one} brought {text[:500]!r}")
            self.told += 1
        images = {json.dumps(one.args) for one in asked if one.images}
        if self.sees and images and not new.images:
            self.wrong.append("an image is not shown")
        self.images += new.images

    def _call(self, place: str, calls: list[Planned]) -> Answer:
        rng = random.Random(f"{self.seed} round {self.rounds}")
        self.rounds += 1
        self.calls += len(calls)
        self._asked[place] = calls
        thinking = "What next?" if self.thinks and rng.random() < 0.7 else None
        ids = [f"call_{at}" if rng.random() < 0.2 else self._id() for at in range(len(calls))]
        made = tuple((name, *self._wire(one)) for name, one in zip(ids, calls, strict=True))
        return Answer(text="Let me see." if rng.random() < 0.3 else "", calls=made, thinking=thinking)

    def _id(self) -> str:
        self._number += 1
        return f"toolu_{self._number}"

    def _wire(self, one: Planned) -> tuple[str, str]:
        if self.surface == "native":
            return one.name, json.dumps(one.args)
        return "call_capability", json.dumps({"capability": one.name, "args": one.args, "purpose": "to see"})

    def _plan(self, number: int) -> list[list[Planned]]:
        rng = random.Random(f"{self.seed} turn {number}")
        rounds = rng.choices(range(ROUNDS + 1), weights=(3, 6, 5, 3, 2, 1, 1, 1, 1))[0]
        made: list[list[Planned]] = []
        before: list[Planned] = []
        for at in range(rounds):
            count = rng.choices(range(1, CALLS + 1), weights=(8, 5, 3, 2, 1, 1))[0]
            calls = [self._any(rng, f"w{number}x{at}x{place}z") for place in range(count)]
            if before and rng.random() < 0.3:
                calls.append(rng.choice(before))
            if rng.random() < 0.2:
                calls.append(calls[-1])
            before += [one for one in calls if one.name in {"web_fetch", "who", "glob"}]
            made.append(calls[:CALLS])
        times = Counter[str]()  # a third time the same is not carried out
        for calls in made:
            for one in [*calls]:
                name = json.dumps((one.name, one.args), sort_keys=True)
                times[name] += 1
                if times[name] > MAX_SAME_CALLS:
                    calls.remove(one)
        return [calls for calls in made if calls]

    def _any(self, rng: random.Random, token: str) -> Planned:
        kinds = {
            self._bash: 5,
            self._write: 3,
            self._read: 4,
            self._edit: 2,
            self._look: 3,
            self._web: 3,
            self._odd: 2,
            self._evidence: 1,
        }
        return rng.choices(list(kinds), weights=list(kinds.values()))[0](rng, token)

    def _bash(self, rng: random.Random, token: str) -> Planned:
        rest = rng.choice(
            ("", "", "; seq 1 3000", "; seq 1 20000", "; cat notes/*.md | wc -c", "; exit 3", "; no-such-program")
        )
        if rng.random() < 0.1:
            return Planned(name="bash", args={"command": f"echo {token}", "background": True}, brings="ob")
        return Planned(name="bash", args={"command": f"echo {token}{rest}"}, brings=token)

    def _write(self, rng: random.Random, token: str) -> Planned:
        path = f"notes/{rng.randrange(20)}.md"
        self._files[path] = token
        return Planned(name="write_file", args={"path": path, "text": f"{token}\n" + "word \n" * rng.randrange(400)})

    def _read(self, rng: random.Random, token: str) -> Planned:
        if not self._files:
            return self._write(rng, token)
        path = rng.choice(sorted(self._files))
        if rng.random() < 0.3:
            return Planned(name="grep", args={"pattern": self._files[path], "path": path}, brings=self._files[path])
        return Planned(name="read_file", args={"path": path}, brings=self._files[path])

    def _edit(self, rng: random.Random, token: str) -> Planned:
        if not self._files:
            return self._write(rng, token)
        path = rng.choice(sorted(self._files))
        old, self._files[path] = self._files[path], token
        return Planned(name="edit_file", args={"path": path, "old": old, "new": token}, brings=token)

    def _look(self, rng: random.Random, _: str) -> Planned:
        if rng.random() < 0.4:
            return Planned(name="view_image", args={"path": PICTURE}, images=1)
        name = rng.choice(("jobs", "who", "read_room", "glob"))
        return Planned(name=name, args={"pattern": "**/*"} if name == "glob" else {})

    def _web(self, rng: random.Random, _: str) -> Planned:
        page = rng.randrange(self.pages)
        return Planned(name="web_fetch", args={"url": f"{self.site}/{page}"}, brings=f"page{page}of")

    def _odd(self, rng: random.Random, token: str) -> Planned:
        odd: list[tuple[str, dict[str, Any], str]] = [
            (UNKNOWN, {"a": token}, ""),
            ("read_file", {"path": f"{token}.txt"}, ""),
            ("read_file", {"path": "../../secret"}, ""),
            ("bash", {"cmd": token}, ""),
            ("react", {"message": "last", "reaction": "+1"}, ""),
        ]
        name, args, brings = rng.choice(odd)
        return Planned(name=name, args=args, brings=brings)

    def _evidence(self, rng: random.Random, token: str) -> Planned:
        if not self._handles:
            return self._bash(rng, token)
        return Planned(name="fetch_evidence", args={"handle": rng.choice(self._handles[-20:]), "limit": 500})
