"""A real homeserver, Synapse with SQLite on loopback, and people on it who use the client-server
API."""

import hashlib
import hmac
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

SERVER = "localhost"
_START_S = 120.0
_LIMITS = [
    "rc_message",
    "rc_registration",
    "rc_joins_per_room",
    "rc_admin_redaction",
    "rc_3pid_validation",
    "rc_media_create",
    "rc_room_creation",
]
_LIMIT_GROUPS = {
    "rc_login": ("address", "account", "failed_attempts"),
    "rc_joins": ("local", "remote"),
    "rc_invites": ("per_room", "per_user", "per_issuer"),
}
_FREE = {"per_second": 10_000, "burst_count": 10_000}
_numbers = itertools.count(1)


class Homeserver:
    """Synapse in a process of its own. Can be stopped and started again with the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._config = folder / "homeserver.yaml"
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._secret = self._write_config()

    def _write_config(self) -> str:
        subprocess.run(
            [
                *(sys.executable, "-m", "synapse.app.homeserver", "--generate-config"),
                *("--server-name", SERVER, "--report-stats", "no", "-c", self._config),
            ],
            cwd=self._folder,
            check=True,
            capture_output=True,
        )
        config: dict[str, Any] = yaml.safe_load(self._config.read_text())
        resources = [{"names": ["client"], "compress": False}]
        listener = {"port": self.port, "type": "http", "bind_addresses": ["127.0.0.1"]}
        config |= {
            "listeners": [listener | {"tls": False, "x_forwarded": False, "resources": resources}],
            "bcrypt_rounds": 4,
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "allow_public_rooms_without_auth": True,
            **dict.fromkeys(_LIMITS, _FREE),
            **{group: dict.fromkeys(names, _FREE) for group, names in _LIMIT_GROUPS.items()},
        }
        self._config.write_text(yaml.safe_dump(config))
        secret: str = config["registration_shared_secret"]
        return secret

    def start(self) -> None:
        """Return once it answers."""
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "synapse.app.homeserver", "-c", self._config],
                cwd=self._folder,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    lines = (self._folder / "output").read_text(errors="replace")
                    raise RuntimeError(f"Synapse does not start: {lines[-4000:]}") from None
                time.sleep(0.1)

    def stop(self) -> None:
        """Return once its process has ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def person(self, name: str, *, admin: bool = False, password: str = "") -> "Person":
        """A new account, whose display name is `name`."""
        path = "/_synapse/admin/v1/register"
        nonce = request("GET", self.url + path)["nonce"]
        account, password = f"{name}{next(_numbers)}", password or os.urandom(8).hex()
        rights = "admin" if admin else "notadmin"
        mac = hmac.new(
            self._secret.encode(),
            f"{nonce}\0{account}\0{password}\0{rights}".encode(),
            hashlib.sha1,
        )
        made = request(
            "POST",
            self.url + path,
            {
                "nonce": nonce,
                "username": account,
                "displayname": name,
                "password": password,
                "admin": admin,
                "mac": mac.hexdigest(),
            },
        )
        return Person(self.url, made["user_id"], made["access_token"], password)


class Refused(Exception):
    """The homeserver refuses a request of the tests."""


def request(
    method: str, url: str, body: object = None, *, token: str = "", content_type: str = ""
) -> Any:
    """The answer of the homeserver: JSON, or bytes. Raises `Refused`."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data=data, method=method)
    asked.add_header("Content-Type", content_type or "application/json")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            found = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return json.loads(found) if is_json else found
    except urllib.error.HTTPError as error:
        raise Refused(f"{method} {url}: {error.code} {error.read().decode()}") from None


class Person:
    """Somebody with an account on the homeserver."""

    def __init__(self, url: str, user_id: str, token: str, password: str) -> None:
        self._url, self.id, self.token, self.password = url, user_id, token, password

    def ask(self, method: str, path: str, body: object = None, *, root: str = "v3") -> Any:
        """The answer to a request of theirs; `path` is already quoted."""
        base = f"{self._url}/_matrix/client/{root}" if root else self._url
        return request(method, f"{base}/{path}", body, token=self.token)

    def create_room(self, *, invite: tuple[str, ...] = (), **more: object) -> str:
        made: str = self.ask("POST", "createRoom", {"invite": invite, **more})["room_id"]
        return made

    def join(self, room: str) -> None:
        self.ask("POST", f"join/{_quote(room)}", {})

    def send(self, room: str, content: Mapping[str, object], kind: str = "m.room.message") -> str:
        """The id of the new event."""
        path = f"rooms/{_quote(room)}/send/{kind}/t{next(_numbers)}"
        sent: str = self.ask("PUT", path, content)["event_id"]
        return sent

    def say(self, room: str, text: str, **more: object) -> str:
        return self.send(room, {"msgtype": "m.text", "body": text, **more})

    def edit(self, room: str, event: str, text: str) -> str:
        new = {"msgtype": "m.text", "body": text}
        relation = {"rel_type": "m.replace", "event_id": event}
        return self.say(room, f"* {text}", **{"m.new_content": new, "m.relates_to": relation})

    def react(self, room: str, event: str, key: str) -> str:
        relation = {"rel_type": "m.annotation", "event_id": event, "key": key}
        return self.send(room, {"m.relates_to": relation}, "m.reaction")

    def reply(self, room: str, event: str, text: str) -> str:
        return self.say(room, text, **{"m.relates_to": {"m.in_reply_to": {"event_id": event}}})

    def redact(self, room: str, event: str) -> None:
        path = f"rooms/{_quote(room)}/redact/{_quote(event)}/t{next(_numbers)}"
        self.ask("PUT", path, {})

    def set_state(self, room: str, kind: str, content: object, key: str = "") -> None:
        self.ask("PUT", f"rooms/{_quote(room)}/state/{kind}/{_quote(key)}", content)

    def state(self, room: str, kind: str, key: str = "") -> Any:
        return self.ask("GET", f"rooms/{_quote(room)}/state/{kind}/{_quote(key)}")

    def upload(self, data: bytes, content_type: str) -> str:
        url = f"{self._url}/_matrix/media/v3/upload"
        sent = request("POST", url, data, token=self.token, content_type=content_type)
        return str(sent["content_uri"])

    def download(self, mxc: str) -> bytes:
        path = f"media/download/{mxc.removeprefix('mxc://')}"
        found = self.ask("GET", path, root="v1")
        return found if isinstance(found, bytes) else json.dumps(found).encode()

    def events(self, room: str) -> list[dict[str, Any]]:
        """All that they see of the room, oldest first."""
        path = f"rooms/{_quote(room)}/messages?dir=f&limit=1000"
        found: list[dict[str, Any]] = self.ask("GET", path)["chunk"]
        return found

    def messages(self, room: str, by: str) -> list[dict[str, Any]]:
        """What they are shown of the messages of somebody, oldest first, as the last edit left
        them."""
        shown = []
        for event in self.events(room):
            content = event["content"]
            relation = content.get("m.relates_to", {}).get("rel_type")
            if event["type"] != "m.room.message" or event["sender"] != by or not content:
                continue
            if relation != "m.replace":
                edit = event.get("unsigned", {}).get("m.relations", {}).get("m.replace")
                shown.append(edit["content"]["m.new_content"] if edit else content)
        return shown


def _quote(part: str) -> str:
    return urllib.parse.quote(part, safe="")
