"""Younger IRCv3 on the scripted server: labels, history, multiline messages, client tags, MONITOR, WHOX."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.servers.ircd import Ircd
    from tests.servers.ircd_client import Client


def read_tags(line: str) -> tuple[dict[str, str], str]:
    """Tags (not unescaped) and the rest of a line from a client."""
    if not line.startswith("@"):
        return {}, line
    head, _, rest = line[1:].partition(" ")
    return {key: value for key, _, value in (item.partition("=") for item in head.split(";"))}, rest


@dataclass
class _Multiline:
    target: str
    tags: Mapping[str, str]
    lines: list[tuple[str, bool]] = field(default_factory=list)


class V3:
    """Of one server."""

    def __init__(self, ircd: "Ircd") -> None:
        self._ircd = ircd
        self._open: dict[tuple[int, str], _Multiline] = {}
        self._refused: set[tuple[int, str]] = set()
        self._numbers = 0

    def _name(self) -> str:
        self._numbers += 1
        return f"s{self._numbers}"

    def answer(self, client: "Client", tags: Mapping[str, str], command: str, params: list[str]) -> bool:
        """Deal with a line; False: it is not one of these."""
        key = (id(client), tags.get("batch", ""))
        if command == "BATCH":
            self._batch(client, tags, params)
        elif command in {"PRIVMSG", "NOTICE"} and key in self._open:
            self._open[key].lines.append((params[1], "draft/multiline-concat" in tags))
        elif command in {"PRIVMSG", "NOTICE"} and key in self._refused:
            pass
        elif command == "TAGMSG" and self._ircd.options.tagless:
            client.send(
                "FAIL TAGMSG NO :no"
                if self._ircd.options.tagless == "FAIL"
                else f":irc.test 421 {client.nick} TAGMSG :no"
            )
        elif command == "REDACT" and "draft/message-redaction" in client.caps:
            self._redact(client, *params[:2])
        elif command == "TAGMSG":
            shown = {name: value for name, value in tags.items() if name.startswith("+")}
            self._ircd.relay(params[0], f":{client.mask} TAGMSG {params[0]}", shown, client)
        elif command == "CHATHISTORY":
            self._history(client, params)
        elif command == "MONITOR" and params[0] == "+":
            taken = params[1] in self._ircd.options.taken
            client.numeric("730" if taken else "731", f":{params[1]}")
        elif command == "MONITOR":
            pass
        elif command == "INVITE":
            shown = {"account": client.account} if client.account else {}
            for other in self._ircd.here():
                if other.nick.lower() == params[0].lower():
                    other.send(f":{client.mask} INVITE {other.nick} {params[1]}", self._ircd.stamp(shown))
            client.numeric("341", *params[:2])
        elif command == "WHO":
            for nick, account in self._ircd.options.accounts.items():
                client.numeric("354", params[1].partition(",")[2], params[0], "u", "h", nick, "H", account, ":real")
            client.numeric("315", params[0], ":End of WHO")
        else:
            return False
        return True

    def _redact(self, client: "Client", target: str, message: str) -> None:
        """Everybody may take back what they said, and nothing else."""
        author = self._ircd.said.get(message)
        code = self._ircd.options.redact_fails or ("" if author == client.nick else "REDACT_FORBIDDEN")
        if author is None:
            code = "UNKNOWN_MSGID"
        if code:
            client.send(f"FAIL REDACT {code} {target} {message} :no")
            return
        del self._ircd.said[message]
        for other in self._ircd.rooms.get(target.lower(), []):
            if "draft/message-redaction" in other.caps and (other is not client or "echo-message" in client.caps):
                other.send(f":{client.mask} REDACT {target} {message}", {"time": "2026-01-01T00:00:00.000Z"})

    def _batch(self, client: "Client", tags: Mapping[str, str], params: list[str]) -> None:
        key = (id(client), params[0][1:])
        if params[0].startswith("+"):
            if self._ircd.options.multiline_fails:
                self._refused.add(key)
                label = {"label": tags["label"]} if "label" in tags else {}
                client.send(f"FAIL BATCH {self._ircd.options.multiline_fails} :no", label)
            else:
                self._open[key] = _Multiline(params[2], tags)
            return
        batch = self._open.pop(key, None)
        if batch is None:
            return
        target, name = batch.target, self._name()
        stamped = self._ircd.stamp({k: v for k, v in batch.tags.items() if k.startswith("+")})
        self._ircd.said[stamped["msgid"]] = client.nick
        label = {"label": batch.tags["label"]} if "label" in batch.tags else {}
        if target in self._ircd.options.muted:
            client.send(f":irc.test 404 {client.nick} {target} :Cannot send", label)
            return
        people = [one for one in self._ircd.here() if one.nick.lower() == target.lower()]
        if not target.startswith("#") and not people:
            client.send(f":irc.test 401 {client.nick} {target} :No such nick", label)
            return
        for other in self._ircd.rooms.get(target.lower(), []) if target.startswith("#") else [*people, client]:
            other.send(
                f":{client.mask} BATCH +{name} draft/multiline {target}", stamped | (label if other is client else {})
            )
            for text, concat in batch.lines:
                more = {"draft/multiline-concat": ""} if concat else {}
                other.send(f":{client.mask} PRIVMSG {target} :{text}", {"batch": name} | more)
            other.send(f":irc.test BATCH -{name}")

    def _history(self, client: "Client", params: list[str]) -> None:
        if self._ircd.options.history_deaf:
            return
        if self._ircd.options.history_fails:
            client.send(f"FAIL CHATHISTORY {self._ircd.options.history_fails} {' '.join(params[:2])} :no")
            return
        name, limit = self._name(), int(params[-1])
        if params[0] == "TARGETS":
            client.send(f":irc.test BATCH +{name} draft/chathistory-targets")
            for target in dict.fromkeys(t for t, _, _ in self._ircd.options.history if not t.startswith("#")):
                client.send(f"CHATHISTORY TARGETS {target} 2026-01-01T00:00:00.000Z", {"batch": name})
        else:
            target, reference = params[1], params[2]
            said = [(tags, line) for place, tags, line in self._ircd.options.history if place.lower() == target.lower()]
            kind, _, value = reference.partition("=")
            if kind == "timestamp":
                said = [(tags, line) for tags, line in said if tags["time"] > value]
            else:
                ids = [tags.get("msgid") for tags, _ in said]
                said = said[ids.index(value) + 1 :]
            client.send(f":irc.test BATCH +{name} chathistory {target}")
            for tags, line in said[:limit]:
                client.send(line, {"batch": name, **tags})
        client.send(f":irc.test BATCH -{name}")


def labelled(label: str, answers: list[bytes], name: str) -> bytes:
    """What was said to one command, as one answer to its label: ACK, one line, or a batch."""
    if not answers:
        return f"@label={label} :irc.test ACK\r\n".encode()
    if len(answers) == 1:
        return _with(f"label={label}", answers[0])
    head = f"@label={label} :irc.test BATCH +{name} labeled-response\r\n".encode()
    inner = b"".join(_with(f"batch={name}", answer) for answer in answers)
    return head + inner + f":irc.test BATCH -{name}\r\n".encode()


def _with(tag: str, line: bytes) -> bytes:
    return b"@" + tag.encode() + b";" + line[1:] if line.startswith(b"@") else b"@" + tag.encode() + b" " + line
