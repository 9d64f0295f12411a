"""Previews of a running turn: the typing indicator, the answer as it grows, and tools at work.

A turn on a platform that can neither show typing nor edit has none.

Best effort: nothing here delays or fails a turn. A preview that is a message of its own is half a
reply, so none may stay: it is in the log before it is shown. It becomes the answer by an edit
(`Post.previews`). An answer that is longer than a message goes on in the next one as soon as one is
full. If there is no answer they are deleted, which is retried for as long as it takes, also by the
next process. A turn that is cut off leaves its first message to the next turn in the same place,
which goes on in it.
"""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, cast
from weakref import WeakValueDictionary

from agent.tools import unwrap_call
from agent.turn import presentable_text
from channels.aio import with_timeout
from channels.base import (
    CanPreview,
    CanType,
    Denied,
    RateLimited,
    Rejected,
    SendError,
    Uncertain,
    Unreachable,
    is_provisional,
)
from gateway.cluster.cluster import EVERYTHING
from gateway.context.observer import AnswerGrew, Progress, RunningTurn, ToolProgress
from gateway.core.addresses import AllowedHosts, check_target, display_host, parse_url
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    DeliveryReport,
    MessageId,
    Post,
    PostKey,
)
from gateway.core.facts import PreviewEnded, PreviewShown, TurnId, has_failed
from gateway.core.i18n import N_, _
from gateway.core.tool_spec import ToolCall, ToolCallRefused
from gateway.plugin import Plugin, PluginContext, hook
from gateway.runtime.turn_record import SLOW_TEXT
from gateway.store import LogEntry, NewEntry, StoreError
from gateway.stream.outbox import LOST_END_TEXT

logger = logging.getLogger("reverie.previews")

_UNFINISHED_WORD = re.compile(r"[!-~]+\Z")
"""The last word. It may become a secret, which is recognised only once it is complete."""

FIRST_LOOK_S = 0.7
"""Seconds after the first words without a preview: one of an answer that is complete so soon only
costs rate limit."""
SETTLE_S = 3.0
"""Time for which the whole answer waits for its preview to be deleted; then it is sent, and
deletion goes on."""
PARKED_SETTLE_S = 0.5
"""Time for a call under way to end where a turn is cut off because the process ends."""
GOODBYE_S = 2.0
"""Time limit for ending the typing indicator."""
TAKE_OVER_S = 10.0
"""Time for which a preview of a turn that was cut off waits for the next turn there."""
DRAFT_S = 20.0
"""Seconds after which a preview that is no message is shown again, because it fades
(core.telegram.org/bots/api#sendmessagedraft: after 30)."""
FIRST_TRY_S, LAST_TRY_S = 2.0, 300.0
"""Waits between attempts to delete a preview: doubling from the first to the second."""


_TOOL_STATUSES: Final = {
    "web_search": N_("Searching the web…"),
    "read_file": N_("Looking through my files…"),
    "glob": N_("Looking through my files…"),
    "grep": N_("Looking through my files…"),
    "view_image": N_("Looking at a picture…"),
    "write_file": N_("Writing a file…"),
    "edit_file": N_("Writing a file…"),
    "bash": N_("Running a command…"),
    "job_output": N_("Reading the output of a command…"),
    "read_room": N_("Reading messages…"),
    "recall": N_("Looking through my notes…"),
    "fetch_evidence": N_("Looking through my notes…"),
}
"""Status by tool. Of the others, those of MCP servers are named, and the rest take no time that
people notice."""
_NO_HOSTS: Final = AllowedHosts.parse(())


def describe_tool_call(call: ToolCall) -> str:
    """Return the status line for people who wait while this is carried out. Empty: it needs none.
    Pure.

    Of the arguments it shows a public host alone: in the others may stand what is not for the room.
    """
    call = unwrap_call(call)
    if call.name == "web_fetch":
        try:
            target = parse_url(str(json.loads(call.arguments)["url"]))
            check_target(target, _NO_HOSTS)
        except (ToolCallRefused, ValueError, LookupError, TypeError, RecursionError):
            return _("Reading a page…")
        return _("Reading {host}…").format(host=display_host(target))
    if call.name.startswith("mcp_"):
        return _("Using the tool {tool}…").format(tool=call.name.removeprefix("mcp_"))
    return _(_TOOL_STATUSES.get(call.name, ""))


class Previews(Plugin):
    """Shows the preview of each turn, and deletes what is left of them."""

    name = "previews"
    summary = "shows that the agent writes, and its answer as it grows"
    watches = (ConnectionChanged, PreviewEnded)
    abilities = (CanType, CanPreview)

    def __init__(self, context: PluginContext) -> None:
        super().__init__(context)
        gateway = context.gateway
        self.redactor, self.clock, self.tasks = gateway.redactor, gateway.clock, gateway.tasks
        self.channels, self._store = gateway.channels, gateway.store
        self._turns = dict[TurnId, TurnPreview]()
        self._clearing_tasks: set[asyncio.Task[None]] = set()
        self._ending = WeakValueDictionary[Address, asyncio.Task[None]]()
        """What is to end the preview of the newest turn of a place, until it has."""
        self._left = dict[Address, MessageId]()
        """Previews of turns that were cut off: the next turn there goes on in it."""
        self._known = set[tuple[Address, MessageId]]()
        """Previews in the log that this process cares for."""
        self._store.subscribe(self.on_facts, DeliveryReport, where=has_failed)

    async def start(self) -> None:
        if self._store.lost_end is not None:  # each of them may have become an answer since
            for at, message in await self._find_unknown():
                await self.record(PreviewEnded(at=at, message=message, reason=LOST_END_TEXT))

    async def on_lease(self, lease: str) -> None:
        if lease == EVERYTHING:
            await self._recover()

    @hook
    def on_facts(self, entries: Sequence[LogEntry]) -> None:
        for entry in entries:
            match entry.fact:
                case PreviewEnded(at=at, message=message):
                    self._known.discard((at, message))
                case ConnectionChanged(up=True, channel=name) if self.channels.holds(name):
                    self._track_task(self._recover(name))
                case DeliveryReport(at=at) if self.channels.holds(at.channel):
                    self._track_task(self._clear_refused(at))

    @hook
    def on_progress(self, turn: RunningTurn, news: Progress) -> None:
        if news == "started":
            self._begin(turn)
        elif (preview := self._turns.get(turn.turn)) is not None:
            match news:
                case AnswerGrew(text) if text.strip():
                    preview.update(text)
                case ToolProgress(state="started", name=name, arguments=arguments):
                    call = ToolCall(id="", name=name, arguments=arguments)
                    if turn.is_awaited and (status := describe_tool_call(call)):
                        preview.show_status(f"*{status}*")
                case "slow":
                    preview.show_status(_(SLOW_TEXT))
                case "ended":
                    del self._turns[turn.turn]
                    self._end(preview, leaves=turn.goes_on)

    @hook
    async def before_post(self, turn: RunningTurn, post: Post) -> Post | None:
        """Return the post that begins in the messages of the preview, which has ended then."""
        preview = self._turns.get(turn.turn)
        return None if preview is None else replace(post, previews=await preview.finish(post))

    def _begin(self, turn: RunningTurn) -> None:
        """Start the preview of a turn, as far as the platform can show it. Of an answer that is to
        notify there is only the typing indicator.
        """
        at = Address.parse(turn.conversation)
        channel: object = self.channels.get(at.channel)
        previews = channel if isinstance(channel, CanPreview) and turn.may_grow else None
        turn.is_shown = previews is not None
        self._turns[turn.turn] = TurnPreview(
            self,
            turn,
            channel if isinstance(channel, CanType) else None,
            previews,
            left=self.take_left(at) if turn.may_grow else None,
            before=self._ending.get(at) if turn.may_grow else None,
        )

    def _end(self, preview: "TurnPreview", *, leaves: bool) -> None:
        preview.stop()
        if preview.is_seen:
            self._ending[preview.at] = self._track_task(preview.end(leaves=leaves))

    def take_left(self, at: Address) -> MessageId | None:
        """Return the message that an earlier turn has left there. None: there is none."""
        return self._left.pop(at, None)

    async def run_typing(self, channel: CanType, at: Address) -> None:
        """Show the typing indicator until cancelled."""
        try:
            while True:
                await channel.typing(at, active=True)
                await self.clock.sleep(channel.typing_interval_s)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    try:
                        await channel.typing(at, active=False)
                    except Exception:  # also a bug in the adapter
                        logger.exception("typing in %s broke", at.conversation)
            raise
        except Exception:  # a bug in the adapter, and no reason to give no answer
            logger.exception("typing in %s broke", at.conversation)

    async def _recover(self, only: ChannelName | None = None) -> None:
        """Take over previews of an earlier process; with `only`, those of that channel."""
        for at, message in await self._find_unknown():
            channel: object = self.channels.get(at.channel)
            if isinstance(channel, CanPreview) and only in (None, at.channel):
                self._known.add((at, message))
                self.leave(at, message)

    async def _find_unknown(self) -> list[tuple[Address, MessageId]]:
        """Return the previews of earlier processes, those of a place in their order: later ids of a
        platform are greater numbers.
        """
        known = {*self._known}  # one that is read as open may be recorded as ended meanwhile
        found = [(Address.parse(place), one) for place, one in await self._store.open_previews()]
        found.sort(key=lambda one: (is_provisional(one[1]), len(one[1]), one[1]))
        return [one for one in found if one not in known | self._known]

    def leave(self, at: Address, message: MessageId) -> None:
        """Leave a preview to the next turn there. It is deleted if none begins soon."""
        if is_provisional(message) or at in self._left:
            self.clear_later(at, message)
        else:
            self._left[at] = message
            self._track_task(self._clear_left(at, message))

    async def record(self, *facts: PreviewShown | PreviewEnded) -> None:
        """Append that a message is a preview, or that it is none any more."""
        now = self.clock.now()
        self._known.update((one.at, one.message) for one in facts if isinstance(one, PreviewShown))
        await self._store.append(
            [NewEntry(fact=fact, at=now, conversation=fact.at.conversation) for fact in facts]
        )

    async def clear(self, at: Address, message: MessageId) -> None:
        """Delete a preview, one attempt. Raises `SendError` if it is to be tried again."""
        reason, channel = "", cast("object", self.channels.get(at.channel))
        if not isinstance(channel, CanPreview):
            raise Unreachable(f"there is no channel {at.channel} just now")
        try:
            await channel.delete_preview(at, message)
        except Rejected as error:
            reason = error.reason
            logger.warning("the preview %s in %s stays: %s", message, at.conversation, reason)
        await self.record(PreviewEnded(at=at, message=message, reason=reason))

    async def _clear_left(self, at: Address, message: MessageId) -> None:
        """Delete a preview that was left unless a turn goes on in it."""
        await self.clock.sleep(TAKE_OVER_S)
        if self._left.get(at) == message:
            del self._left[at]
            await self._clear_later(at, message)

    def clear_later(self, at: Address, message: MessageId) -> None:
        """Retry until the preview is deleted, or the process ends: the next one goes on."""
        self._track_task(self._clear_later(at, message))

    def _track_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.track_task(self.tasks.create_task(work))

    def track_task(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Keep a task that nobody waits for, so that `stop` ends it."""
        self._clearing_tasks.add(task)
        task.add_done_callback(self._clearing_tasks.discard)
        return task

    async def stop(self) -> None:
        if ending := [*self._ending.values()]:
            await asyncio.wait(ending, timeout=PARKED_SETTLE_S)
        tasks = [*self._clearing_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear_refused(self, at: Address) -> None:
        """Delete the previews there that are no turn's: what stands of an answer that was
        refused.
        """
        for message in [one for place, one in await self._find_unknown() if place == at]:
            self._known.add((at, message))
            self.clear_later(at, message)

    async def _clear_later(self, at: Address, message: MessageId) -> None:
        wait_s = FIRST_TRY_S
        try:
            # Without its channel it stays in the store until that is back.
            while isinstance(self.channels.get(at.channel), CanPreview):
                hint_s = 0.0
                try:
                    await self.clear(at, message)
                except Denied:
                    return
                except RateLimited as error:
                    hint_s = error.retry_after_s
                except SendError as error:
                    why = error.reason
                    logger.debug("%s in %s is not gone yet: %s", message, at.conversation, why)
                else:
                    return
                await self.clock.sleep(max(wait_s, hint_s))
                wait_s = min(2 * wait_s, LAST_TRY_S)
        except StoreError:
            raise
        except (
            Exception
        ):  # a bug in the adapter: the record stays, and the next process tries again
            logger.exception("taking away the preview %s in %s broke", message, at.conversation)
        finally:  # what stays is found again when its channel is back
            self._known.discard((at, message))


class TurnPreview:
    """Preview of one turn."""

    def __init__(
        self,
        previews: Previews,
        turn: RunningTurn,
        typing: CanType | None,
        preview: CanPreview | None,
        *,
        left: MessageId | None,
        before: asyncio.Task[None] | None,
    ) -> None:
        """`left`: message of an earlier turn to go on in. `before`: ends the preview of an earlier
        turn, and may leave one yet.
        """
        self._previews = previews
        self._turn = turn
        self.at: Final = Address.parse(turn.conversation)
        self._preview = preview
        self._before = before
        self._typing_task = (
            None
            if typing is None
            else previews.tasks.create_task(previews.run_typing(typing, self.at))
        )
        self._preview_task: asyncio.Task[None] | None = None
        self._call_lock = asyncio.Lock()
        """Held from a preview's call until its id is recorded."""
        self._newest_text = ""
        self._status = ""
        """Line under the text, until that grows."""
        self._updated = asyncio.Event()
        self._ended = False
        self._left_behind = False
        """Whatever is shown is no concern of this turn any more."""
        self._shown = [] if left is None else [left]
        """The messages that may stand, in order; the last one is provisional if its id is not
        known."""
        self._announced: MessageId | None = None
        """The recorded id of a message that is surely not shown yet."""
        self._is_refused = False
        """True: the platform refused an edit, perhaps because somebody has deleted the message."""

    @property
    def is_seen(self) -> bool:
        """True: something of it may be seen, beside the typing indicator."""
        return bool(self._shown) or self._preview_task is not None

    def update(self, text: str) -> None:
        """Show that the answer has grown to this text.

        Returns at once; of several in a short time only the newest is shown.
        """
        self._newest_text, self._status = text, ""
        self._show_newest()

    def show_status(self, text: str) -> None:
        """Show what goes on now, in a line under the answer so far. Returns at once."""
        self._status = text
        self._show_newest()

    def _show_newest(self) -> None:
        if self._preview is None or self._ended:
            return
        self._updated.set()
        if self._preview_task is None:
            self._preview_task = self._previews.tasks.create_task(self._run_preview(self._preview))

    async def finish(self, post: Post) -> tuple[MessageId, ...]:
        """End the preview, and return the messages that the caller makes the first ones of this
        post (`Post.previews`).

        Raises `StoreError` only.
        """
        self.stop()
        standing = list[MessageId]()
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(SETTLE_S / 2),
                self._call_lock,
            ):  # a late edit would show the half again
                await self._take_over()
                # Where the first of several is gone, its text would come after the others.
                if self._shown and (len(self._shown) == 1 or not self._is_refused):
                    count = len(
                        self._split(replace(post, text=self._previews.redactor(post.text)))
                    ) or len(self._shown)
                    standing, self._shown = self._shown[:count], self._shown[count:]
        await self.end()
        return tuple(standing)

    async def end(self, *, leaves: bool = False) -> None:
        """End the preview: when this returns nothing is shown any more, or it is being deleted.

        `leaves`: it is left to the next turn there. Raises `StoreError` only.
        """
        if self._left_behind:
            return
        self.stop()
        try:
            async with asyncio.timeout(PARKED_SETTLE_S if leaves else SETTLE_S):
                await self._settle(leaves=leaves)
        except (SendError, TimeoutError) as error:
            logger.info(
                "a preview in %s is not gone yet: %s",
                self.at.conversation,
                str(error) or "it takes long",
            )
        except StoreError:
            raise
        except Exception:  # a bug in the adapter
            logger.exception("taking away a preview in %s broke", self.at.conversation)
        finally:
            if self._preview_task is not None and self._call_lock.locked() and not leaves:
                self._previews.track_task(
                    self._preview_task
                )  # it learns the id of its message, and deletes that
            elif self._preview_task is not None:
                self._preview_task.cancel()
        self._left_behind = True
        for message in () if self._call_lock.locked() else self._shown:
            (self._previews.leave if leaves else self._previews.clear_later)(self.at, message)

    async def _settle(self, *, leaves: bool) -> None:
        """Wait for a call under way, then delete what is shown, unless it is left to another
        turn.
        """
        async with self._call_lock:
            if self._preview_task is not None:
                self._preview_task.cancel()
        if self._announced is not None:
            await self._previews.record(
                PreviewEnded(at=self.at, message=self._announced, reason="")
            )
            self._announced = None
        if not leaves:
            await self._clear_behind(0)

    async def _clear_behind(self, count: int) -> None:
        """Delete the messages after the first `count`. Hold the lock of calls. Raises
        `SendError`.
        """
        while len(self._shown) > count:
            await self._previews.clear(self.at, self._shown[-1])
            self._shown.pop()

    def stop(self) -> None:
        """Show nothing more from now on."""
        self._ended = True
        if self._typing_task is not None:
            self._typing_task.cancel()  # it ends the indicator itself

    async def _run_preview(self, channel: CanPreview) -> None:
        seen = list[str]()
        try:
            await self._previews.clock.sleep(FIRST_LOOK_S)
            async with self._call_lock:
                await self._take_over()
            while not self._ended:
                try:
                    waiting, is_draft = self._updated.wait(), len(seen) > len(self._shown)
                    await (
                        with_timeout(self._previews.clock, DRAFT_S, waiting)
                        if is_draft
                        else waiting
                    )
                except TimeoutError:
                    seen.pop()
                self._updated.clear()
                text, wait_s = self._presentable_text(), channel.preview_interval_s
                try:
                    if text:
                        parts = self._split(Post(key=PostKey("preview"), to=self.at, text=text))
                        await self._show_parts(channel, parts, seen)
                except (
                    RateLimited
                ) as error:  # no rate limit is left; the text shown would be old until the end
                    self._updated.set()
                    wait_s = max(wait_s, error.retry_after_s)
                await self._previews.clock.sleep(wait_s)
        except StoreError:
            raise
        except SendError as error:
            logger.debug(
                "no more previews of this turn in %s: %s", self.at.conversation, error.reason
            )
        except Exception:  # a bug in the adapter: the answer itself is sent all the same
            logger.exception("a preview in %s broke", self.at.conversation)
        self._preview, self._turn.is_shown = None, False

    async def _take_over(self) -> None:
        """Go on in what the turn before may have left meanwhile. Hold the lock of calls."""
        if self._before is not None:
            await asyncio.wait([self._before])
            self._before, left = None, self._previews.take_left(self.at)
            self._shown += [] if left is None else [left]

    def _presentable_text(self) -> str:
        answer = presentable_text(self._newest_text)
        if not self._status:  # else nothing is added to it
            answer = _UNFINISHED_WORD.sub("", answer).rstrip()
        return "\n\n".join(filter(None, map(self._previews.redactor, (answer, self._status))))

    def _split(self, post: Post) -> tuple[str, ...]:
        """Return the messages of a post; none without its channel."""
        channel = self._previews.channels.get(self.at.channel)
        return () if channel is None else channel.split(post)

    async def _show_parts(self, channel: CanPreview, parts: Sequence[str], seen: list[str]) -> None:
        """Show what is new in these messages, and delete those behind them. `seen`: what each
        shows, updated.
        """
        for index, body in enumerate(parts):
            is_full = index + 1 < len(parts)
            if seen[index : index + 1] != [body] or (is_full and index >= len(self._shown)):
                await self._show_part(channel, index, body, is_full=is_full)
                seen[index : index + 1] = [body]
        async with self._call_lock:
            if parts and not self._ended:
                await self._clear_behind(len(parts))
                del seen[len(parts) :]

    async def _show_part(
        self, channel: CanPreview, index: int, body: str, *, is_full: bool
    ) -> None:
        """Call `CanPreview.preview` and record the message. Does nothing once the turn has
        ended.
        """
        async with self._call_lock:
            if self._ended:
                return
            before, is_unseen = next(iter(self._shown[index:]), None), False
            try:
                shown = await channel.preview(
                    self.at,
                    body,
                    before,
                    is_full=is_full,
                    reply_to=self._turn.reply_to if index == 0 else None,
                    announce=self._announce,
                )
                if shown is not None and before is None:
                    await self._announce(shown)
            except SendError as error:
                is_unseen = not isinstance(error, Uncertain)
                self._is_refused = before is not None and isinstance(error, Rejected)
                raise
            finally:
                if self._announced is not None and not is_unseen:
                    self._shown.append(self._announced)
                    self._announced = None
                for message in self._shown if self._left_behind else ():
                    self._previews.clear_later(self.at, message)

    async def _announce(self, message: MessageId) -> None:
        facts: list[PreviewShown | PreviewEnded] = [PreviewShown(at=self.at, message=message)]
        if self._announced is not None:
            facts.append(PreviewEnded(at=self.at, message=self._announced, reason=""))
        self._announced = message
        await self._previews.record(*facts)
