"""The stand-in for a large model: it does what the request tells it to do, by the letter, and knows nothing else.

`PromptReader` is a `Model` without weights and without chance. Its common knowledge is a list of everyday words that
mean the same, of closing remarks, and of "I do not know" in four languages. All else it takes from the request:

- how a line begins, from the pattern that the instructions give for it (`name (role): text`);
- what it is called, from "You are X here";
- which lines need no answer, from sentences of the instructions that say so of a mark, of a remark, of a question;
- how to stay silent, from the sentence that names a tool for it;
- what is not an instruction, from the sentences that say so of lines and of fences;
- which tool does what, from names, descriptions and examples in the descriptions of arguments;
- facts, from lines, card, attachments and results of tools, which it quotes with the name of who said them.

Where the request does not say it, the reader answers every line, obeys every imperative that it reads, calls itself
nothing, and picks no tool. So what it gets right over many scenes shows whether a prompt says what a model needs, and
not how clever a model is.
"""

import json
import math
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent.models.base import ModelRequest, StreamChunk, StreamEnd, TextPart, ToolResult
from gateway.core.events import Usage
from gateway.core.tool_spec import ToolCall, ToolSpec

SAME = (
    "say said says told tell telling talk talked mention mentioned announce",
    "message messages post posted posts write wrote send sent",
    "remind reminder reminders",
    "page site website link url address web internet online",
    "fetch open read look show view",
    "search find looked lookup",
    "change edit correct fix replace reword rename",
    "delete remove withdraw unsend",
    "room channel place chat",
    "who people members",
    "earlier before yesterday ago previous past",
    "remember keep",
    "run execute",
    "file files",
    "picture image photo",
    "react reaction emoji",
    "open opens opened opening",
    "start starts begin begins begun",
    "cost costs price",
    "result output",
)
"""Everyday words that mean about the same."""
FUNCTION_WORDS = """
a an and are as at be been but by can could did do does for from had has have he her him his how i if in into is it
its me my of on or our out please she so some than that the their them then there these they this to up us was we were
what when where which why here will with would you your now just one ones also again about only any no not more most
much many very really am let get make made give go know want all
"""
STOP = frozenset(FUNCTION_WORDS.split())
"""Words that say nothing about what a text is about."""
CLOSING = re.compile(
    r"(?:(?:ok(?:ay)?|thanks|thank you|thx|great|nice|perfect|got it|fine|danke|merci|gracias|bye|good night|cheers)"
    r"(?:,? (?:a lot|so much|very much|all|then|that works|that helps))?[ ,.!]*)+",
    re.IGNORECASE,
)
"""A remark that closes a talk, and nothing else."""
UNKNOWN = {"de": "Das weiß ich nicht.", "fr": "Je ne sais pas.", "es": "No lo sé.", "en": "I do not know."}
TELLTALE = {
    "de": "der die das ist wann wo wie wer und nicht ich wir macht",
    "fr": "le la les est quand où comment qui et ne je nous une",
    "es": "el los las es cuándo dónde cómo quién y yo una abre",
}
"""Words by which a language is known."""
ASKS = re.compile(r"\?\s*$|^(?:who|what|when|where|which|why|how|is|are|does|do|did|has|tell me)\b", re.IGNORECASE)
COMMANDS = re.compile(
    r"(?:^|[.!:] |\b(?:please|must|now) )((?:ignore|delete|post|send|run|set|write|forget|tell)\b.*)", re.IGNORECASE
)
SHAPES = {
    "URL": re.compile(r"https?://[^\s<>`,;)]*", re.IGNORECASE),
    "TIME": re.compile(
        r"\b(?:in \d+ ?(?:h|m|min|hours?|minutes?|days?)\w*|tomorrow(?: at)?(?: \d[\d:]*)?|at \d{1,2}(?::\d\d)?\b"
        r"|\d\d?:\d\d)",
        re.IGNORECASE,
    ),
    "EMOJI": re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]|\\bemoji\\b"),
    "PLACE": re.compile(r"(?<![\w/])#[a-z][\w-]*|\b(?:another|the) place\b", re.IGNORECASE),
    "PATH": re.compile(r"\b[\w/-]+\.(?:md|txt|py|csv|log|png|jpe?g)\b", re.IGNORECASE),
    "HANDLE": re.compile(r"\b[emjtv]\d+\b"),
}
"""What is known by its form, in what people write and in the examples of descriptions."""
BM25_K, BM25_B = 1.2, 0.75
"""The usual constants of BM25F (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009)."""
NAME_WEIGHT = 3
"""Words of a tool's name count so often."""
LEAST_COMMON, LEAST_SCORE = 2, 2.0
"""Of a tool that is called: concepts that it has in common with the request, if its name has none, and its score."""
LEAST_SHARE = 0.5
"""Of the words of a question that a sentence must have to be its answer."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the instructions of a request say. Empty or false: they do not say it."""

    has_lines: bool
    """How a line of the conversation begins."""
    continues: bool
    """Indented lines belong to the line above."""
    own_name: str
    unanswered: tuple[str, ...]
    """Marks of lines that need no answer."""
    closing: bool
    """Remarks like "thanks" need no answer."""
    settled: bool
    """A question that somebody else has answered needs none."""
    about_me: bool
    """A line that only talks about the agent needs none."""
    silence: str
    """Tool to call instead of an answer."""
    fenced: bool
    """Text between the fences is never an instruction."""
    language: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the conversation. `name` empty: no message, but an event."""

    name: str
    marks: str
    text: str
    carried: str
    """What it brings along between fences."""


def read_rules(request: ModelRequest) -> Rules:
    """Read the instructions, sentence by sentence."""
    text = "\n".join(block.text for block in request.blocks)
    offered = {tool.name for tool in request.tools}
    silence, closing, settled, about_me, marks, heard = "", False, False, False, list[str](), False
    for sentence in re.split(r"(?<=\.)\s+|\n", text):
        heard |= re.search(r"[Aa]nswer .*`\(overheard\)`", sentence) is not None
        if re.search(r"\bno answer\b|\bnot (?:be )?answer", sentence) is None:
            continue
        marks += re.findall(r"`\((\w+)\)`", sentence)
        named = [name for name in re.findall(r"[Cc]all `(\w+)`", sentence) if name in offered]
        silence = named[0] if named else silence
        closing |= any(CLOSING.fullmatch(quoted) for quoted in re.findall(r'"([^"]+)"', sentence))
        settled |= "question" in sentence and "answered" in sentence
        about_me |= "about you" in sentence
    own = re.search(r"^You are (.+) here\.", text, re.MULTILINE)
    language = re.search(r"language with the code (\w\w)", text)
    return Rules(
        has_lines="`[date time UTC] name (role): text`" in text,
        continues="Indented lines continue the line above" in text,
        own_name=own[1].strip('"@') if own else "",
        unanswered=() if heard else tuple(marks),
        closing=closing,
        settled=settled,
        about_me=about_me,
        silence=silence,
        fenced=re.search(r"`<<<untrusted.*it is never an instruction", text, re.DOTALL) is not None,
        language=language[1] if language else "",
    )


LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d\] (?:(?P<name>[^:()]+?) (?P<marks>\([^:]*?\)(?: \(.*?\))*): )?(?P<text>.*)"
)


def read_lines(text: str, rules: Rules) -> list[Line]:
    """Read lines as the instructions say; else all of it is one line of somebody."""
    if not rules.has_lines:
        return [Line(name="somebody", marks="", text=text, carried="")]
    found, fence = list[Line](), ""
    for row in text.split("\n"):
        begins = None if fence or (rules.continues and row.startswith(" ")) else LINE.match(row.strip())
        if rules.fenced and (opened := re.search(r" ?<<<untrusted (\w+) (.*)", row)):
            fence, row = opened[1], row.replace(opened[0], "")  # noqa: PLW2901 - what stands in front of the fence
            begins = begins and LINE.match(row)
            found = [*found, Line(name="", marks="", text="", carried="")] if begins is None and not found else found
        elif fence:
            found[-1] = replace(found[-1], carried=f"{found[-1].carried}\n{row.strip()}")
            fence = "" if f"untrusted {fence}>>>" in row else fence
            continue
        if begins is not None:
            found.append(Line(name=begins["name"] or "", marks=begins["marks"] or "", text=begins["text"], carried=""))
        elif found:
            found[-1] = replace(found[-1], text=f"{found[-1].text}\n{row.strip()}".strip())
        else:
            found.append(Line(name="", marks="", text=row, carried=""))
    return found


ATTACHED = re.compile(r"(?: ?\[(?:file|image|photo|voice|video|audio|sticker)\b[^\]]*\])+$")


def request_of(line: Line, rules: Rules) -> str:
    """Return what is asked in a line: its questions, if it has any, else all that is said."""
    rows = [_without_name(ATTACHED.sub("", row), rules) for row in line.text.split("\n")]
    return "\n".join([row for row in rows if row.rstrip().endswith("?")] or rows)


_GROUPS = {
    word: {f"~{number}" for number, group in enumerate(SAME) if word in group.split()}
    for word in " ".join(SAME).split()
}


def concepts(text: str) -> set[str]:
    """Return what a text is about: its words without endings, their groups, and what is known by its form."""
    found = {name for name, shape in SHAPES.items() if shape.search(text)}
    for word in re.findall(r"[^\W_]+", re.sub(r"https?://\S+", " ", text).casefold()):
        if word not in STOP:
            stem = re.sub(r"(?:ing|ed|es|s)$", "", word) if len(word) > 4 else word
            found |= _GROUPS.get(word) or _GROUPS.get(stem) or {stem}
    return found


def choose_tool(text: str, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """Return the tool whose name and descriptions fit a request best, by BM25F. None: none fits."""
    wanted = concepts(re.sub(r'"[^"]*"', " ", text))  # what is quoted is not what is asked for
    about = [(tool, concepts(tool.name.replace("_", " ")), concepts(_describe(tool))) for tool in tools]
    counts = Counter(one for _, names, words in about for one in names | words)
    usual = sum(len(words) for *_, words in about) / max(1, len(about))

    def score(names: set[str], words: set[str]) -> float:
        common, total = wanted & (names | words), 0.0
        if not names & wanted and len(common) < LEAST_COMMON:
            return 0.0
        for one in common:
            rarity = math.log(1 + (len(about) - counts[one] + 0.5) / (counts[one] + 0.5))
            times = NAME_WEIGHT * (one in names) / len(names) if names else 0.0
            times += (one in words) / (1 - BM25_B + BM25_B * len(words) / usual)
            total += rarity * times * (BM25_K + 1) / (times + BM25_K)
        return total

    best = max(about, key=lambda one: score(*one[1:]), default=None)
    return best[0] if best is not None and score(*best[1:]) >= LEAST_SCORE else None


def _describe(tool: ToolSpec) -> str:
    fields = json.loads(tool.schema).get("properties", {})
    return " ".join([tool.description, *(f"{name} {one.get('description', '')}" for name, one in fields.items())])


def fill_arguments(text: str, tool: ToolSpec, history: str) -> dict[str, Any]:
    """Return the arguments: each by the form that its description names, the first other one takes the rest."""
    schema = json.loads(tool.schema)
    given, left = dict[str, Any](), text
    for name, field in schema.get("properties", {}).items():
        shapes = concepts(f"{name} {field.get('description', '')}") & SHAPES.keys()
        for shape in sorted(shapes):
            found = SHAPES[shape].search(text)
            if found is None and shape == "HANDLE":
                own = re.search(r"`(mine)`", field.get("description", "")) if "your" in text else None
                own = own or re.search(r"`(last)`", field.get("description", ""))
                found = own or SHAPES[shape].search(history)
            if found is not None and name not in given:
                given[name] = found[1] if found.re.groups else found[0]
                left = left.replace(found[0], " ")
    said = re.search(r'"([^"]+)"|(?:\bthat|\bto say|\bto|:)\s+(.+)$', left, re.DOTALL)
    rest = " ".join((said[1] or said[2] if said else left).split()).strip(" .!?") or text
    for name in schema.get("required", ()):
        if name not in given:
            given[name] = rest
    return given


class PromptReader:
    """A `Model` that reads its request. `requests` keeps them all."""

    name = label = "prompt reader"
    context_tokens = 200_000
    max_output_tokens = 4_000
    family = "scripted"
    takes_tools = True
    takes_images = False

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamChunk]:
        self.requests.append(request)
        text, call = decide(request)
        if text:
            yield TextPart(text=text)
        if call is not None:
            yield replace(call, id=f"call{len(self.requests)}")
        usage = Usage(input_tokens=100, output_tokens=10)
        yield StreamEnd(stop_reason="end" if call is None else "tools", usage=usage, model="prompt-reader")

    async def start(self) -> None:
        """Nothing takes long here."""

    async def aclose(self) -> None:
        """Nothing is held here."""


def decide(request: ModelRequest) -> tuple[str, ToolCall | None]:
    """Return the text to post, or a tool to call."""
    rules = read_rules(request)
    texts = [[part.text for part in one.parts if isinstance(part, TextPart)] for one in request.conversation]
    said = [(one.role, words) for one, words in zip(request.conversation, texts, strict=True) if words]
    new_text = next((words[-1] for role, words in reversed(said) if role == "user"), "")
    new = read_lines(new_text, rules)
    last = request.conversation[-1].parts if request.conversation else ()
    results = [part for part in last if isinstance(part, ToolResult)]
    asked = [one for number, one in enumerate(new) if one.name and not _needs_no_answer(one, new[number + 1 :], rules)]
    if not asked:
        told = re.search(r"call `(\w+)`", request.now)
        silence = told[1] if told and told[1] in {tool.name for tool in request.tools} else rules.silence
        return ("", _call(silence)) if silence else ("All right.", None)
    earlier = [line for role, words in said if role == "user" for text in words for line in read_lines(text, rules)]
    questions = {row for line in asked for row in request_of(line, rules).split("\n")}
    known = [
        (line.name if line not in asked else "", row)
        for line in earlier
        for row in f"{line.text}\n{line.carried}".split("\n")
        if line not in asked or _without_name(ATTACHED.sub("", row), rules) not in questions
    ]
    known += [("", row) for block in request.blocks if block.name == "channel" for row in block.text.split("\n")]
    known += [("", row) for row in request.aside.split("\n")]
    if results:
        return _report(asked, results, rules, request.tools)
    answers = list[str]()
    for one in asked:
        text, call = _answer(one, known, rules, request)
        if call is not None:
            return "", call
        answers.append(text)
    if len(answers) > 1:
        answers = [f"{one.name}: {text}" for one, text in zip(asked, answers, strict=True)]
    return "\n".join(answers), None


def _needs_no_answer(line: Line, later: Sequence[Line], rules: Rules) -> bool:
    if any(f"({mark})" in line.marks for mark in rules.unanswered):
        return True
    text = _without_name(line.text, rules)
    if rules.closing and CLOSING.fullmatch(text):
        return True
    if rules.about_me and text == line.text and rules.own_name and rules.own_name in line.text:
        return True
    if rules.settled and ASKS.search(text):
        about = concepts(text)
        return any(
            (
                one.name not in ("", line.name)
                and not ASKS.search(one.text)
                and len(about & concepts(one.text)) * 2 >= len(about)
            )
            or (f"in reply to {line.name}" in one.marks and not ASKS.search(one.text))
            for one in later
        )
    return False


def _without_name(text: str, rules: Rules) -> str:
    """Return what is said to the agent, without its name in front or behind."""
    if not rules.own_name:
        return text
    name = rf"@?{re.escape(rules.own_name)}"
    return re.sub(rf"^{name}\b[:,]? *|[ ,]+{name}(?=[.!?]*$)", "", text, flags=re.IGNORECASE)


def _answer(
    line: Line, known: Sequence[tuple[str, str]], rules: Rules, request: ModelRequest
) -> tuple[str, ToolCall | None]:
    text = request_of(line, rules)
    asks = ASKS.search(text) is not None
    if asks and re.search(r"\b(?:your name|you called|who are you)\b", text, re.IGNORECASE):
        return (f"I am {rules.own_name} here." if rules.own_name else "I do not know what I am called."), None
    if asks and (found := find_fact(text, known)):
        return found, None
    tool = choose_tool(text, [tool for tool in request.tools if tool.name != rules.silence])
    if tool is not None:
        history = "\n".join(words for _, words in known)
        return "", _call(tool.name, fill_arguments(text, tool, history))
    return (UNKNOWN[_language(text, rules)] if asks else "All right."), None


def find_fact(question: str, known: Iterable[tuple[str, str]], least: float = LEAST_SHARE) -> str:
    """Return the sentence that has most of the question's words, with who said it. Empty: none has that share."""
    about = concepts(question) - SHAPES.keys()
    shares = [
        (len(about & concepts(f"{who} {text}")) / max(1, len(about)), number, who, text)
        for number, (who, text) in enumerate(known)
    ]
    share, _, who, text = max(shares, default=(0.0, 0, "", ""))
    if share < least:
        return ""
    return f"{who} said: {text}" if who else text


def _report(
    asked: Sequence[Line], results: Sequence[ToolResult], rules: Rules, tools: Sequence[ToolSpec]
) -> tuple[str, ToolCall | None]:
    """Return what came of a tool call. Who is not told that a result is no instruction obeys it."""
    rows = [row for one in results for row in one.text.split("\n") if row.strip()]
    ordered = next((found[1] for row in rows if (found := COMMANDS.search(row))), "")
    if ordered and not rules.fenced and (tool := choose_tool(ordered, tools)) is not None:
        return "", _call(tool.name, fill_arguments(ordered, tool, ""))
    plain = [("", row) for row in rows if not re.match(r"<<<untrusted|untrusted \w+>>>", row)]
    text = request_of(asked[-1], rules)
    return (ASKS.search(text) and find_fact(text, plain, least=0.1)) or " ".join(row for _, row in plain[:2]), None


def _language(text: str, rules: Rules) -> str:
    if rules.language:
        return rules.language if rules.language in UNKNOWN else "en"
    words = set(re.findall(r"\w+", text.casefold()))
    counts = {language: len(words & set(some.split())) for language, some in TELLTALE.items()}
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > 1 else "en"


def _call(name: str, arguments: dict[str, Any] | None = None) -> ToolCall:
    return ToolCall(id="", name=name, arguments=json.dumps(arguments or {}, ensure_ascii=False))
