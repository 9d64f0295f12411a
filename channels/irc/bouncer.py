"""Bouncers, which speak for themselves on our connection: ZNC (https://wiki.znc.in) and soju
(https://soju.im). Pure.

What their own nicks are told is a command line of theirs, so they are nobody to talk to. They stay
connected to us while they have no connection to the network: then the link is down.
"""

import re
from typing import Final

from channels.irc.wire import IrcLine

CAP_PREFIXES: Final = ("znc.in/", "soju.im/")
"""Beginnings of capabilities that only bouncers offer."""
NETWORK_CAPS: Final = frozenset({"soju.im/bouncer-networks", "soju.im/bouncer-networks-notify"})
"""https://codeberg.org/emersion/soju/src/branch/master/doc/ext/bouncer-networks.md: the state of
the network."""
_ZNC_HOST: Final = "znc.in"
_ZNC_SERVER: Final = "irc.znc.in"
_ZNC_STATUS_PREFIX: Final = "*"
"""ZNC's default StatusPrefix. No server allows it in a nick (RFC 2812 section 2.3.1)."""
_SOJU_SERVICE: Final = "bouncerserv"
_LOST = re.compile(
    r"Disconnected from IRC|.*you are not connected to IRC|disconnected from |failed "
    r"connecting/registering to "
)
"""What ZNC's status and soju's service say once they have lost the network, and of messages that
went nowhere."""
_STATE = re.compile(r"(?:^|;)state=(?!connected)")


def is_bouncer_nick(nick: str) -> bool:
    """Return whether a nick is one of a bouncer itself, such as `*status`."""
    return nick.startswith(_ZNC_STATUS_PREFIX) or nick.lower() == _SOJU_SERVICE


def is_from_bouncer(line: IrcLine) -> bool:
    """Return whether the bouncer itself says a line, in place of a person on the network."""
    return is_bouncer_nick(str(line.source.nick or "")) or line.source.host == _ZNC_HOST


def is_welcome_without_network(line: IrcLine) -> bool:
    """Return whether ZNC welcomes us itself, as it does without a connection to the network, whose
    welcome follows.
    """
    return line.command == "001" and line.source == _ZNC_SERVER


def says_network_is_lost(line: IrcLine, network: str) -> bool:
    """Return whether the bouncer reports that it has no connection to the network with this id of
    soju's, or ZNC's.
    """
    if line.command == "BOUNCER":
        is_ours = line.param(0).upper() == "NETWORK" and bool(network) and line.param(1) == network
        return is_ours and _STATE.search(line.param(2)) is not None
    is_told = line.command in {"PRIVMSG", "NOTICE"} and is_from_bouncer(line)
    return (
        is_told
        and is_bouncer_nick(str(line.source.nick))
        and _LOST.match(line.param(1)) is not None
    )
