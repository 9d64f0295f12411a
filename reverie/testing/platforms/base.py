"""What the conformance suite asks of a platform: hands for the people there, eyes for what they
see.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from channels.base import (
    Channel,
    ChannelConfig,
    CommandArg,
    CommandSpec,
    PostPart,
    no_before_send,
)
from gateway.core.events import (
    Address,
    ChannelName,
    Message,
    Post,
    PostKey,
    Receipt,
    RoomId,
)
from reverie.testing.channels import Recorder
from reverie.testing.platforms.broken_channels import Twin

_SERVERS = (str(Path(__file__).parents[1]), "/tests/", "aiohttp/web_")
"""Where the code of test servers is, and of the library that they stand on."""
Where = Literal["room", "other", "direct"]
"""Two rooms that the bot is in, and its direct chat with alice."""
COMMANDS = (
    CommandSpec(
        name="greet",
        summary="Greet somebody",
        args=(CommandArg(name="whom", summary="Somebody", required=True, suggests=True),),
    ),
    CommandSpec(name="whisper", summary="Speak low", direct_only=True),
    CommandSpec(name="look", summary="Look around", role="member"),
    CommandSpec(name="close", summary="Close the doors", role="admin"),
    CommandSpec(name="leave", summary="Leave for good", role="owner", direct_only=True),
)
"""What the platform is told of commands, where it has such."""


class Ear(Recorder):
    """Takes what a channel emits, and waits no longer than the platform needs."""

    def __init__(self, patience_s: float) -> None:
        super().__init__()
        self.patience_s = patience_s

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait until it is so. Raises AssertionError with all that was heard."""
        try:
            async with asyncio.timeout(self.patience_s):
                while not true():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{what}; heard: {self.seen[-12:]}") from None

    async def messages(self, count: int) -> list[Message]:
        """The first `count` messages, as soon as they are there."""
        await self.until(lambda: len(self.all(Message)) >= count, f"no {count} messages")
        return self.all(Message)[:count]

    async def message(self, text: str) -> Message:
        """The first message that says `text`, whatever stands before it."""

        def found() -> list[Message]:
            return [one for one in self.all(Message) if one.text.endswith(text)]

        await self.until(lambda: bool(found()), f"nobody said {text!r}")
        return found()[0]


class Kit(ABC):
    """One platform with a bot account on it, two rooms, and the people alice and bob. An async
    context manager.
    """

    lacks: ClassVar[Mapping[str, str]] = {}
    """Checks that do not apply, by name, and why: what the platform itself does not have."""
    harmless: ClassVar[Mapping[type[Twin], str]] = {}
    """Broken twins that do no harm before this adapter, and why."""
    patience_s: float = 10.0
    name: ChannelName
    nowhere: RoomId
    """A room that does not exist."""

    @abstractmethod
    def connection(self) -> contextlib.AbstractAsyncContextManager[object]:
        """The platform, for as long as it is entered."""

    @abstractmethod
    def make(self, cursor: str | None = None) -> Channel:
        """A new adapter for the account, to go on from `cursor`."""

    @abstractmethod
    def address(self, where: Literal["room", "other"]) -> Address:
        """Of one of the rooms."""

    @abstractmethod
    async def say(
        self, text: str, *, where: Where = "room", by: Literal["alice", "bob"] = "alice"
    ) -> None:
        """Somebody says `text`; the platform passes it on. Each has a direct chat of their own."""

    @abstractmethod
    async def mention(self, text: str) -> None:
        """Let alice say `text` to the bot, in the room, as people do there."""

    @abstractmethod
    async def seen(self, where: Where, count: int = 1) -> list[str]:
        """What people see of the bot's messages there, oldest first, as soon as they are at least
        `count`.
        """

    async def again(self) -> None:
        """Deliver the newest message once more."""
        raise NotImplementedError

    async def formatted(self) -> str:
        """Let alice write with the platform's own formatting; what its Markdown must be."""
        raise NotImplementedError

    async def echo(self, text: str) -> None:
        """Let the bot's own account say something in the room by another client."""
        raise NotImplementedError

    async def noise(self) -> None:
        """Send events that no adapter knows, and broken ones."""
        raise NotImplementedError

    async def refuse(self) -> None:
        """From now on the platform refuses what the bot says in the other room."""
        raise NotImplementedError

    async def limit(self, seconds: float) -> None:
        """The next message in the room is refused for being too early."""
        raise NotImplementedError

    async def cut_send(self) -> None:
        """The connection breaks as the next message is handed over."""
        raise NotImplementedError

    async def bad_login(self) -> None:
        """From now on the platform refuses the account."""
        raise NotImplementedError

    async def cut(self) -> None:
        """Break the connection; it can be made again at once."""
        raise NotImplementedError

    async def away(self) -> None:
        """Break the connection, and let nobody connect until `back`."""
        raise NotImplementedError

    async def back(self) -> None:
        """Let connections be made again."""
        raise NotImplementedError

    async def attach(self, data: bytes) -> None:
        """Let alice send a file with these bytes into the room."""
        raise NotImplementedError

    def moved(self, at: Address) -> ChannelConfig:
        """What the channel is made of, with this room instead of the other one."""
        raise NotImplementedError

    async def typing_seen(self) -> None:
        """Return once people in the room see that the bot is writing."""
        raise NotImplementedError

    async def invited(self) -> Address:
        """A room that is there, and that the bot is not in."""
        raise NotImplementedError

    async def joined(self, at: Address) -> None:
        """Return once people see the bot there."""
        raise NotImplementedError

    async def leavable(self) -> Address:
        """A room that the bot is in, and can leave."""
        return self.address("other")

    async def left(self, at: Address) -> None:
        """Return once people see that the bot is not there any more."""
        raise NotImplementedError

    async def appoint(self) -> None:  # noqa: B027 - most have nothing to do for it
        """Let the bot do in the room what takes rights there, and see who is."""

    async def reactions(self) -> list[str]:
        """The bot's reactions to alice's newest message in the room, once everybody knows of
        them.
        """
        raise NotImplementedError

    async def topic(self) -> str:
        """What people see as the room's topic."""
        raise NotImplementedError

    async def theirs(self) -> list[str]:
        """What alice and bob have said in the room that is still there."""
        raise NotImplementedError

    def files(self) -> list[tuple[str, str, bytes]]:
        """The bot's files in the room: what each is called, says of itself, and holds."""
        raise NotImplementedError

    async def suggested(self, where: Where, begun: str) -> list[str]:
        """What alice is shown there when she has written `begun` as `whom` of `greet`."""
        raise NotImplementedError

    async def menu(self, where: Where, by: Literal["alice", "bob"]) -> list[str]:
        """The commands that somebody is shown there."""
        raise NotImplementedError

    async def known(self, account: str | None) -> None:  # noqa: B027 - most know people in one way
        """From now on alice is known by this account, where the platform has people with and
        without.
        """

    async def overheard(self) -> list[str]:
        """All that bob sees of what the bot says."""
        raise NotImplementedError

    def replied(self, where: Where) -> bool:
        """Whether the bot's newest message there is shown as a reply."""
        raise NotImplementedError

    def alarmed(self) -> int:
        """How many people a mass mention of the bot has reached."""
        raise NotImplementedError

    def plain(self, seen: str) -> str:
        """What a message says, without the platform's formatting."""
        return seen

    def fits(self, seen: str) -> bool:
        """Whether a message keeps the platform's limit."""
        raise NotImplementedError

    async def gone(self) -> None:
        """Return once the platform knows that the bot has left."""
        raise NotImplementedError

    def owns(self, task: "asyncio.Task[Any]") -> bool:
        """Whether a task is the platform's: its code is a test server's, or that of the library it
        stands on.
        """
        code = getattr(task.get_coro(), "cr_code", None)
        return code is not None and any(one in code.co_filename for one in _SERVERS)


class Bench:
    """A kit with a running channel."""

    def __init__(self, kit: Kit, channel: Channel) -> None:
        self.kit, self.channel = kit, channel
        self.before = asyncio.all_tasks()
        """Tasks that are none of the channel's."""
        self.ear = Ear(kit.patience_s)
        self.run = asyncio.create_task(channel.run(self.ear.emit))
        self._posts = 0

    async def up(self, times: int = 1) -> None:
        await self.ear.until(
            lambda: self.ear.links.count(True) >= times or self.run.done(), "the link is not up"
        )
        if self.run.done():
            self.run.result()

    def post(self, text: str, at: Address | None = None) -> Post:
        self._posts += 1
        return Post(key=PostKey(f"post{self._posts}"), to=at or self.kit.address("room"), text=text)

    def parts(self, post: Post) -> list[PostPart]:
        return [
            PostPart(
                key=f"{post.key}#{index}",
                to=post.to,
                body=body,
                style=post.style,
                reply_to=post.reply_to,
            )
            for index, body in enumerate(self.channel.split(post))
        ]

    async def tell(self, text: str, at: Address | None = None) -> list[Receipt]:
        """Say something as the outbox does, part after part."""
        return [
            await self.channel.send(part, no_before_send)
            for part in self.parts(self.post(text, at))
        ]

    async def end(self) -> None:
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)


@contextlib.asynccontextmanager
async def bench(
    kit: Kit, disguise: Callable[[Channel], Channel] = lambda channel: channel
) -> AsyncIterator[Bench]:
    """A channel that is up on a fresh platform."""
    async with kit.connection():
        ready = Bench(kit, disguise(kit.make()))
        try:
            await ready.up()
            yield ready
        finally:
            await ready.end()
