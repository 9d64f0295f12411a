"""Carries out the looks of an interview, with the probes."""

from pathlib import Path

from agent.cache.prices import PriceTable
from agent.models.config import AnthropicConfig, LlamaCppConfig, LocalConfig, OpenAIConfig, ScriptedConfig
from channels.discord.config import DiscordConfig
from channels.irc.config import IrcConfig, TlsConfig
from channels.telegram.config import TelegramConfig
from gateway.price_table import PriceTableError, load_price_table
from gateway.setup.dialog import ModelProbeRequest, PersonProbeRequest, ProbeReply, ProbeRequest, WaitingProbeRequest


async def run_probe(at: ProbeRequest, directory: Path, *, polled: bool) -> ProbeReply | str:
    """What is there. Takes ten seconds or so at most, and raises for nothing that the world does.

    `directory`: where relative paths start. `polled`: a gateway runs with this configuration, and is not to be
    interrupted.
    """
    match at.target:
        case TelegramConfig() as telegram:
            from gateway.probes.telegram import probe_telegram  # noqa: PLC0415 - each takes half a second to import

            return await probe_telegram(telegram, listen=not polled and not telegram.rooms)
        case DiscordConfig() as discord:
            from gateway.probes.discord import probe_discord  # noqa: PLC0415 - the same

            return await probe_discord(discord)
        case IrcConfig() as irc:
            from gateway.probes.irc import probe_irc  # noqa: PLC0415 - the same

            return await probe_irc(_with_ca_path(irc, directory))
        case WaitingProbeRequest(config):
            from gateway.probes.telegram_waiting import find_contacts  # noqa: PLC0415 - the same

            return await find_contacts(config)
        case PersonProbeRequest(config, number):
            from gateway.probes.person import find_discord_name, find_telegram_name  # noqa: PLC0415 - the same

            if isinstance(config, TelegramConfig):
                return await find_telegram_name(config, number)
            return await find_discord_name(config, number)
        case ModelProbeRequest(model, provider):
            from gateway.probes.model import probe_model  # noqa: PLC0415 - the same

            return await probe_model(model, provider, _load_prices(directory))
        case AnthropicConfig() | OpenAIConfig() | LlamaCppConfig() | LocalConfig() | ScriptedConfig() as provider:
            from gateway.probes.model_list import list_models  # noqa: PLC0415 - the same

            return await list_models(provider)


def _load_prices(directory: Path) -> PriceTable:
    """The operator's own; while that is broken, those that come with the product."""
    try:
        return load_price_table(directory)
    except PriceTableError:
        return load_price_table(None)


def _with_ca_path(irc: IrcConfig, directory: Path) -> IrcConfig:
    """With the path of its root as the configuration reads it."""
    if not isinstance(irc.tls, TlsConfig) or irc.tls.ca_file is None:
        return irc
    ca_file = str(directory.absolute() / Path(irc.tls.ca_file).expanduser())
    return irc.model_copy(update={"tls": irc.tls.model_copy(update={"ca_file": ca_file})})
