"""Getting back the nick that we are configured with. Pure.

Where the server watches nicks for us (https://ircv3.net/specs/extensions/monitor) it tells when ours is free;
elsewhere, and when a watched nick turned out not to be free for us, we ask again and again.
"""

from channels.irc.isupport import Isupport
from channels.irc.wire import IrcLine, format_line

_NICK_REFUSALS = frozenset({"432", "433", "435", "436", "437", "438", "447", "484", "734"})
"""435, 437, 438: banned in a room, held by services, too soon; 734: the list of watched nicks is full."""


class NickRecovery:
    """Fed with every line after the welcome."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._watching = False
        self._polling = False

    def recovery_lines(self, me: str, isupport: Isupport) -> list[str]:
        """What to send now and then, and when we were just given another nick."""
        if isupport.fold(me) == isupport.fold(self._wanted):
            return []
        if not isupport.monitors or self._polling:
            return [format_line("NICK", self._wanted)]
        if self._watching:
            return []
        self._watching = True
        return [format_line("MONITOR", "+", self._wanted)]

    def feed(self, said: IrcLine, me: str, isupport: Isupport) -> list[str]:
        """What to send in answer; `me` is our nick after the line."""
        wanted = isupport.fold(self._wanted)
        if isupport.fold(me) == wanted:
            watching, self._watching, self._polling = self._watching, False, False
            return [format_line("MONITOR", "-", self._wanted)] if watching else []
        if said.command == "731":  # RPL_MONOFFLINE
            names = {isupport.fold(name.partition("!")[0]) for name in said.param(-1).split(",")}
            return [format_line("NICK", self._wanted)] if wanted in names else []
        if said.command in {"NICK", "QUIT"} and isupport.fold(said.source.nick) == wanted:
            return [format_line("NICK", self._wanted)]
        if said.command in _NICK_REFUSALS and wanted in {isupport.fold(param) for param in said.params}:
            self._polling = True
        return []
