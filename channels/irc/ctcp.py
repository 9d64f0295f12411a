"""Client-to-client requests: https://modern.ircdocs.horse/ctcp. Pure."""

from dataclasses import dataclass

from channels.irc.bucket import Bucket
from channels.irc.render import plain
from channels.irc.wire import Line, line

_BURST, _PER_S = 3, 0.05
_LONGEST = 100
NAME = "Reverie"


@dataclass(frozen=True, slots=True)
class Ctcp:
    """One request or ACTION."""

    command: str
    argument: str


def ctcp(text: str) -> Ctcp | None:
    """Read `text` as CTCP, ACTION included; None if it is not."""
    if not text.startswith("\x01"):
        return None
    command, _, argument = text[1:].partition("\x01")[0].partition(" ")
    return Ctcp(command.upper(), plain(argument))


class Ctcps:
    """Answers a few requests; a flood of them gets a few answers."""

    def __init__(self, contact: str | None, source: str, now_s: float) -> None:
        self._answers = {
            "VERSION": NAME + (f" ({contact})" if contact else ""),
            "SOURCE": source,
            "CLIENTINFO": "ACTION CLIENTINFO PING SOURCE VERSION",
        }
        self._bucket = Bucket(_BURST, _PER_S, now_s)

    def answer(self, said: Line, now_s: float) -> str | None:
        """What to say to a PRIVMSG; None: nothing."""
        request = ctcp(said.param(1))
        if request is None or not said.source.user:
            return None
        answers = self._answers | {"PING": request.argument[:_LONGEST]}
        answer = answers.get(request.command)
        if answer is None or self._bucket.wait_s(now_s) > 0:
            return None
        self._bucket.take()
        return line("NOTICE", said.source.nick, trailing=f"\x01{request.command} {answer}\x01")
