"""Summaries by a model: the request, the judgement of the answer, and the names that must survive.
Pure.

A name, a number or a path that a summary leaves out is lost to its readers. So these are recognized
by their form alone, and those that the summary does not contain word for word are listed beside it
(`agent.view`).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

from agent.models.base import ModelMessage, ModelRequest, TextPart
from agent.prompts import load_prompt
from gateway.core.frozen import frozen
from gateway.core.text_safety import normalize_text

SUMMARY_TOKENS: Final = 2_000
"""Limit of a summary: some three pages."""
WORDS_PER_TOKEN: Final = 0.5
"""Words to ask for per token. Models count badly, and languages other than English take more
tokens."""
THINKING_SHARE: Final = 2
"""Output limit as a multiple of the summary's: a model may think as long before it writes."""
MIN_CUT_SUMMARY_CHARS: Final = 200
"""Least length of an answer that was cut off. A shorter one is not worth its cost."""
CUT_MARK: Final = "[... the rest did not fit]"
NO_CALLS_HINT: Final = "(Call no tools: none is carried out. Write the summary, as text.)"

MAX_IDENTIFIERS: Final = 80
MIN_IDENTIFIER_CHARS: Final = 2
MAX_IDENTIFIER_CHARS: Final = 160
MAX_TEXT_CHARS: Final = 100_000
"""Characters that are searched in one text, half from each end."""

_SENTENCE_END: Final = re.compile(r"[.!?\u3002\uff01\uff1f][\"')\]»”]{0,3}(?=\s|$)|\n")
_DECLINED: Final = re.compile(
    r"(?:i['\u2019]m sorry|i am sorry|sorry|i can['\u2019]?t|i cannot|i['\u2019]m (?:not "
    r"able|unable))\b",
    re.IGNORECASE,
)
_DECLINED_CHARS: Final = 300
"""A longer answer that begins like this is rather a summary of another person's excuse."""


# The request


def build_summary_request(
    request: ModelRequest, *, tail: int, most_tokens: int = SUMMARY_TOKENS, hint: str = ""
) -> ModelRequest:
    """Build the request for a summary of all but the last `tail` exchanges of this request's
    conversation.

    It begins with the bytes of `request`, so that a cached prefix is read. `hint`: the fault of the
    previous answer.
    """
    words = max(50, int(most_tokens * WORDS_PER_TOKEN) // 50 * 50)
    what = "the whole conversation"
    if tail > 0:
        last_ones = f"last {tail} exchanges" if tail > 1 else "last exchange"
        what = f"the conversation except its {last_ones}"
    prompt = load_prompt("summarise").replace("{what}", what).replace("{words}", str(words))
    instruction = TextPart(text=prompt)
    *before, last = request.conversation or (ModelMessage(role="user", parts=()),)
    if last.role == "user":
        conversation = (*before, replace(last, parts=(*last.parts, instruction)))
    else:
        conversation = (*request.conversation, ModelMessage(role="user", parts=(instruction,)))
    output_tokens = min(request.max_output_tokens, most_tokens * THINKING_SHARE)
    return replace(
        request, conversation=conversation, aside="", now=hint, max_output_tokens=output_tokens
    )


# The answer


@frozen(kw_only=False)
class SummaryDraft:
    """Judgement of an answer. Either `text` or `reason` is empty."""

    text: str = ""
    reason: str = ""
    hint: str = ""
    """Correction for the model if it is asked again."""


def judge_summary(
    text: str,
    *,
    stop: Literal["end", "tools", "length", "refused"],
    called: bool,
    most_tokens: int = SUMMARY_TOKENS,
) -> SummaryDraft:
    """Judge a whole answer. An answer that was cut off is shortened to whole sentences.

    `called`: it contains tool calls.
    """
    if called:
        return SummaryDraft(
            reason="the model called tools instead of writing a summary", hint=NO_CALLS_HINT
        )
    if stop == "refused":
        return SummaryDraft(reason="the model declined to write a summary")
    text = _strip_wrapping(normalize_text(text))
    if not text:
        return SummaryDraft(
            reason="the model wrote no summary", hint="(You wrote nothing. Write the summary.)"
        )
    if len(text) <= _DECLINED_CHARS and _DECLINED.match(text):
        return SummaryDraft(reason="the model excused itself instead of writing a summary")
    if stop == "length":
        text = truncate_at_sentence(f"{text}{CUT_MARK}", len(text.encode()))
        if len(text) < MIN_CUT_SUMMARY_CHARS:
            return SummaryDraft(reason="the summary was cut off before it said anything")
    return SummaryDraft(text=truncate_at_sentence(text, most_tokens * 5))


def _strip_wrapping(text: str) -> str:
    """Return the text without a fence around it, and without our own heading."""
    lines = text.split("\n")
    if len(lines) > 1 and lines[0].startswith("```") and lines[-1] == "```":
        lines = lines[1:-1]
    return normalize_text("\n".join(lines)).removeprefix("[Previous conversation summary]").strip()


def truncate_at_sentence(text: str, most_bytes: int) -> str:
    """Return all of the text, or its beginning up to the last sentence or word that fits, with a
    mark.

    Empty if nothing but the mark would be left. At most `most_bytes` as UTF-8.
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


# Names that must survive


def extract_identifiers(
    texts: Sequence[str], *, kept: Sequence[str] = (), most: int = MAX_IDENTIFIERS
) -> list[str]:
    """Return names, numbers, paths and the like that must be kept word for word.

    `texts`: oldest first. The most recent and most repeated identifiers come first. `kept`:
    identifiers of earlier summaries (`agent.view.extract_exact_names`), the most important first.
    They get at least half of the places, so that one long conversation does not displace early
    facts. A number of at most three digits counts if it occurs twice.
    """
    weights, counts = dict[str, int](), Counter[str]()
    for place, text in enumerate(texts, start=1):
        counts.update(identifiers := list(iter_identifiers(text)))
        for found in dict.fromkeys(identifiers):
            weights[found] = weights.get(found, 0) + place
    for found, count in counts.items():
        if count == 1 and re.fullmatch(r"\d{1,3}", found):
            del weights[found]
    order = {found: number for number, found in enumerate(weights)}
    new = sorted(weights, key=lambda found: (-weights[found], -order[found]))
    old = [name for name in dict.fromkeys(kept) if name not in weights]
    room = max(most - len(old), (most + 1) // 2)
    return [*new[:room], *old[: most - len(new[:room])]]


def find_missing_identifiers(summary: str, names: Iterable[str]) -> list[str]:
    """Return the identifiers that must be listed beside the summary: the others can be found in it
    again by their form.
    """
    found = set(iter_identifiers(summary))
    return [name for name in dict.fromkeys(names) if name not in found]


_LINE_TIME: Final = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d\] ", re.MULTILINE)
"""Time of a line (`agent.prompt.render_line`). Each line has one, so it is not a fact to keep."""
_UNITS: Final = (
    "ms|s|sec|seconds?|min|minutes?|h|hours?|days?|weeks?|months?|years?|[kKMGT]i?B|[kMG]?bit|px|[nµmck]?m|km|[mk]?g|"
    "m?l|[kMG]?Hz|k?Wh?|m?A|k?V|°[CF]|°|%|tokens?|USD|EUR|GBP|CHF|JPY|€|£|\\$|dollars?|euros?|pounds?"
)
_MONTHS: Final = (
    # and any letters that follow
    "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec|Mär|Mai|Okt|Dez)"
    r"[a-zäé]{0,7}\.?"
)
_CAPITAL: Final = (
    "(?:[A-ZÀ-ÖØ-Þ]['\u2019])?[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ]{1,30}+(?:-[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ]{1,30}+)?"
)
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
"""Forms of identifiers; the first that fits at a place is taken. Each is bounded, so that no text
takes long."""
_TRAILING_PUNCTUATION: Final = ".,;:!?'"


def iter_identifiers(text: str) -> Iterator[str]:
    """Yield the identifiers in the order of the text, with repetitions."""
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[: MAX_TEXT_CHARS // 2]}\n{text[-MAX_TEXT_CHARS // 2 :]}"
    for match in _IDENTIFIER.finditer(_LINE_TIME.sub("", text)):
        name = (match["code"] or match["quoted"] or match[0]).strip().rstrip(_TRAILING_PUNCTUATION)
        for opens, closes in ("()", "[]", "{}"):
            if name.endswith(closes) and opens not in name:
                name = name.rstrip(closes + _TRAILING_PUNCTUATION)
        if (
            MIN_IDENTIFIER_CHARS <= len(name) <= MAX_IDENTIFIER_CHARS
            and name.isprintable()
            and "`" not in name
        ):
            yield name
