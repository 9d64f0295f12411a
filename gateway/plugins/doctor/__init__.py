"""`reverie doctor`: checks everything that can be reached; see `examine`."""

from typing import ClassVar

from gateway.plugin import Plugin


class Doctor(Plugin):
    """Checks of the configuration, and of all that it names."""

    name = "doctor"
    summary = "checks everything, by reverie doctor"
    subcommands: ClassVar = {
        "doctor": (
            "check everything that can be reached, and show what is wrong and how to fix it",
            "gateway.plugins.doctor.examine:add_arguments",
        )
    }
