"""Turns with their old results cleared: what stands in place of a result says where it is read word for word. Pure."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from agent import steps
from agent.brief import PromptTurn
from agent.journal import to_single_line
from agent.view import BYTES_PER_TOKEN, estimate_tokens
from gateway.events import EvidenceRef, ToolCallRecord, TurnStep

LARGE_TOKENS = 400
"""What stands in place of a longer result tells how it began; of a shorter one, one line tells only where it is."""
EXCERPT_TOKENS = 60
MAX_ARGUMENTS_TOKENS = 200
"""Of a call whose result is cleared: what was written to a file stands in the file."""
_VALUE_CHARS = 80
"""Of one argument, where they are longer than that together."""
_SHORT_CHARS = 120
"""Of arguments that cannot be told one by one, and of the first line of an error."""
_HALF_HANDLE: Final = re.compile(r"(?<![0-9A-Za-z])[temv][0-9]+(?:[.-][0-9]*)?\Z")
_HANDLE_CONTINUES: Final = re.compile(r"[0-9]|[.-][0-9]")
_MAX_HANDLE_CHARS: Final = 40
"""Characters of a handle: two positions in the log, each of 18 digits at most."""


def result_handle(seq: int, number: int) -> str:
    """Name the result of a turn's call, counted from 1 over all of its steps, as `fetch_evidence` takes it."""
    return f"t{seq}.{number}"


def result_source(seq: int, number: int, called: ToolCallRecord) -> EvidenceRef:
    """Where the result of a call stands whole."""
    if called.source is not None:
        return called.source
    digest = hashlib.sha256(called.result.encode()).hexdigest()
    origin = called.origin or (called.arguments if called.arguments.strip() != "{}" else "")
    return EvidenceRef(
        handle=result_handle(seq, number), kind="text", origin=origin, chars=len(called.result), sha256=digest
    )


def truncate(text: str, most_tokens: int) -> str:
    """Return how it begins, exactly: so many tokens at most."""
    first = text.encode()[: int(max(0, most_tokens) * BYTES_PER_TOKEN)].decode(errors="ignore")
    return text[: find_safe_cut(text, len(first))]


def find_safe_cut(text: str, chars: int) -> int:
    """Where to cut a text off at `chars` at most: not in the middle of a handle, whose half names something else."""
    begun = (
        _HALF_HANDLE.search(text, max(0, chars - _MAX_HANDLE_CHARS), chars)
        if _HANDLE_CONTINUES.match(text, chars)
        else None
    )
    return begun.start() if begun is not None else chars


def first_line(called: ToolCallRecord, most_chars: int) -> str:
    """Of its result; quoted for use in a line of ours."""
    lines = called.result[: 8 * most_chars].strip().splitlines()
    return to_single_line(lines[0], most_chars) if lines else ""


def estimate_call_tokens(called: ToolCallRecord) -> int:
    """How much the call and its result take, but for what takes the same in each form."""
    return estimate_tokens(called.name + called.arguments) + estimate_tokens(called.result)


def build_stubs(seq: int, exchange: PromptTurn) -> dict[int, ToolCallRecord]:
    """Of the calls that clearing makes shorter, what is left of them, by number and oldest first."""
    found = {}
    if not exchange.without_tools:
        for number, called in enumerate((called for step in exchange.steps for called in step.calls), start=1):
            if not called.ended and not called.ephemeral:
                told = _render_stub(seq, number, called)
                fenced = called.untrusted and told == called.result
                stub = replace(
                    called, arguments=_shorten_arguments(called.arguments), result=told, untrusted=fenced, images=()
                )
                if stub != called:
                    found[number] = stub
    return found


def clear_results(exchange: PromptTurn, instead: Mapping[int, ToolCallRecord]) -> PromptTurn:
    """The turn with these calls in place of those with their numbers, and without its ephemeral calls.

    A step of which no call is left leaves; what arrived meanwhile is told behind what was told before it. The same
    object if nothing changes.
    """
    if exchange.without_tools or not (
        instead or any(called.ephemeral for step in exchange.steps for called in step.calls)
    ):
        return exchange
    heard, kept, number = exchange.input_text, list[TurnStep](), 0
    for step in exchange.steps:
        numbered = list(enumerate(step.calls, start=number + 1))
        number += len(numbered)
        calls = tuple([instead.get(at, called) for at, called in numbered if called.ended or not called.ephemeral])
        if not _has_results(step.calls) or _has_results(calls):
            kept.append(replace(step, calls=calls))
        elif kept:
            kept[-1] = replace(kept[-1], heard=_join_texts(kept[-1].heard, step.heard))
        else:
            heard = _join_texts(heard, step.heard)
    return replace(exchange, input_text=heard, steps=tuple(kept))


def _has_results(calls: Sequence[ToolCallRecord]) -> bool:
    return any(not called.ended for called in calls)


def _join_texts(*heard: str) -> str:
    return "\n".join(text for text in heard if text)


def _render_stub(seq: int, number: int, called: ToolCallRecord) -> str:
    whole = result_source(seq, number, called)
    if called.error and not called.untrusted:
        stub = f'{first_line(called, _SHORT_CHARS)} [cut: fetch_evidence("{whole.handle}") gives it again]'
    elif called.source is not None:
        stub = steps.render_partial_result(whole, called.name, "")
    elif estimate_tokens(called.result) > LARGE_TOKENS:
        key = called.id if called.untrusted else ""
        stub = steps.render_partial_result(whole, called.name, _excerpt_start(called.result), call=key)
    else:
        name = to_single_line(called.name[: 2 * steps.MAX_NAME_CHARS], steps.MAX_NAME_CHARS)
        stub = f'[{name} result cleared: fetch_evidence("{whole.handle}") gives it again]'
    return stub if estimate_tokens(stub) < estimate_tokens(called.result) else called.result


def _excerpt_start(text: str) -> str:
    """How it begins, up to a line that could pass for one of ours."""
    lines = []
    for line in truncate(text, EXCERPT_TOKENS).splitlines(keepends=True):
        if line.lstrip().startswith("["):
            break
        lines.append(line)
    return "".join(lines)


def _shorten_arguments(written: str) -> str:
    """The arguments, told short if they are long: a JSON object still, which is all that the APIs take."""
    if estimate_tokens(written) <= MAX_ARGUMENTS_TOKENS:
        return written
    try:
        given = json.loads(written)
        short = (
            _dump_json({key: _shorten_value(value) for key, value in given.items()}) if isinstance(given, dict) else ""
        )
    except (ValueError, RecursionError):
        short = ""
    if not short or estimate_tokens(short) > MAX_ARGUMENTS_TOKENS:
        short = _dump_json({"shortened": f"{written[:_SHORT_CHARS]}{_omitted_note(written, _SHORT_CHARS)}"})
    return short


def _shorten_value(value: object) -> object:
    written = value if isinstance(value, str) else _dump_json(value)
    return value if len(written) <= _VALUE_CHARS else f"{written[:_VALUE_CHARS]}{_omitted_note(written, _VALUE_CHARS)}"


def _omitted_note(text: str, told: int) -> str:
    return f" [... {len(text) - told} more characters]" if len(text) > told else ""


def _dump_json(value: object) -> str:
    """Written as UTF-8 can be: an escape in what the model wrote may be half of a character."""
    return steps.join_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
