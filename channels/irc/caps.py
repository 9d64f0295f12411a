"""Which abilities the server offers, and which of them are on. Pure.

https://ircv3.net/specs/extensions/capability-negotiation
"""

from typing import Final, Literal

from channels.irc.wire import IrcLine, format_line

WANTED_CAPS: Final = frozenset(
    {
        "account-notify",
        "account-tag",
        "away-notify",
        "batch",
        "chghost",
        "draft/chathistory",
        "draft/event-playback",
        "draft/message-redaction",
        "draft/multiline",
        "echo-message",
        "extended-monitor",
        "extended-join",
        "invite-notify",
        "labeled-response",
        "message-tags",
        "multi-prefix",
        "server-time",
        "setname",
        "standard-replies",
        "userhost-in-names",
    }
)
"""Capabilities whose effects are handled here. `sts` must never be requested."""
_NEEDS_BATCH: Final = frozenset({"draft/chathistory", "draft/event-playback", "draft/multiline", "labeled-response"})
_MAX_OFFERED: Final = 500
CapProgress = Literal["listed", "settled", ""]
"""The list is whole; all requests are answered; neither."""


class CapNegotiation:
    """Fed with every CAP line."""

    def __init__(self) -> None:
        self.offered: dict[str, str] = {}
        """Name -> value."""
        self.enabled: set[str] = set()
        self._requested: set[str] = set()
        self._one_by_one: list[str] = []
        """Of these, what is asked for one by one, in that order."""
        self._is_listed = False

    def request(self, extra: frozenset[str]) -> list[str]:
        """Ask for what is wanted, offered and not on; `extra` is wanted, too."""
        wanted = ((WANTED_CAPS | extra) & self.offered.keys()) - self.enabled - self._requested
        if "batch" not in self.offered:
            wanted -= _NEEDS_BATCH
        self._requested |= wanted
        return [format_line("CAP", "REQ", trailing=" ".join(sorted(wanted)))] if wanted else []

    def feed(self, said: IrcLine, extra: frozenset[str]) -> tuple[CapProgress, list[str]]:
        """What it means, and what to send in answer."""
        names = said.param(-1).split() if len(said.params) > 2 else []  # noqa: PLR2004 - target, subcommand, list
        match said.param(1).upper():
            case "LS" if not self._is_listed:
                self._add_offered(names)
                self._is_listed = not (said.param(2) == "*" and len(said.params) > 3)  # noqa: PLR2004 - one more: the `*`
                return ("listed" if self._is_listed else ""), []
            case "ACK":
                known = {name for name in names if name.lstrip("-~=") in WANTED_CAPS | extra}
                self.enabled -= {name[1:] for name in known if name.startswith("-")}
                self.enabled |= {name.lstrip("~=") for name in known if not name.startswith("-")}
                return self._resolve({name.lstrip("-~=") for name in known}), []
            case "NAK":
                return self._handle_nak(set(names))
            case "NEW":
                self._add_offered(names)
                return "", self.request(extra)
            case "DEL":
                gone = {name.partition("=")[0] for name in names}
                self.enabled -= gone
                self._requested -= gone
                self.offered = {name: value for name, value in self.offered.items() if name not in gone}
                return "", []
            case _:
                return "", []

    def give_up(self) -> CapProgress:
        """The server keeps us waiting: what it has not listed or answered by now does not count."""
        if not self._is_listed and self.offered:
            self._is_listed = True
            return "listed"
        return self._resolve(set(self._requested))

    def _handle_nak(self, names: set[str]) -> tuple[CapProgress, list[str]]:
        """A request is granted whole or not at all, so ask one by one: whatever the server says was wrong in it."""
        if not self._one_by_one and len(self._requested) > 1:
            self._one_by_one = sorted(self._requested)
            return "", [format_line("CAP", "REQ", trailing=name) for name in self._one_by_one]
        return self._resolve((self._requested & names) or set(self._one_by_one[:1] or self._requested)), []

    def _add_offered(self, names: list[str]) -> None:
        for name, _, value in (item.partition("=") for item in names):
            if name in self.offered or len(self.offered) < _MAX_OFFERED:
                self.offered[name] = value

    def _resolve(self, names: set[str]) -> CapProgress:
        waiting = bool(self._requested)
        self._requested -= names
        self._one_by_one = [name for name in self._one_by_one if name in self._requested]
        return "settled" if waiting and not self._requested else ""
