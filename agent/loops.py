"""What a completed tool loop is told as: one text that says what was done, what came of it and where it is. Pure.

Names, arguments and results are what others chose: they are told on one line, or indented by two spaces, so that no
line of theirs begins where ours do. Of a result that is somebody else's words nothing is told but behind its fence.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from agent.brief import PromptTurn
from agent.journal import to_single_line
from agent.steps import MAX_NAME_CHARS, fence_result
from agent.stubs import first_line, result_source, truncate
from agent.view import estimate_tokens
from gateway.events import EvidenceRef, ToolCallRecord

LOOP_TOKENS = 250
"""At most, besides excerpts."""
MIN_EXCERPT_TOKENS = 48
"""A shorter beginning tells nothing that is worth its frame."""
_MAX_GROUPS = 12
_MAX_HANDLES = 6
_ARGUMENTS_CHARS = 60
_RESULT_CHARS = 80
_HEADING = """\
[COMPLETED AGENT LOOP SUMMARY]
Tools that you used here, each with the handle and the beginning of its result. \
fetch_evidence(handle, offset, limit) gives a result word for word."""
_EXCERPT_HEADING = "Result {handle} from its beginning, {chars} characters of {whole}"
_INDENTED_NOTE = ", each line indented by two spaces:"


def summarize_tool_loop(seq: int, exchange: PromptTurn) -> PromptTurn:
    """The turn with its tool loop told as one text. The same object if it has none."""
    if exchange.without_tools or not any(not called.ended for step in exchange.steps for called in step.calls):
        return exchange
    calls = list(_iter_calls(seq, exchange))
    return replace(exchange, without_tools=True, loop_summary=_render_calls(calls) if calls else "")


def excerpt_results(seq: int, exchange: PromptTurn, most_tokens: int) -> str:
    """How the results of a turn's tools begin, exactly, as far as there is room: those of the newest calls first."""
    found, told = list[str](), set[str]()
    for called, whole in reversed(list(_iter_calls(seq, exchange))):
        excerpt = "" if called.result in told else _render_excerpt(called, whole, most_tokens)
        if excerpt:
            told.add(called.result)
            most_tokens -= estimate_tokens(excerpt)
            found.insert(0, excerpt)
    return "\n".join(found)


def _iter_calls(seq: int, exchange: PromptTurn) -> Iterator[tuple[ToolCallRecord, EvidenceRef]]:
    numbered = enumerate((called for step in exchange.steps for called in step.calls), start=1)
    for number, called in numbered:
        if not called.ended and not called.ephemeral:
            yield called, result_source(seq, number, called)


def _render_calls(calls: Sequence[tuple[ToolCallRecord, EvidenceRef]]) -> str:
    """As many of the calls as there is room for, the same ones together; of the others their number and names."""
    groups = dict[tuple[str, str], list[tuple[ToolCallRecord, EvidenceRef]]]()
    for called, whole in calls:
        groups.setdefault((called.name, called.arguments), []).append((called, whole))
    lines = [_HEADING]
    shown = 0
    for group in islice(groups.values(), _MAX_GROUPS):
        line = _render_group(group)
        rest = [called for others in list(groups.values())[shown + 1 :] for called in others]
        if estimate_tokens("\n".join([*lines, line, *_render_others(rest)])) > LOOP_TOKENS:
            break
        lines.append(line)
        shown += 1
    rest = [called for others in list(groups.values())[shown:] for called in others]
    return "\n".join([*lines, *_render_others(rest)])


def _render_group(group: Sequence[tuple[ToolCallRecord, EvidenceRef]]) -> str:
    handles = [whole.handle for _, whole in group]
    named = ", ".join(handles[-_MAX_HANDLES:])
    times = f" ({len(group)} times, the newest last)" if len(group) > 1 else ""
    called, whole = group[-1]
    asked = (
        to_single_line(called.arguments[: 2 * _ARGUMENTS_CHARS], _ARGUMENTS_CHARS)
        if called.arguments.strip() not in {"", "{}"}
        else ""
    )
    what = "error" if called.error else f"{to_single_line(whole.kind[:MAX_NAME_CHARS])}, {whole.chars} characters"
    told = first_line(called, _RESULT_CHARS) if called.source is None and not called.untrusted else ""
    said = f": {told}" if told else ""
    return f"- {named}{times} {_call_name(called)} {asked} -> {what}{said}".replace("  ", " ")


def _call_name(called: ToolCallRecord) -> str:
    return to_single_line(called.name[: 2 * MAX_NAME_CHARS], MAX_NAME_CHARS)


def _render_others(calls: Sequence[tuple[ToolCallRecord, EvidenceRef]]) -> list[str]:
    if not calls:
        return []
    counted = Counter(_call_name(called) for called, _ in calls).most_common(3)
    named = ", ".join(f"{name} {count} times" for name, count in counted)
    return [f"- and {len(calls)} more calls, {calls[0][1].handle} to {calls[-1][1].handle} (most of all {named})"]


def _render_excerpt(called: ToolCallRecord, whole: EvidenceRef, most_tokens: int) -> str:
    """As much of the result as there is room for, with its frame. Empty: there is too little room, or no need."""
    if called.source is not None or called.error or len(called.result) <= _RESULT_CHARS:
        return ""
    room = most_tokens
    while room >= MIN_EXCERPT_TOKENS:
        text = truncate(called.result, room)
        head = _EXCERPT_HEADING.format(handle=whole.handle, chars=len(text), whole=whole.chars)
        if called.untrusted:
            made = f"{head}:\n{fence_result(text, called.name, called.origin, called.id)}"
        else:
            told = "".join("  " + line for line in text.splitlines(keepends=True))
            made = f"{head}{_INDENTED_NOTE}\n{told}"
        if (over := estimate_tokens(made) - most_tokens) <= 0:
            return made
        room = min(room, estimate_tokens(text)) - over
    return ""
