"""A platform of somebody else's: from its settings to an answer, and the check of its settings."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest

from agent.models.scripted import Script, ScriptedModel
from channels.base import (
    BeforeSend,
    Capabilities,
    ChannelConfig,
    Emit,
    PostPart,
    no_before_send,
)
from channels.irc.config import IrcConfig
from gateway import app
from gateway.config.loader import ConfigError, read_config
from gateway.config.validation import find_unrunnable
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import (
    Address,
    ChannelName,
    ConnectionChanged,
    EventId,
    Message,
    MessageId,
    Post,
    Receipt,
    RoomId,
    Sender,
    SenderId,
)
from gateway.core.fields import ConfigSection
from gateway.plugin import PlatformFactory, Plugin
from gateway.plugins import UnusablePlugin, use_plugins
from reverie.testing.gateway import settings

MAIL = ChannelName("mail")


class MailConfig(ChannelConfig):
    """A mailbox: a list of lines, each from one person."""

    account_keys: ClassVar = ("box",)

    platform: Literal["mail"]
    box: str = "inbox"


class MailChannel:
    """Reads a mailbox from its cursor on, and keeps what is sent."""

    mails: ClassVar[list[str]] = []
    sent: ClassVar[list[str]] = []
    began: ClassVar[list[str | None]] = []
    news: ClassVar[asyncio.Event]

    capabilities = Capabilities(platform="Mail", formatting="Plain text.")

    def __init__(self, name: ChannelName, clock: Clock, cursor: str | None) -> None:
        self.name, self._clock, self._cursor = name, clock, cursor

    async def run(self, emit: Emit) -> None:
        self.began.append(self._cursor)
        now = self._clock.now()
        up = ConnectionChanged(
            id=EventId(f"up-{len(self.began)}"), channel=self.name, up=True, reason="", sent=now
        )
        await emit([up])
        for number in range(int(self._cursor or 0), len(self.mails)):
            message = Message(
                id=MessageId(str(number)),
                at=Address(channel=self.name, room=RoomId("ann")),
                sender=Sender(id=SenderId("ann"), name="ann", verified=True),
                sent=now,
                text=self.mails[number],
                kind="direct",
            )
            await emit([message], cursor=str(number + 1))
        await asyncio.Event().wait()

    def split(self, post: Post) -> tuple[str, ...]:
        return (post.text,)

    async def send(self, part: PostPart, before_send: BeforeSend = no_before_send) -> Receipt:
        await before_send()
        self.sent.append(part.body)
        self.news.set()
        return Receipt(ids=(MessageId(f"out-{len(self.sent)}"),))


class Mail(Plugin):
    name = "mail"
    platforms: ClassVar = {
        "mail": PlatformFactory(
            settings=MailConfig,
            make=lambda *, name, clock, cursor, **_: MailChannel(name, clock, cursor),
        )
    }


def configured(tmp: Path, **channel: object) -> Any:
    return settings(tmp, channels={MAIL: {"platform": "mail", **channel}})


async def answered(tmp: Path, mails: Sequence[str]) -> str:
    """Run a gateway on a mailbox until it has sent an answer."""
    MailChannel.mails.extend(mails)
    MailChannel.news = asyncio.Event()
    stop = asyncio.Event()
    model = ScriptedModel(Script(), clock=SystemClock())
    running = asyncio.create_task(app.run(configured(tmp), stop, model=model))
    waiting = asyncio.create_task(MailChannel.news.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=60)
    waiting.cancel()
    stop.set()
    await running
    return MailChannel.sent[-1]


async def test_platform_of_a_plugin_answers_and_goes_on_from_its_cursor(tmp_path: Path) -> None:
    with use_plugins(Mail):
        first = await answered(tmp_path, ["hello"])
        second = await answered(tmp_path, ["and again"])
    assert "hello" in first
    assert "and again" in second
    assert len(MailChannel.sent) == 2
    assert MailChannel.began == [None, "1"]


def test_unknown_setting_of_the_platform_is_refused_with_file_line_and_key(tmp_path: Path) -> None:
    base = "agents: [{id: mira}]\nllm: {providers: {}, models: {}}\n"
    (tmp_path / "a.yaml").write_text(
        f"{base}channels:\n  mail:\n    platform: mail\n    bocks: inbox\n"
    )
    with use_plugins(Mail), pytest.raises(ConfigError) as raised:
        read_config(tmp_path, {})
    [problem] = raised.value.problems
    assert (Path(problem.file).name, problem.line, problem.key) == (
        "a.yaml",
        6,
        "channels.mail.bocks",
    )
    assert "box" in problem.message


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"channels": {"mail": {"platform": "male"}}}, "channels.mail.platform"),
        (
            {"channels": {"mail": {"platform": "mail"}}, "plugins": {"off": ["mail"]}},
            "channels.mail.platform",
        ),
    ],
    ids=["unknown", "off"],
)
def test_platform_that_is_not_there_is_named(
    tmp_path: Path, more: dict[str, object], key: str
) -> None:
    with use_plugins(Mail), pytest.raises(ConfigError) as raised:
        settings(tmp_path, **more)  # type: ignore[arg-type]  # `rooms` is none of them
    [problem] = raised.value.problems
    assert problem.key == key
    assert "mail" in problem.message


def test_two_channels_of_one_account_are_refused(tmp_path: Path) -> None:
    with use_plugins(Mail):
        box = {"platform": "mail", "box": "one"}
        given = settings(tmp_path, channels={"mail": box, "mail.two": box})
        [(keys, _)] = find_unrunnable(given)
    assert keys == ("channels", "mail.two", "box")


class Other(Plugin):
    name = "other"
    platforms: ClassVar = {"irc": PlatformFactory(settings=IrcConfig, make=MailChannel)}


class Misnamed(Plugin):
    name = "misnamed"
    platforms: ClassVar = {"post": PlatformFactory(settings=MailConfig, make=MailChannel)}


class LoneConfig(ConfigSection):
    platform: Literal["lone"]


class Lone(Plugin):
    name = "lone"
    platforms: ClassVar = {"lone": PlatformFactory(settings=LoneConfig, make=MailChannel)}  # type: ignore[arg-type] # as an author without mypy writes it


@pytest.mark.parametrize("plugin", [Other, Misnamed, Lone])
def test_platform_with_a_name_that_is_taken_or_settings_that_do_not_fit_is_unusable(
    plugin: type[Plugin],
) -> None:
    with pytest.raises(UnusablePlugin), use_plugins(plugin):
        pass
