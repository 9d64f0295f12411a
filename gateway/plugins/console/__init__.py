"""`reverie console`: a terminal UI with four panes for a running gateway; and the channel that is
inside the process, for tests.

`client` is the HTTP client of the gateway's API and its event stream, and has the command. `model`
turns events into text for the panes, makes foreign text safe for a terminal, and parses the input
line; it is pure. `app` is the Textual application.

Rules: nothing outside imports `app` or `model` before the command runs, for Textual is an extra.
Foreign text goes to the screen as `rich.text.Text` made of safe lines, never as markup.
"""

from typing import ClassVar

from channels.base import Channel
from channels.console import ConsoleConfig, LocalChannel
from gateway.core.events import ChannelName
from gateway.plugin import PlatformFactory, Plugin


def _make_channel(*, name: ChannelName, **_: object) -> Channel:
    return LocalChannel(name, lambda _: None)


class Console(Plugin):
    """A terminal beside the gateway, and a channel inside it, which tests make themselves."""

    name = "console"
    summary = "is the terminal of reverie console, and a channel for tests"
    platforms: ClassVar = {"console": PlatformFactory(settings=ConsoleConfig, make=_make_channel)}
    subcommands: ClassVar = {
        "console": (
            "watch the running gateway and talk to it in this terminal",
            "gateway.plugins.console.client:add_arguments",
        )
    }
