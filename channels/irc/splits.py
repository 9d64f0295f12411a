"""The network breaking apart and coming together, as servers without batches tell it. Pure.

A server that is cut off makes everybody behind it quit with the names of two servers as the reason (RFC 1459
section 4.1.6). Real people cannot: their reasons are prefixed, or held not to look so, by the servers.
"""

import re
from typing import Final

from channels.irc.isupport import Isupport
from channels.irc.wire import IrcLine

_SPLIT_REASON = re.compile(r"(?:\*|[\w*-]+)(?:\.[\w*-]+)+ (?:\*|[\w*-]+)(?:\.[\w*-]+)+", re.ASCII)
_MAX_SPLIT_USERS: Final = 20_000
_REJOIN_WINDOW_S: Final = 3600.0
"""Who comes back later than that has come anew."""


class NetsplitTracker:
    """Remembers whom a split took, so that their way back is quiet, too."""

    def __init__(self) -> None:
        self._gone: dict[str, tuple[str, float]] = {}

    def is_netsplit(self, line: IrcLine, isupport: Isupport, now_s: float, *, batched: bool) -> bool:
        """Whether nobody did anything; `batched`: the server said so itself."""
        nick = isupport.fold(line.source.nick)
        if line.command == "QUIT" and (batched or _SPLIT_REASON.fullmatch(line.param(0))):
            if len(self._gone) >= _MAX_SPLIT_USERS:
                del self._gone[next(iter(self._gone))]
            self._gone[nick] = (line.source.mask, now_s)
            return True
        if batched:
            return True
        if line.command in {"JOIN", "MODE"}:
            mask, gone_s = self._gone.get(nick, ("", 0.0))
            return bool(mask) and mask == line.source.mask and now_s - gone_s < _REJOIN_WINDOW_S
        if line.command in {"PRIVMSG", "PART", "QUIT", "NICK"}:
            self._gone.pop(nick, None)
        return False
