"""Previews of a running turn: the typing indicator, the answer as it grows, and word of a slow model.

Best effort: nothing here delays or fails a turn. A preview that is a message of its own is half a reply, so none may
stay: its id is recorded as soon as it is known, and it is deleted before the whole answer is sent, or else retried for
as long as it takes, also by the next process.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from typing import Self, cast

from agent.turn import presentable_text
from channels.base import CanPreview, CanType, Channel, Denied, RateLimited, Rejected, SendError, Unreachable
from gateway.core.clock import Clock, new_id
from gateway.core.events import Address, ChannelName, MessageId, Post, PostKey
from gateway.core.facts import PostQueued, PreviewEnded, PreviewShown, Seq
from gateway.core.redaction import Redactor
from gateway.store import NewEntry, Store, StoreError

logger = logging.getLogger("reverie.preview")

_UNFINISHED_WORD = re.compile(r"[!-~]+\Z")
"""The last word. It may become a secret, which is recognised only once it is complete."""

FIRST_LOOK_S = 0.7
"""Seconds after the first words without a preview: one of an answer that is complete so soon only costs rate limit."""
SETTLE_S = 3.0
"""Time for which the whole answer waits for its preview to be deleted; then it is sent, and deletion goes on."""
PARKED_SETTLE_S = 0.5
"""The same for a turn that is cut off because the process ends: the next process deletes the rest."""
GOODBYE_S = 2.0
"""Time limit for ending the typing indicator."""
SLOW_S = 20.0
"""Seconds that people wait for a model without a word."""
SLOW_TEXT = "The model I think with is slow right now. I am still waiting for its answer."
QUEUED_TEXT = "I am asked for a lot at once just now. I will answer as soon as it is your turn."
"""Posted where a turn waits for others to end."""
FIRST_TRY_S, LAST_TRY_S = 2.0, 300.0
"""Waits between attempts to delete a preview: doubling from the first to the second."""


class TurnPreviews:
    """Creates the preview of each turn, and deletes what is left of them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        channels: Mapping[ChannelName, Channel],
        tasks: asyncio.TaskGroup,
        redactor: Redactor,
    ) -> None:
        """`redactor` is applied to every text."""
        self.redactor = redactor
        self._store = store
        self.clock = clock
        self.tasks = tasks
        self._channels = channels
        self._clearing_tasks: set[asyncio.Task[None]] = set()

    def start(self, at: Address) -> "TurnPreview":
        """Start the preview of a turn that begins to ask the model, as far as the platform can show it."""
        channel: object = self._channels.get(at.channel)
        typing = channel if isinstance(channel, CanType) else None
        return TurnPreview(self, at, typing, channel if isinstance(channel, CanPreview) else None)

    async def recover(self, only: ChannelName | None = None) -> None:
        """Start to delete previews of an earlier process; with `only`, those left when that channel was removed."""
        for conversation, message in await self._store.open_previews():
            at = Address.parse(conversation)
            if isinstance(self._channels.get(at.channel), CanPreview) and only in (None, at.channel):
                self.clear_later(at, message)

    async def record(self, fact: PreviewShown | PreviewEnded) -> None:
        """Append that a message is a preview, or that it is none any more."""
        await self._store.append([NewEntry(fact=fact, at=self.clock.now(), conversation=fact.at.conversation)])

    async def post_notice(self, at: Address, text: str, cause: Seq | None) -> None:
        """Append a post that belongs to no turn, so that no model reads it. `cause`: the message that waits."""
        now = self.clock.now()
        post = Post(key=PostKey(new_id(now)), to=at, text=text, style="notice")
        fact, key = PostQueued(post=post), f"post:{post.key}"
        await self._store.append([NewEntry(fact=fact, at=now, conversation=at.conversation, key=key, cause=cause)])

    async def clear(self, at: Address, message: MessageId) -> None:
        """Delete a preview, one attempt. Raises `SendError` if it is to be tried again."""
        reason, channel = "", cast("object", self._channels.get(at.channel))
        if not isinstance(channel, CanPreview):
            raise Unreachable(f"there is no channel {at.channel} just now")
        try:
            await channel.delete_preview(at, message)
        except Rejected as error:
            reason = error.reason
            logger.warning("the preview %s in %s stays: %s", message, at.conversation, reason)
        await self.record(PreviewEnded(at=at, message=message, reason=reason))

    def clear_later(self, at: Address, message: MessageId) -> None:
        """Retry until the preview is deleted, or the process ends: the next one goes on."""
        self.track_task(self.tasks.create_task(self._clear_later(at, message)))

    def track_task(self, task: asyncio.Task[None]) -> None:
        """Keep a task that nobody waits for, so that `close` ends it."""
        self._clearing_tasks.add(task)
        task.add_done_callback(self._clearing_tasks.discard)

    async def close(self) -> None:
        """Cancel the running tasks."""
        tasks = tuple(self._clearing_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _clear_later(self, at: Address, message: MessageId) -> None:
        wait_s = FIRST_TRY_S
        # Without its channel it stays in the store until that is back.
        while isinstance(self._channels.get(at.channel), CanPreview):
            hint_s = 0.0
            try:
                await self.clear(at, message)
            except Denied:
                return
            except RateLimited as error:
                hint_s = error.retry_after_s
            except SendError as error:
                logger.debug("the preview %s in %s is not gone yet: %s", message, at.conversation, error.reason)
            except StoreError:
                raise
            except Exception:  # a bug in the adapter: the record stays, and the next process tries again
                logger.exception("taking away the preview %s in %s broke", message, at.conversation)
                return
            else:
                return
            await self.clock.sleep(max(wait_s, hint_s))
            wait_s = min(2 * wait_s, LAST_TRY_S)


class TurnPreview:
    """Preview of one turn."""

    def __init__(self, previews: TurnPreviews, at: Address, typing: CanType | None, preview: CanPreview | None) -> None:
        self._previews = previews
        self._at = at
        self._preview = preview
        self._typing_task = None if typing is None else previews.tasks.create_task(self._run_typing(typing))
        self._preview_task: asyncio.Task[None] | None = None
        self._slow_task: asyncio.Task[None] | None = None
        self._told_slow = False
        self._call_lock = asyncio.Lock()
        """Held from a preview's call until its id is recorded."""
        self._newest_text = ""
        self._updated = asyncio.Event()
        self._ended = False
        self._left_behind = False
        """Deletion has been handed over to `clear_later`."""
        self._shown_messages: list[MessageId] = []
        """Messages that exist; hardly ever more than one."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, _traceback: object) -> None:
        await self.end(parked=isinstance(error, asyncio.CancelledError))

    def update(self, text: str) -> None:
        """Show that the answer has grown to this text.

        Returns at once; of several in a short time only the newest is shown.
        """
        if self._preview is None or self._ended:
            return
        if text.strip():
            self.expect_nothing()
        self._newest_text = text
        self._updated.set()
        if self._preview_task is None:
            self._preview_task = self._previews.tasks.create_task(self._run_preview(self._preview))

    def expect_answer(self, cause: Seq | None = None) -> None:
        """Say once that the model is slow if nothing of its answer is visible `SLOW_S` from now. Returns at once.

        It is said in the preview, which the answer replaces; where the platform has none, in a post of its own.
        `cause`: the message that waits for it.
        """
        self.expect_nothing()
        if not (self._told_slow or self._ended):
            self._slow_task = self._previews.tasks.create_task(self._tell_slow(cause))

    def expect_nothing(self) -> None:
        """Take back `expect_answer`: the answer is visible, or it is not the model that people wait for."""
        if self._slow_task is not None:
            self._slow_task.cancel()
            self._slow_task = None

    async def _tell_slow(self, cause: Seq | None) -> None:
        await self._previews.clock.sleep(SLOW_S)
        self._slow_task, self._told_slow = None, True
        if self._preview is not None:
            self.update(SLOW_TEXT)
        else:
            await self._previews.post_notice(self._at, SLOW_TEXT, cause)

    async def end(self, *, parked: bool = False) -> None:
        """End the preview: when this returns nothing is shown any more, or it is being deleted.

        `parked`: the process ends, so what cannot be deleted soon is left to the next one. Raises `StoreError` only.
        """
        self._ended = True
        self.expect_nothing()
        if self._typing_task is not None:
            self._typing_task.cancel()  # it ends the indicator itself
        try:
            async with asyncio.timeout(PARKED_SETTLE_S if parked else SETTLE_S):
                async with self._call_lock:  # a cancelled call would leave a message with an unknown id
                    if self._preview_task is not None:
                        self._preview_task.cancel()
                while self._shown_messages:
                    await self._previews.clear(self._at, self._shown_messages[-1])
                    self._shown_messages.pop()
        except (SendError, TimeoutError) as error:
            logger.info("a preview in %s is not gone yet: %s", self._at.conversation, str(error) or "it takes long")
        except StoreError:
            raise
        except Exception:  # a bug in the adapter
            logger.exception("taking away a preview in %s broke", self._at.conversation)
        finally:
            if self._preview_task is not None and self._call_lock.locked() and not parked:
                self._previews.track_task(self._preview_task)  # it learns the id of its message, and deletes that
            elif self._preview_task is not None:
                self._preview_task.cancel()
        self._left_behind = True
        for message in () if parked else self._shown_messages:
            self._previews.clear_later(self._at, message)

    async def _run_typing(self, channel: CanType) -> None:
        try:
            while True:
                await channel.typing(self._at, active=True)
                await self._previews.clock.sleep(channel.typing_interval_s)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    try:
                        await channel.typing(self._at, active=False)
                    except Exception:  # also a bug in the adapter
                        logger.exception("typing in %s broke", self._at.conversation)
            raise
        except Exception:  # a bug in the adapter, and no reason to give no answer
            logger.exception("typing in %s broke", self._at.conversation)

    async def _run_preview(self, channel: CanPreview) -> None:
        shown: MessageId | None = None
        last = ""
        try:
            await self._previews.clock.sleep(FIRST_LOOK_S)
            while not self._ended:
                await self._updated.wait()
                self._updated.clear()
                text, wait_s = self._presentable_text(), channel.preview_interval_s
                try:
                    if text not in ("", last):
                        shown, last = await self._show_text(channel, text, shown), text
                except RateLimited as error:  # no rate limit is left; the text shown would be old until the end
                    self._updated.set()
                    wait_s = max(wait_s, error.retry_after_s)
                await self._previews.clock.sleep(wait_s)
        except StoreError:
            raise
        except SendError as error:
            logger.debug("no more previews of this turn in %s: %s", self._at.conversation, error.reason)
        except Exception:  # a bug in the adapter: the answer itself is sent all the same
            logger.exception("a preview in %s broke", self._at.conversation)
        self._preview = None

    def _presentable_text(self) -> str:
        """Return the part of the newest text that may be shown."""
        if self._newest_text == SLOW_TEXT:
            return SLOW_TEXT
        return self._previews.redactor(_UNFINISHED_WORD.sub("", presentable_text(self._newest_text)).rstrip())

    async def _show_text(self, channel: CanPreview, text: str, shown: MessageId | None) -> MessageId | None:
        """Call `CanPreview.preview` and record the message. Does nothing once the turn has ended."""
        async with self._call_lock:
            if self._ended:
                return shown
            shown = await channel.preview(self._at, text, shown)
            if shown is not None and shown not in self._shown_messages:
                self._shown_messages.append(shown)
                await self._previews.record(PreviewShown(at=self._at, message=shown))
                if self._left_behind:
                    self._previews.clear_later(self._at, shown)
        return shown
