"""What a completed tool loop is told as: one text that says what was done, what came of it and where it is. Pure.

Names, arguments and results are what others chose: they are told on one line, or indented by two spaces, so that no
line of theirs begins where ours do. Of a result that is somebody else's words nothing is told but behind its fence.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from agent.brief import Exchange
from agent.journal import flat
from agent.steps import MAX_NAME_CHARS, fenced
from agent.stubs import cut, first_line, source
from agent.view import estimate_tokens
from gateway.events import Called, Source

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
_EXCERPT = "Result {handle} from its beginning, {chars} characters of {whole}"
_INDENTED = ", each line indented by two spaces:"


def summed(seq: int, exchange: Exchange) -> Exchange:
    """The turn with its tool loop told as one text. The same object if it has none."""
    if exchange.without_tools or not any(not called.ended for step in exchange.steps for called in step.calls):
        return exchange
    calls = list(_calls(seq, exchange))
    return replace(exchange, without_tools=True, loop_summary=_activity(calls) if calls else "")


def excerpts(seq: int, exchange: Exchange, most_tokens: int) -> str:
    """How the results of a turn's tools begin, exactly, as far as there is room: those of the newest calls first."""
    found, told = list[str](), set[str]()
    for called, whole in reversed(list(_calls(seq, exchange))):
        excerpt = "" if called.result in told else _excerpt(called, whole, most_tokens)
        if excerpt:
            told.add(called.result)
            most_tokens -= estimate_tokens(excerpt)
            found.insert(0, excerpt)
    return "\n".join(found)


def _calls(seq: int, exchange: Exchange) -> Iterator[tuple[Called, Source]]:
    numbered = enumerate((called for step in exchange.steps for called in step.calls), start=1)
    for number, called in numbered:
        if not called.ended and not called.ephemeral:
            yield called, source(seq, number, called)


def _activity(calls: Sequence[tuple[Called, Source]]) -> str:
    """As many of the calls as there is room for, the same ones together; of the others their number and names."""
    groups = dict[tuple[str, str], list[tuple[Called, Source]]]()
    for called, whole in calls:
        groups.setdefault((called.name, called.arguments), []).append((called, whole))
    lines = [_HEADING]
    shown = 0
    for group in islice(groups.values(), _MAX_GROUPS):
        line = _line(group)
        rest = [called for others in list(groups.values())[shown + 1 :] for called in others]
        if estimate_tokens("\n".join([*lines, line, *_others(rest)])) > LOOP_TOKENS:
            break
        lines.append(line)
        shown += 1
    rest = [called for others in list(groups.values())[shown:] for called in others]
    return "\n".join([*lines, *_others(rest)])


def _line(group: Sequence[tuple[Called, Source]]) -> str:
    handles = [whole.handle for _, whole in group]
    named = ", ".join(handles[-_MAX_HANDLES:])
    times = f" ({len(group)} times, the newest last)" if len(group) > 1 else ""
    called, whole = group[-1]
    asked = (
        flat(called.arguments[: 2 * _ARGUMENTS_CHARS], _ARGUMENTS_CHARS)
        if called.arguments.strip() not in {"", "{}"}
        else ""
    )
    what = "error" if called.error else f"{flat(whole.kind[:MAX_NAME_CHARS])}, {whole.chars} characters"
    told = first_line(called, _RESULT_CHARS) if called.source is None and not called.untrusted else ""
    said = f": {told}" if told else ""
    return f"- {named}{times} {_named(called)} {asked} -> {what}{said}".replace("  ", " ")


def _named(called: Called) -> str:
    return flat(called.name[: 2 * MAX_NAME_CHARS], MAX_NAME_CHARS)


def _others(calls: Sequence[tuple[Called, Source]]) -> list[str]:
    if not calls:
        return []
    counted = Counter(_named(called) for called, _ in calls).most_common(3)
    named = ", ".join(f"{name} {count} times" for name, count in counted)
    return [f"- and {len(calls)} more calls, {calls[0][1].handle} to {calls[-1][1].handle} (most of all {named})"]


def _excerpt(called: Called, whole: Source, most_tokens: int) -> str:
    """As much of the result as there is room for, with its frame. Empty: there is too little room, or no need."""
    if called.source is not None or called.error or len(called.result) <= _RESULT_CHARS:
        return ""
    room = most_tokens
    while room >= MIN_EXCERPT_TOKENS:
        text = cut(called.result, room)
        head = _EXCERPT.format(handle=whole.handle, chars=len(text), whole=whole.chars)
        if called.untrusted:
            made = f"{head}:\n{fenced(text, called.name, called.origin, called.id)}"
        else:
            told = "".join("  " + line for line in text.splitlines(keepends=True))
            made = f"{head}{_INDENTED}\n{told}"
        if (over := estimate_tokens(made) - most_tokens) <= 0:
            return made
        room = min(room, estimate_tokens(text)) - over
    return ""
