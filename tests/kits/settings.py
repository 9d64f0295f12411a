"""Settings for tests."""

from typing import Any

from gateway.config.models import LlmConfig, Settings
from gateway.config.reload import LiveSettings
from gateway.plugins import settings_model


def live_settings(**sections: Any) -> LiveSettings:
    """Settings of which only these sections, and those with defaults, are there."""
    return LiveSettings(_construct(sections))


def reload(live: LiveSettings, **sections: Any) -> None:
    """Put other sections in force, and tell it as a reload does."""
    new = _construct(sections)
    prepared = [listener(new) for listener in live._listeners]
    live.put_in_force(new)
    for apply in prepared:
        apply()


def _construct(sections: dict[str, Any]) -> Settings:
    default: dict[str, Any] = {"agents": (), "llm": LlmConfig(providers={}, models={})}
    return settings_model().model_construct(**default | sections)
