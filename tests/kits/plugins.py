"""Plugins alone, for tests."""

from typing import Any

from gateway.hooks import Plugins
from gateway.plugin import Plugin, PluginContext, PluginT
from tests.kits.commands import parts_of


def plugin_of(kind: type[PluginT], **parts: Any) -> PluginT:
    """Return a plugin whose context has these parts alone."""
    return kind(parts_of(**parts))


def plugins_of(*kinds: type[Plugin], **parts: Any) -> Plugins:
    """Return plugins whose context has these parts alone, subscribed to the log."""
    names: dict[str, Any] = dict.fromkeys(PluginContext.__dataclass_fields__)
    return Plugins.build(kinds, PluginContext(**names | parts))


def subscribed_plugin(kind: type[PluginT], **parts: Any) -> PluginT:
    found = plugins_of(kind, **parts).get(kind)
    assert found is not None
    return found
