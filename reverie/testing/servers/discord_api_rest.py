"""The HTTP API of the loopback Discord: the door (tokens, buckets, faults), and what it says of
everything behind it.

Sources, below https://discord.com/developers/docs: /reference, /topics/rate-limits,
/topics/opcodes-and-status-codes; /resources/message#create-reaction,
/resources/channel#modify-channel, /resources/guild#list-guild-members;
/interactions/receiving-and-responding, and of /interactions/application-commands the sections
`Application Command Object`, `Application Command Option Structure`, `Application Command Naming`
and `Registering a Command`.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import unquote

from aiohttp import web

from reverie.testing.servers.discord_api_world import (
    DM,
    EPHEMERAL,
    FORUM,
    NEWS,
    PERMISSIONS,
    POST,
    SLASH,
    TEXT,
    Json,
    when,
)

if TYPE_CHECKING:
    from reverie.testing.servers.discord_api import DiscordApi


Action = Literal[
    "500 before",  # refused by a broken server: nothing happened
    "500 after",  # it happened, and the answer is an error
    "502 before",
    "502 after",
    "reset before",  # the connection is cut before the request was looked at
    "reset after",  # it happened, and the connection is cut instead of an answer
    "401 before",
    "429",  # too fast, with `retry_after_s` and `scope`
    "banned",  # a 429 without a Via header, as Cloudflare answers
    "slow",  # the answer comes after `delay_s`
    "silent",  # it happened, and there is never an answer
]


Told = Literal["both", "body", "header", "nothing"]
"""Where a 429 says how long to wait."""


@dataclass(slots=True)
class Fault:
    """What becomes of the next `times` requests that match."""

    on: re.Pattern[str]
    """Matched against `POST /channels/1/messages`, from its start."""
    do: Action
    times: int
    retry_after_s: float
    scope: str
    delay_s: float
    told: Told


@dataclass(slots=True)
class Faults:
    """Set at any time."""

    rest: list[Fault] = field(default_factory=list)
    hold_acks: bool = False
    """Heartbeats are read and not acknowledged."""
    silent: bool = False
    """Connections are accepted, and nothing is ever said, not even HELLO."""
    no_sockets: bool = False
    """The WebSocket handshake is answered with 503."""
    close_after_ready: int | None = None
    """A close code after READY or RESUMED; 0 cuts without one."""
    invalid_sessions: int = 0
    """So many IDENTIFY and RESUME are answered with INVALID_SESSION."""
    resumable: bool = False
    """What that says of the session."""
    refused_resumes: int = 0
    """So many RESUME are answered by closing with `refusal`."""
    refusal: int = 4000
    """0 cuts without a code."""
    cut_replays: int = 0
    """So many RESUME are cut when the first half of what was missed is told."""
    late_guilds: bool = False
    """No GUILD_CREATE comes by itself; see `DiscordApi.tell_guilds`."""

    def add(
        self,
        on: str,
        do: Action,
        *,
        times: int = 1,
        retry_after_s: float = 0.2,
        scope: str = "user",
        delay_s: float = 0.2,
        told: Told = "both",
    ) -> Fault:
        """A fault of the HTTP API; earlier ones go first."""
        self.rest.append(Fault(re.compile(on), do, times, retry_after_s, scope, delay_s, told))
        return self.rest[-1]

    def due(self, call: str) -> Fault | None:
        """What becomes of this request; None: nothing."""
        for fault in self.rest:
            if fault.times > 0 and fault.on.match(call):
                fault.times -= 1
                return fault
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the server is set up."""

    token: str = "MTk4.loop.back-secret"
    message_content: bool = True
    """Whether the operator has allowed the privileged intent."""
    members: bool = False
    """The same for the intent to list members."""
    heartbeat_s: float = 41.25
    heartbeat_grace_s: float | None = None
    """Longer than this without a heartbeat, and the connection is closed with 4009; None: three
    intervals."""
    compress: bool = True
    """Speak zlib-stream to who asks for it; else plain text, which clients accept too."""
    resume_url: str = ""
    """What READY tells as the address for resuming; empty: this server's."""
    identifies_per_day: int = 1000
    limits: tuple[tuple[str, int, float], ...] = ((r".*", 50, 1.0),)
    """Pattern on `POST /channels/1/messages`, requests, per seconds; the first that matches makes
    the bucket."""
    json_type: str = "application/json"
    """What the HTTP API says of its answers; clients compare it as a whole."""
    nonce_s: float = 180.0
    """How long an enforced nonce is remembered (`the past few minutes`)."""
    interaction_s: float = 3.0
    """For the first answer to an interaction."""


class Refused(Exception):
    """An error of the API."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def refuse(status: int, code: int, message: str) -> NoReturn:
    raise Refused(status, code, message)


@dataclass(slots=True, kw_only=True)
class Call:
    """One request, as it came."""

    method: str
    path: str
    """Below `/api/v10`, e.g. `/channels/1/messages`."""
    query: dict[str, str]
    body: Json
    files: dict[str, bytes]
    kinds: dict[str, str]
    """The files' types, by name."""
    at_s: float
    """Monotonic."""
    status: int = 0
    """As answered; 0: not (yet), or the connection was cut."""

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


Handler = Callable[[Call, re.Match[str]], object]
"""Answers with JSON, or None for 204."""


class Rest:
    """The door."""

    def __init__(self, api: "DiscordApi") -> None:
        self.api = api
        self.routes: list[tuple[re.Pattern[str], Handler]] = []
        self._used: dict[str, tuple[float, int]] = {}

    def route(self, pattern: str, handler: Handler) -> None:
        """`pattern` matches a whole `Call.line`."""
        self.routes.append((re.compile(pattern), handler))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Every request comes through here."""
        call = await _read(request)
        self.api.calls.append(call)
        self.api.changed()
        fault = self.api.faults.due(call.line)
        if fault is not None and fault.do.endswith("before"):
            return self._broken(request, fault, call)
        if fault is not None and fault.do in {"429", "banned"}:
            return self._limited(
                call, fault.retry_after_s, fault.scope, via=fault.do == "429", told=fault.told
            )
        wait_s, headers = self._bucket(call)
        if wait_s > 0:
            return self._limited(call, wait_s, "user", headers=headers)
        status, answer = self._answer(request, call)
        if fault is not None and fault.do == "slow":
            await asyncio.sleep(fault.delay_s)
        if fault is not None and fault.do == "silent":
            self.api.changed()
            await asyncio.Event().wait()
        if fault is not None and fault.do.endswith("after"):
            return self._broken(request, fault, call)
        return self._respond(call, status, answer, headers)

    def _answer(self, request: web.Request, call: Call) -> tuple[int, object]:
        try:
            open_to_all = re.match(r"/(webhooks|interactions)/", call.path)
            if (
                not open_to_all
                and request.headers.get("Authorization") != f"Bot {self.api.options.token}"
            ):
                refuse(401, 0, "401: Unauthorized")
            for pattern, handler in self.routes:
                if found := pattern.fullmatch(call.line):
                    answer = handler(call, found)
                    return (204 if answer is None else 200), answer
            refuse(404, 0, "404: Not Found")
        except Refused as error:
            return error.status, {"message": error.message, "code": error.code}

    def _respond(
        self, call: Call, status: int, answer: object, headers: dict[str, str]
    ) -> web.Response:
        call.status = status
        self.api.changed()
        if answer is None:
            return web.Response(status=204, headers=headers)
        body = json.dumps(answer).encode()
        return web.Response(
            status=status, body=body, headers=headers | {"Content-Type": self.api.options.json_type}
        )

    def _broken(self, request: web.Request, fault: Fault, call: Call) -> web.Response:
        if fault.do.startswith("reset"):
            assert request.transport is not None
            request.transport.abort()
            self.api.changed()
            return web.Response()
        call.status = int(fault.do[:3])
        self.api.changed()
        return web.Response(status=call.status, text="upstream error")

    def _limited(
        self,
        call: Call,
        wait_s: float,
        scope: str,
        *,
        headers: dict[str, str] | None = None,
        via: bool = True,
        told: Told = "both",
    ) -> web.Response:
        call.status = 429
        body: Json = {"message": "You are being rate limited.", "global": scope == "global"}
        body |= {"retry_after": wait_s} if told in {"both", "body"} else {}
        more = {"X-RateLimit-Scope": scope, "Content-Type": self.api.options.json_type}
        more |= {"Retry-After": str(max(1, round(wait_s)))} if told in {"both", "header"} else {}
        more |= {"Via": "1.1 google"} if via else {}
        more |= {"X-RateLimit-Global": "true"} if scope == "global" else {}
        self.api.changed()
        return web.Response(
            status=429, body=json.dumps(body).encode(), headers=(headers or {}) | more
        )

    def _bucket(self, call: Call) -> tuple[float, dict[str, str]]:
        """Seconds to wait (0: go), and the headers."""
        shape = re.sub(r"(?<=/messages/)\d+|(?<=/reactions/).*", "x", call.line)
        limit, window_s = next(
            (n, s) for pattern, n, s in self.api.options.limits if re.match(pattern, call.line)
        )
        now_s = time.monotonic()
        begun_s, used = self._used.get(shape, (now_s, 0))
        if now_s - begun_s >= window_s:
            begun_s, used = now_s, 0
        left_s = begun_s + window_s - now_s
        if re.match(r"\w+ /(interactions|webhooks)/", call.line):
            return 0.0, {}
        headers = {
            "X-RateLimit-Limit": str(limit),
            "X-RateLimit-Remaining": str(max(0, limit - used - 1)),
            "X-RateLimit-Reset": f"{time.time() + left_s:.3f}",
            "X-RateLimit-Reset-After": f"{left_s:.3f}",
            "X-RateLimit-Bucket": f"{hash(re.sub(r'[0-9]+', 'n', shape)) & 0xFFFFFFFF:08x}",
        }
        if used >= limit:
            return left_s, headers
        self._used[shape] = (begun_s, used + 1)
        return 0.0, headers


async def _read(request: web.Request) -> Call:
    body: Json = {}
    files: dict[str, bytes] = {}
    kinds: dict[str, str] = {}
    if request.content_type.startswith("multipart/"):
        async for field in await request.multipart():
            data = await field.read()  # type: ignore[union-attr] # no nested multiparts here
            if field.name == "payload_json":  # type: ignore[union-attr] # the same
                body = json.loads(data)
            elif re.fullmatch(r"files\[\d\]", field.name or ""):  # type: ignore[union-attr] # the same
                name = field.filename or "file"  # type: ignore[union-attr] # the same
                files[name], kinds[name] = bytes(data), field.headers.get("Content-Type", "")  # type: ignore[union-attr] # the same
    elif raw := await request.read():
        loaded = json.loads(raw)
        body = loaded if isinstance(loaded, dict) else {"": loaded}
    path = "/" + request.match_info["tail"]
    query = dict(request.query)
    return Call(
        method=request.method,
        path=path,
        query=query,
        body=body,
        files=files,
        kinds=kinds,
        at_s=time.monotonic(),
    )


NAME = re.compile(r"[-_'\w]{1,32}")
SUB, GROUP, STRING = 1, 2, 3
TYPES = range(1, 12)
_COMMAND_FIELDS = (
    "id type name name_localizations description description_localizations options "
    "default_member_permissions "
    "dm_permission contexts integration_types handler"
)
COMMAND_FIELDS = frozenset(_COMMAND_FIELDS.split())
"""https://github.com/discord/discord-api-spec, ApplicationCommandUpdateRequest."""
MOST_COMMANDS, MOST_OPTIONS, MOST_CHOICES, CHARACTERS = 100, 25, 25, 8000


def wrong(table: Sequence[dict[str, Any]]) -> list[str]:
    """Everything that it would refuse."""
    found = [f"{len(table)} commands"] if len(table) > MOST_COMMANDS else []
    names = [command["name"] for command in table]
    found += [f"two commands {name}" for name in sorted(set(names)) if names.count(name) > 1]
    for command in table:
        found += [
            f"{command['name']}: no field {name!r}"
            for name in sorted(set(command) - COMMAND_FIELDS)
        ]
        if command.get("type", 1) == MESSAGE_MENU:  # no description and no options
            odd = {"description", "options"} & set(command) or not 1 <= len(command["name"]) <= 32
            found += [f"menu {command['name']}"] if odd else []
            continue
        found += [f"/{command['name']}: {trouble}" for trouble in _command(command)]
    return found


def _command(command: dict[str, Any]) -> Iterator[str]:
    yield from _named(command)
    yield from _options(command.get("options", []), top=True)
    if not set(command.get("contexts", [])) <= {0, 1, 2}:
        yield "contexts"
    if (length := _length(command)) > CHARACTERS:
        yield f"{length} characters"


def _named(thing: dict[str, Any]) -> Iterator[str]:
    name, told = thing.get("name", ""), thing.get("description", "")
    if not NAME.fullmatch(name) or name != name.lower():
        yield f"name {name!r}"
    if not 1 <= len(told) <= 100:
        yield f"description of {name!r}"


def _options(options: Sequence[dict[str, Any]], *, top: bool) -> Iterator[str]:
    names = [option.get("name") for option in options]
    if len(options) > MOST_OPTIONS or len(set(names)) != len(names):
        yield f"options {names}"
    nested = [option.get("type") in {SUB, GROUP} for option in options]
    if any(nested) and (not top or not all(nested)):
        yield "subs beside options, or too deep"
    required = [bool(option.get("required")) for option in options]
    if required != sorted(required, reverse=True):
        yield "an optional option in front of a required one"
    for option in options:
        yield from _named(option)
        yield from _option(option)


def _option(option: dict[str, Any]) -> Iterator[str]:
    name, choices = option.get("name"), option.get("choices") or []
    if option.get("type") not in TYPES:
        yield f"type of {name!r}"
    if len(choices) > MOST_CHOICES or (choices and option.get("autocomplete")):
        yield f"choices of {name!r}"
    for choice in choices:
        if not 1 <= len(choice["name"]) <= 100 or not 1 <= len(str(choice["value"])) <= 100:
            yield f"choice {choice!r}"
    if option.get("type") == SUB:
        if "required" in option or "autocomplete" in option or choices:
            yield f"{name!r} is a sub, and has what options have"
        yield from _options(option.get("options", []), top=False)


def _length(thing: dict[str, Any]) -> int:
    """`name`, `description` and `value` of a command, its options and their choices together."""
    own = (
        len(thing.get("name", ""))
        + len(thing.get("description", ""))
        + len(str(thing.get("value", "")))
    )
    return own + sum(map(_length, [*thing.get("options", []), *thing.get("choices", [])]))


CREATE_PUBLIC_THREADS, SEND_MESSAGES_IN_THREADS = 1 << 35, 1 << 38
CONTENT_CHARACTERS = 2000
MAX_FILE_BYTES = 10 * 2**20


class Talk:
    """Handlers; each is named by what it does."""

    def __init__(self, api: "DiscordApi", rest: Rest) -> None:
        self.api, self.world = api, api.world
        self._nonces: dict[str, tuple[float, Json]] = {}
        channel, message = r"/channels/(\d+)", r"/channels/(\d+)/messages/(\d+)"
        rest.route(r"GET /users/@me", lambda _, __: self.world.users[self.world.bot])
        rest.route(
            r"GET /users/@me/guilds", lambda _, __: [*map(self._joined, self.world.guilds.values())]
        )
        rest.route(
            r"GET /users/(\d+)",
            lambda _, at: self.world.users.get(at[1]) or refuse(404, 10013, "Unknown User"),
        )
        rest.route(r"GET /(oauth2/)?applications/@me", lambda _, __: self._application())
        rest.route(r"GET /gateway", lambda _, __: {"url": api.gateway_url})
        rest.route(r"GET /gateway/bot", lambda _, __: self._gateway())
        rest.route(r"POST /users/@me/channels", self._open_dm)
        rest.route(f"GET {channel}", lambda _, at: self._shown(at[1]))
        rest.route(f"POST {channel}/typing", self._typing)
        rest.route(f"GET {channel}/messages", self._history)
        rest.route(f"GET {message}", lambda _, at: self.message(at[1], at[2]))
        rest.route(f"POST {channel}/messages", self._say)
        rest.route(f"PATCH {message}", self._edit)
        rest.route(f"DELETE {message}", self._delete)
        rest.route(f"POST {message}/threads", self._start_thread)
        rest.route(f"POST {channel}/threads", self._start_thread)

    def _application(self) -> Json:
        bot = self.world.users[self.world.bot]
        flags = 1 << 19 if self.api.options.message_content else 0
        made = {
            "id": bot["id"],
            "name": bot["username"],
            "icon": None,
            "description": "",
            "bot_public": True,
        }
        return made | {
            "bot_require_code_grant": False,
            "flags": flags,
            "owner": self.world.users[self.api.ann],
            "team": None,
            "verify_key": "0",
        }

    def _joined(self, guild: Json) -> Json:
        """https://discord.com/developers/docs/resources/user#get-current-user-guilds"""
        is_owner, held = guild["owner_id"] == self.world.bot, self.world.permissions(guild["id"])
        made = {
            "id": guild["id"],
            "name": guild["name"],
            "icon": None,
            "banner": None,
            "owner": is_owner,
        }
        return made | {
            "permissions": str((1 << 53) - 1 if is_owner else held),
            "features": guild["features"],
        }

    def _gateway(self) -> Json:
        options = self.api.options
        left = max(0, options.identifies_per_day - len(self.api.identifies))
        limit = {"total": options.identifies_per_day, "remaining": left, "reset_after": 86_400_000}
        limit["max_concurrency"] = 1
        return {"url": self.api.gateway_url, "shards": 1, "session_start_limit": limit}

    def channel(self, number: str) -> Json:
        """A channel that the bot can see."""
        if number in self.world.hidden:
            refuse(403, 50001, "Missing Access")
        return self.world.channels.get(number) or refuse(404, 10003, "Unknown Channel")

    def _shown(self, number: str) -> Json:
        """A channel with what the bot must not do there."""
        channel = self.channel(number)
        if number not in self.world.muted:
            return channel
        denied = {"id": self.world.bot, "type": 1, "allow": "0", "deny": str(1 << 11 | 1 << 38)}
        given = channel.get("permission_overwrites", [])
        return channel | {"permission_overwrites": [*given, denied]}

    def message(self, channel: str, number: str) -> Json:
        self.channel(channel)
        return self.world.messages[channel].get(number) or refuse(404, 10008, "Unknown Message")

    def _open_dm(self, call: Call, _: re.Match[str]) -> Json:
        user = str(call.body.get("recipient_id"))
        if user not in self.world.users:
            refuse(400, 50033, "Invalid Recipient(s)")
        return self.channel(self.world.dm(user))

    def _typing(self, _: Call, at: re.Match[str]) -> None:
        self.channel(at[1])
        self.api.typings.append(at[1])

    def _history(self, call: Call, at: re.Match[str]) -> list[Json]:
        self.channel(at[1])
        if at[1] in self.world.unread:
            refuse(403, 50001, "Missing Access")
        query = call.query
        limit = int(query.get("limit", "50"))
        if not 1 <= limit <= 100:
            refuse(400, 50035, "Invalid Form Body")
        after, before = (
            int(query[name]) if name in query else None for name in ("after", "before")
        )
        return self.world.history(at[1], limit=limit, after=after, before=before)

    def check(self, body: Json, files: dict[str, bytes]) -> str:
        """The content of a message that the bot wants to show."""
        content = body.get("content") or ""
        if (
            not content.strip()
            and not files
            and not body.get("embeds")
            and not body.get("components")
        ):
            refuse(400, 50006, "Cannot send an empty message")
        if len(content) > CONTENT_CHARACTERS:
            refuse(400, 50035, "Invalid Form Body")
        if body.get("allowed_mentions", {}).get("parse") != []:
            self.api.offences.append(f"mentions are allowed: {body}")
        if not _are_buttons(body.get("components", [])):
            refuse(400, 50035, "Invalid Form Body")
        return str(content)

    def attached(self, call: Call) -> list[Json]:
        """The files that came with it, on the CDN."""
        if sum(map(len, call.files.values())) > MAX_FILE_BYTES:
            refuse(413, 40005, "Request entity too large")
        return [self.api.keep(name, data, call.kinds[name]) for name, data in call.files.items()]

    def _writable(self, channel: Json) -> None:
        if channel["id"] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        if channel["type"] == FORUM:
            refuse(400, 50008, "Cannot send messages in a non-text channel")
        thread = channel.get("thread_metadata")
        if thread and thread["locked"]:
            refuse(403, 160005, "Thread is locked")
        if channel["type"] == DM and channel["recipients"][0].get("closed"):
            refuse(403, 50007, "Cannot send messages to this user")
        if thread and not self.world.may(channel["guild_id"], SEND_MESSAGES_IN_THREADS):
            refuse(403, 50013, "Missing Permissions")
        if thread and thread["archived"]:
            thread["archived"] = False
            self.api.dispatch("THREAD_UPDATE", channel)

    def _say(self, call: Call, at: re.Match[str]) -> Json:
        channel, body = self.channel(at[1]), call.body
        self._writable(channel)
        content, nonce = self.check(body, call.files), str(body.get("nonce") or "")
        if len(nonce) > 25:
            refuse(400, 50035, "Invalid Form Body")
        if any(word in content for word in self.world.banned_words):
            refuse(400, 200000, "Message was blocked by automatic moderation")
        known = self._nonces.get(nonce)
        if (
            nonce
            and body.get("enforce_nonce")
            and known
            and time.monotonic() - known[0] < self.api.options.nonce_s
        ):
            return known[1]
        more: Json = {"flags": body.get("flags", 0), "nonce": body.get("nonce")}
        reference = body.get("message_reference")
        if reference:
            if at[1] in self.world.unread:
                refuse(400, 160002, "Cannot reply without permission to read message history")
            reply = self.api.replying(at[1], str(reference["message_id"]))
            if reply is None and reference.get("fail_if_not_exists", True):
                refuse(400, 50035, "Unknown message")
            more |= reply or {}
        more |= {"attachments": self.attached(call), "components": body.get("components", [])}
        made = self.world.add_message(at[1], self.world.bot, content, **more)
        if nonce:
            self._nonces[nonce] = (time.monotonic(), made)
        self.api.show(made)
        return made

    def _edit(self, call: Call, at: re.Match[str]) -> Json:
        message = self.message(at[1], at[2])
        if message["author"]["id"] != self.world.bot:
            refuse(403, 50005, "Cannot edit a message authored by another user")
        if self.channel(at[1]).get("thread_metadata", {}).get("archived"):
            refuse(400, 50083, "Thread is archived")
        content = self.check(call.body, {})
        if "components" in call.body:
            message["components"] = call.body["components"]
        self.api.edits(at[1], at[2], content)
        return message

    def _delete(self, _: Call, at: re.Match[str]) -> None:
        message = self.message(at[1], at[2])
        if message["author"]["id"] != self.world.bot and at[1] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        self.api.deletes(at[1], at[2])

    def _start_thread(self, call: Call, at: re.Match[str]) -> Json:
        """https://discord.com/developers/docs/resources/channel#start-thread-from-message"""
        parent, name = self.channel(at[1]), call.body.get("name")
        message = self.message(at[1], at[2]) if at.re.groups > 1 else None
        if parent["type"] not in {TEXT, NEWS}:
            refuse(400, 50024, "Cannot execute action on this channel type")
        if not isinstance(name, str) or not 1 <= len(name) <= NAME_CHARACTERS:
            refuse(400, 50035, "Invalid Form Body")
        if call.body.get("auto_archive_duration", 1440) not in {60, 1440, 4320, 10080}:
            refuse(400, 50035, "Invalid Form Body")
        if parent["id"] in self.world.muted | self.world.threadless or not self.world.may(
            parent["guild_id"], CREATE_PUBLIC_THREADS
        ):
            refuse(403, 50013, "Missing Permissions")
        if message and message["id"] in self.world.channels:
            refuse(400, 160004, "A thread has already been created for this message")
        return self.api.starts_thread(parent["id"], name, self.world.bot, message)


KNOWN = frozenset({"👍", "🔥", "🎉", "❤️", "☃️", "👩‍💻", "🇩🇪", "1️⃣", "😀"})
"""Of the emoji that Discord knows, each in its one spelling."""
MOST_REACTIONS = 20
TOPIC_CHARACTERS, NAME_CHARACTERS = 1024, 100


class Acts:
    """Handlers; each is named by what it does."""

    def __init__(self, api: "DiscordApi", rest: Rest) -> None:
        self.api, self.world = api, api.world
        channel, message = r"/channels/(\d+)", r"/channels/(\d+)/messages/(\d+)"
        rest.route(f"(PUT|DELETE) {message}/reactions/([^/]+)/@me", self._react)
        rest.route(f"PATCH {channel}", self._modify)
        rest.route(f"GET {channel}/thread-members", self._in_thread)
        rest.route(f"GET {channel}/thread-members/(\\d+)", self._thread_member)
        rest.route(f"DELETE {channel}/thread-members/@me", self._leave)
        rest.route(r"GET /guilds/(\d+)/members", self._members)
        rest.route(r"GET /guilds/(\d+)/members/(\d+)", self._member)
        rest.route(r"GET /guilds/(\d+)/emojis", lambda _, at: self._guild(at[1])["emojis"])
        rest.route(r"GET /guilds/(\d+)", self._counted)

    def _guild(self, number: str) -> Json:
        return self.world.guilds.get(number) or refuse(404, 10004, "Unknown Guild")

    def _react(self, call: Call, at: re.Match[str]) -> None:
        emoji, me, added = unquote(at[4]), self.world.bot, call.method == "PUT"
        message = self.api.talk.message(at[2], at[3])
        custom = {
            f"{one['name']}:{one['id']}"
            for guild in self.world.guilds.values()
            for one in guild["emojis"]
        }
        if emoji not in KNOWN | custom:
            refuse(400, 10014, "Unknown Emoji")
        there: list[str] = message.setdefault("bots_reactions", [])
        if added is (emoji in there):
            return
        if added and at[2] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        if added and len(there) >= MOST_REACTIONS:
            refuse(400, 30010, "Maximum number of reactions reached (20)")
        (there.append if added else there.remove)(emoji)
        self.api.reacts(at[2], at[3], me, emoji, added=added)

    def _modify(self, call: Call, at: re.Match[str]) -> Json:
        channel, body = self.api.talk.channel(at[1]), call.body
        if channel["type"] == DM:
            refuse(403, 50003, "Cannot execute action on this channel type")
        if channel["id"] in self.world.muted:
            refuse(403, 50013, "Missing Permissions")
        if (
            len(body.get("topic") or "") > TOPIC_CHARACTERS
            or not 1 <= len(body.get("name", "x")) <= NAME_CHARACTERS
        ):
            refuse(400, 50035, "Invalid Form Body")
        thread = channel["type"] == POST
        if thread and "topic" in body:
            refuse(400, 50035, "Invalid Form Body")
        if thread and "name" in body and channel["thread_metadata"]["archived"]:
            refuse(400, 50083, "Thread is archived")
        if thread and channel["thread_metadata"]["locked"]:  # it needs Manage Threads
            refuse(403, 50013, "Missing Permissions")
        if thread:
            channel["thread_metadata"] |= {
                name: body[name] for name in ("archived", "locked") if name in body
            }
        channel |= {name: body[name] for name in ("topic", "name") if name in body}
        self.api.dispatch("THREAD_UPDATE" if thread else "CHANNEL_UPDATE", channel)
        return channel

    def _members(self, call: Call, at: re.Match[str]) -> list[Json]:
        self._guild(at[1])
        return self._listed(call, sorted(self.world.users, key=int), 1000)

    def _member(self, _: Call, at: re.Match[str]) -> Json:
        """https://discord.com/developers/docs/resources/guild#get-guild-member"""
        self._guild(at[1])
        if at[2] not in self.world.users:
            refuse(404, 10013, "Unknown User")
        if at[2] in self.world.gone:
            refuse(404, 10007, "Unknown Member")
        return self.world.member(at[2]) | {"user": self.world.users[at[2]]}

    def _thread_member(self, _: Call, at: re.Match[str]) -> Json:
        """https://discord.com/developers/docs/resources/channel#get-thread-member"""
        thread = self.api.talk.channel(at[1])
        if (thread["id"], at[2]) not in self.world.added:
            refuse(404, 10007, "Unknown Member")
        return {
            "id": thread["id"],
            "user_id": at[2],
            "flags": 0,
            "join_timestamp": when(thread["id"]),
        }

    def _in_thread(self, call: Call, at: re.Match[str]) -> list[Json]:
        channel = self.api.talk.channel(at[1])
        said = {message["author"]["id"] for message in self.world.messages[channel["id"]].values()}
        found = self._listed(call, sorted(said | {channel["owner_id"]}, key=int), 100)
        return [
            {"id": channel["id"], "user_id": one["user"]["id"], "flags": 0, "member": one}
            for one in found
        ]

    def _leave(self, _: Call, at: re.Match[str]) -> None:
        """https://discord.com/developers/docs/resources/channel#leave-thread"""
        thread = self.api.talk.channel(at[1])
        if thread["type"] != POST:
            refuse(400, 50024, "Cannot execute action on this channel type")
        if thread["thread_metadata"]["archived"]:
            refuse(400, 50083, "Thread is archived")
        self.world.left.add(thread["id"])

    def _listed(self, call: Call, users: list[str], most: int) -> list[Json]:
        if not self.api.options.members:
            refuse(403, 50001, "Missing Access")
        limit = int(call.query.get("limit", "1"))
        if not 1 <= limit <= most:
            refuse(400, 50035, "Invalid Form Body")
        return [
            self.world.member(user) | {"user": self.world.users[user]} for user in users[:limit]
        ]

    def _counted(self, call: Call, at: re.Match[str]) -> Json:
        more = (
            {"approximate_member_count": len(self.world.users)}
            if call.query.get("with_counts") == "true"
            else {}
        )
        return self._guild(at[1]) | more


MOST_ROWS, MOST_BUTTONS, BUTTON_LABEL_CHARACTERS, BUTTON_ID_CHARACTERS = 5, 5, 80, 100
LOADING = 1 << 7
"""`is thinking...`: seen, but nothing was said yet."""
MESSAGE, DEFERRED, UNCHANGED, CHOICES, MODAL = 4, 5, 6, 8, 9
COMMAND, COMPONENT, TYPING, FORM = 2, 3, 4, 5
MESSAGE_MENU = 3
"""Type of a command in the menu of a message."""
ANSWERS = {
    COMMAND: {MESSAGE, DEFERRED, MODAL},
    COMPONENT: {MESSAGE, DEFERRED, UNCHANGED},
    TYPING: {CHOICES},
}
"""Which responses an interaction may have, as far as they matter here."""
ANSWERS[FORM] = ANSWERS[COMPONENT]
TOKEN_S = 15 * 60


@dataclass(slots=True, kw_only=True)
class Interaction:
    """One slash command that somebody gave, or something else that they did, and what came of
    it.
    """

    id: str
    token: str
    channel: str
    user: str
    made_s: float
    """Monotonic; move it back to let the token expire."""
    kind: int = COMMAND
    choices: list[str] | None = None
    """What was suggested."""
    form: Json = field(default_factory=dict)
    """The form that was shown."""
    told: Json = field(default_factory=dict)
    """As the gateway told it."""
    answered: int | None = None
    """Type of the first response."""
    ephemeral: bool = False
    messages: list[str] = field(default_factory=list)
    """Ids of all responses, the original one first."""


def _are_buttons(rows: object) -> bool:
    """Whether Discord takes these rows of buttons:
    https://discord.com/developers/docs/components/reference#button.
    """
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        return False
    buttons = list[Json]()
    for row in rows:
        if row.get("type") != 1 or not 1 <= len(row.get("components", [])) <= MOST_BUTTONS:
            return False
        buttons += row["components"]
    ids = [button.get("custom_id", "") for button in buttons]
    return len(set(ids)) == len(ids) and all(
        button.get("type") == 2
        and button.get("style") in {1, 2, 3, 4}
        and 1 <= len(button.get("label", "")) <= BUTTON_LABEL_CHARACTERS
        and 1 <= len(button.get("custom_id", "")) <= BUTTON_ID_CHARACTERS
        for button in buttons
    )


def _is_form(data: Json) -> bool:
    """Whether Discord takes this form:
    https://discord.com/developers/docs/components/reference#label.
    """
    label = data["components"][0]
    text = label["component"]
    return (
        len(data["components"]) == 1
        and 1 <= len(data["custom_id"]) <= 100
        and 1 <= len(data["title"]) <= 45
        and (label["type"], text["type"]) == (18, 4)
        and 1 <= len(label["label"]) <= 45
        and 1 <= len(text["custom_id"]) <= 100
        and text["style"] in {1, 2}
        and 1 <= text.get("max_length", 4000) <= 4000
        and len(text.get("placeholder", "")) <= 100
    )


class Commands:
    """Handlers; each is named by what it does."""

    def __init__(self, api: "DiscordApi", rest: Rest) -> None:
        self.api, self.world = api, api.world
        self.table: dict[str, list[Json]] = {}
        """`global` or a guild -> commands."""
        self.given: dict[str, Interaction] = {}
        """Token -> interaction."""
        self.locales: dict[str, str] = {}
        """Person -> language of their client. The others' is English."""
        commands, hook = r"/applications/\d+/(?:guilds/(\d+)/)?commands", r"/webhooks/\d+/([^/]+)"
        rest.route(f"PUT {commands}", self._overwrite)
        rest.route(r"POST /interactions/(\d+)/([^/]+)/callback", self._callback)
        rest.route(f"POST {hook}", self._follow_up)
        rest.route(rf"PATCH {hook}/messages/(@original|\d+)", self._edit)

    def _overwrite(self, call: Call, at: re.Match[str]) -> list[Json]:
        made = []
        if wrong(call.body[""]):
            refuse(400, 50035, "Invalid Form Body")
        for command in call.body[""]:
            number = self.world.ids.new()
            more = {
                "id": number,
                "application_id": self.world.bot,
                "version": number,
                "type": command.get("type", 1),
            }
            more |= {"guild_id": at[1]} if at[1] else {}
            made.append(
                {
                    "default_member_permissions": None,
                    "nsfw": False,
                    "description": "",
                    "options": [],
                }
                | command
                | more
            )
        self.table[at[1] or "global"] = made
        self.api.changed()
        return made

    def give(self, channel: str, user: str, name: str, /, **options: str) -> Interaction:
        """Somebody gives a slash command; of one with subs, `name` has the sub, too."""
        return self._happens(COMMAND, channel, user, self._data(channel, name, _values(options)))

    def type(
        self, channel: str, user: str, name: str, option: str, begun: str, /, **options: str
    ) -> Interaction:
        """Somebody is writing an option of a slash command."""
        values = [*_values(options), {"name": option, "type": 3, "value": begun, "focused": True}]
        return self._happens(TYPING, channel, user, self._data(channel, name, values))

    def press(
        self, channel: str, user: str, message: str, custom_id: str, *, forged: bool = False
    ) -> Interaction:
        """Somebody taps a button of a message. `forged`: with a client of their own, any button."""
        on = self.world.messages[channel][message]
        shown = [button["custom_id"] for row in on["components"] for button in row["components"]]
        assert forged or custom_id in shown, f"no button of {message} has {custom_id!r}: {shown}"
        return self._happens(
            COMPONENT, channel, user, {"custom_id": custom_id, "component_type": 2}, on=on
        )

    def send_form(self, channel: str, user: str) -> Interaction:
        """Somebody sends a form that nobody showed them."""
        return self._happens(FORM, channel, user, {"custom_id": "approve", "components": []})

    def ask_about(self, channel: str, user: str, message: str) -> Interaction:
        """Somebody chooses our row in the menu of a message."""
        (menu,) = [row for row in self.table.get("global", []) if row["type"] == MESSAGE_MENU]
        about = {message: self.world.messages[channel][message]}
        chosen = {
            "id": menu["id"],
            "name": menu["name"],
            "type": MESSAGE_MENU,
            "target_id": message,
        }
        return self._happens(COMMAND, channel, user, chosen | {"resolved": {"messages": about}})

    def fill_in(self, asked: Interaction, question: str) -> Interaction:
        """They send the form that they were shown."""
        (label,) = asked.form["components"]
        field = {
            "type": 4,
            "id": 2,
            "custom_id": label["component"]["custom_id"],
            "value": question,
        }
        sent = {
            "custom_id": asked.form["custom_id"],
            "components": [{"type": 18, "id": 1, "component": field}],
        }
        return self._happens(FORM, asked.channel, asked.user, sent)

    def replay(self, interaction: Interaction) -> None:
        """The gateway tells of it once more."""
        self.api.dispatch("INTERACTION_CREATE", interaction.told)

    def _data(self, channel: str, name: str, options: list[Json]) -> Json:
        name, _, sub = name.partition(" ")
        guild = self.world.channels[channel].get("guild_id")
        known = [
            c
            for c in self.table.get("global", []) + self.table.get(guild or "", [])
            if c["name"] == name
        ]
        return {
            "id": known[0]["id"] if known else self.world.ids.new(),
            "name": name,
            "type": 1,
            "options": [{"name": sub, "type": 1, "options": options}] if sub else options,
        }

    def _happens(
        self, kind: int, channel: str, user: str, data: Json, *, on: Json | None = None
    ) -> Interaction:
        number, place = self.world.ids.new(), self.world.channels[channel]
        guild, person = place.get("guild_id"), self.world.users[user]
        made = Interaction(
            id=number,
            token=f"itk{number}",
            channel=channel,
            user=user,
            made_s=time.monotonic(),
            kind=kind,
        )
        self.given[made.token] = made
        told = made.told = {
            "id": number,
            "application_id": self.world.bot,
            "type": kind,
            "token": made.token,
            "version": 1,
            "channel_id": channel,
            "channel": place | {"permissions": PERMISSIONS},
            "locale": self.locales.get(user, "en-US"),
            "entitlements": [],
            "authorizing_integration_owners": {"0": guild or "0"},
            "context": 0 if guild else 1,
            "app_permissions": PERMISSIONS,
            "attachment_size_limit": 10 * 2**20,
            "data": data,
        }
        told |= {"message": on} if on else {}
        if guild:
            member = self.world.member(user) | {"user": person, "permissions": PERMISSIONS}
            told |= {"guild_id": guild, "guild_locale": "en-US", "member": member}
        else:
            told |= {"user": person}
        self.api.dispatch("INTERACTION_CREATE", told)
        return made

    def _valid(self, token: str) -> Interaction:
        found = self.given.get(token)
        if found is None or time.monotonic() - found.made_s > TOKEN_S:
            refuse(401, 50027, "Invalid Webhook Token")
        return found

    def _callback(self, call: Call, at: re.Match[str]) -> Json | None:
        found = self.given.get(at[2])
        if (
            found is None
            or found.id != at[1]
            or time.monotonic() - found.made_s > self.api.options.interaction_s
        ):
            refuse(404, 10062, "Unknown interaction")
        if found.answered is not None:
            refuse(400, 40060, "Interaction has already been acknowledged.")
        kind, data = call.body["type"], call.body.get("data") or {}
        if kind not in ANSWERS[found.kind]:
            refuse(400, 50035, "Invalid Form Body")
        if kind == MODAL:
            if not _is_form(data):
                refuse(400, 50035, "Invalid Form Body")
            found.answered, found.form = kind, data
            self.api.changed()
            return None
        if kind in {UNCHANGED, CHOICES}:
            self._quiet(found, kind, data.get("choices", []))
            return None
        found.ephemeral = bool(data.get("flags", 0) & EPHEMERAL)
        content = self.api.talk.check(data, call.files) if kind == MESSAGE else ""
        found.answered = kind
        self._show(found, content, data.get("flags", 0) | (LOADING if kind == DEFERRED else 0))
        return None

    def _quiet(self, found: Interaction, kind: int, choices: list[Json]) -> None:
        """An answer that nobody reads as a message."""
        if kind == CHOICES:
            texts = [one[key] for one in choices for key in ("name", "value")]
            if len(choices) > MOST_CHOICES or not all(1 <= len(text) <= 100 for text in texts):
                refuse(400, 50035, "Invalid Form Body")
            found.choices = [one["value"] for one in choices]
        found.answered = kind
        self.api.changed()

    def _show(self, found: Interaction, content: str, flags: int) -> Json:
        meta = {"id": found.id, "type": found.kind, "user": self.world.users[found.user]}
        meta["authorizing_integration_owners"] = {}
        more: Json = {"flags": flags, "type": SLASH, "webhook_id": self.world.bot}
        more |= {"application_id": self.world.bot, "interaction_metadata": meta}
        made = self.world.add_message(found.channel, self.world.bot, content, **more)
        found.messages.append(made["id"])
        if not flags & EPHEMERAL:
            self.api.show(made)
        self.api.changed()
        return made

    def _message(self, found: Interaction, number: str) -> Json:
        if found.answered is None:
            refuse(404, 10015, "Unknown Webhook")
        number = found.messages[0] if number == "@original" else number
        made = self.world.messages[found.channel].get(number)
        if made is None or number not in found.messages:
            refuse(404, 10008, "Unknown Message")
        return made

    def _follow_up(self, call: Call, at: re.Match[str]) -> Json:
        found = self._valid(at[1])
        original = self._message(found, "@original")
        content = self.api.talk.check(call.body, call.files)
        if original["flags"] & LOADING:  # the first follow-up takes the place of `thinking`
            return self._reveal(original, content)
        return self._show(
            found, content, call.body.get("flags", 0) | (EPHEMERAL if found.ephemeral else 0)
        )

    def _reveal(self, message: Json, content: str) -> Json:
        message |= {"content": content, "flags": message["flags"] & ~LOADING}
        if not message["flags"] & EPHEMERAL:
            self.api.dispatch("MESSAGE_UPDATE", self.world.seen_live(message))
        self.api.changed()
        return message

    def _edit(self, call: Call, at: re.Match[str]) -> Json:
        message = self._message(self._valid(at[1]), at[2])
        content = self.api.talk.check(call.body, call.files)
        if not message["flags"] & LOADING:
            message["edited_timestamp"] = when(self.world.ids.new())
        message["attachments"] = self.api.talk.attached(call)
        message["components"] = call.body.get("components", message["components"])
        return self._reveal(message, content)


def _values(options: dict[str, str]) -> list[Json]:
    return [{"name": key, "type": 3, "value": value} for key, value in options.items()]
