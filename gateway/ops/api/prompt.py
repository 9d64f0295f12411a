"""The last request of a conversation, told block by block, with its cache marks. Pure."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Final

from agent.cache.ask import PlannedRequest
from agent.cache.marks import PromptSegment
from agent.models.base import Image, MessagePart, ModelRequest, TextPart, ToolCall
from gateway.events import CacheTtl
from gateway.ops.api.shapes import PromptBlock, PromptSnapshot, RequestBill

NOW_BLOCK: Final = "now"


def build_prompt_snapshot(ask: PlannedRequest) -> PromptSnapshot:
    """As the model was sent it. Of images their line stands there."""
    request, account = ask.request, ask.account
    return PromptSnapshot(
        at=datetime.fromtimestamp(ask.sent_at_s, UTC),
        model=account.model if account is not None else "",
        blocks=tuple(_build_blocks(ask)),
        tools=tuple(spec.name for spec in request.tools),
        marks=len(request.breakpoints),
        bill=None
        if account is None
        else RequestBill(
            input_tokens=account.usage.input_tokens,
            read_tokens=account.usage.cache_read_tokens,
            written_tokens=account.usage.cache_write_tokens,
            output_tokens=account.usage.output_tokens,
            cost_usd=account.cost_usd or 0.0,
            missed=account.missed,
        ),
    )


def _build_blocks(ask: PlannedRequest) -> Iterator[PromptBlock]:
    marks = {(mark.behind, mark.index): mark.lifetime for mark in ask.request.breakpoints}
    marked: list[CacheTtl | None] = [
        marks.get((unit.behind, unit.number)) if unit.takes_breakpoint else None for unit in ask.segments
    ]
    numbered = list(enumerate(ask.segments))
    for name, group in groupby(numbered, key=lambda one: one[1].name):
        units = list(group)
        while units:
            upto = next((place for place, (index, _) in enumerate(units) if marked[index] is not None), len(units) - 1)
            part, units = units[: upto + 1], units[upto + 1 :]
            yield _build_block(ask, name, part, marked[part[-1][0]])
    last = "\n\n".join(filter(str.strip, [ask.request.aside, ask.request.now]))
    if last:
        tokens = ask.estimate.correct(ask.estimate.size.now)
        yield PromptBlock(
            name=NOW_BLOCK, lifetime=None, marked=False, tokens=tokens, read_tokens=0, written_tokens=0, text=last
        )


def _build_block(
    ask: PlannedRequest, name: str, part: Sequence[tuple[int, PromptSegment]], mark: CacheTtl | None
) -> PromptBlock:
    tokens, read, written = 0, 0, 0
    writes = max([index for index, _ in ask.plan.writes], default=-1)
    for index, unit in part:
        size = ask.estimate.correct(unit.tokens)
        tokens += size
        if index < ask.plan.read_segments:
            read += size
        elif index <= writes:
            written += size
    return PromptBlock(
        name=name,
        lifetime=mark,
        marked=mark is not None,
        tokens=tokens,
        read_tokens=read,
        written_tokens=written,
        text=_render_units(ask.request, ask.segments, [index for index, _ in part]),
    )


def _render_units(request: ModelRequest, laid: Sequence[PromptSegment], part: Sequence[int]) -> str:
    first = laid[part[0]]
    if first.behind == "tools":
        told = [{"name": one.name, "description": one.description, "schema": one.schema} for one in request.tools]
        return json.dumps(told, ensure_ascii=False, indent=1)
    if first.behind == "block":
        return "\n\n".join(request.blocks[laid[index].number].text for index in part)
    lines = list[str]()
    for index in part:
        unit = laid[index]
        said, place = request.conversation[unit.number], _find_piece_index(laid, index)
        if place == 0:
            lines.append(f"[{said.role}]")
        lines.append(_render_piece(said.parts[place]) if place < len(said.parts) else "")
    return "\n".join(lines)


def _find_piece_index(laid: Sequence[PromptSegment], index: int) -> int:
    """Which piece of its `Said` a unit is."""
    first = index
    while first > 0 and (laid[first - 1].behind, laid[first - 1].number) == ("said", laid[index].number):
        first -= 1
    return index - first


def _render_piece(piece: MessagePart) -> str:
    match piece:
        case TextPart():
            return piece.text
        case Image():
            return f"[image: {piece.description}]"
        case ToolCall():
            return f"[call {piece.id}: {piece.name} {piece.arguments}]"
        case result:
            return f"[result of {result.id}{', an error' if result.is_error else ''}]\n{result.text}"
