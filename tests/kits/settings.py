"""Settings for tests."""

from typing import Any

from gateway.config.models import Settings
from gateway.config.reload import LiveSettings


def live_settings(**sections: Any) -> LiveSettings:
    """Settings of which only these sections, and those with defaults, are there."""
    return LiveSettings(Settings.model_construct(**sections))
