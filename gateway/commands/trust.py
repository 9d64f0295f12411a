"""`trust`: whose texts the agent sees in a conversation, which tools need an approval for it, and how to clear that."""

from typing import Final, NamedTuple

from gateway.access.approval_texts import inline_code
from gateway.commands.context import CommandCall, CommandContext, CommandReply
from gateway.commands.definition import CommandDefinition, SubcommandDefinition
from gateway.context.history import HistoryView
from gateway.context.sources import SourceFinder
from gateway.core.facts import ChannelCardPinned, ViewTrusted, label_of_card, label_of_summary
from gateway.core.i18n import N_, _
from gateway.core.labels import Integrity, Label, raise_integrity, rank_integrity
from gateway.core.permissions import apply_rules, standing
from gateway.runtime.agents import Agents
from gateway.store.effects import CommandEffect, EffectFact

MAX_PIECES: Final = 8
"""Pieces that are shown, the newest; the others are counted."""
MAX_TOOLS: Final = 12
_LEVEL_TEXTS: Final = {
    "outside": N_("Here I see text from outside, such as web pages or files."),
    "guest": N_("Here I see text from guests."),
    "member": N_("Here I see text from members."),
    "admin": N_("Here I see text from admins, and from nobody with a lower role."),
    "owner": N_("Here I see only text from owners, from the operator and from me."),
}


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
    level = _(_LEVEL_TEXTS[view.label.integrity])
    if not held:
        return f"{level} {_('No tool needs an approval because of that.')}"
    tools = ", ".join(inline_code(name) for name in held[:MAX_TOOLS])
    if len(held) > MAX_TOOLS:
        tools = _("{names} and {count} more").format(names=tools, count=len(held) - MAX_TOOLS)
    clear, new = f"{call.prefix}trust clear", f"{call.prefix}new"
    return "\n".join(
        [
            level,
            *await _list_pieces(call, context, view),
            _("Their authors may have influenced me, so I ask an admin before I use {tools}.").format(tools=tools),
            _(
                "`{clear}`: you take responsibility for all of this, as if you had written it. It does not cover "
                "later texts."
            ).format(clear=clear),
            _("`{new}`: I start over and no longer see these texts.").format(new=new),
        ]
    )


async def clear_trust(call: CommandCall, context: CommandContext) -> CommandReply:
    """Let what is in view now count as written by this admin."""
    view = await _read_view(call, context)
    integrity: Integrity = "owner" if call.role == "owner" else "admin"
    if raise_integrity(view.label, integrity) == view.label:
        text = f"{_(_LEVEL_TEXTS[view.label.integrity])} {_('There is nothing to clear.')}"
        return CommandReply(text=text, ok=False)
    fact = ViewTrusted(
        place=call.command.at.conversation,
        upto=max([view.history.folded_at, *(turn.seq for turn in view.history.turns)]),
        card=view.card.text if view.card is not None else "",
        integrity=integrity,
        by=call.author,
    )
    lines = [
        _("You are now responsible for these texts, and for all that I made of them here:"),
        *await _list_pieces(call, context, view),
        _("This does not cover later texts."),
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
        summary = _("the summary of earlier messages")
        if head.source:
            source = await finder.describe(head.source, place)
            summary = _("the summary of earlier messages, which also contains {source}").format(source=source)
        lines.append(summary)
    turns = [one for one in view.history.turns if one.label.integrity == integrity]
    found = list[str]()
    for turn in turns:
        found += [finder.describe_message(one, place) for one in await finder.find_low_messages(turn.record, integrity)]
        if integrity == "outside":
            brought = [called.name for step in turn.record.steps for called in step.calls if called.untrusted]
            found += [await finder.describe(name, place, [turn.record]) for name in brought]
    if not found:  # it came in otherwise, e.g. with what came to mind
        found = [
            await finder.describe(one.label.source or _("an answer of mine"), place, [one.record]) for one in turns
        ]
    found = list(dict.fromkeys(found))
    more = [_("and {count} earlier ones").format(count=len(found) - MAX_PIECES)] if len(found) > MAX_PIECES else []
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
