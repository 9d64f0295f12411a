"""Summaries that a model makes: what it is asked, what is taken of its answer, what must survive it. Pure.

A name, a number or a path that a summary lost is lost to whoever reads it. So what looks like one is found by its form
alone, and what the summary does not say word for word stands beside it (`agent.view_forms`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from agent.models.base import ModelMessage, ModelRequest, TextPart
from agent.prompts import load_prompt
from agent.workspace.character_card import normalize_text

SUMMARY_TOKENS: Final = 2_000
"""Of a summary at most: some three pages."""
WORDS_PER_TOKEN: Final = 0.5
"""Models count badly, and other languages than English take more."""
THINKING_SHARE: Final = 2
"""A model that thinks may take as much again before it writes."""
MIN_CUT_SUMMARY_CHARS: Final = 200
"""Of an answer that was cut off: less is not worth what it cost."""
CUT_MARK: Final = "[... the rest did not fit]"
NO_CALLS_HINT: Final = "(Call no tools: none is carried out. Write the summary, as text.)"
NO_TEXT_HINT: Final = "(You wrote nothing. Write the summary.)"

MAX_IDENTIFIERS: Final = 80
MIN_IDENTIFIER_CHARS: Final = 2
MAX_IDENTIFIER_CHARS: Final = 160
MAX_TEXT_CHARS: Final = 100_000
"""Of one text is looked at, half from each end."""

_SENTENCE_END: Final = re.compile(r"[.!?\u3002\uff01\uff1f][\"')\]»”]{0,3}(?=\s|$)|\n")
_DECLINED: Final = re.compile(
    r"(?:i['\u2019]m sorry|i am sorry|sorry|i can['\u2019]?t|i cannot|i['\u2019]m (?:not able|unable))\b",
    re.IGNORECASE,
)
_DECLINED_CHARS: Final = 300
"""A longer answer that begins so is rather a summary of somebody's excuse."""


# What is asked


def build_summary_request(
    request: ModelRequest, *, tail: int, most_tokens: int = SUMMARY_TOKENS, hint: str = ""
) -> ModelRequest:
    """The request that asks for a summary of all but the last `tail` exchanges of this one's conversation.

    It begins with the bytes of `request`, so that a cached prefix is read. `hint`: what was wrong with the last answer.
    """
    words = max(50, int(most_tokens * WORDS_PER_TOKEN) // 50 * 50)
    asked = TextPart(
        text=load_prompt("summarise").replace("{what}", _name_summarized_part(tail)).replace("{words}", str(words))
    )
    *before, last = request.conversation or (ModelMessage(role="user", parts=()),)
    if last.role == "user":
        conversation = (*before, replace(last, parts=(*last.parts, asked)))
    else:
        conversation = (*request.conversation, ModelMessage(role="user", parts=(asked,)))
    most = min(request.max_output_tokens, most_tokens * THINKING_SHARE)
    return replace(request, conversation=conversation, aside="", now=hint, max_output_tokens=most)


def _name_summarized_part(tail: int) -> str:
    if tail <= 0:
        return "the whole conversation"
    return f"the conversation but its last {tail} exchanges" if tail > 1 else "the conversation but its last exchange"


# What is taken of the answer


@dataclass(frozen=True, slots=True)
class SummaryDraft:
    """What an answer is worth: one of the two is empty."""

    text: str = ""
    """The summary."""
    reason: str = ""
    """Why there is none, in words."""
    hint: str = ""
    """What to tell the model when it is asked again."""


def judge_summary(
    text: str, *, stop: Literal["end", "tools", "length", "refused"], called: bool, most_tokens: int = SUMMARY_TOKENS
) -> SummaryDraft:
    """Judge a whole answer. `called`: it called tools. Of one that was cut off whole sentences are taken."""
    if called:
        return SummaryDraft(reason="the model called tools instead of writing a summary", hint=NO_CALLS_HINT)
    if stop == "refused":
        return SummaryDraft(reason="the model declined to write a summary")
    text = _strip_wrapping(normalize_text(text))
    if not text:
        return SummaryDraft(reason="the model wrote no summary", hint=NO_TEXT_HINT)
    if len(text) <= _DECLINED_CHARS and _DECLINED.match(text):
        return SummaryDraft(reason="the model excused itself instead of writing a summary")
    if stop == "length":
        text = truncate_at_sentence(f"{text}{CUT_MARK}", len(text.encode()))
        if len(text) < MIN_CUT_SUMMARY_CHARS:
            return SummaryDraft(reason="the summary was cut off before it said anything")
    return SummaryDraft(text=truncate_at_sentence(text, most_tokens * 5))


def _strip_wrapping(text: str) -> str:
    """Without what only wraps it: a fence around all of it, our own heading."""
    lines = text.split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
        lines = lines[1:-1]
    return normalize_text("\n".join(lines)).removeprefix("[Previous conversation summary]").strip()


def truncate_at_sentence(text: str, most_bytes: int) -> str:
    """All of it, or its beginning until the last sentence or word that fits, saying that there was more.

    Empty if that would be nothing. Never more than `most_bytes` as UTF-8.
    """
    if len(text.encode()) <= most_bytes:
        return text
    room = most_bytes - len(CUT_MARK) - 1
    if room <= 0:
        return ""
    fits = text.encode()[:room].decode(errors="ignore")
    ends = [found.end() for found in _SENTENCE_END.finditer(fits)]
    end = ends[-1] if ends and ends[-1] >= len(fits) // 2 else max(fits.rfind(" "), 0) or len(fits)
    kept = fits[:end].rstrip()
    return f"{kept} {CUT_MARK}" if kept else ""


# What must survive


def extract_identifiers(texts: Sequence[str], *, kept: Sequence[str] = (), most: int = MAX_IDENTIFIERS) -> list[str]:
    """What must be kept word for word: names, numbers, paths and the like; the most recent and most repeated first.

    `texts`: oldest first. `kept`: of summaries before (`agent.view_forms.extract_exact_names`), the most important
    first. What is found leaves at least half of the places to these, so that what was planted early is not washed away
    by one long talk.
    """
    weights = dict[str, int]()
    for place, text in enumerate(texts, start=1):
        for found in dict.fromkeys(_iter_identifiers(text)):
            weights[found] = weights.get(found, 0) + place
    order = {found: number for number, found in enumerate(weights)}
    new = sorted(weights, key=lambda found: (-weights[found], -order[found]))
    old = [name for name in dict.fromkeys(kept) if name not in weights]
    room = max(most - len(old), (most + 1) // 2)
    return [*new[:room], *old[: most - len(new[:room])]]


def secure_identifiers(summary: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """The summary, in which each of these that it says will be found again, and those that must stand beside it.

    What was known by its quotation marks only, and stands there without any, is marked as code.
    """
    names = list(dict.fromkeys(names))
    safe = _find_present(summary, names)
    for name in names:
        marked = re.sub(_exact_pattern(name), lambda same: f"`{same[0]}`", summary, count=1)
        if name not in safe and marked != summary and (now := _find_present(marked, names)) >= {name, *safe}:
            summary, safe = marked, now
    return summary, [name for name in names if name not in safe]


def _find_present(summary: str, names: Sequence[str]) -> set[str]:
    return set(_iter_identifiers(summary)).intersection(names)


def _exact_pattern(name: str) -> str:
    return rf"(?<!\w)(?<!\w[./-]){re.escape(name)}(?!\w|[./-]\w)"


_LINE_TIME: Final = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d\] ", re.MULTILINE)
"""When a line was said (`agent.prompt.render_line`): no fact, and each has one."""
_UNITS: Final = (
    "ms|s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|[kKMGT]i?B|[kMG]?bit|px|[nµmck]?m|km|[mk]?g|"
    "m?l|[kMG]?Hz|k?Wh?|m?A|k?V|°[CF]|°|%|tokens?|USD|EUR|GBP|CHF|JPY|€|£|\\$|dollars?|euros?|pounds?"
)
_MONTHS: Final = (
    "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mär|Mai|Okt|Dez)"  # and whatever follows these letters
    r"[a-zäé]{0,7}\.?"
)
_CAPITAL: Final = "(?:[A-ZÀ-ÖØ-Þ]['\u2019])?[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ]{1,30}+(?:-[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ]{1,30}+)?"
_IDENTIFIER: Final = re.compile(
    "|".join(
        (
            r"https?://[^\s<>\"'`]{2,160}",
            r"(?<![\w.+-])[\w.+-]{1,64}+@(?:[\w-]{1,63}+\.){1,5}[A-Za-z]{2,20}(?::[\w~/.-]{2,80}+)?",
            r"`(?P<code>[^`\n]{2,160})`",
            r"[\"“„«](?P<quoted>[^\"“”„«»\n]{2,60})[\"”“»]",
            r"[A-Za-z]:\\[^\s\"<>|*?]{1,150}",
            r"(?<![\w/.])(?:~|\.{1,2})?/(?:[\w.@+-]{1,60}+/){1,12}+[\w.@+-]{0,60}+",
            r"(?<![\w/.])(?:~|\.{1,2})?/[\w@+-]{1,60}\.\w{1,6}\b",
            r"(?<![\w/.@+-])(?:[\w.@+-]{1,60}+/){2,12}+[\w.@+-]{1,60}+",
            r"(?<![\w/.@+-])[\w@+-]{1,60}+/[\w@+-]{1,60}+\.\w{1,6}+\b",
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:Z|\b))?",
            rf"\b\d{{1,2}}(?:\.|st|nd|rd|th)? {_MONTHS}(?: \d{{4}})?\b",
            rf"\b{_MONTHS} \d{{1,2}}(?:st|nd|rd|th)?(?:, ?\d{{4}})?\b",
            r"\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b",
            r"(?<![\w:])\d{1,2}:\d\d(?::\d\d)?(?: ?[ap]m)?\b",
            r"(?<!\w)\+\d[\d ()/-]{5,18}\d\b",
            r"\bv?\d{1,6}(?:\.\d{1,6}){2,4}(?:[-+][\w.]{1,40}|:\d{2,5})?\b",
            r"\bv\d{1,5}(?:\.\d{1,6}){0,3}(?:[-+][\w.]{1,40})?\b",
            r"[$€£¥] ?\d(?:[\d,.]{0,20}\d)?(?: ?[kKmM]\b)?",
            rf"\b\d(?:[\d,.]{{0,20}}\d)? ?(?:{_UNITS})(?!\w)",
            r"(?<![\w#/&])#[\w-]{1,60}",
            r"(?<![\w@])@\w[\w.-]{0,60}",
            r"\b[A-Z]{1,10}+[a-z0-9]{1,40}+(?:[A-Z]++[a-z0-9]{0,40}+){1,8}+\b",
            r"\b[a-z]{1,40}+(?:[A-Z]++[a-z0-9]{0,40}+){1,8}+\b",
            r"\b_{0,2}[^\W_]{1,60}+(?:_{1,2}[^\W_]{1,60}+){1,12}+_{0,2}\b",
            r"\b(?<![.-])(?:[a-z0-9-]{2,63}+\.){1,6}[a-z][a-z0-9]{1,20}+\b(?::\d{2,5})?",
            r"\b(?=[\w-]{0,80}\d)(?=[\w-]{0,80}[A-Za-z])(?!\d{1,3}(?:st|nd|rd|th)\b)[^\W_][\w-]{2,80}+\b",
            r"\b\d{1,3}(?:[,.' ]\d{3}){1,5}\b",
            r"\b\d{3,40}+(?:\.\d{1,10}+)?\b",
            r"\b\d{1,9}[.,]\d{1,10}\b",
            rf"\b{_CAPITAL}(?: (?:van|von|de|der|la|di|of))?(?: {_CAPITAL}){{1,3}}\b",
        )
    )
)
"""The first form that fits at a place is taken. Each is bounded, so that no text takes long."""
_TRAILING_PUNCTUATION: Final = ".,;:!?'"


def _iter_identifiers(text: str) -> Iterator[str]:
    """In the order of the text, as often as it is there."""
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[: MAX_TEXT_CHARS // 2]}\n{text[-MAX_TEXT_CHARS // 2 :]}"
    for match in _IDENTIFIER.finditer(_LINE_TIME.sub("", text)):
        name = (match["code"] or match["quoted"] or match[0]).strip().rstrip(_TRAILING_PUNCTUATION)
        for opens, closes in ("()", "[]", "{}"):
            if name.endswith(closes) and opens not in name:
                name = name.rstrip(closes + _TRAILING_PUNCTUATION)
        if MIN_IDENTIFIER_CHARS <= len(name) <= MAX_IDENTIFIER_CHARS and name.isprintable() and "`" not in name:
            yield name
