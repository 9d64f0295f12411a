"""`trust`: whose words the agent has in view in a conversation, what they hold up, and an admin's word for them."""

from typing import Final, NamedTuple

from gateway.access.approval_texts import inline_code
from gateway.commands.context import CommandCall, CommandContext, CommandReply
from gateway.commands.definition import CommandDefinition, SubcommandDefinition
from gateway.context.history import HistoryView
from gateway.context.sources import SourceFinder
from gateway.core.facts import ChannelCardPinned, ViewTrusted, label_of_card, label_of_summary
from gateway.core.labels import Integrity, Label, raise_integrity, rank_integrity
from gateway.core.permissions import apply_rules, standing
from gateway.runtime.agents import Agents
from gateway.store.effects import CommandEffect, EffectFact

MAX_PIECES: Final = 8
"""Pieces that are shown, the newest; the others are counted."""
MAX_TOOLS: Final = 12
_WORDS: Final = {
    "outside": "text from outside is in view",
    "guest": "words of guests are in view",
    "member": "words of members are in view",
    "admin": "words of admins are in view, and of nobody below",
    "owner": "only words of owners, of the operator and of mine are in view",
}
_HELP: Final = (
    "`{0}trust clear`: you answer for all of this as if you had written it; what comes in from then on counts anew. "
    "`{0}new`: I begin afresh."
)


class _View(NamedTuple):
    """What the next turn of a conversation has in view."""

    history: HistoryView
    card: ChannelCardPinned | None
    card_label: Label

    @property
    def label(self) -> Label:
        return self.history.label | self.card_label


async def show_trust(call: CommandCall, context: CommandContext) -> str:
    """Show the label of the view, and the least trusted pieces in it."""
    view = await _read_view(call, context)
    held = _find_held_tools(context.agents, call, view.label)
    lines = [f"Here, {_WORDS[view.label.integrity]}."]
    if not held:
        return f"{lines[0]} No tool waits for an approval because of that."
    more = f" and {len(held) - MAX_TOOLS} more" if len(held) > MAX_TOOLS else ""
    tools = f"{', '.join(inline_code(name) for name in held[:MAX_TOOLS])}{more}"
    return "\n".join(
        [
            *lines,
            *await _list_pieces(call, context, view),
            f"What I do may be their idea, so an admin is asked before I use {tools}.",
            _HELP.format(call.prefix),
        ]
    )


async def clear_trust(call: CommandCall, context: CommandContext) -> CommandReply:
    """Let what is in view now count as written by this admin."""
    view = await _read_view(call, context)
    integrity: Integrity = "owner" if call.role == "owner" else "admin"
    if raise_integrity(view.label, integrity) == view.label:
        return CommandReply(text=f"Here, {_WORDS[view.label.integrity]}: there is nothing to clear.", ok=False)
    fact = ViewTrusted(
        place=call.command.at.conversation,
        upto=max([view.history.folded_at, *(turn.seq for turn in view.history.turns)]),
        card=view.card.text if view.card is not None else "",
        integrity=integrity,
        by=call.author,
    )
    lines = [
        "From now on you answer for these, and for all that I made of them here:",
        *await _list_pieces(call, context, view),
        "What comes in counts anew.",
    ]
    effect = CommandEffect(answer="\n".join(lines), facts=(EffectFact(fact, fact.place),))
    return CommandReply(text=effect.answer, effect=effect)


async def _read_view(call: CommandCall, context: CommandContext) -> _View:
    place = call.command.at.conversation
    history = await context.agents.agent_for(place).context.view(place)
    card, trusted = await context.store.pinned_card(place), await context.store.view_trusted(place)
    label = label_of_card(card) if card is not None else Label()
    if trusted is not None and card is not None and trusted.card == card.text:
        label = raise_integrity(label, trusted.integrity)
    return _View(history, card, label)


def _find_held_tools(agents: Agents, call: CommandCall, label: Label) -> list[str]:
    """Return the tools for which an admin is asked because of what is in view."""
    tools, rules = agents.agent_for(call.command.at.conversation).tools, agents.live.settings.tools.rules
    needed = {name: standing(apply_rules(name, permit, rules)) for name, permit in tools.permits().items()}
    rank = rank_integrity(label.integrity)
    return [name for name, integrity in needed.items() if rank_integrity(integrity) > rank]


async def _list_pieces(call: CommandCall, context: CommandContext, view: _View) -> list[str]:
    """Describe the least trusted pieces, a line each: the topic and the summary, then messages and results of tools."""
    place, integrity = call.command.at.conversation, view.label.integrity
    finder, lines = SourceFinder(context.store, context.access_policy), list[str]()
    if view.card is not None and view.card_label.integrity == integrity:
        lines.append(await finder.describe(view.card_label.source or "the topic", place))
    head = label_of_summary(view.history.fold)
    if view.history.head and head.integrity == integrity:
        of = f", made also of {await finder.describe(head.source, place)}" if head.source else ""
        lines.append(f"the summary of earlier turns{of}")
    turns = [one for one in view.history.turns if one.label.integrity == integrity]
    found = list[str]()
    for turn in turns:
        found += [finder.describe_message(one, place) for one in await finder.find_low_messages(turn.record, integrity)]
        if integrity == "outside":
            brought = [called.name for step in turn.record.steps for called in step.calls if called.untrusted]
            found += [await finder.describe(name, place, [turn.record]) for name in brought]
    if not found:  # it came in otherwise, e.g. with what came to mind
        found = [await finder.describe(one.label.source or "a turn", place, [one.record]) for one in turns]
    found = list(dict.fromkeys(found))
    more = [f"and {len(found) - MAX_PIECES} earlier ones"] if len(found) > MAX_PIECES else []
    return [f"- {one}" for one in (*lines, *found[-MAX_PIECES:], *more)]


COMMANDS: Final[tuple[CommandDefinition, ...]] = (
    CommandDefinition(
        name="trust",
        group="approvals",
        summary="Show whose words I see here, and which tools wait because of them.",
        role="admin",
        needs_gateway=True,
        default_sub="show",
        subs=(
            SubcommandDefinition(
                name="show",
                summary="Show the least trusted texts that I see here, and their authors.",
                handler=show_trust,
            ),
            SubcommandDefinition(
                name="clear",
                summary="Take responsibility for all that I see here now, as if you wrote it.",
                handler=clear_trust,
            ),
        ),
    ),
)
"""The rows of this file."""
