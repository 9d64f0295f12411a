"""The plugin: what `reverie` finds in the group of entry points `reverie.plugins`."""

from typing import TYPE_CHECKING, ClassVar

from reverie import Clock, PlatformFactory, Plugin
from reverie_matrix.config import MatrixConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reverie.platforms import Channel, ChannelName, CommandSpec


def make(
    *,
    name: "ChannelName",
    settings: MatrixConfig,
    clock: Clock,
    cursor: str | None,
    commands: "Sequence[CommandSpec]",
    **_: object,
) -> "Channel":
    """Return the adapter of one account."""
    from reverie_matrix.channel import MatrixChannel  # noqa: PLC0415 - heavy: only where it is used

    return MatrixChannel(name, settings, clock, cursor=cursor, commands=commands)


class Matrix(Plugin):
    """Matrix as a platform: `platform: matrix` in the configuration of a channel."""

    name = "matrix"
    summary = "Matrix rooms and direct chats, over matrix-nio."
    platforms: ClassVar["Mapping[str, PlatformFactory]"] = {
        "matrix": PlatformFactory(settings=MatrixConfig, make=make)
    }
