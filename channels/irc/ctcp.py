"""Client-to-client requests: https://modern.ircdocs.horse/ctcp. Pure."""

from dataclasses import dataclass

from channels.irc.bucket import IrcTokenBucket
from channels.irc.render import strip_formatting
from channels.irc.wire import IrcLine, format_line

_BURST, _PER_S = 3, 0.05
_MAX_PING_CHARS = 100
CLIENT_NAME = "Reverie"


@dataclass(frozen=True, slots=True)
class CtcpRequest:
    """One request or ACTION."""

    command: str
    argument: str


def parse_ctcp(text: str) -> CtcpRequest | None:
    """Read `text` as CTCP, ACTION included; None if it is not."""
    if not text.startswith("\x01"):
        return None
    command, _, argument = text[1:].partition("\x01")[0].partition(" ")
    return CtcpRequest(command.upper(), strip_formatting(argument))


class CtcpResponder:
    """Answers a few requests; a flood of them gets a few answers."""

    def __init__(self, contact: str | None, source: str, now_s: float) -> None:
        self._answers = {
            "VERSION": CLIENT_NAME + (f" ({contact})" if contact else ""),
            "SOURCE": source,
            "CLIENTINFO": "ACTION CLIENTINFO PING SOURCE VERSION",
        }
        self._bucket = IrcTokenBucket(_BURST, _PER_S, now_s)

    def answer(self, said: IrcLine, now_s: float) -> str | None:
        """What to say to a PRIVMSG; None: nothing."""
        request = parse_ctcp(said.param(1))
        if request is None or not said.source.user:
            return None
        answers = self._answers | {"PING": request.argument[:_MAX_PING_CHARS]}
        answer = answers.get(request.command)
        if answer is None or self._bucket.wait_s(now_s) > 0:
            return None
        self._bucket.take()
        return format_line("NOTICE", said.source.nick, trailing=f"\x01{request.command} {answer}\x01")
