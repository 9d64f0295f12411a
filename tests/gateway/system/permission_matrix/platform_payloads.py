"""What platforms really send, for each way to come in; and the adapters' own readers that take it.

One class per platform: `name_of` says how the operator writes somebody down, `read` makes the raw
form of one event and has the adapter read it.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from channels.base import Channel
from channels.discord import wire
from channels.discord.channel import DiscordChannel
from channels.discord.directory import DiscordDirectory
from channels.discord.ids import snowflake_at
from channels.irc.inbound import IrcLineContext, to_notifications
from channels.irc.state import IrcState
from channels.telegram.people import TelegramUpdateContext
from channels.telegram.wire import UpdateReader
from gateway.core.clock import Clock
from gateway.core.events import ChannelName, Notification
from tests.channels.irc.channel_kit import hear
from tests.channels.telegram.channel_kit import parsed
from tests.gateway.system.permission_matrix.oracle import COMMANDS
from tests.gateway.system.permission_matrix.people import PLACES, Person, Place, Platform, people
from tests.kits.commands import TABLE

Json = dict[str, Any]
NAMES: Final[Mapping[Platform, ChannelName]] = {
    "irc": ChannelName("irc.net"),
    "telegram": ChannelName("telegram.main"),
    "discord": ChannelName("discord.main"),
}
ROOM_IDS: Final[Mapping[Platform, Mapping[Place, str]]] = {
    "irc": {"listed": "#listed", "other": "#other", "approved": "#approved", "closed": "#closed"},
    "telegram": {"listed": "-1001", "other": "-1002", "approved": "-1003", "closed": "-1004"},
    "discord": {
        "listed": "901",
        "other": "902",
        "approved": "903",
        "closed": "904",
        "space": "801",
        "approved space": "701",
    },
}
"""Threads are of `listed` and `closed`."""
GUILD, LISTED_GUILD, APPROVED_GUILD, FOREIGN = "900", "800", "700", "31337"
OURS: Final = "ours"
"""The name of a message of ours on IRC."""
ARGS: Final[Mapping[str, str]] = {"block": "{target}", "role set": "{target} member"}
ABSENT: Final[Mapping[tuple[Platform, str], str]] = {
    ("irc", "edit"): "IRC has no edits",
    ("irc", "edited command"): "IRC has no edits",
    ("irc", "tap"): "IRC has no buttons",
    ("irc", "slash"): "IRC has no commands of its own but to its server",
    ("irc", "file"): "files go from person to person (DCC), which is CTCP and not taken",
    ("irc", "forwarded"): "IRC forwards nothing; what somebody pastes is what they say",
    ("irc", "forwarded command"): "as forwarded",
    ("irc", "thread"): "IRC has no threads",
    (
        "irc",
        "webhook author",
    ): "IRC has no webhooks; what a bridge relays is the nearest: `relayed`",
    (
        "telegram",
        "webhook author",
    ): "Telegram has no webhooks that write; who writes for a chat is `unverified`",
    ("telegram", "delete"): "bots are not told of deletions (core.telegram.org/bots/api#update)",
    ("telegram", "notice"): "Telegram has no notices",
    ("telegram", "ctcp"): "as notice",
    ("telegram", "called"): "commands without a prefix are for where nothing marks a command: IRC",
    ("discord", "invite"): "who runs a guild adds a bot in a browser; no event says who wanted it",
    ("discord", "topic"): "a channel's new topic is told without its author, and not taken",
    ("discord", "notice"): "Discord has no notices",
    ("discord", "ctcp"): "as notice",
    ("discord", "called"): "as on Telegram",
}
"""What a platform does not have, and why."""
WAYS: Final = (
    *("say", "talk", "mention", "reply", "edit", "edited command", "delete", "reaction", "file"),
    *("forwarded", "forwarded command", "invite", "topic", "notice", "ctcp"),
    *(f"slash {name}" for name in COMMANDS),
    *(f"tap {name}" for name in COMMANDS),
    *(f"text {name}" for name in COMMANDS),
    *(f"called {name}" for name in ("whoami", "cache", "log")),
)
_IDS: Final = itertools.count(1)
"""Of all readers: what has an id that was there before is taken for a repeat."""
_ALONE: Final = frozenset({"say"})
_IN_ROOMS: Final = frozenset({"talk", "mention", "reply", "invite", "topic"})


class Reader(Protocol):
    """One account on one platform."""

    platform: Platform

    def name_of(self, number: int, person: Person) -> str:
        """As the operator writes somebody, without the channel."""

    def read(self, number: int, person: Person, place: Place, way: str) -> Sequence[Notification]:
        """That event, as the adapter tells it."""


def ways(platform: Platform, person: Person, place: Place) -> Iterator[str]:
    for way in WAYS:
        if (platform, way.partition(" ")[0]) in ABSENT or (platform, way) in ABSENT:
            continue
        if way in (_IN_ROOMS if place == "direct" else _ALONE) or not _possible(
            platform, person, place, way
        ):
            continue
        yield way


def _possible(platform: Platform, person: Person, place: Place, way: str) -> bool:
    if way == "invite" and place in ("thread", "closed thread"):
        return False
    if (
        platform == "discord"
        and person.bot
        and (place == "direct" or way.startswith(("slash", "tap")))
    ):
        return False  # bots neither write to bots alone nor give them commands
    if person.verified or platform == "irc":
        return not (
            person.relayed
            and (place == "direct" or way in ("invite", "topic", "delete", "reaction"))
        )
    # a chat or a webhook is in no direct chat, and only writes
    writes = way.startswith("text") or way in {
        "talk",
        "mention",
        "reply",
        "edit",
        "edited command",
        "file",
    }
    return place != "direct" and (
        writes or way.startswith("forwarded") or (platform == "telegram" and way == "topic")
    )


def reached(platform: Platform) -> list[tuple[int, Person, Place]]:
    return [
        (number, person, place) for number, person in people(platform) for place in PLACES[platform]
    ]


def _line(way: str, target: str) -> str:
    """What is written behind the prefix."""
    name = way.partition(" ")[2]
    return f"{name} {ARGS.get(name, '').format(target=target)}".strip()


class Irc:
    platform: Platform = "irc"
    _MODES: Final[Mapping[str, str]] = {
        "admin here": "o",
        "member": "v",
        "blocked": "h",
        "nothing": "q",
        "foreign": "a",
    }

    def __init__(self, clock: Clock, *, tagged: bool = True) -> None:
        self._clock, self._ids, self._state = clock, _IDS, IrcState("reverie")
        self._state.caps |= {"account-tag"} if tagged else set()
        self.feed(
            ":irc.test 005 reverie PREFIX=(qaohv)~&@%+ CHANMODES=beI,k,lH,imnpst :are supported"
        )
        for room in ROOM_IDS["irc"].values():
            self.feed(f":reverie!r@h JOIN {room} * :me", f":irc.test 353 reverie = {room} :reverie")
            for number, person in people("irc"):
                account = f"p{number}" if person.verified else "*"
                self.feed(f":{self.mask(number, person)} JOIN {room} {account} :somebody")
                if person.rank:
                    self.feed(f":chan!s@s MODE {room} +{self._MODES[person.rank]} p{number}")

    def feed(self, *lines: str) -> None:
        for raw in lines:
            hear(self._state, raw)

    def mask(self, number: int, person: Person) -> str:
        return f"p{number}!u@{'relay' if person.relayed else f'h{number}.example'}"

    def name_of(self, number: int, person: Person) -> str:
        return f"account:p{number}" if person.verified else f"mask:{self.mask(number, person)}"

    def read(self, number: int, person: Person, place: Place, way: str) -> Sequence[Notification]:
        tags = [f"msgid=m{next(self._ids)}"]
        if person.verified:
            tags.append(f"account=p{number}")
        if person.bot:
            tags.append("bot")
        if person.relayed:
            tags += ["draft/relaymsg=bridge", "account=p4"]
        where = "reverie" if place == "direct" else ROOM_IDS["irc"][place]
        text = f"PRIVMSG {where} :"
        match way.partition(" ")[0]:
            case "say" | "talk":
                text += "hello there"
            case "mention":
                text += "reverie: hello there"
            case "reply":
                tags.append(f"+reply={OURS}")
                text += "hello there"
            case "delete":
                text = f"REDACT {where} m0 :spam"
            case "reaction":
                tags += [f"+draft/reply={OURS}", "+draft/react=👍"]
                text = f"TAGMSG {where}"
            case "invite":
                text = f"INVITE reverie {where}"
            case "topic":
                text = f"TOPIC {where} :cheese"
            case "notice":
                text = f"NOTICE {where} :!whoami"
            case "ctcp":
                text += "\x01PING hello\x01"
            case "called":
                text += f"reverie: {_line(way, '')}"
            case _:
                text += f"!{_line(way, f'irc.net:account:{FOREIGN}')}"
        return self.heard(f"@{';'.join(tags)} :{self.mask(number, person)} {text}")

    def heard(self, raw: str) -> Sequence[Notification]:
        """One line from the server, as a session takes it in."""
        context = IrcLineContext(
            NAMES["irc"], self._state, own_message_ids={OURS}, bridges={"relay"}
        )
        told = hear(self._state, raw)
        return to_notifications(told, context, self._clock.now(), lambda: f"fresh{next(self._ids)}")


class Telegram:
    platform: Platform = "telegram"
    ME: Final = 500
    _STATUS: Final[Mapping[str, str]] = {"admin here": "administrator", "member": "creator"}

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ids = _IDS
        view = TelegramUpdateContext(
            channel=NAMES["telegram"],
            own_id=self.ME,
            username="reverie_bot",
            commands=frozenset(spec.name for spec in TABLE.specs()),
        )
        self._inbound = UpdateReader(view, counting=False)

    def name_of(self, number: int, person: Person) -> str:
        return str(1000 + number) if person.verified else str(-700_000 - number)

    def read(self, number: int, person: Person, place: Place, way: str) -> Sequence[Notification]:
        return self.heard(self.update(number, person, place, way))

    def who(self, number: int, person: Person) -> Json:
        if not person.verified:
            chat = {"id": -700_000 - number, "type": "supergroup", "title": "Ann"}
            return {
                "from": {"id": 1087968824, "is_bot": True, "first_name": "Group"},
                "sender_chat": chat,
            }
        return {"from": {"id": 1000 + number, "is_bot": person.bot, "first_name": "Ann"}}

    def chat(self, number: int, place: Place) -> Json:
        if place == "direct":
            return {"chat": {"id": 1000 + number, "type": "private"}}
        room = ROOM_IDS["telegram"][
            "listed" if place == "thread" else "closed" if place == "closed thread" else place
        ]
        told: Json = {"chat": {"id": int(room), "type": "supergroup", "title": "room"}}
        return told | (
            {"message_thread_id": 77, "is_topic_message": True} if "thread" in place else {}
        )

    def update(self, number: int, person: Person, place: Place, way: str) -> Json:
        count = next(self._ids)
        now = int(self._clock.now().timestamp())
        who, target = self.who(number, person), f"telegram.main:{FOREIGN}"
        said: Json = self.chat(number, place) | who | {"message_id": count, "date": now}
        mention = {
            "text": "@reverie_bot hello",
            "entities": [{"type": "mention", "offset": 0, "length": 12}],
        }
        origin = {
            "forward_origin": {
                "type": "user",
                "date": now,
                "sender_user": {"id": 1001, "first_name": "Owner"},
            }
        }
        match way.partition(" ")[0]:
            case "say" | "talk":
                return {"message": said | {"text": "hello there"}}
            case "mention":
                return {"message": said | mention}
            case "reply":
                about = said | {
                    "message_id": 1,
                    "from": {"id": self.ME, "is_bot": True, "first_name": "Reverie"},
                }
                return {"message": said | {"text": "hello there", "reply_to_message": about}}
            case "edit":
                return {"edited_message": said | {"text": "hello again", "edit_date": now}}
            case "edited":
                return {
                    "edited_message": said
                    | _tg_command(f"role set {target} member")
                    | {"edit_date": now}
                }
            case "reaction":
                emoji = {"old_reaction": [], "new_reaction": [{"type": "emoji", "emoji": "👍"}]}
                return {"message_reaction": said | emoji | {"user": who["from"]}}
            case "tap":
                return {
                    "callback_query": who
                    | {"id": f"b{count}", "message": said, "data": _line(way, target)}
                }
            case "file":
                file = {"document": {"file_id": "f", "file_unique_id": "u", "file_name": "a.txt"}}
                caption = {"caption": mention["text"], "caption_entities": mention["entities"]}
                return {"message": said | file | caption}
            case "forwarded" if way == "forwarded command":
                first = _tg_command(f"role set {target} member")
                return {
                    "message": said
                    | origin
                    | (first if place == "direct" else _tg_mentioned(first))
                }
            case "forwarded":
                return {"message": said | origin | mention}
            case "invite":
                member = {"user": {"id": self.ME, "is_bot": True, "first_name": "Reverie"}}
                old, new = ({"status": status} | member for status in ("left", "member"))
                return {"my_chat_member": said | {"old_chat_member": old, "new_chat_member": new}}
            case "topic":
                return {"message": said | {"new_chat_title": "cheese"}}
            case "slash":
                return {"message": said | _tg_command(_line(way, target))}
            case _:
                return {"message": said | {"text": f"!{_line(way, target)}"}}

    def heard(self, update: Json) -> Sequence[Notification]:
        now = self._clock.now()
        ranks = {
            str(1000 + number): self._STATUS[person.rank]
            for number, person in people("telegram")
            if person.rank
        }
        return self._inbound.read_batch(
            parsed({"update_id": next(self._ids)} | update),
            now,
            dict.fromkeys(ROOM_IDS["telegram"].values(), ranks),
        ).notifications


def _tg_command(line: str) -> Json:
    name, _, args = line.partition(" ")
    return {
        "text": f"/{name} {args}",
        "entities": [{"type": "bot_command", "offset": 0, "length": len(name) + 1}],
    }


def _tg_mentioned(first: Json) -> Json:
    """The same, with our name behind it."""
    text = f"{first['text']} @reverie_bot"
    mention = {"type": "mention", "offset": len(text) - 12, "length": 12}
    return {"text": text, "entities": [*first["entities"], mention]}


class Discord:
    platform: Platform = "discord"
    ME: Final = "10"
    _ROLES: Final[Mapping[str, str]] = {
        "admin here": "21",
        "member": "22",
        "blocked": "23",
        "nothing": "24",
        "foreign": "25",
        "guild": "26",
    }

    def __init__(self, clock: Clock, channel: Channel) -> None:
        """`channel` is the account that the gateway asks for guilds: it learns what its reader
        learns."""
        assert isinstance(channel, DiscordChannel)
        self._clock = clock
        self.directory: DiscordDirectory = channel._directory
        self._ids = _IDS
        self.directory.apply_event("READY", {"user": {"id": self.ME}})
        rooms = ROOM_IDS["discord"]
        for guild, inside in (
            (GUILD, [rooms[place] for place in ("listed", "other", "approved", "closed")]),
            (LISTED_GUILD, [rooms["space"]]),
            (APPROVED_GUILD, [rooms["approved space"]]),
        ):
            told = [{"id": room, "type": 0, "name": "room"} for room in inside]
            self.directory.apply_event("GUILD_CREATE", {"id": guild, "channels": told, "roles": []})
        for thread, parent in (("911", rooms["listed"]), ("914", rooms["closed"])):
            hangs = {"id": thread, "type": 11, "guild_id": GUILD, "parent_id": parent}
            self.directory.apply_event("THREAD_CREATE", hangs)
        for number, _ in people("discord"):
            self.directory.apply_event("CHANNEL_CREATE", {"id": str(2000 + number), "type": 1})

    def name_of(self, number: int, person: Person) -> str:
        return str(5000 + number) if person.verified else f"webhook:{6000 + number}"

    def read(self, number: int, person: Person, place: Place, way: str) -> Sequence[Notification]:
        return self.heard(*self.event(number, person, place, way))

    def where(self, number: int, place: Place) -> Json:
        if place == "direct":
            return {"channel_id": str(2000 + number)}
        threads: Mapping[Place, str] = {"thread": "911", "closed thread": "914"}
        guild = {"space": LISTED_GUILD, "approved space": APPROVED_GUILD}.get(place, GUILD)
        return {"channel_id": threads.get(place) or ROOM_IDS["discord"][place], "guild_id": guild}

    def author(self, number: int, person: Person, place: Place) -> Json:
        if not person.verified:
            hook = str(6000 + number)
            return {"webhook_id": hook, "author": {"id": hook, "username": "ann", "bot": True}}
        user = {
            "id": str(5000 + number),
            "username": "ann",
            "global_name": "Ann",
            "bot": person.bot,
        }
        member = {"roles": [self._ROLES[person.rank]] if person.rank else []}
        return {"author": user} | ({} if place == "direct" else {"member": member})

    def event(self, number: int, person: Person, place: Place, way: str) -> tuple[str, Json]:
        now = self._clock.now()
        message = str(snowflake_at(now) + next(self._ids))
        who, at = self.author(number, person, place), self.where(number, place)
        target = f"discord.main:{FOREIGN}"
        said: Json = at | who | {"id": message, "type": 0}
        call = f"<@{self.ME}> "
        file = {
            "attachments": [
                {"id": "77", "filename": "a.txt", "content_type": "text/plain", "size": 3}
            ]
        }
        forwarded = {"message_reference": {"type": 1, "channel_id": "1", "message_id": "2"}}
        mentions = {"mentions": [{"id": self.ME}]}
        match way.partition(" ")[0]:
            case "say" | "talk":
                return "MESSAGE_CREATE", said | {"content": "hello there"}
            case "mention":
                return "MESSAGE_CREATE", said | {"content": f"{call}hello"}
            case "reply":
                about = {
                    "referenced_message": {"author": {"id": self.ME}},
                    "message_reference": {"message_id": "55"},
                }
                return "MESSAGE_CREATE", said | about | {"content": "hello there", "type": 19}
            case "edit" | "edited":
                text = f"!role set {target} member" if way == "edited command" else "hello again"
                return "MESSAGE_UPDATE", said | {
                    "content": text,
                    "edited_timestamp": now.isoformat(),
                }
            case "delete":
                return "MESSAGE_DELETE", at | {"id": message}
            case "reaction":
                emoji = {
                    "message_id": "55",
                    "emoji": {"name": "👍"},
                    "user_id": who["author"]["id"],
                }
                member = (
                    {"member": who["member"] | {"user": who["author"]}} if "member" in who else {}
                )
                # Without a member Discord does not tell whether it is a bot: then nobody knows.
                return "MESSAGE_REACTION_ADD", at | emoji | member
            case "file":
                return "MESSAGE_CREATE", said | {"content": call.strip()} | file
            case "forwarded":
                text = f"!role set {target} member" if way == "forwarded command" else "hello"
                return "MESSAGE_CREATE", said | forwarded | mentions | {
                    "content": "",
                    "message_snapshots": [{"message": {"content": text}}],
                }
            case "tap" | "slash":
                return "INTERACTION_CREATE", self.interaction(at, who, message, way, target)
            case _:
                return "MESSAGE_CREATE", said | {"content": f"!{_line(way, target)}"}

    def interaction(self, at: Json, who: Json, number: str, way: str, target: str) -> Json:
        asker = (
            {"member": who["member"] | {"user": who["author"]}}
            if "member" in who
            else {"user": who["author"]}
        )
        told = at | asker | {"id": number, "token": f"t{number}", "application_id": "11"}
        if way.startswith("tap"):
            return told | {
                "type": 3,
                "data": {"component_type": 2, "custom_id": _line(way, target)},
            }
        name, _, sub = way.partition(" ")[2].partition(" ")
        options: list[Json] = (
            [{"type": 3, "name": "who", "value": target}] if name in ("block", "role") else []
        )
        if name == "role":
            options.insert(0, {"type": 3, "name": "role", "value": "member"})
        data: Json = {"type": 1, "name": name, "options": options}
        if sub:
            data["options"] = [{"type": 1, "name": sub, "options": options}]
        return told | {"type": 2, "data": data}

    def heard(self, event: str, data: Json) -> Sequence[Notification]:
        self.directory.apply_event(event, data)
        return wire.parse_event(
            event,
            data,
            self.directory,
            self._clock.now(),
            f"n{next(self._ids)}",
            specs=TABLE.specs(),
        )


def all_platforms(
    irc: Irc, clock: Clock, channels: Mapping[ChannelName, Channel]
) -> dict[Platform, Reader]:
    made: Iterable[Reader] = (irc, Telegram(clock), Discord(clock, channels[NAMES["discord"]]))
    return {one.platform: one for one in made}
