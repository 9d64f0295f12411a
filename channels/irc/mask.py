"""How long our lines may be: what the server puts in front of them for others. Pure."""

from channels.irc.isupport import Isupport
from channels.irc.wire import IrcLine


class HostmaskTracker:
    """Our own `user@host` as others see it, learnt from echoes, JOIN, CHGHOST and 396."""

    def __init__(self) -> None:
        self._userhost = ""

    def feed(self, said: IrcLine, *, mine: bool) -> None:
        """Take in a line; `mine`: we are its source."""
        if said.command == "396":  # RPL_VISIBLEHOST: the host, on some servers user@host
            shown = said.param(1)
            self._userhost = shown if "@" in shown else self._userhost.partition("@")[0] + "@" + shown
        elif mine and said.command == "CHGHOST":
            self._userhost = f"{said.param(0)}@{said.param(1)}"
        elif mine and said.source.user and said.source.host:
            self._userhost = f"{said.source.user}@{said.source.host}"

    def max_body_bytes(self, target: str, nick_bytes: int, isupport: Isupport) -> int:
        """How much text fits a message to `target` once the server has put our mask in front.

        RFC 1459 section 2.3 counts the line as the receiver gets it. While the mask is unknown, the
        longest that it can be.
        """
        user, at, host = self._userhost.partition("@")
        known = len(self._userhost.encode()) if user and at and host else 0
        userhost = known or 1 + isupport.user_bytes + 1 + isupport.host_bytes
        frame = len(":! PRIVMSG  :\r\n") + nick_bytes + userhost + len(target.encode("utf-8", "replace"))
        return max(isupport.line_bytes - frame, 64)
