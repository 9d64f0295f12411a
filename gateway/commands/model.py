"""The command `model`: which model an agent uses."""

import re
from dataclasses import replace
from typing import Final

from channels.base import CommandCompletion
from gateway.commands.context import CommandCall, CommandContext
from gateway.commands.definition import command, make_arg
from gateway.commands.parser import escape_code, find_nearest, join_or
from gateway.core.events import MAX_BUTTONS, MessageId, PostButton
from gateway.core.i18n import _
from gateway.store.effects import CommandEffect, done, refuse

_CHOOSABLE_NAME: Final = re.compile(r"[\w.:/@-]{1,40}", re.ASCII)
"""Names of models that need no quotes and fit a button."""
MAX_NAME_CHARS: Final = 60
"""Characters shown of an unknown name."""
MAX_SUGGESTED_NAMES: Final = 3
"""Names that are suggested where none is near."""

MODEL = command(
    "model",
    "Show or change the model that I use.",
    group="what I do",
    role="admin",
    needs_global_role=True,
)


async def _suggest_models(_typed: CommandCompletion, context: CommandContext) -> list[str]:
    return list(context.gateway.live.settings.llm.models)


@command("model list", "List the configured models, and the one in use.")
async def list_models(call: CommandCall, context: CommandContext) -> CommandEffect:
    known = context.gateway.live.settings.llm.models
    used = context.runtime.models.wanted_model(call.agent)
    names = [name for name in known if name != used and _CHOOSABLE_NAME.fullmatch(name)]
    return done(
        "\n".join(f"- {_format_model(name, context)}" for name in known),
        buttons=tuple(
            PostButton(label=name, command=f"model switch {name}") for name in names[:MAX_BUTTONS]
        ),
    )


@command(
    "model switch",
    "Use another model.",
    args=(make_arg("name", "As list shows it.", needed=True, suggests=_suggest_models),),
)
async def switch_model(call: CommandCall, context: CommandContext) -> CommandEffect:
    name, known = call.arguments["name"].strip(), [*context.gateway.live.settings.llm.models]
    if name not in known:
        meant = find_nearest(name, known) or known[:MAX_SUGGESTED_NAMES]
        text = _(
            "There is no model `{name}`. Did you mean {names}? `model list` shows all."
        ).format(
            name=_escape_line(name[:MAX_NAME_CHARS]),
            names=join_or([f"`{_escape_line(one)}`" for one in meant]),
        )
        return refuse(text)
    return _choose_model(context, call, name)


@command("model reset", "Use the configured model again.")
async def reset_model(call: CommandCall, context: CommandContext) -> CommandEffect:
    return _choose_model(context, call, "")


def _choose_model(context: CommandContext, call: CommandCall, name: str) -> CommandEffect:
    command, models = call.command, context.runtime.models
    before = models.wanted_model(context.agent_at(command.at))
    reply_to = MessageId(command.id) if command.origin == "text" else None
    change = models.choose(name, command.at, by=call.person, reply_to=reply_to)
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
    """Describe a model and who uses it, without secrets."""
    live = context.gateway.live
    model = live.settings.llm.models[name]
    provider = live.settings.llm.providers[model.provider]
    options = provider.options(name, model)
    price = live.prices.find(model.name or provider.kind, provider=provider.kind)
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
    agents = [one.id for one in context.runtime.agents.agents if one.agent_model.name == name]
    if agents:
        names = ", ".join(f"`{_escape_line(agent)}`" for agent in agents)
        parts.append(_("used by {agents}").format(agents=names))
    return "; ".join(parts)


def _escape_line(text: str) -> str:
    """Return a text as one line that cannot end the code around it."""
    return escape_code(" ".join(text.split()))
