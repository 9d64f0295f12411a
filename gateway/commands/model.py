"""The commands `model` and `persona`: which model an agent uses, and what answers in a room."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from channels.base import CommandCompletion
from gateway.commands.context import OPERATOR_PLACE, CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.commands.parser import escape_code, find_nearest, join_or
from gateway.core.events import MAX_BUTTONS, PostButton
from gateway.core.i18n import _
from gateway.core.identity import ADMIN_ROLES
from gateway.store.effects import CommandEffect, done, refuse

_CHOOSABLE_NAME: Final = re.compile(r"[\w.:/@-]{1,40}", re.ASCII)
"""Names of models that need no quotes and fit a button."""
MAX_NAME_CHARS: Final = 60

MODEL = command(
    "model",
    "Show or change the model that I use.",
    group="what I do",
    role="admin",
)
PERSONA = command(
    "persona",
    "Show or change which of my agents answers here.",
    group="what I do",
    role="admin",
)
DEFAULT: Final = "default"
"""Takes back what was chosen for a room."""


async def _suggest_models(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return list(context.gateway.live.settings.llm.models)


async def _suggest_agents(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return [*context.gateway.live.agents, DEFAULT]


@command("model list", "List the configured models, and the one in use.")
async def list_models(call: CommandCall, context: CommandContext) -> CommandEffect:
    known = context.gateway.live.settings.llm.models
    used = context.models.wanted_model(call.agent)
    names = [name for name in known if name != used and _CHOOSABLE_NAME.fullmatch(name)]
    names = names if call.global_role in ADMIN_ROLES else []
    lines = [f"- {_format_model(name, context)}" for name in known]
    if here := context.gateway.places.bindings.find(call.command.at).model:
        lines.append(_("This room uses `{name}`.").format(name=_escape_line(here)))
    return done(
        "\n".join(lines),
        buttons=tuple(
            PostButton(label=name, command=f"model switch {name}") for name in names[:MAX_BUTTONS]
        ),
    )


@command(
    "model switch",
    "Use another model.",
    args=(make_arg("name", "As list shows it.", needed=True, suggests=_suggest_models),),
    needs_global_role=True,
)
async def switch_model(call: CommandCall, context: CommandContext) -> CommandEffect:
    name = call.arguments["name"].strip()
    if wrong := _explain_unknown_model(name, context):
        return refuse(wrong)
    return _choose_model(context, call, name)


def _explain_unknown_model(name: str, context: CommandContext) -> str:
    known = [*context.gateway.live.settings.llm.models]
    if name in known:
        return ""
    text = _("There is no model `{name}`. Did you mean {names}? `model list` shows all.")
    return text.format(name=_escape_line(name[:MAX_NAME_CHARS]), names=_suggest_names(name, known))


def _suggest_names(name: str, known: Sequence[str]) -> str:
    meant = find_nearest(name, known) or known[:3]
    return join_or([f"`{_escape_line(one)}`" for one in meant])


@command(
    "model here",
    "Use another model in this room. Without a name: show it.",
    args=(make_arg("name", "As list shows it, or default.", suggests=_suggest_models),),
    private=False,
)
async def choose_room_model(call: CommandCall, context: CommandContext) -> CommandEffect:
    name, at = call.arguments.get("name", "").strip(), call.command.at
    bound = context.gateway.places.bindings.find(at)
    if not name:
        used = bound.model or context.models.wanted_model(context.agent_at(at))
        return done(_("This room uses `{name}`.").format(name=_escape_line(used)))
    if name != DEFAULT and (wrong := _explain_unknown_model(name, context)):
        return refuse(wrong)
    model = "" if name == DEFAULT else name
    if (why := _explain_no_room(call)) or model == bound.model:
        return refuse(why or _("It is so already."))
    words = (
        _("This room uses `{name}` from the next answer on.").format(name=_escape_line(model))
        if model
        else _("This room uses the model of its agent again.")
    )
    return context.models.choose_for_room(at, words, model=model, by=call.person)


@command(
    "persona here",
    "Have another agent answer in this room. Without a name: show it.",
    args=(make_arg("name", "The id of an agent, or default.", suggests=_suggest_agents),),
    needs_global_role=True,
    private=False,
)
async def choose_room_agent(call: CommandCall, context: CommandContext) -> CommandEffect:
    """Choose the agent of a room. An agent brings its memory and its tools, so this is for admins
    everywhere, not for those of one room.
    """
    name, at = call.arguments.get("name", "").strip(), call.command.at
    known, used = [*context.gateway.live.agents], context.agent_at(at)
    if not name:
        agents = join_or([f"`{one}`" for one in known])
        text = _("`{agent}` answers here. The agents are {agents}.")
        return done(text.format(agent=used, agents=agents))
    if name not in (*known, DEFAULT):
        text = _("There is no agent `{name}`. Did you mean {names}?")
        return refuse(
            text.format(name=_escape_line(name[:MAX_NAME_CHARS]), names=_suggest_names(name, known))
        )
    if (why := _explain_no_room(call)) or name == used:
        return refuse(why or _("It is so already."))
    words = (
        _("The agent of this room is as configured again.")
        if name == DEFAULT
        else _("`{agent}` answers here from now on.").format(agent=name)
    )
    agent = "" if name == DEFAULT else name
    return context.models.choose_for_room(at, words, agent=agent, by=call.person)


def _explain_no_room(call: CommandCall) -> str:
    return _("Write that in the room that you mean.") if call.command.at == OPERATOR_PLACE else ""


@command("model reset", "Use the configured model again.", needs_global_role=True)
async def reset_model(call: CommandCall, context: CommandContext) -> CommandEffect:
    return _choose_model(context, call, "")


def _choose_model(context: CommandContext, call: CommandCall, name: str) -> CommandEffect:
    command, models = call.command, context.models
    before = models.wanted_model(context.agent_at(command.at))
    change = models.choose(name, command.at, by=call.person)
    if not change.facts or not name:
        return change
    tokens = _context_tokens(name, context)
    if tokens >= _context_tokens(before, context):
        return change
    text = _("It can read less at once ({tokens} tokens), so I shorten long conversations.")
    return replace(change, answer=f"{change.answer} {text.format(tokens=f'{tokens:,}')}")


def _context_tokens(name: str, context: CommandContext) -> int:
    llm = context.gateway.live.settings.llm
    model = llm.models[name]
    return llm.providers[model.provider].options(name, model)["context_tokens"]


def _format_model(name: str, context: CommandContext) -> str:
    live = context.gateway.live
    model = live.settings.llm.models[name]
    provider = live.settings.llm.providers[model.provider]
    options = provider.options(name, model)
    price = provider.find_price(live.prices, model)
    called = f" `{_escape_line(model.name)}`" if model.name else ""
    parts = [
        f"`{_escape_line(name)}`: {provider.kind}{called}",
        _("reads {context} tokens, answers up to {output}").format(
            context=f"{options['context_tokens']:,}",
            output=f"{options['max_output_tokens']:,}",
        ),
        _("price known") if price.known and price.is_priced else _("price not known"),
    ]
    if options["takes_images"]:
        parts.append(_("sees images"))
    if model.fallbacks:
        names = ", ".join(f"`{_escape_line(one)}`" for one in model.fallbacks)
        parts.append(_("if it fails: {models}").format(models=names))
    agents = [one.id for one in context.agents.agents if one.agent_model.name == name]
    if agents:
        names = ", ".join(f"`{_escape_line(agent)}`" for agent in agents)
        parts.append(_("used by {agents}").format(agents=names))
    return "; ".join(parts)


def _escape_line(text: str) -> str:
    """Return a text as one line that cannot end the code around it."""
    return escape_code(" ".join(text.split()))
