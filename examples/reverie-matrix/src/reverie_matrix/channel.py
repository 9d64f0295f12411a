"""Matrix channel: logs in, follows the rooms, and reports what happens there.

`/sync` answers with all events since a token (https://spec.matrix.org/latest/client-server-api/#syncing).
The token is the cursor: it is handed over with the events that came before it, and asked with again
only once both are durable. So nothing is lost, and nothing needs to be kept here.
"""

import asyncio
import contextlib
import fnmatch
import logging
import random as _random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from nio import MatrixRoom, MessageDirection, RoomInfo, SyncResponse

from reverie.platforms import (
    Address,
    Backoff,
    ChannelName,
    Clock,
    CommandSpec,
    ConnectionChanged,
    Denied,
    Emit,
    EventId,
    Json,
    MembershipChanged,
    Notification,
    RateLimited,
    Rejected,
    RoomId,
    SendError,
    Uncertain,
    get_bool,
    get_object,
    get_objects,
    get_raw_str,
    new_id,
)
from reverie_matrix.actions import MatrixActions
from reverie_matrix.client import MatrixClient
from reverie_matrix.config import MatrixConfig
from reverie_matrix.events import MatrixEvent, Place, parse_event, read_event

logger = logging.getLogger("reverie.matrix")
_TIMELINE: Final = 100
"""Events of one room in one answer; what is missing is fetched."""
_MAX_GAP_EVENTS: Final = 2_000
"""Most events of one room that are fetched after an absence: the newest."""
_FIRST_SYNC_S: Final = 300.0
"""Longest time for the answer that holds the state of all rooms."""
_CLOSE_TIMEOUT_S: Final = 0.5
_FIND_TRIES: Final = 3
_NO_ENCRYPTION: Final = (
    "this program cannot read encrypted rooms: use a room without encryption, which it can be "
    "invited to"
)


class MatrixChannel(MatrixActions):
    """One account; a `reverie.platforms.Channel`."""

    def __init__(
        self,
        name: ChannelName,
        config: MatrixConfig,
        clock: Clock,
        *,
        cursor: str | None = None,
        commands: Sequence[CommandSpec] = (),  # noqa: ARG002 - Matrix has no native commands
        random: Callable[[], float] = _random.random,
    ) -> None:
        super().__init__(name, config, clock)
        self._cursor, self._random = cursor, random
        self._refusals: dict[str, str] = {}
        """Configured room -> reason why the bot could not join it."""
        self._reported_rooms: set[str] = set()
        """Encrypted rooms that were reported."""

    def join_refusal(self, room: RoomId) -> str:
        return "" if self.is_joined(room) else self._refusals.get(room, "")

    async def run(self, emit: Emit) -> None:
        client = MatrixClient(self._config)
        try:
            await self._follow(client, emit)
        finally:
            self._client = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_S)

    async def _follow(self, client: MatrixClient, emit: Emit) -> None:
        """Receive until it is cancelled, the account is refused, or `emit` fails."""
        backoff, up = Backoff(), None
        logged_in = synced = False
        while True:
            try:
                if not logged_in:
                    await client.log_in()
                    logged_in = True
                answer = await self._sync(client, full=not synced, wait=bool(up))
                batch = await self._read_answer(client, answer)
            except SendError as error:
                self._client = None
                is_final = isinstance(error, Denied) and not (logged_in and self._config.password)
                if up is not False:
                    await emit([self._link(False, error.reason)])
                up = False
                if is_final:
                    raise
                logged_in = logged_in and not isinstance(error, Denied)
                delay_s = backoff.next_delay_s(0.0, self._random())
                if isinstance(error, RateLimited):
                    delay_s = max(delay_s, error.retry_after_s)
                logger.warning("%s: %s; next attempt in %.1f s", self._name, error.reason, delay_s)
                await self._clock.sleep(delay_s)
                continue
            backoff.reset()
            self._client, is_first = client, not synced
            synced = True
            if not up:
                user, where = client.nio.user_id, self._config.homeserver
                up = True
                await emit([self._link(True, f"connected to {where} as {user}")])
            if batch or answer.next_batch != self._cursor:
                await emit(batch, cursor=answer.next_batch)
                self._cursor = answer.next_batch
            if is_first:
                await self._join_configured(client)

    def _link(self, up: bool, reason: str) -> ConnectionChanged:
        now = self._clock.now()
        return ConnectionChanged(
            id=EventId(new_id(now)), channel=self._name, up=up, reason=reason, sent=now
        )

    async def _sync(self, client: MatrixClient, *, full: bool, wait: bool) -> SyncResponse:
        """Return what happened since the cursor. `full`: with the state of all rooms. `wait`: once
        there is something, or the poll time is over.
        """
        # Members that this device was told of before its restart are told again with all else.
        members = {"lazy_load_members": True, "include_redundant_members": full}
        timeline = {"limit": _TIMELINE if self._cursor else 1, **members}
        nothing: dict[str, object] = {"types": []}
        wanted = {
            "room": {
                "timeline": timeline,
                "state": members,
                "ephemeral": nothing,
                "account_data": nothing,
            },
            "presence": nothing,
            "account_data": {"types": ["m.direct"]},
        }
        poll_s = self._config.poll_timeout if wait else 0.0
        request = client.nio.sync(
            int(poll_s * 1000), wanted, since=self._cursor, full_state=True if full else None
        )
        limit_s = _FIRST_SYNC_S if full else poll_s + self._config.request_timeout
        answer: SyncResponse = await client.call(request, limit_s=limit_s)
        return answer

    async def _read_answer(self, client: MatrixClient, answer: SyncResponse) -> list[Notification]:
        """Return what an answer tells. Raises SendError if it must be asked for again."""
        for data in answer.account_data_events:
            self._read_direct_rooms(getattr(data, "type", ""), getattr(data, "content", None))
        batch: list[Notification] = []
        for room_id, info in answer.rooms.join.items():
            batch += await self._read_room(client, client.nio.rooms[room_id], info)
        for room_id, info in answer.rooms.leave.items():
            room = client.nio.rooms.get(room_id) or MatrixRoom(room_id, client.nio.user_id)
            batch += await self._read_room(client, room, info)
            client.nio.rooms.pop(room_id, None)
            client.nio.invited_rooms.pop(room_id, None)
        if answer.rooms.invite:
            # The library drops most of what an invitation says, but keeps the answer.
            body: object = await answer.transport_response.json()
            invited = get_object(get_object(body, "rooms"), "invite")
            for room_id in answer.rooms.invite:
                state = get_object(get_object(invited, room_id), "invite_state")
                batch += await self._read_invitation(client, room_id, get_objects(state, "events"))
        return batch

    def _read_direct_rooms(self, kind: str, content: object) -> None:
        if kind == "m.direct" and isinstance(content, dict):
            self._direct_rooms = {
                str(person): [room for room in rooms if isinstance(room, str)]
                for person, rooms in content.items()
                if isinstance(rooms, list)
            }

    async def _read_room(
        self, client: MatrixClient, room: MatrixRoom, info: RoomInfo
    ) -> list[Notification]:
        if room.encrypted and room.room_id not in self._reported_rooms:
            self._reported_rooms.add(room.room_id)
            logger.warning("%s: %s is encrypted; %s", self._name, room.room_id, _NO_ENCRYPTION)
        if self._cursor is None:
            return []  # what was said before the account was first used here
        now = self._clock.now()
        events = self._parse([event.source for event in info.timeline.events])
        place, start = self._place(room), _find_entry(events, room.own_user_id)
        if info.timeline.limited and start is None and info.timeline.prev_batch:
            gap = await self._fetch_gap(client, room, info.timeline.prev_batch)
            events, oldest = [*gap, *events], now - timedelta(seconds=self._config.history_age)
            events = [event for event in events if event.sent >= oldest]
            start = _find_entry(events, room.own_user_id)
        if start is not None:
            events = events[start[0] if place.direct else start[1] :]
        found = [await self._read_event(client, place, event) for event in events]
        if any(event.type in _RIGHTS for event in events):
            self._rights.notify(room.room_id)
        return [told for told in found if told is not None]

    def _parse(self, sources: Sequence[object]) -> list[MatrixEvent]:
        now = self._clock.now()
        return [event for source in sources if (event := parse_event(source, now)) is not None]

    async def _fetch_gap(
        self, client: MatrixClient, room: MatrixRoom, end: str
    ) -> list[MatrixEvent]:
        """Return the events between the cursor and the token `end`, oldest first."""
        found: list[MatrixEvent] = []
        oldest = self._clock.now() - timedelta(seconds=self._config.history_age)
        while len(found) < _MAX_GAP_EVENTS:
            answer = await client.call(
                client.nio.room_messages(
                    room.room_id,
                    start=end,
                    end=self._cursor,
                    direction=MessageDirection.back,
                    limit=_TIMELINE,
                )
            )
            events = self._parse([event.source for event in answer.chunk])
            found += events
            if (
                not answer.end
                or answer.end == end
                or (events and events[-1].sent < oldest)
                or _find_entry(events, room.own_user_id) is not None
            ):
                break
            end = answer.end
        found.reverse()
        return found

    async def _read_event(
        self, client: MatrixClient, place: Place, event: MatrixEvent
    ) -> Notification | None:
        target = await self._find_target(client, place, event) if event.target else None
        told = read_event(event, place, target)
        if event.state_key is None and not event.is_redacted:
            self._events.put(event.id, event)
        if target is not None and event.relation == "redaction":
            self._events.put(target.id, replace(target, content={}, is_redacted=True))
        elif target is not None and event.relation == "edit" and target.sender == event.sender:
            new = get_object(event.content, "m.new_content")
            self._events.put(target.id, replace(target, content=new or target.content))
        return told

    async def _find_target(
        self, client: MatrixClient, place: Place, event: MatrixEvent
    ) -> MatrixEvent | None:
        """Return the event that another one refers to; None: it cannot be found. Raises SendError
        if the homeserver cannot be asked.
        """
        if event.sender == place.own_id:
            return self._events.get(event.target)
        for _ in range(_FIND_TRIES):
            try:
                return await self._find_event(client, place.room.room_id, event.target)
            except Rejected:
                return None
            except Uncertain:
                continue
        return None

    async def _read_invitation(
        self, client: MatrixClient, room_id: str, state: Sequence[Json]
    ) -> list[Notification]:
        """Answer an invitation, or tell of it. `state`: what it says about the room.

        https://spec.matrix.org/latest/client-server-api/#stripped-state
        """
        own = client.nio.user_id
        mine = next((one for one in state if _is_about(one, own)), None)
        room = client.nio.invited_rooms.get(room_id)
        if mine is None or room is None:
            return []
        at = Address(channel=self._name, room=RoomId(room_id))
        sender = get_raw_str(mine, "sender")
        if any(get_raw_str(one, "type") == "m.room.encryption" for one in state):
            logger.warning(
                "%s: %s invites to %s, which is encrypted; %s",
                self._name,
                sender,
                room_id,
                _NO_ENCRYPTION,
            )
            with contextlib.suppress(Rejected):
                await client.post("rooms", room_id, "leave", body={"reason": _NO_ENCRYPTION})
            return []
        if get_bool(get_object(mine, "content"), "is_direct") and self._is_welcome(sender, own):
            try:
                await client.call(client.nio.join(room_id))
                await self._record_direct(client, room_id, sender)
            except Rejected as error:
                logger.warning("%s: cannot enter %s: %s", self._name, room_id, error.reason)
            return []
        now = self._clock.now()
        place = Place(channel=self._name, room=room, direct=False)
        return [
            MembershipChanged(
                id=EventId(new_id(now)),
                at=at,
                sender=place.sender(sender),
                change="invite",
                sent=now,
            )
        ]

    def _is_welcome(self, person: str, own: str) -> bool:
        """Return whether an invitation to a direct chat is accepted at once."""
        patterns = self._config.direct_invitations or (f"@*:{own.partition(':')[2]}",)
        return any(fnmatch.fnmatchcase(person, pattern) for pattern in patterns)

    async def _join_configured(self, client: MatrixClient) -> None:
        """Join the rooms of the configuration; what is refused is kept for `join_refusal`."""
        for room in self._config.rooms:
            if room == "*" or room in client.nio.rooms:
                continue
            try:
                await client.call(client.nio.join(room))
            except SendError as error:
                self._refusals[room] = error.reason
                logger.warning("%s: cannot enter %s: %s", self._name, room, error.reason)


_RIGHTS: Final = ("m.room.power_levels", "m.room.member")
"""Events that may change what the bot may do."""


def _is_about(source: object, user: str) -> bool:
    return (
        get_raw_str(source, "type") == "m.room.member" and get_raw_str(source, "state_key") == user
    )


def _find_entry(events: Sequence[MatrixEvent], own: str) -> tuple[int, int] | None:
    """Return where the bot was invited to the room and where it entered; None: it was there before.

    In a direct chat all that was said since the invitation is for the bot.
    """
    invited = None
    for index, event in enumerate(events):
        if event.type != "m.room.member" or event.state_key != own:
            continue
        now = get_raw_str(event.content, "membership")
        if now == "invite":
            invited = index
        elif now == "join" and get_raw_str(event.previous, "membership") != "join":
            return (index if invited is None else invited, index)
    return None
