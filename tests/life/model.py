"""A reasonable model, by rules: it decides from its request alone, and is honest.

It knows what stands in the request: the system blocks, the conversation, the tools that are offered
and the results of those that it called. It answers what stands there, says so if it does not, looks
after what its owner should know, and makes a promise only through a tool that keeps it. Which tools
there are may change: it takes the best one offered, and fills in the arguments that the tool has.
"""

import itertools
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from reverie.testing.servers.model_api import Answer, Json

INNER = "inner"
_LINE = re.compile(
    r"^(?:m\d+ )?\[(?P<date>[^\]]+)\] (?P<who>[^\n(]+?) \((?P<role>owner|admin|member|guest)[^)]*\)"
    r"(?P<marks>(?: \((?:[^\"\n)]|\"[^\"\n]*\")*\))*): (?P<text>.*)$"
)
_EVENT = re.compile(r"^\[[^\]]+\] \((?P<text>.*)\)$")
_WORD = re.compile(r"[a-z0-9][a-z0-9:.-]*[a-z0-9]|[a-z0-9]", re.IGNORECASE)
_DAYS: Final = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_DULL: Final = frozenset(
    [
        "a",
        "about",
        "am",
        "an",
        "and",
        "anybody",
        "anyone",
        "are",
        "at",
        "be",
        "been",
        "by",
        "can",
        "did",
        "do",
        "does",
        "for",
        "from",
        "get",
        "has",
        "have",
        "how",
        "i",
        "if",
        "in",
        "is",
        "it",
        "know",
        "me",
        "my",
        "not",
        "of",
        "on",
        "or",
        "our",
        "please",
        "said",
        "should",
        "so",
        "someone",
        "that",
        "the",
        "there",
        "they",
        "this",
        "to",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "will",
        "with",
        "you",
        "your",
    ]
)
_RECALLED = re.compile(r'^(?:m\d+ )?\[[^\]]+\] (?P<who>[^\n(]+?) \(\w+\),? ?[^:]*: "(?P<text>.*)"$')
_ASIDES = ("Calls in this turn", "[RECALLED]", "[MEANWHILE]")
_SHRUGS = re.compile(r"no idea|me neither|i do not know|good question", re.IGNORECASE)
_MATTERS = re.compile(r"\b(?P<who>[A-Z]\w+) (?:should|must|needs to) know(?: that)?:? (?P<what>.+)")
_BROKEN = re.compile(r"\b(failed|fails|broken|breaks|red|down|full)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Said:
    """A line as the model reads it."""

    room: str
    """The title above it, in a digest; else empty."""
    who: str
    role: str
    text: str
    to_me: bool
    marks: str = ""
    """What the gateway says of it in brackets."""

    @property
    def asks(self) -> bool:
        return self.text.rstrip("!\"' ").endswith("?")


def words(text: str) -> set[str]:
    return {one.casefold().strip(".") for one in _WORD.findall(text)} - _DULL


def system_of(body: Json) -> str:
    blocks = body.get("system") or ""
    return blocks if isinstance(blocks, str) else "\n".join(one["text"] for one in blocks)


def place_of(body: Json) -> str:
    """Where the request belongs: `alone:NAME`, the room's name, or `inner`."""
    system = system_of(body)
    if found := re.search(r"^Place: a direct chat with (\S+)", system, re.MULTILINE):
        return f"alone:{found[1].casefold()}"
    if found := re.search(r'^Place: the room "?(?:(?<=")#)?([^"\s]+)', system, re.MULTILINE):
        return found[1]
    return INNER if "by yourself" in system else "?"


def blocks_of(message: Json) -> list[Json]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def read_lines(text: str) -> list[Said]:
    """The lines of people in a text; a line that goes on belongs to the one above."""
    room, found = "", list[Said]()
    for line in text.replace("\n  ", " ").splitlines():
        if line.startswith("## "):
            room = line.removeprefix("## ").strip()
        elif told := _LINE.match(line):
            addressed = "(overheard)" not in told["marks"]
            who, role, marks, text = told["who"], told["role"], told["marks"], told["text"]
            found.append(Said(room, who, role, text, addressed, marks))
    return found


def read_recalled(text: str) -> list[Said]:
    """What was recalled, or found by a tool."""
    found = (_RECALLED.match(line) for line in text.splitlines())
    return [Said("", one["who"], "", one["text"], to_me=False) for one in found if one]


def _begins_turn(message: Json, *, steered: bool) -> bool:
    """Something new is told there, and not behind results of the turn that still runs."""
    parts = blocks_of(message)
    told = [part for part in parts if part["type"] == "text"]
    told = [part for part in told if not part["text"].startswith(_ASIDES)]
    return message["role"] == "user" and bool(told) and not (steered and len(told) < len(parts))


_NAMED = re.compile(r"^- (\w+)\((.*?)\): ", re.MULTILINE)
"""A tool in the catalogue, with its arguments."""
_ALONE = {"attend": ("room", "reason"), "yield_to_user": ("note",)}
"""Tools that the prompts of the inner conversation tell of."""


def inner_call(part: Json) -> tuple[str, Json]:
    name, given = part["name"], part["input"]
    return (given["capability"], given["args"]) if name == "call_capability" else (name, given)


class Ask:
    """One request, as the model reads it."""

    def __init__(self, body: Json) -> None:
        self.place, self.system = place_of(body), system_of(body)
        self.described: dict[str, Collection[str]] = {
            one["name"]: one["input_schema"].get("properties", {}) for one in body.get("tools", ())
        }
        named = _NAMED.findall(self.system) if self.described else []
        self.tools = self.described | {name: args.split(", ") for name, args in named}
        messages = [one for one in body["messages"] if one["role"] != "system"]
        self.now = "\n".join(
            block["text"]
            for one in body["messages"]
            if one["role"] == "system"
            for block in blocks_of(one)
        )
        steered = "came while you work" in self.now
        last = max(
            index
            for index, one in enumerate(messages)
            if _begins_turn(one, steered=steered and index == len(messages) - 1)
        )
        told = [part["text"] for part in blocks_of(messages[last]) if part["type"] == "text"]
        self.meanwhile = "".join(text for text in told if text.startswith(_ASIDES[2]))
        asides = [text for text in told if text.startswith(_ASIDES)]
        self.new = [text for text in told if not text.startswith(_ASIDES)][-1]
        self.calls = list[tuple[str, Json]]()
        self.results = list[str]()
        for one in messages[last + 1 :]:
            for part in blocks_of(one):
                if part["type"] == "tool_use":
                    self.calls.append(inner_call(part))
                elif part["type"] == "tool_result":
                    told = part["content"]
                    text = told if isinstance(told, str) else " ".join(x["text"] for x in told)
                    self.results.append(("!" if part.get("is_error") else "") + text)
                elif one["role"] == "user" and not part["text"].startswith(_ASIDES[0]):
                    self.new += "\n" + part["text"]
        self.lines = read_lines(self.new)
        self.passed_on = "\n".join(
            json.dumps(inner_call(part)[1], ensure_ascii=False)
            for one in messages[:last]
            for part in blocks_of(one)
            if part["type"] == "tool_use" and inner_call(part)[0] in ("tell", "send_message")
        )
        self.events = [m["text"] for line in self.new.splitlines() if (m := _EVENT.match(line))]
        self.mine = [
            part["text"]
            for one in messages
            if one["role"] == "assistant"
            for part in blocks_of(one)
            if part["type"] == "text"
        ]
        self.earlier = [
            said
            for one in messages[: last + 1]
            if one["role"] == "user"
            for part in blocks_of(one)
            if part["type"] == "text"
            for said in read_lines(part["text"])
        ]
        self.earlier += read_recalled("\n".join([*asides, *self.results]))

    @property
    def alone(self) -> bool:
        return self.place.startswith("alone:")

    def called(self, name: str) -> bool:
        return any(one == name for one, _ in self.calls)

    def facts(self) -> Iterator[tuple[str, str]]:
        """(who said it, what): what the operator wrote, then what is no question, the newest first."""
        for line in self.system.splitlines():
            if line.startswith("- ") and not _NAMED.match(line):
                yield "", line.removeprefix("- ")
        for one in reversed(self.earlier):
            if not one.asks:
                yield one.who, one.text


class Reasonable:
    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def answer(self, body: Json) -> Answer:
        ask = Ask(body)
        if not ask.tools:
            return Answer(text="- Nothing to keep.")
        if ask.place == INNER:
            return self._alone(ask)
        return self._here(ask)

    def _call(self, ask: Ask, name: str, **given: Any) -> tuple[str, str, str]:
        """With those of the arguments that the tool has."""
        has = _ALONE.get(name) or ask.tools[name]
        args: Json = {key: value for key, value in given.items() if {key, f"{key}?"} & {*has}}
        if name not in ask.described:
            name, args = "call_capability", {"capability": name, "args": args}
        return f"toolu_{next(self._ids)}", name, json.dumps(args)

    def _end(self, ask: Ask, note: str) -> Answer:
        """Say nothing."""
        name = "yield_to_user" if ask.place == INNER else "stay_silent"
        return Answer(calls=(self._call(ask, name, note=note),))

    # By itself.

    def _alone(self, ask: Ask) -> Answer:
        if "MEMORY.md" in ask.new:
            return Answer(text="- Nothing to keep.")
        if ask.calls:
            return self._after(ask)
        calls = list[tuple[str, str, str]]()
        rooms = dict.fromkeys(one.room for one in ask.lines)
        for room in rooms:
            lines = [one for one in ask.lines if one.room == room]
            told = list(dict.fromkeys(self._important(ask, lines)))
            calls += [self._tell(ask, room, who, what) for who, what in told]
            if not told and (why := self._worth_a_word(ask, lines)):
                calls.append(self._call(ask, "attend", room=room, reason=why, note=why))
        if not calls:
            return self._end(ask, "")
        return Answer(calls=tuple(calls))

    def _after(self, ask: Ask) -> Answer:
        """What did not work is tried in the one other way there is; then it rests."""
        for (name, given), result in zip(ask.calls, ask.results, strict=False):
            refused = result.startswith("!") and name in ("tell", "send_message")
            refused = refused and "told that" not in result
            if refused and not ask.called("attend"):
                lines = [one for one in ask.lines if any(self._important(ask, [one]))]
                if lines:
                    why = f"somebody should tell {given.get('who') or given.get('address')}"
                    return Answer(
                        calls=(self._call(ask, "attend", room=lines[0].room, reason=why),)
                    )
        done = "; ".join(str(given.get("reason") or given.get("text")) for _, given in ask.calls)
        return self._end(ask, done)

    def _tell(self, ask: Ask, room: str, who: str, what: str) -> tuple[str, str, str]:
        if "tell" in ask.tools:
            return self._call(ask, "tell", who=who, text=what, urgency="now", about=room, note=what)
        return self._call(ask, "send_message", address=who, text=what)

    def _important(self, ask: Ask, lines: list[Said]) -> Iterator[tuple[str, str]]:
        """(who should know it, what), of what it has not passed on before."""
        watched = [
            words(line)
            for line in re.split(r"\n", ask.new.partition("## You")[2].partition("\n## ")[0])
            if "keep an eye" in line.casefold() or "tell" in line.casefold()
        ]
        for one in lines:
            if found := _MATTERS.search(one.text):
                if found["what"] not in ask.passed_on:
                    yield found["who"], f"{one.who}: {found['what']}"
            elif (
                _BROKEN.search(one.text)
                and any("break" in " ".join(each) or each & words(one.text) for each in watched)
                and one.text not in ask.passed_on
            ):
                yield "", f"{one.who}: {one.text}"

    def _worth_a_word(self, ask: Ask, lines: list[Said]) -> str:
        """Why a word would help there; empty: it would not."""
        if wrong := self._mistake(ask, lines):
            return f"{wrong[0].who} is mistaken: {wrong[1]}"
        if (question := self._open(lines)) and self._known(ask, question.text):
            return f"an open question of {question.who}: {question.text}"
        return ""

    def _open(self, lines: list[Said]) -> Said | None:
        """The newest question that nobody has answered."""
        for index in range(len(lines) - 1, -1, -1):
            one = lines[index]
            if not one.asks:
                continue
            others = [
                each
                for each in lines[index + 1 :]
                if each.who != one.who and not _SHRUGS.search(each.text) and not each.asks
            ]
            if not others:
                return one
        return None

    def _mistake(self, ask: Ask, lines: list[Said]) -> tuple[Said, str] | None:
        """Who says another day than what the operator wrote, and what is right."""
        for one in reversed(lines):
            days = words(one.text) & set(_DAYS)
            for by, fact in ask.facts():
                right = words(fact) & set(_DAYS)
                about = (words(one.text) & words(fact)) - set(_DAYS)
                if not by and days and right and not days & right and about and not one.asks:
                    return one, fact
        return None

    def _known(self, ask: Ask, question: str) -> tuple[str, str] | None:
        """(who said it, what): the answer that stands in the request."""
        about = words(question)
        found = [
            (len(about & words(fact)), -index, who, fact)
            for index, (who, fact) in enumerate(ask.facts())
        ]
        best = max(found, default=(0, 0, "", ""))
        return (best[2], best[3]) if best[0] >= min(2, len(about)) and best[0] else None

    # In a room or a private chat.

    def _here(self, ask: Ask) -> Answer:
        to_me = [one for one in ask.lines if one.to_me]
        if ask.calls:
            return self._finish(ask, to_me)
        if to_me:
            return self._asked(ask, to_me[-1])
        return self._unasked(ask)

    def _unasked(self, ask: Ask) -> Answer:
        """A reminder, a job that ended, or a room that it wanted to look at."""
        due = [one for one in ask.events if "remind" in one or "you intended" in one]
        if due:
            return self._due(ask, due[-1])
        if ended := self._ended(ask):
            return Answer(text=ended)
        if told := next(self._important(ask, ask.lines), None):
            return Answer(calls=(self._tell(ask, ask.place, *told),))
        if wrong := self._mistake(ask, ask.lines):
            return Answer(text=f"{wrong[0].who}: {wrong[1]}")
        if (question := self._open(ask.lines)) and (known := self._known(ask, question.text)):
            return Answer(text=f"{question.who}: {cited(*known)}")
        return self._end(ask, "nothing to add")

    def _ended(self, ask: Ask) -> str:
        return "\n".join(f"It has ended: {one}" for one in ask.events if "Background job" in one)

    def _due(self, ask: Ask, event: str) -> Answer:
        if found := re.search(r"look whether .* on (http[^\s\"\')]+)", event):
            return Answer(calls=(self._call(ask, "web_fetch", url=found[1]),))
        if found := re.search(r'; (\S+) wrote in "([^"]+)": "([^"]+)"', event):
            return Answer(text=f"{found[1]} in {found[2]}: {found[3]}")
        if found := re.search(r"look into (#?\w+)", event):
            return Answer(calls=(self._call(ask, "read_room", address=found[1]),))
        quoted = re.search(r'"([^"]+)"', event)
        return Answer(text=f"You wanted to be reminded: {quoted[1] if quoted else event}")

    def _asked(self, ask: Ask, line: Said) -> Answer:
        text = re.sub(r"^(?:@\w+|<@\d+>|reverie[:,])\s*", "", line.text)
        low = text.casefold()
        if re.match(r"(thanks|thank you|good night|ok)\b", low):
            return self._end(ask, "")
        if "what happened" in low or "what did i miss" in low:
            if "recap" in ask.tools:
                return Answer(calls=(self._call(ask, "recap"),))
            return Answer(text=self._happened(ask))
        if found := re.search(r"remind (?:me|us) (?:at ([\d:]+) )?(?:to|of|that) (.+)", low):
            return Answer(calls=(self._call(ask, "remind", text=found[2], at=found[1] or "in 1h"),))
        if found := re.search(r"keep an eye on (#?[\w-]+)(.*)", low):
            return Answer(calls=(self._watch(ask, found[1], text),))
        if found := re.search(r"look at ([\d:]+) (whether .+?)\??$", text):
            what = f"look {found[2]}"
            return Answer(calls=(self._promise(ask, what, found[1]),))
        told = re.search(r"in reply to you: \"From `([^`]+)`", line.marks)
        if told and (found := re.match(r"tell them:? (.+)", low)):
            words = f"{line.who} says: {text[-len(found[1]) :]}"
            return Answer(calls=(self._call(ask, "send_message", address=told[1], text=words),))
        if found := re.search(r"(?:tell|let) (\w+)(?: know)? that (.+)", text):
            return Answer(calls=(self._tell(ask, ask.place, found[1].title(), found[2]),))
        if found := re.search(r"prepare (?:the )?(.+)", low):
            path = found[1].strip(" .").replace(" ", "-") + ".md"
            return Answer(calls=(self._call(ask, "write_file", path=path, text=f"# {found[1]}\n"),))
        if re.match(r"yes,? do it", low):
            return self._do_it(ask)
        if found := re.search(r"run (.+) in the background", low):
            given = {"command": found[1], "background": True}
            return Answer(calls=(self._call(ask, "bash", **given),))
        return self._told(ask, line, text)

    def _told(self, ask: Ask, line: Said, text: str) -> Answer:
        if not line.asks and not ask.alone:
            return self._end(ask, "")
        if not line.asks:
            return Answer(text="I see.")
        known = self._known(ask, text)
        if known is None and "recall" in ask.tools and ask.alone:
            query = max(words(text), key=len, default="")
            return Answer(calls=(self._call(ask, "recall", query=query),))
        head = "" if ask.alone else f"{line.who}: "
        return Answer(text=head + (cited(*known) if known else "I do not know that."))

    def _happened(self, ask: Ask) -> str:
        away = [line for line in ask.now.splitlines() if line.startswith("Your owner was away")]
        told = "\n".join(ask.results).splitlines() or ask.meanwhile.splitlines()
        told = [
            re.sub(r" \[m\d+\]$", "", one)
            for one in told
            if "untrusted" not in one and not one.startswith(("Since ", "[MEANWHILE]", "(`recap`"))
        ]
        return "\n".join(told or away) or "I have seen nothing of it."

    def _watch(self, ask: Ask, room: str, text: str) -> tuple[str, str, str]:
        if "intend" in ask.tools:
            return self._call(ask, "intend", what=text, on=f"{room}: failed")
        what = f"look into {room} and tell whether it broke"
        return self._call(ask, "remind", text=what, every="1 hour")

    def _promise(self, ask: Ask, what: str, at: str) -> tuple[str, str, str]:
        if "intend" in ask.tools:
            return self._call(ask, "intend", what=what, at=at, when=at)
        return self._call(ask, "remind", text=what, at=at)

    def _do_it(self, ask: Ask) -> Answer:
        """What it proposed, if it still sees that."""
        offered = [one for one in ask.mine if "Shall I post" in one]
        found = re.search(r"Shall I post that in (\S+?)\?", offered[-1]) if offered else None
        if found is None:
            return Answer(text="Do what?")
        what = offered[-1].partition(" Shall I")[0]
        return Answer(calls=(self._call(ask, "send_message", address=found[1], text=what),))

    def _finish(self, ask: Ask, to_me: list[Said]) -> Answer:
        name, given = ask.calls[-1]
        result = ask.results[-1] if ask.results else ""
        if not to_me and name in ("tell", "send_message"):
            return self._end(ask, str(given.get("text", "")))
        if result.startswith("!") and name != "recap":
            return Answer(text=f"I cannot: {result[1:]}")
        if name == "recap":
            return Answer(text=self._happened(ask))
        if name in ("recall", "read_room"):
            return self._found(ask, to_me, result)
        if name == "web_fetch":
            lines = [line for line in result.splitlines() if "untrusted" not in line and line]
            return Answer(text=f"I have looked: {lines[-1] if lines else 'nothing is there.'}")
        done = {
            "remind": "I will remind you.",
            "intend": "I will.",
            "tell": result,
            "send_message": "It is posted.",
            "write_file": f"{given.get('path')} is ready. Shall I post that in #build?",
            "bash": "It runs." if given.get("background") else result,
        }
        return Answer(text=done.get(name, "Done."))

    def _found(self, ask: Ask, to_me: list[Said], result: str) -> Answer:
        if not to_me:
            lines = [
                one
                for one in read_lines(result)
                if _BROKEN.search(one.text) and not any(one.text in told for told in ask.mine)
            ]
            found = [f"{one.who}: {one.text}" for one in lines[-1:]]
            found += [ended] if (ended := self._ended(ask)) else []
            return Answer(text="\n".join(found)) if found else self._end(ask, "nothing new there")
        known = self._known(ask, to_me[-1].text)
        return Answer(text=cited(*known) if known else "I do not know that.")


def cited(who: str, what: str) -> str:
    """An answer, with whom it comes from."""
    return f"{who} said: {what}" if who else what
