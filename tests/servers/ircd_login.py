"""How clients of the scripted IRC server get in: CAP, SASL, NICK, USER."""

from typing import TYPE_CHECKING

from tests.servers import ircd_sasl
from tests.servers.ircd_client import Client
from tests.servers.ircd_options import CERTIFIED

if TYPE_CHECKING:
    from tests.servers.ircd import Ircd


class Door:
    """Answers what a client says until it is welcomed, and its later NICKs."""

    def __init__(self, ircd: "Ircd") -> None:
        self._ircd = ircd

    def cap(self, client: Client, params: list[str]) -> None:
        if self._ircd.options.caps is None:
            client.send(":irc.test 421 CAP :Unknown command")
            return
        match params[0]:
            case "LS":
                client.negotiating = True
                names, lines = self._ircd.options.caps.split(), self._ircd.options.cap_lines
                size = -(-len(names) // lines) or 1
                chunks = [names[i : i + size] for i in range(0, len(names), size)] or [[]]
                for chunk in chunks:
                    star = "" if chunk is chunks[-1] and not self._ircd.options.cap_endless else "* "
                    client.send(f":irc.test CAP * LS {star}:{' '.join(chunk)}")
            case "REQ":
                self._request(client, params[1].split())
            case "END":
                client.negotiating = False
                self.register(client)
            case _:
                pass

    def _request(self, client: Client, names: list[str]) -> None:
        options = self._ircd.options
        offered = {name.partition("=")[0] for name in (options.caps or "").split()} - options.nak
        if not options.cap_deaf.isdisjoint(names):
            return
        if offered.issuperset(names):
            client.caps |= set(names)
            client.send(f":irc.test CAP * ACK :{' '.join(names)}")
            return
        named = {"all": names, "refused": [name for name in names if name not in offered], "none": []}
        client.send(f":irc.test CAP * NAK :{' '.join(named[options.nak_names])}")

    def authenticate(self, client: Client, payload: str) -> None:
        proof = self._ircd.options.scram_proof
        exchanges = {
            "PLAIN": lambda: ircd_sasl.plain(self._ircd.options.sasl),
            "EXTERNAL": lambda: ircd_sasl.external(CERTIFIED if client.certified else None),
            "SCRAM-SHA-256": lambda: ircd_sasl.scram(self._ircd.options.sasl, proof),
        }
        if payload == "*":
            client.login = None
            client.numeric("906", ":SASL authentication aborted")
        elif self._ircd.options.sasl_fails:
            client.numeric(
                self._ircd.options.sasl_fails,
                *(["PLAIN"] if self._ircd.options.sasl_fails == "908" else []),
                ":no SASL",
            )
        elif client.login is not None:
            client.login.feed(payload)
        elif payload in exchanges:
            client.login = ircd_sasl.Login(
                exchanges[payload](), client.send, lambda account: self._logged_in(client, account)
            )
        else:
            client.numeric("904", ":SASL authentication failed")

    def _logged_in(self, client: Client, account: str | None) -> None:
        client.login = None
        client.account = account or ""
        if account:
            client.numeric("900", "*", account, ":You are now logged in")
            client.numeric("903", ":SASL authentication successful")
        else:
            client.numeric("904", ":SASL authentication failed")

    def nick(self, client: Client, nick: str) -> None:
        if len(nick) > self._ircd.options.nick_length or nick in self._ircd.options.reserved:
            client.numeric("432", nick, ":Erroneous nickname")
            return
        if nick in self._ircd.options.taken or any(c.nick == nick for c in self._ircd.here() if c is not client):
            client.numeric("433", nick, ":Nickname is already in use")
            return
        if client.registered:
            told = {client} | {other for members in self._ircd.rooms.values() if client in members for other in members}
            for other in told:
                other.send(f":{client.mask} NICK {nick}")
        client.nick = nick
        self.register(client)

    def register(self, client: Client) -> None:
        if client.registered or client.negotiating or not (client.nick and client.user):
            return
        if self._ircd.options.password is not None and client.password != self._ircd.options.password:
            client.numeric("464", ":Password incorrect")
            client.send("ERROR :Bad password")
            return
        if self._ircd.options.banned:
            client.numeric("465", ":You are banned")
            client.send("ERROR :Closing link")
            return
        client.registered = True
        client.numeric("001", f":Welcome {client.mask}")
        client.numeric("005", *self._ircd.options.isupport, ":are supported")
        if self._ircd.options.motd:
            client.numeric("422", ":no MOTD")
