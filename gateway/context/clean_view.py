"""Clean views: what of a turn's request people with a tool's standing wrote. Pure.

When the label of a request holds up a call that somebody with standing asked for, the turn is taken again without the
pieces below that standing (docs/decisions/0057-a-turn-is-taken-again-on-a-clean-view.md). A line in their place says
what is left out, with its handles, so that the person can refer to it. A piece goes whole: an answer with its tool
calls, one line of a turn's input, the summary of earlier turns. An answer counts as written by the least trusted author
in its request. Where that was needed lately, a turn begins like that (`choose_standing`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from agent.prompt import PromptTurn, render_line
from gateway.context.conversation import RenderedInput, RenderedMessage
from gateway.context.history import HistoryTurn, HistoryView
from gateway.core.events import SenderId
from gateway.core.facts import MediaRef, Seq, TurnRecord, label_of_summary
from gateway.core.labels import TRUSTED_LABEL, Integrity, Label, join, rank_integrity

SUMMARY_GAP: Final = "[The summary of earlier turns is left out here]"
RECALL_GAP: Final = "[What came to mind from earlier is left out here]"
MAX_HANDLES: Final = 8
"""Handles in one line; the newest are named."""
RECENT_TURNS: Final = 3
"""Newest turns that tell whether the next one will need a clean view, like the counter of a branch predictor: one that
went otherwise does not change the guess."""
_AUTHORS: Final = {
    "outside": "text from outside",
    "guest": "words of guests",
    "member": "words of members",
    "admin": "words of admins",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Neighbouring pieces that are left out."""

    messages: tuple[Seq, ...] = ()
    answers: tuple[Seq, ...] = ()
    """Turns whose answer and tool calls are left out."""
    label: Label = TRUSTED_LABEL

    def __or__(self, other: "LeftOut") -> "LeftOut":
        """Return both together."""
        return LeftOut(
            messages=(*self.messages, *other.messages),
            answers=(*self.answers, *other.answers),
            label=self.label | other.label,
        )


class CleanHistory(NamedTuple):
    """A view without the pieces below a standing."""

    view: HistoryView
    """For one request only: it is neither folded nor kept."""
    label: Label
    """Label of what is still in it."""
    left_out: LeftOut


class CleanInput(NamedTuple):
    """New input without the pieces below a standing."""

    text: str
    media: tuple[MediaRef, ...]
    label: Label
    """Label of what is still in it."""
    left_out: LeftOut


def reaches(label: Label, standing: Integrity) -> bool:
    """Return whether a text has this standing at least."""
    return rank_integrity(label.integrity) >= rank_integrity(standing)


def choose_standing(
    view: HistoryView, asked_by: frozenset[SenderId], new: Sequence[tuple[RenderedMessage, Label]]
) -> Integrity | None:
    """Return the standing of the clean view on which a turn is to begin. None: it begins with all of the view.

    A guess, which decides no call: that is left to the labels of the request. A turn begins like the one before it, if
    one of the last three called a tool that the left out pieces held up, and nothing below that standing came in with
    the one before it or since then. It begins so as well if two of the last three turns did in which these people
    spoke. The summary of earlier turns would be missed most: only the second reason is good enough for leaving it out.

    `asked_by`: who asks now. `new`: lines of the new input, each with its label.
    """
    if not view.turns:
        return None
    last, clean = view.turns[-1].record, view.turns[-1].record.clean_view
    if clean is not None and _standings_needed(view.turns):
        overheard = [label for one, label in new if not one.line.is_addressed]
        came = [clean.label, label_of_summary(view.fold), *(Label(one) for _, one in last.lines), *overheard]
        if reaches(join(came), clean.standing):
            return clean.standing
    theirs = [
        turn for turn in view.turns if turn.record.cause == "addressed" and asked_by.intersection(turn.record.senders)
    ]
    needed = _standings_needed(theirs)
    return needed[-1] if len(needed) > RECENT_TURNS // 2 else None


def _standings_needed(turns: Sequence[HistoryTurn]) -> list[Integrity]:
    """Return the standings that the newest of these turns needed, oldest first."""
    clean = [turn.record.clean_view for turn in turns[-RECENT_TURNS:]]
    return [one.standing for one in clean if one is not None and one.tool]


def clean_history(view: HistoryView, standing: Integrity) -> CleanHistory:
    """Return the view without the pieces below a standing."""
    label, fold = label_of_summary(view.fold), view.fold
    if fold is not None and fold.head and not reaches(label, standing):
        label, fold = TRUSTED_LABEL, replace(fold, head=SUMMARY_GAP)
    turns, gap, everything = list[HistoryTurn](), LeftOut(), LeftOut()
    for turn in view.turns:
        kept, gap, left_out = _clean_turn(turn, standing, gap)
        everything |= left_out
        label |= kept.label
        turns.append(kept)
    if turns and (last := render_gap(gap)):
        turns.append(replace(turns[-1], exchange=PromptTurn(input_text=last, reply=""), record=_without_media(turns)))
    return CleanHistory(replace(view, turns=tuple(turns), fold=fold), label, everything)


def clean_input(
    lines: Sequence[tuple[RenderedMessage, Label]], rendered: RenderedInput, standing: Integrity, *, plain: bool
) -> CleanInput:
    """Return the new input without overheard lines below a standing.

    `lines`: lines of `rendered`, in their order, each with its label. Lines to the agent stay: it owes them an answer.
    """
    texts = [render_line(one.line, plain=plain) for one, _ in lines]
    kept = [one.line.is_addressed or reaches(label, standing) for one, label in lines]
    pieces = [
        text if keep else LeftOut(messages=(one.seq,), label=label)
        for (one, label), text, keep in zip(lines, texts, kept, strict=True)
    ]
    left_out = _join_gaps(piece for piece in pieces if isinstance(piece, LeftOut))
    kept_label = join(label for (_, label), keep in zip(lines, kept, strict=True) if keep)
    if not left_out.messages:
        return CleanInput(rendered.text, rendered.media, kept_label, left_out)
    text, gap = _write(pieces, LeftOut())
    media = tuple(one for one in rendered.media if one.line not in left_out.messages)
    in_front = rendered.text.removesuffix("\n".join(texts))  # the number of lines that are not shown
    return CleanInput(in_front + "\n".join([*text, *filter(None, [render_gap(gap)])]), media, kept_label, left_out)


def render_gap(gap: LeftOut) -> str:
    """Return the line that names what is left out. Empty: nothing is."""
    counts = [(len(gap.messages), "message", ""), (len(gap.answers), "answer", " of yours")]
    named = [f"{count} {what}{'s' if count > 1 else ''}{whose}" for count, what, whose in counts if count]
    if not named:
        return ""
    one = len(gap.messages) + len(gap.answers) == 1
    handles = ", ".join(f"m{seq}" for seq in sorted((*gap.messages, *gap.answers))[-MAX_HANDLES:])
    why = f"because of {_AUTHORS.get(gap.label.integrity, 'their authors')}"
    return f"[{' and '.join(named)} {'is' if one else 'are'} left out here, {why}; fetch_evidence opens {handles}]"


def _clean_turn(turn: HistoryTurn, standing: Integrity, gap: LeftOut) -> tuple[HistoryTurn, LeftOut, LeftOut]:
    """Return what is left of a turn, what is left out behind it, and all that is left out of it.

    `gap`: what is left out in front of it. The label of the returned turn is that of what is left.
    """
    if reaches(turn.label, standing):
        before = render_gap(gap)
        text = "\n".join(filter(None, [before, turn.exchange.input_text]))
        return replace(turn, exchange=replace(turn.exchange, input_text=text)) if before else turn, LeftOut(), LeftOut()
    record, clean = turn.record, turn.record.clean_view
    pieces, kept_label = _split_input(turn, standing)
    heard = [piece for piece in pieces if isinstance(piece, LeftOut)]
    left_out, is_answer_kept = _join_gaps(heard), clean is not None and reaches(clean.label, standing)
    texts, gap = _write(pieces, gap)
    if is_answer_kept:
        assert clean is not None
        kept_label |= clean.label
        exchange = replace(turn.exchange, input_text="\n".join([*texts, *filter(None, [render_gap(gap)])]))
        gap = LeftOut()
    else:
        exchange = PromptTurn(input_text="\n".join(texts), reply="")
        if turn.exchange.reply or turn.exchange.steps or turn.exchange.loop_summary:
            answer = LeftOut(answers=(turn.seq,), label=turn.label)
            gap, left_out = gap | answer, left_out | answer
    media = tuple(one for one in record.media if texts and one.line not in left_out.messages)
    kept = replace(turn, exchange=exchange, record=replace(record, media=media), label=kept_label)
    return kept, gap, left_out


def _split_input(turn: HistoryTurn, standing: Integrity) -> tuple[list[str | LeftOut], Label]:
    """Return the lines of a turn's input, each one or its gap, and the label of these lines.

    Without records of them, the input is one piece.
    """
    record, text = turn.record, turn.exchange.input_text
    if not text:
        return [], TRUSTED_LABEL
    start = len(text) - sum(chars for chars, _ in record.lines) - max(0, len(record.lines) - 1)
    if not record.lines or start < 0 or text != record.heard:
        return [LeftOut(messages=record.covers, label=turn.label)], TRUSTED_LABEL
    pieces, kept_label = list[str | LeftOut](), TRUSTED_LABEL
    for seq, (chars, integrity) in zip(record.covers, record.lines, strict=False):
        label = Label(integrity, turn.label.readers, source=f"m{seq}")
        if reaches(label, standing):
            kept_label |= label
            pieces.append(text[start : start + chars])
        else:
            pieces.append(LeftOut(messages=(seq,), label=label))
        start += chars + 1
    return pieces, kept_label


def _write(pieces: Iterable[str | LeftOut], gap: LeftOut) -> tuple[list[str], LeftOut]:
    """Return the lines, with one line per gap between them, and the gap behind the last. `gap`: in front of them."""
    texts = list[str]()
    for piece in pieces:
        if isinstance(piece, LeftOut):
            gap |= piece
            continue
        texts += [*filter(None, [render_gap(gap)]), piece]
        gap = LeftOut()
    return texts, gap


def _join_gaps(gaps: Iterable[LeftOut]) -> LeftOut:
    found = list(gaps)
    return LeftOut(messages=tuple(seq for one in found for seq in one.messages), label=join(one.label for one in found))


def _without_media(turns: Sequence[HistoryTurn]) -> TurnRecord:
    return replace(turns[-1].record, media=())
