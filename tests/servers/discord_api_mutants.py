"""Gateway payloads that nobody should send: valid ones with something wrong in them, the same for the same seed."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

from tests.servers.discord_api import DiscordApi
from tests.servers.discord_api_world import FORUM, Json

JUNK: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 7, 2**53, 2**63, 2**64, 2**70, -(2**70), 0.5, 1e308, float("inf"), float("nan")),
    *("", "0", "-1", "x", " ", "\x00", "\ud800", "18446744073709551616", "9" * 400, "12\u0665", "a" * 5000),
    *("2026-01-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2026-13-45", "NaN"),
    *("<@1> <@&2> <#3> </x:4> <:e:5>", "```" * 700, "<@" * 900, "\u202e\u0000\u2028", "\U0001f600" * 50),
    *([], {}, [None], [[]], [{}], {"id": None}, {"id": {}}, [1, "x", None, {}], {"": ""}, {"id": "1"}),
)
BAD_OPS: Final[tuple[Any, ...]] = (-1, 2, 3, 4, 5, 6, 8, 11, 12, 13, 14, 99, 2**64, "0", "x", None, True, 0.5, [], {})
"""Not 7 and 9 (they rightly end a connection) nor 1 (each is answered, and answers are counted)."""
UNKNOWN: Final = (
    "",
    "X",
    "MESSAGE_CREATE\n",
    "message_create",
    "READY_SUPPLEMENTAL",
    "POLL_VOTE",
    "\ud800",
    "A" * 3000,
)
DEEP: Final = 200


def samples(api: DiscordApi) -> list[tuple[str, Json]]:
    """Valid dispatches of every kind that an adapter might read."""
    world, room, ann, bot = api.world, api.room, api.ann, api.bot
    place = {"guild_id": api.guild, "channel_id": room}
    dm, forum = world.dm(ann), world.add_channel("forum", kind=FORUM)
    thread = world.add_thread(forum, "question", ann)
    asked = world.add_message(room, ann, f"<@{bot}> **hi** <#{room}> <:smile:123> ||no||")
    file = {"id": "77", "filename": "a.png", "size": 3, "url": "http://127.0.0.1:1/a.png", "content_type": "image/png"}
    rich: Json = {
        "attachments": [file | {"width": 4, "height": 4, "duration_secs": 1.5, "proxy_url": file["url"]}],
        "embeds": [{"type": "rich", "title": "t", "description": "d", "fields": [{"name": "n", "value": "v"}]}],
        "sticker_items": [{"id": "5", "name": "wave", "format_type": 1}],
        "poll": {
            "question": {"text": "q"},
            "answers": [{"answer_id": 1, "poll_media": {"text": "a"}}],
            "expiry": "2026-01-01T00:00:00+00:00",
            "allow_multiselect": False,
            "layout_type": 1,
        },
        "message_snapshots": [{"message": {"content": "fwd", "attachments": [file], "mentions": []}}],
        "mention_roles": [api.guild],
    }
    said = [
        asked,
        world.add_message(room, ann, f"<@{bot}> look", **rich),
        world.add_message(room, ann, "yes", **(api.replying(room, asked["id"]) or {})),
        world.add_message(dm, ann, "hello"),
        world.add_message(thread["id"], ann, "in a thread"),
        world.add_message(room, "4242", "from a hook", webhook_id="4242"),
    ]
    reaction = {
        "user_id": ann,
        "message_id": asked["id"],
        "emoji": {"id": None, "name": "x"},
        "burst": False,
        "type": 0,
    }
    member = world.member(ann) | {"user": world.users[ann]}
    role = world.guilds[api.guild]["roles"][0]
    command = {"id": "9", "name": "status", "type": 1, "options": [{"name": "entry", "type": 3, "value": "1"}]}
    interaction = {"id": "99", "application_id": bot, "type": 2, "token": "t", "version": 1, "data": command} | place
    found = [("MESSAGE_CREATE", world.seen_live(message)) for message in said]
    found += [
        ("MESSAGE_UPDATE", world.seen_live(said[1]) | {"edited_timestamp": "2026-01-01T00:00:00+00:00"}),
        ("MESSAGE_DELETE", {"id": "5"} | place),
        ("MESSAGE_DELETE_BULK", {"ids": ["5", "6"]} | place),
        ("MESSAGE_REACTION_ADD", reaction | place | {"member": member}),
        ("MESSAGE_REACTION_REMOVE", reaction | place),
        ("MESSAGE_REACTION_REMOVE_ALL", {"message_id": "5"} | place),
        ("INTERACTION_CREATE", interaction | {"member": member | {"permissions": "8"}}),
        ("GUILD_CREATE", world.guild_create(api.guild)),
        ("GUILD_UPDATE", world.guilds[api.guild]),
        ("GUILD_DELETE", {"id": "8", "unavailable": True}),
        ("CHANNEL_UPDATE", world.channels[room]),
        ("CHANNEL_CREATE", world.channels[forum]),
        ("THREAD_CREATE", thread | {"newly_created": True}),
        ("THREAD_LIST_SYNC", {"guild_id": api.guild, "threads": [thread], "members": [], "channel_ids": [forum]}),
        ("THREAD_MEMBERS_UPDATE", {"id": thread["id"], "guild_id": api.guild, "member_count": 1, "added_members": []}),
        ("GUILD_ROLE_CREATE", {"guild_id": api.guild, "role": role}),
        ("GUILD_MEMBER_UPDATE", member | {"guild_id": api.guild}),
        ("USER_UPDATE", world.users[bot]),
        ("TYPING_START", {"user_id": ann, "timestamp": 1700000000, "member": member} | place),
        ("RESUMED", {"_trace": []}),
    ]
    return [(event, json.loads(json.dumps(data))) for event, data in found]


class Mutants:
    """An endless stream of them."""

    def __init__(self, api: DiscordApi, seed: int) -> None:
        self._samples = samples(api)
        self._ids = api.world.ids
        self._random = random.Random(seed)
        self._number = 0

    def __iter__(self) -> Iterator[object]:
        while True:
            yield self._one()

    def text(self) -> str:
        """One as it would stand on the wire; sometimes no JSON at all."""
        roll = self._random.random()
        text = json.dumps(self._one())
        if roll < 0.02:
            return text[: self._random.randrange(len(text))]
        return self._random.choice(("", "null", "[]", "3", '"x"', "{", "\x00", "[" * DEEP)) if roll < 0.03 else text

    def _one(self) -> object:
        rolls, self._number = self._random, self._number + 1
        event, data = rolls.choice(self._samples)
        payload: Json = {"op": 0, "t": event, "s": 1000 + self._number, "d": copy.deepcopy(data)}
        if "id" in data and event.startswith("MESSAGE") and rolls.random() < 0.5:
            payload["d"]["id"] = self._ids.new()  # one that was not seen before
        roll = rolls.random()
        if roll < 0.80:
            for _ in range(rolls.choice((1, 1, 2, 5))):
                self._spoil(payload["d"])
        elif roll < 0.86:
            payload["d"] = self._junk()
        elif roll < 0.90:
            payload["t"] = rolls.choice((*UNKNOWN, self._junk()))
        elif roll < 0.94:
            payload["op"] = rolls.choice(BAD_OPS)
        elif roll < 0.96:
            payload["op"], payload["d"] = 10, rolls.choice((None, {}, [], "x", {"heartbeat_interval": self._junk()}))
        elif roll < 0.98:
            payload["s"] = self._junk()
        else:
            payload.pop(rolls.choice(tuple(payload)))
        return payload

    def _spoil(self, node: object) -> None:
        """Walk down from here, and break one thing."""
        while True:
            rolls = self._random
            if isinstance(node, dict) and node:
                key: Any = rolls.choice(tuple(node))
            elif isinstance(node, list) and node:
                key = rolls.randrange(len(node))
            else:
                return
            if isinstance(node[key], dict | list) and node[key] and rolls.random() < 0.7:
                node = node[key]
                continue
            if rolls.random() < 0.3:
                del node[key]
            else:
                node[key] = self._junk()
            return

    def _junk(self) -> Any:
        made = copy.deepcopy(self._random.choice(JUNK))
        if self._random.random() < 0.01:
            for _ in range(DEEP):
                made = [made] if self._random.random() < 0.5 else {"id": made}
        return made
