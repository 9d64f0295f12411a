"""Settings for tests."""

from typing import Any

from gateway.config.models import Settings
from gateway.config.reload import LiveSettings


def live_settings(**sections: Any) -> LiveSettings:
    """Settings of which only these sections, and those with defaults, are there."""
    return LiveSettings(Settings.model_construct(**sections))


def reload(live: LiveSettings, **sections: Any) -> None:
    """Put other sections in force, and tell it as a reload does."""
    live._settings = Settings.model_construct(**sections)
    for put_in_force in [listener(live._settings) for listener in live._listeners]:
        put_in_force()
