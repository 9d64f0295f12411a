"""Settings that may change while the gateway runs."""

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.settings import ModelConfig
from agent.signals import DmnPolicy
from agent.workspace.cache import WorkspaceCache
from gateway.config.loader import ConfigError, ConfigFiles, LoadedConfig, read_config
from gateway.config.models import AttentionConfig, Settings
from gateway.config.reload import (
    POLL_S,
    LiveSettings,
    Optimization,
    ReloadResult,
    watch_config,
)
from gateway.config.source import ConfigProblem
from gateway.config.tools import ApprovalsConfig
from gateway.core.clock import ManualClock
from gateway.core.events import ConversationId
from gateway.core.facts import URGENT
from gateway.core.ratelimit import Rate, TokenBuckets
from gateway.runtime.models import TokenCounters
from gateway.store import Store
from gateway.stream.inbox import ReadyConversation
from reverie.testing.waiting import until
from tests.gateway.runtime.test_agent import INNER, Ending
from tests.gateway.stream.test_attention import listened
from tests.kits import approvals
from tests.kits.agent import DrivenAgent
from tests.kits.models import request
from tests.kits.settings import live_settings
from tests.kits.tools import set_tools

CONFIG = """\
channels: {}
agents:
  - {id: ana, bindings: [{match: {room: garden}}], context_optimization: {prompt_cache: %s}}
  - {id: bob}
llm:
  providers: {s: {kind: scripted}}
  models: {main: {provider: s}}
  context_optimization: {prompt_cache: {enabled: %s}, workspace_cache: {enabled: false}}
ops: {port: %s}
"""


CACHE = "llm.context_optimization.prompt_cache.enabled"


def write(directory: Path, *, own: str = "true", general: str = "true", port: str = "0") -> None:
    """Write as an editor does: a new file in the old one's place."""
    new = directory / "reverie.yaml.new"
    new.write_text(CONFIG % (own, general, port))
    new.replace(directory / "reverie.yaml")


def live(directory: Path) -> LiveSettings:
    return LiveSettings(read_config(directory, {}).settings, ConfigFiles(directory, {}))


@pytest.fixture
def plain(tmp_path: Path) -> LiveSettings:
    write(tmp_path)
    return live(tmp_path)


def test_an_agents_own_word_counts_before_the_general_one(tmp_path: Path) -> None:
    write(tmp_path, own="true", general="false")
    now = live(tmp_path)
    names: list[Optimization] = ["prompt_cache", "compaction", "token_counter", "workspace_cache"]
    assert [one in now.enabled["ana"] for one in names] == [True, False, True, False]
    assert "prompt_cache" not in now.enabled["bob"]
    assert "prompt_cache" not in now.enabled["nobody"]


async def test_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, plain: LiveSettings
) -> None:
    write(tmp_path, own="perhaps")
    await plain.reload()
    assert "prompt_cache" in plain.enabled["ana"]
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "reverie.yaml:3" in said
    write(tmp_path, own="false")
    await plain.reload()
    assert "prompt_cache" not in plain.enabled["ana"]


async def test_files_that_change_what_needs_a_restart_wait_for_it_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, plain: LiveSettings
) -> None:
    write(tmp_path, general="false", port="9100")
    assert await plain.reload() == ReloadResult(after_restart=("ops.port",))
    assert "prompt_cache" in plain.enabled["bob"]
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "the configuration was read again; all changes wait for a restart, for: ops.port"
    ]
    write(tmp_path, general="false")
    assert await plain.reload() == ReloadResult(applied=(CACHE,))
    assert "prompt_cache" not in plain.enabled["bob"]


async def test_a_directory_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    directory.mkdir()
    write(directory)
    now = live(directory)
    directory.rename(tmp_path / "away")
    await now.reload()
    assert "prompt_cache" in now.enabled["ana"]
    (tmp_path / "away").rename(directory)
    await now.reload()
    assert "prompt_cache" in now.enabled["ana"]


class Held(ConfigFiles):
    """Configuration files on a slow disk: each read ends when it is released."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, {})
        self.reading, self.go, self.gone = threading.Event(), threading.Event(), False

    def read(self) -> LoadedConfig:
        found = super().read()
        self.reading.set()
        self.go.wait()
        if self.gone:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return found


async def test_a_file_that_is_gone_while_it_is_read_changes_nothing(
    tmp_path: Path, plain: LiveSettings
) -> None:
    plain.files = disk = Held(tmp_path)
    write(tmp_path, own="false")
    looking = asyncio.create_task(plain.reload())
    await asyncio.to_thread(disk.reading.wait)
    disk.gone = True
    disk.go.set()
    assert await looking == ReloadResult(read_error="No such file or directory")
    assert "prompt_cache" in plain.enabled["ana"]


def test_whoever_may_read_a_file_counts_as_what_is_in_it(tmp_path: Path) -> None:
    """A file that could not be read is read once it may be, with the same bytes and the same
    time."""
    write(tmp_path)
    files = ConfigFiles(tmp_path, {})
    files.read()
    assert not files.is_stale()
    (tmp_path / "reverie.yaml").chmod(0o640)
    assert files.is_stale()


def test_a_referenced_file_that_changes_after_the_start_counts(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "who").write_text("ann")
    (tmp_path / "more.yaml").write_text('commands: {contact: "${file:who}"}\n')
    files = ConfigFiles(tmp_path, {}, read_config(tmp_path, {}).referenced_files)
    assert not files.is_stale()
    (tmp_path / "who").write_text("bob")
    assert files.is_stale()


@pytest.mark.parametrize("where", ["reverie.yaml", "key", "prices.yaml", "ca.pem"])
async def test_a_pipe_or_a_device_is_told_and_keeps_nobody_waiting(
    tmp_path: Path, where: str, plain: LiveSettings
) -> None:
    """Whoever opened a pipe would wait for a writer: the reading for ever, and the end of the
    process with it."""
    reasons: list[str] = []
    plain.reload_listeners.append(
        lambda _: reasons.extend(
            one.explain_unconnectable() for one in plain.settings.channels.values()
        )
    )
    (tmp_path / where).unlink(missing_ok=True)
    if where == "prices.yaml":
        (tmp_path / where).symlink_to("/dev/zero")
    else:
        os.mkfifo(tmp_path / where)
    tls = "{platform: irc, host: 127.0.0.1, nick: ana, tls: {ca_file: ca.pem}}"
    said = {
        "key": 'commands: {contact: "${file:key}"}\n',
        "ca.pem": f"channels: {{irc.a: {tls}}}\n",
    }
    if where != "reverie.yaml":
        (tmp_path / "more.yaml").write_text(said.get(where, "dmn: {}\n"))
        text = CONFIG % ("true", "true", "0")
        (tmp_path / "reverie.yaml").write_text(
            text.replace("channels: {}\n", "") if where == "ca.pem" else text
        )
    async with asyncio.timeout(120):
        came = await plain.reload()
    told = [*map(str, came.problems), *reasons]
    assert where == "prices.yaml" or any(
        word in told[0] for word in ("not a regular file", "no plain file", "no configuration")
    ), told


async def test_a_counter_that_is_switched_on_later_is_asked(tmp_path: Path) -> None:
    def counter(backend: str) -> None:
        text = (CONFIG % ("true", "true", "0")).replace(
            "kind: scripted", "kind: anthropic, api_key: none"
        )
        text = text.replace("{provider: s}", "{provider: s, name: claude-sonnet-5-5}")
        knobs = f"token_counter: {{backend: {backend}}}, workspace_cache: {{enabled"
        text = text.replace("workspace_cache: {enabled", knobs)
        (tmp_path / "reverie.yaml").write_text(text)

    counter("tiktoken")
    now = live(tmp_path)
    counting, llm = TokenCounters(now, ManualClock()), read_config(tmp_path, {}).settings.llm
    assert counting.endpoint("s", llm.providers["s"]) is None
    counter("auto")
    await now.reload()
    assert counting.endpoint("s", llm.providers["s"]) is not None
    await counting.aclose()


async def test_a_prompt_is_counted_by_the_provider_else_by_cl100k(tmp_path: Path) -> None:
    """Also a small one. Bytes stand in for the provider's count until it comes."""
    (tmp_path / "reverie.yaml").write_text(
        (CONFIG % ("true", "true", "0")).replace(
            "providers: {s: {kind: scripted}}",
            "providers: {s: {kind: scripted}, o: {kind: openai, base_url: 'http://127.0.0.1:9'},"
            " l: {kind: llamacpp}, a: {kind: anthropic, base_url: 'http://127.0.0.1:9'}}",
        )
    )
    counting, asked = TokenCounters(live(tmp_path), ManualClock()), request()
    llm = counting.live.settings.llm

    def method(provider: str, agent: str = "ana") -> str:
        config = ModelConfig(provider=provider, name="m")
        gauge = counting.gauge("m", config, llm.providers[provider])
        return gauge.estimate("m", replace(asked, shared_key=agent))[1].method

    assert method("a") == "heuristic"
    await until(lambda: method("o") == "tiktoken")
    assert (method("l"), method("a")) == ("tiktoken", "heuristic")
    endpoint = counting.endpoint("a", llm.providers["a"])
    assert endpoint is not None
    for number in range(3):
        method("a", f"agent-{number}")
        await endpoint.wait_settled()
    assert (endpoint.is_exact, method("a")) == (False, "tiktoken")
    await counting.aclose()


class Taker:
    def __init__(self, now: LiveSettings, *, refuses: str = "", breaks: bool = False) -> None:
        self.now, self.refuses, self.breaks = now, refuses, breaks
        self.seen: list[str] = []

    def prepare(self, new: Settings) -> Callable[[], None]:
        self.seen.append(f"prepare {new.access.dm}, it is {self.now.settings.access.dm}")
        if self.breaks:
            raise AssertionError("a bug")
        if self.refuses:
            raise ConfigError((ConfigProblem("", 0, self.refuses, "no"),))
        return lambda: self.seen.append(f"put, it is {self.now.settings.access.dm}")


def opened(directory: Path, dm: str) -> None:
    text = (CONFIG % ("true", "true", "0")) + f"access: {{dm: {dm}}}\n"
    (directory / "reverie.yaml").write_text(text)


@pytest.fixture
def now(tmp_path: Path) -> LiveSettings:
    opened(tmp_path, "open")
    return live(tmp_path)


async def test_everybody_prepares_before_anything_is_put_in_force(
    tmp_path: Path, now: LiveSettings
) -> None:
    takers = [Taker(now), Taker(now)]
    came: list[ReloadResult] = []
    now.reload_listeners.append(came.append)
    for taker in takers:
        now.on_change(taker.prepare)
    opened(tmp_path, "disabled")
    assert await now.reload() == ReloadResult(applied=("access.dm",))
    assert [one.seen for one in takers] == [
        ["prepare disabled, it is open", "put, it is disabled"]
    ] * 2
    assert came == [ReloadResult(applied=("access.dm",))]


async def test_who_cannot_leaves_all_as_it_was_and_is_told_with_its_line(
    tmp_path: Path, now: LiveSettings
) -> None:
    takers = [
        Taker(now),
        Taker(now, refuses="access.dm"),
        Taker(now, refuses="llm.models.main.name"),
        Taker(now),
    ]
    for taker in takers:
        now.on_change(taker.prepare)
    before = now.settings
    opened(tmp_path, "disabled")
    came = await now.reload()
    file = str(tmp_path / "reverie.yaml")
    assert came.problems == (
        ConfigProblem(file, 10, "access.dm", "no"),
        ConfigProblem(file, 7, "llm.models.main.name", "no"),
    )
    assert now.settings is before
    assert [one.seen for one in takers] == [["prepare disabled, it is open"]] * 4


async def test_a_bug_in_making_ready_leaves_all_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, now: LiveSettings
) -> None:
    before, good = now.settings, Taker(now)
    now.on_change(good.prepare)
    now.on_change(Taker(now, breaks=True).prepare)
    opened(tmp_path, "disabled")
    assert await now.reload() == ReloadResult(read_error="internal error")
    assert now.settings is before
    assert good.seen == ["prepare disabled, it is open"]
    assert "a bug" in caplog.text


async def test_what_is_secret_is_told_before_it_is_used_also_if_it_is_refused(
    tmp_path: Path, now: LiveSettings
) -> None:
    taker, learnt = Taker(now, refuses="access.dm"), list[tuple[int, frozenset[str]]]()
    now.on_change(taker.prepare)
    now.secret_listeners.append(lambda known: learnt.append((len(taker.seen), frozenset(known))))
    text = (
        tmp_path / "reverie.yaml"
    ).read_text() + "tools: {web: {search: {provider: brave, api_key: sesame-9}}}\n"
    (tmp_path / "reverie.yaml").write_text(text)
    assert (await now.reload()).problems
    assert learnt == [(0, frozenset({"sesame-9"}))]


async def test_readings_are_one_at_a_time_and_what_is_written_meanwhile_is_for_the_next(
    tmp_path: Path, now: LiveSettings
) -> None:
    taker = Taker(now)
    now.on_change(taker.prepare)
    now.files = disk = Held(tmp_path)
    opened(tmp_path, "disabled")
    first = asyncio.create_task(now.reload())
    await asyncio.to_thread(disk.reading.wait)
    second = asyncio.create_task(now.reload())
    opened(tmp_path, "allowlist")
    disk.go.set()
    async with asyncio.timeout(120):
        await asyncio.gather(first, second)
    assert now.settings.access.dm == "allowlist"
    assert taker.seen[-1] == "put, it is allowlist"
    assert [word.partition(" ")[0] for word in taker.seen] == ["prepare", "put,", "prepare", "put,"]
    assert await now.reload() == ReloadResult()


async def test_agents_change_at_once_and_come_or_go_at_a_restart(
    tmp_path: Path, plain: LiveSettings
) -> None:
    text = (tmp_path / "reverie.yaml").read_text()
    bob, ana = "  - {id: bob}\n", text[text.index("  - {id: ana") : text.index("  - {id: bob")]
    moved = "  - {id: bob, bindings: [{match: {room: lobby}}]}\n"
    (tmp_path / "reverie.yaml").write_text(text.replace(ana + bob, moved + ana))
    assert (await plain.reload()).applied == ("agents.bob.bindings", "agents")
    assert [one.id for one in plain.settings.agents] == ["bob", "ana"]
    (tmp_path / "reverie.yaml").write_text(text.replace(bob, "  - {id: cid}\n"))
    assert await plain.reload() == ReloadResult(after_restart=("agents.bob", "agents.cid"))
    assert plain.agents["bob"].bindings[0].match.room == "lobby"


# New settings in components at work: running work ends with the old ones, and new work uses the new
# ones

WHO = "irc.test:ann"


@pytest.mark.parametrize(
    ("before", "now", "more"),
    [
        (Rate(3, 0), Rate(5, 0), 3),  # two were taken, and stay taken
        (Rate(3, 0), Rate(2, 0), 0),
        (Rate(3, 0), Rate(1, 0), 0),
        (Rate(0, 0), Rate(2, 0), 2),  # nobody counted what was taken without a limit
        (Rate(3, 0), Rate(0, 0), 10),
    ],
)
def test_what_was_taken_from_a_bucket_stays_taken(before: Rate, now: Rate, more: int) -> None:
    buckets = TokenBuckets(before)
    assert all(buckets.take(WHO, 1.0) for _ in range(2))
    buckets.set_rate(now)
    assert buckets.rate == now
    assert sum(buckets.take(WHO, 1.0) for _ in range(10)) == more


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60), st.floats(0, 30)), max_size=30))
def test_a_bucket_never_holds_more_than_it_may_whatever_it_becomes(
    steps: list[tuple[int, int, float]],
) -> None:
    buckets, now_s = TokenBuckets(Rate(3, 6.0)), 0.0
    for burst, pace, wait_s in steps:
        buckets.take(WHO, now_s)
        buckets.set_rate(Rate(burst, pace))
        now_s += wait_s
        given_ = 0
        while buckets.take(WHO, now_s):
            given_ += 1
        assert given_ <= burst


async def test_a_dmn_goes_by_another_pace_at_once_and_what_it_has_waited_counts(
    tmp_path: Path,
) -> None:
    turns, clock, ticks = Ending(), ManualClock(), list[float]()
    async with (
        await Store.open(tmp_path / "reverie.db", clock) as store,
        asyncio.TaskGroup() as tasks,
    ):
        policy = DmnPolicy(inner=INNER, resting_s=300.0)
        loop = DrivenAgent(turns, store, clock, tasks, policy=policy)
        loop.start()

        async def wait(seconds: int) -> None:
            for _ in range(seconds):
                before = loop.next_tick_s or 0.0
                await asyncio.sleep(0)
                clock.advance(1.0)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if (loop.next_tick_s or 0.0) > before:
                    ticks.append(clock.monotonic())

        await wait(100)
        loop.set_policy(replace(policy, resting_s=150.0))
        assert loop.next_tick_s == 50.0
        loop.set_policy(replace(policy, resting_s=150.0))
        assert loop.next_tick_s == 50.0
        for _ in range(40):  # however often somebody changes his mind, the time comes
            loop.set_policy(replace(policy, resting_s=200.0))
            await wait(1)
            loop.set_policy(replace(policy, resting_s=150.0))
        await wait(20)
        loop.set_policy(replace(policy, resting_s=20.0))
        await wait(30)
        await loop.stop(1.0)
    assert ticks[0] == pytest.approx(150.0, abs=1.0)
    assert ticks[1] - ticks[0] == pytest.approx(20.0, abs=1.5)


async def test_a_window_is_as_long_as_it_was_when_it_opened() -> None:
    clock, live = ManualClock(), live_settings(attention=AttentionConfig(coalesce=2.0))
    inbox, noticed = listened(clock, live)
    places = [ConversationId(f"irc.test/#{number}") for number in range(3)]
    inbox.add(ReadyConversation(conversation=places[0], urgency=URGENT))
    live.put_in_force(live_settings(attention=AttentionConfig(coalesce=5.0)).settings)
    inbox.add(ReadyConversation(conversation=places[1], urgency=URGENT))
    live.put_in_force(live_settings(attention=AttentionConfig(coalesce=0.0)).settings)
    inbox.add(ReadyConversation(conversation=places[2], urgency=URGENT))
    for _ in range(60):
        await asyncio.sleep(0)
        clock.advance(0.1)
    await asyncio.sleep(0)
    assert noticed == [0.0, pytest.approx(2.0, abs=0.2), pytest.approx(5.0, abs=0.2)]
    await inbox.close()


async def test_an_approval_waits_as_long_as_was_said_when_it_was_asked(tmp_path: Path) -> None:
    async with approvals.house(tmp_path) as it:
        calling = it.call(approvals.ROOT, approvals.GUS)
        await it.asked()
        await it.sleeping()
        set_tools(it.live, approvals=ApprovalsConfig(timeout=5_000.0))
        it.clock.advance(approvals.TIMEOUT_S - 1)
        await asyncio.sleep(0.05)
        assert not calling.done()
        it.clock.advance(1)
        await calling
        assert [verdict for _, verdict, _ in await it.verdicts()] == ["expired"]


async def test_a_workspace_is_compared_as_often_as_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_text("calm")
    clock = ManualClock()
    cache = WorkspaceCache(clock, watch_debounce_ms=60_000)

    async def read() -> str:
        return (await cache.get(tmp_path, scope="public", family="x")).identity

    assert "calm" in await read()
    (tmp_path / "SOUL.md").write_text("bold now")
    clock.advance(0.01)
    assert "calm" in await read()
    cache.reconfigure(watch_debounce_ms=10, max_age_seconds=0)
    assert "bold" in await read()
    cache.reconfigure(watch_debounce_ms=10, max_age_seconds=5)
    misses = cache.counts.misses[str(tmp_path)]
    clock.advance(5)
    await read()
    assert cache.counts.misses[str(tmp_path)] == misses + 1


# Reload of the configuration after any kind of write, and on request

WATCHER_CONFIG = """\
agents: [{id: ana}]
llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}
access: {dm: %s}
commands: {contact: "%s"}
"""


def write_of_watcher(directory: Path, dm: str = "open", contact: str = "ann") -> None:
    """Write as an editor does: a new file in the old one's place."""
    new = directory / ".reverie.yaml.new"
    new.write_text(WATCHER_CONFIG % (dm, contact))
    new.chmod(0o600)
    new.replace(directory / "reverie.yaml")


class Watched:
    def __init__(self, directory: Path) -> None:
        self.live = LiveSettings(read_config(directory, {}).settings, ConfigFiles(directory, {}))
        self.clock = ManualClock()
        self.came: list[ReloadResult] = []
        self.live.reload_listeners.append(self.came.append)

    async def until(self, is_so: Callable[[], object]) -> None:
        """Let time pass until it is so."""
        while not is_so():
            self.clock.advance(POLL_S)
            await asyncio.sleep(0.005)

    async def says(self, dm: str) -> None:
        """Return once these settings are in force."""
        await self.until(lambda: self.live.settings.access.dm == dm)

    async def told(self, count: int) -> None:
        await self.until(lambda: len(self.came) >= count)


@contextlib.asynccontextmanager
async def watched(directory: Path) -> AsyncIterator[Watched]:
    it = Watched(directory)
    task = asyncio.create_task(watch_config(it.live, it.clock))
    try:
        it.live.request_reload()
        await it.told(1)
        it.came.clear()
        yield it
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


@pytest.fixture
async def it(tmp_path: Path) -> AsyncIterator[Watched]:
    write_of_watcher(tmp_path)
    async with watched(tmp_path) as made:
        yield made


async def test_a_file_that_is_replaced_counts(tmp_path: Path, it: Watched) -> None:
    write_of_watcher(tmp_path, dm="disabled")
    await it.says("disabled")
    write_of_watcher(tmp_path, dm="allowlist")
    await it.says("allowlist")


async def test_a_file_that_is_written_in_its_place_counts(tmp_path: Path, it: Watched) -> None:
    (tmp_path / "reverie.yaml").write_text(WATCHER_CONFIG % ("disabled", "ann"))
    await it.says("disabled")


async def test_a_file_that_comes_or_goes_counts(tmp_path: Path, it: Watched) -> None:
    (tmp_path / "more.yaml").write_text("recall: {ambient_tokens: 7}\n")
    await it.told(1)
    assert it.live.settings.model_dump()["recall"]["ambient_tokens"] == 7
    (tmp_path / "more.yaml").unlink()
    await it.told(2)
    assert it.live.settings.model_dump()["recall"]["ambient_tokens"] == 150


async def test_a_directory_that_is_replaced_counts(tmp_path: Path) -> None:
    directory, new = tmp_path / "config", tmp_path / "new"
    directory.mkdir()
    new.mkdir()
    write_of_watcher(directory)
    write_of_watcher(new, dm="disabled")
    async with watched(directory) as it:
        directory.rename(tmp_path / "old")
        new.rename(directory)
        await it.says("disabled")
        write_of_watcher(directory, dm="allowlist")
        await it.says("allowlist")


async def test_links_that_are_turned_to_another_directory_count(tmp_path: Path) -> None:
    """Kubernetes mounts a ConfigMap like this
    (https://kubernetes.io/docs/concepts/configuration/configmap/)."""
    config = tmp_path / "config"
    for name, dm in (("one", "open"), ("two", "disabled")):
        (config / name).mkdir(parents=True)
        write_of_watcher(config / name, dm=dm)
    (config / "..data").symlink_to("one")
    (config / "reverie.yaml").symlink_to("..data/reverie.yaml")
    async with watched(config) as it:
        (config / "..new").symlink_to("two")
        (config / "..new").replace(config / "..data")
        await it.says("disabled")


async def test_what_a_reference_names_counts(tmp_path: Path) -> None:
    directory, secrets = tmp_path / "config", tmp_path / "secrets"
    directory.mkdir()
    secrets.mkdir()
    (secrets / "contact").write_text("ann\n")
    write_of_watcher(directory, contact="${file:../secrets/contact}")
    async with watched(directory) as it:
        (secrets / "contact").write_text("bob\n")
        await it.told(1)
        assert it.live.settings.commands.contact == "bob"
        (secrets / "other").write_text("cid\n")
        write_of_watcher(directory, contact="${file:../secrets/other}")
        await it.until(lambda: it.live.settings.commands.contact == "cid")
        (secrets / "other").unlink()  # then nothing says what it is, and what was known goes on
        await it.until(lambda: it.came[-1].problems)
        assert it.live.settings.commands.contact == "cid"
        (secrets / "other").write_text("dan\n")
        await it.until(lambda: it.live.settings.commands.contact == "dan")


async def test_what_is_broken_is_told_once_and_mended_by_the_next_write(
    tmp_path: Path, it: Watched
) -> None:
    write_of_watcher(tmp_path, dm="ajar")
    await it.told(1)
    assert [(one.line, one.key) for one in it.came[0].problems] == [(3, "access.dm")]
    assert it.live.settings.access.dm == "open"
    write_of_watcher(tmp_path, dm="disabled")
    await it.says("disabled")
    assert len(it.came) == 2


async def test_what_another_reading_has_seen_is_not_told_again(tmp_path: Path, it: Watched) -> None:
    assert it.live.files is not None
    async with it.live._reload_lock:  # as an order has it read
        write_of_watcher(tmp_path, dm="ajar")
        it.clock.advance(POLL_S)
        await asyncio.sleep(0.5)  # time for who watches to think that it is not read yet
        with pytest.raises(ConfigError):
            await asyncio.to_thread(it.live.files.read)
    await asyncio.sleep(0.2)  # and to read it
    write_of_watcher(tmp_path, dm="disabled")
    await it.says("disabled")
    assert len(it.came) == 1


async def test_other_files_are_nothing(tmp_path: Path, it: Watched) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "data").mkdir()
    write_of_watcher(tmp_path, dm="disabled")
    await it.says("disabled")
    assert len(it.came) == 1


async def test_who_asks_is_answered_though_nothing_was_written(it: Watched) -> None:
    it.live.request_reload()
    await it.told(1)
    assert it.came == [ReloadResult()]


async def test_without_files_there_is_nothing_to_watch(tmp_path: Path) -> None:
    write_of_watcher(tmp_path)
    await watch_config(LiveSettings(read_config(tmp_path, {}).settings), ManualClock())


async def test_a_directory_that_is_gone_is_waited_for(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    directory.mkdir()
    write_of_watcher(directory)
    async with watched(directory) as it:
        shutil.rmtree(directory)
        await it.told(1)
        assert it.live.settings.access.dm == "open"
        directory.mkdir()
        write_of_watcher(directory, dm="disabled")
        await it.says("disabled")


def test_one_reading_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def told(change: Callable[[], object]) -> list[str]:
        live = LiveSettings(read_config(tmp_path, {}).settings, ConfigFiles(tmp_path, {}))
        change()
        caplog.clear()
        with caplog.at_level(logging.INFO, "reverie.live"):
            await live.reload()
        return [f"{one.levelname} {one.getMessage()}" for one in caplog.records]

    def says(change: Callable[[], object]) -> list[str]:
        made: Coroutine[Any, Any, list[str]] = told(change)
        return asyncio.run(made)

    write_of_watcher(tmp_path)
    again = "the configuration was read again; "
    assert says(lambda: None) == [f"INFO {again}nothing has changed"]
    assert says(lambda: write_of_watcher(tmp_path, dm="disabled")) == [
        f"INFO {again}in force now: access.dm"
    ]
    assert says(lambda: (tmp_path / "ops.yaml").write_text("ops: {port: 0}")) == [
        f"WARNING {again}all changes wait for a restart, for: ops.port"
    ]
    broken = "the configuration has errors; the present settings stay: "
    (said,) = says(lambda: write_of_watcher(tmp_path, dm="ajar"))
    assert said.startswith(f"ERROR {broken}{tmp_path}/reverie.yaml:3: access.dm: ")
