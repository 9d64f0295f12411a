"""`reverie setup` from nothing to a bot that answers, with the mistakes that people make on the
way."""

import asyncio
import contextlib
import os
import pty
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from agent.models.base import Model
from agent.models.settings import ModelOptions, RemoteSettings, SetupChoice
from gateway.plugin import Plugin
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import Options
from reverie.testing.servers.ircd import CAPS, LOCALHOST, Ircd, server_context
from reverie.testing.servers.ircd import Options as IrcOptions
from reverie.testing.servers.model_api import Answer, ModelApi
from tests.channels.irc.test_real_servers import Raw, _register, network
from tests.gateway.plugins.test_providers import Oracle
from tests.kits.gateway_process import CHECKOUT, MAIN

WAIT_S = 30.0
_NOT_INHERITED = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


class Person:
    """Someone at the terminal. `sees` waits for a prompt; `says` answers it."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self.process, self._master = process, master
        self.screen = ""
        """All that was on it."""
        self.questions = 0
        """That were answered."""
        self.began_s = time.monotonic()
        self._seen = 0
        self._news = asyncio.Event()
        self.ended = False
        asyncio.get_running_loop().add_reader(master, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # EIO: the program has gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
            self.ended = True
        self.screen += data.decode("utf-8", "replace").replace("\r\n", "\n")
        self._news.set()

    async def sees(self, pattern: str) -> re.Match[str]:
        """Wait until it stands on the part of the screen that was not looked at yet."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    self._news.clear()
                    if found := re.search(pattern, self.screen[self._seen :], re.DOTALL):
                        self._seen += found.end()
                        return found
                    assert not self.ended, f"no {pattern!r} before the end of\n{self.screen}"
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {pattern!r} on\n{self.screen}") from None

    async def says(self, prompt: str, words: str = "") -> None:
        """Answer the prompt, which is the end of the screen by then."""
        await self.sees(prompt + r"[^\n]*: $")
        self.questions += 1
        os.write(self._master, f"{words}\n".encode())

    async def answers(self, *dialog: tuple[str, str]) -> None:
        """Answer one prompt after the other."""
        for prompt, words in dialog:
            await self.says(prompt, words)

    def presses(self, key: bytes) -> None:
        """Ctrl-C, Ctrl-D."""
        os.write(self._master, key)

    async def interrupts(self) -> int:
        """Press Ctrl-C until it has ended. The exit code.

        A signal that comes after Python's last look for signals and before the read of the terminal
        is told only once the read returns: a person presses again.
        """
        for _ in range(3):
            self.presses(b"\x03")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), WAIT_S / 3)
                break
        return await self.over()

    async def over(self) -> int:
        """The exit code."""
        async with asyncio.timeout(WAIT_S):
            code = await self.process.wait()
            while not self.ended:
                self._news.clear()
                await self._news.wait()
        return code

    @property
    def arguments(self) -> str:
        """What everybody on the machine can read of the program."""
        return Path(f"/proc/{self.process.pid}/cmdline").read_text()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began_s


@contextlib.asynccontextmanager
async def at_terminal(*arguments: str, code: str = MAIN, **env: str) -> AsyncIterator[Person]:
    """`reverie setup` with these arguments, at a terminal of 80 columns."""
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        "setup",
        *arguments,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=CHECKOUT,
        env=environment(env | {"COLUMNS": "80"}),
        preexec_fn=lambda: os.login_tty(slave),
    )
    os.close(slave)
    person = Person(process, master)
    try:
        yield person
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(master)
        os.close(master)


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """This one without keys of people who run tests."""
    return {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED} | dict(
        more
    )


async def piped(
    *arguments: str, words: str = "", code: str = MAIN, **env: str
) -> tuple[int, str, str]:
    """The same over pipes: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        "setup",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
        env=environment(env),
        start_new_session=True,
    )
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate(words.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@contextlib.asynccontextmanager
async def gateway(directory: Path) -> AsyncIterator[Path]:
    """`reverie run` on what setup wrote. The file of its log."""
    path = directory / "log.txt"
    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MAIN, "run", "--config", str(directory)),
            stdout=log,
            stderr=log,
            cwd=CHECKOUT,
        )
    try:
        yield path
        process.terminate()
        async with asyncio.timeout(WAIT_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def written(directory: Path) -> dict[str, str]:
    """Every file below it, by its path."""
    found = (
        sorted(path for path in directory.rglob("*") if path.is_file())
        if directory.exists()
        else []
    )
    return {str(path.relative_to(directory)): path.read_text() for path in found}


def untouched(directory: Path) -> bool:
    """Nothing was made there, not even for a while."""
    return not list(directory.iterdir())


KEY = "sk-ant-test-only-0123456789abcdef"
ANSWER = "Hello to you."
MODELS = [{"id": "claude-sonnet-5-5"}, {"id": "claude-haiku-5-5"}]


def model() -> ModelApi:
    api = ModelApi()
    api.models, api.key = [*MODELS], KEY
    api.default = lambda _: Answer(text=ANSWER)
    return api


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "bot"


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with BotApi() as server:
        yield server


@pytest.fixture
async def fake() -> AsyncIterator[ModelApi]:
    async with model() as server:
        yield server


async def the_rest(person: Person) -> None:
    """From the model to the last word, as it is proposed."""
    await person.answers(
        ("Who answers", ""),
        ("Key", KEY),
        ("Model", ""),
    )
    await person.sees("claude-sonnet-5-5 answers")
    await agreed(person)


async def agreed(person: Person) -> None:
    """The persona as it is, and yes."""
    await person.answers(
        ("Its name", ""),
        ("Its character", ""),
        ("May it speak up", ""),
        ("Write it", ""),
    )
    assert await person.over() == 0, person.screen


def print_figures(platform: str, person: Person, capsys: pytest.CaptureFixture[str]) -> None:
    """Print how long the setup took, without the person's own time."""
    with capsys.disabled():
        print(
            f"\nsetup of {platform}: {person.questions} questions, {person.seconds:.1f} s without "
            "the person's own time"
        )


def kept(directory: Path, person: Person, *secrets: str) -> None:
    """No secret is where it should not be."""
    for secret in secrets:
        assert secret not in person.screen
        for path, text in written(directory).items():
            assert secret not in text or path.startswith("secrets/"), path
    for one in (directory / "secrets").iterdir():
        assert one.stat().st_mode & 0o777 == 0o600
    assert (directory / "secrets").stat().st_mode & 0o777 == 0o700


async def test_telegram_from_nothing_to_an_answer(
    capsys: pytest.CaptureFixture[str], directory: Path, api: BotApi
) -> None:
    async with model() as fake:
        ann = api.person("Ann", username="ann")
        urls = "--telegram-url", api.url, "--model-url", fake.url
        async with at_terminal("--config", str(directory), *urls) as person:
            await person.answers(
                ("Platforms", ""),
                ("Token", api.token),
            )
            assert api.token not in person.arguments
            await person.says("Use @reverie_bot")
            api.private_says(ann, "hello there")
            await person.answers(
                ("Your id", ""),
                ("Ann .@ann., id 1001, wrote to it", ""),
                ("Groups", ""),
            )
            await the_rest(person)
            print_figures("Telegram", person, capsys)
            kept(directory, person, api.token, KEY)
            assert "https://t.me/reverie_bot" in person.screen
            assert max(map(len, person.screen.splitlines())) <= 80 or "/tmp" in person.screen
        assert '["telegram.main:1001"]' in (directory / "reverie.yaml").read_text()
        async with gateway(directory) as log:
            await api.until(lambda: api.said(ann) == [ANSWER])
            assert api.token not in log.read_text()


@pytest.mark.system
async def test_telegram_with_every_mistake(directory: Path, api: BotApi) -> None:
    async with model() as fake:
        api.world.sees_all = False
        ann, lounge = api.person("Ann"), api.group("lounge")
        api.private_says(ann, "hello")
        urls = "--telegram-url", api.url, "--model-url", fake.url
        async with at_terminal("--config", str(directory), *urls) as person:
            await person.answers(
                ("Platforms", "telgram"),
                ("telgram is not one of.*Platforms", "t"),
                ("Token", "not a token"),
                ("that is not a token.*Token", "7000000001:AAwrong-token_of_somebody"),
                ("does not know this token.*Your choice", ""),
                ("Token", api.token),
                ("Use @reverie_bot", ""),
                ("Your id", "@ann"),
                ("can get another owner.*Your id", str(lounge.id)),
                ("that is the id of a group.*Your id", "4711"),
                ("knows nobody with the id 4711", "n"),
                ("Your id", str(ann.id)),
            )
            await person.sees("That is Ann")
            await person.answers(
                ("Groups", "lounge"),
                ("lounge is not the id of a group.*Groups", str(lounge.id)),
            )
            await person.sees("/setprivacy")
            api.world.sees_all = True
            await person.answers(
                ("Who answers", "claude"),
                ("one of anthropic.*Who answers", "anthropic"),
                ("Key", "sk-ant-wrong-0123456789"),
                ("the key is refused.*Your choice", ""),
                ("Who answers", ""),
                ("Key", KEY),
                ("Model", "claude-sonet-5-5"),
                ("no model claude-sonet-5-5.*it has claude-sonnet-5-5.*Your choice", ""),
                ("Model", "1"),
            )
            await person.sees("claude-sonnet-5-5 answers")
            await agreed(person)
            kept(
                directory,
                person,
                api.token,
                KEY,
                "wrong-token_of_somebody",
                "sk-ant-wrong-0123456789",
            )
        async with gateway(directory):
            api.mentions(lounge, ann, "are you there?")
            await api.until(lambda: api.said(lounge) == [ANSWER])


async def test_discord_from_nothing_to_an_answer(
    capsys: pytest.CaptureFixture[str], directory: Path
) -> None:
    async with DiscordApi(Options(message_content=False)) as api, model() as fake:
        urls = (
            "--discord-api-url",
            api.api_url,
            "--discord-gateway-url",
            api.gateway_url,
            "--model-url",
            fake.url,
        )
        async with at_terminal("--config", str(directory), *urls) as person:
            await person.answers(
                ("Platforms", "discord"),
                ("Token", "MTk4.wrong-token.of-somebody"),
                ("does not know this token.*Your choice", ""),
                ("Token", api.token),
            )
            await person.sees("MESSAGE CONTENT INTENT")
            api.options = replace(api.options, message_content=True)
            await person.answers(
                ("Your choice", "what?"),
                ("one of look again, correct it, go on.*Your choice", "look again"),
                ("Use reverie", ""),
                ("Servers or channels", ""),
                ("Your id", ""),
            )
            await the_rest(person)
            print_figures("Discord (with two mistakes)", person, capsys)
            kept(directory, person, api.token, KEY, "wrong-token")
            assert f"client_id={api.bot}&scope=bot+applications.commands" in person.screen
        assert f'["discord.main:{api.ann}"]' in (directory / "reverie.yaml").read_text()
        async with gateway(directory):
            await api.connected()
            api.says(api.room, api.ann, f"<@{api.bot}> hello there")
            assert (await api.shown(api.room, 1))["content"] == ANSWER


async def test_irc_with_services_from_nothing_to_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, there = tmp_path / "bot", tmp_path / "ircd"
    there.mkdir()
    with network(there) as port:
        await _register(port)
        async with model() as fake:
            async with at_terminal("--config", str(directory), "--model-url", fake.url) as person:
                await person.answers(
                    ("Platforms", "irc"),
                    ("Server", f"127.0.0.1:{port}"),
                    ("TLS", "no"),
                    ("Nick", "reverie"),
                    ("Its account", "reverie"),
                    ("Password", "wrong horse"),
                    ("SASL login failed.*Your choice", ""),
                    ("Its account", ""),
                    ("Password", "correcthorse"),
                )
                await person.sees("12 characters received")
                await person.sees("logged in to the services as reverie")
                await person.answers(("Rooms", "#room"), ("Your own account", "alice"))
                await the_rest(person)
                print_figures("IRC (with one mistake)", person, capsys)
                kept(directory, person, "correcthorse", KEY, "wrong horse")
            async with gateway(directory):
                alice = await Raw.joined(port)
                await alice.until(r":reverie\S* JOIN")
                alice.say("PRIVMSG #room :reverie: hello there")
                await alice.until(rf":reverie\S* PRIVMSG #room :{ANSWER}")
                await alice.close()


async def test_a_nick_that_is_taken_and_a_server_that_is_not_there(tmp_path: Path) -> None:
    options = IrcOptions(caps=f"{CAPS} sasl=PLAIN", taken={"reverie"}, password="open sesame")
    async with Ircd(options) as ircd, model() as fake:
        there = "--config", str(tmp_path / "bot"), "--model-url", fake.url
        async with at_terminal(*there) as person:
            await person.answers(
                ("Platforms", "irc"),
                ("Server", "no-such-host.invalid:6667"),
                ("TLS", "no"),
                ("no host called no-such-host.invalid.*Your choice", "correct it"),
                ("Server", f"127.0.0.1:{ircd.port}"),
                ("TLS", "yes"),
                ("does not speak TLS.*Your choice", ""),
                ("Server", ""),
                ("TLS", "no"),
            )
            await person.sees("can be reached")
            await person.answers(
                ("Nick", "1reverie"),
                ("is not a nick.*Nick", "reverie"),
                ("Its account", "alice, alice@example.org"),
                ("that is not an account.*Its account", "https://example.org/alice"),
                ("that is not an account.*Its account", "none"),
                ("server password is refused.*Your choice", ""),
                ("Password of the server", "open sesame"),
                ("the nick reverie is taken.*Your choice", ""),
                ("Nick", "reverie2"),
            )
            await person.sees("the nick reverie2 is free")
            await person.answers(
                ("Rooms", "~room"),
                ("is not an IRC channel.*Rooms", "room"),
                ("Your own account", "later"),
            )
            await the_rest(person)
            kept(tmp_path / "bot", person, "open sesame", KEY)
            assert "reverie ctl pair seed ID owner" in person.screen


async def test_the_embedded_model_and_a_persona_need_no_key(directory: Path) -> None:
    async with (
        BotApi() as api,
        at_terminal("--config", str(directory), "--telegram-url", api.url) as person,
    ):
        await person.answers(
            ("Platforms", ""),
            ("Token", api.token),
            ("Use @reverie_bot", ""),
            ("Your id", "later"),
            ("Groups", ""),
            ("Who answers", "embedded"),
            ("Its name", "Mira Ashgrove"),
            ("Its character", "A gardener who answers in short sentences."),
            ("May it speak up", "when useful"),
            ("Write it", ""),
        )
        assert await person.over() == 0
    files = written(directory)
    assert "  - id: mira-ashgrove\n    workspace: ./workspace" in files["reverie.yaml"]
    assert "    bindings:\n      - speaks_up: when_useful\n" in files["reverie.yaml"]
    assert files["workspace/IDENTITY.md"].startswith(
        "You are Mira Ashgrove. A gardener who answers"
    )
    assert files["workspace/SOUL.md"]
    assert re.search(r'token: "\$\{file:secrets/ops.token\}"', files["reverie.yaml"])
    assert len(files["secrets/ops.token"].strip()) >= 43


async def test_back_begins_again_and_proposes_the_answers(directory: Path) -> None:
    async with (
        BotApi() as api,
        at_terminal("--config", str(directory), "--telegram-url", api.url) as person,
    ):
        first = [("Platforms", ""), ("Token", api.token), ("Use @reverie_bot", "")]
        await person.answers(
            ("Platforms", "back"),  # there is nothing to propose yet
            *first,
            ("Your id", "later"),
            ("Groups", "lounge"),
            ("is not the id of a group.*Groups", "-100200"),
            ("Who answers", "back"),
            ("Platforms", ""),
            (r"Token .hidden; Enter keeps it.", ""),
            ("Use @reverie_bot", ""),
            (r"Your id[^\n]*\[later\]", ""),
            (r"Groups[^\n]*\[-100200\]", "-100300"),
            ("Who answers", "embedded"),
            ("Its name", "Nora"),
            ("Its character", "Calm."),
            ("May it speak up", ""),
            ("Write it", ""),
        )
        assert await person.over() == 0
    files = written(directory)
    assert 'rooms: ["-100300"]' in files["reverie.yaml"]
    assert "id: nora" in files["reverie.yaml"]
    assert files["secrets/telegram.main.token"].strip() == api.token


@pytest.mark.parametrize(
    "platforms",
    [
        "telegram",
        "discord",
        "irc",
        pytest.param("telegram discord irc", marks=pytest.mark.system),
    ],
)
async def test_back_from_the_last_question_and_enter_lead_to_the_same_configuration(
    platforms: str, tmp_path: Path
) -> None:
    sasl = IrcOptions(caps=f"{CAPS} sasl=PLAIN", sasl={"mira": "correct horse"})
    async with (
        BotApi() as telegram,
        DiscordApi() as discord,
        Ircd(sasl) as ircd,
        model() as fake,
    ):
        urls = ["--telegram-url", telegram.url, "--discord-api-url", discord.api_url]
        urls += ["--discord-gateway-url", discord.gateway_url, "--model-url", fake.url]
        pages = {
            "telegram": [
                ("Token", telegram.token),
                ("Use @reverie_bot", "yes"),
                ("Your id", "later"),
                ("Groups", "-100200"),
            ],
            "discord": [
                ("Token", discord.token),
                ("Use reverie", "yes"),
                ("Servers or channels", discord.room),
                ("Your id", "later"),
            ],
            "irc": [
                ("Server", f"127.0.0.1:{ircd.port}"),
                ("TLS", "no"),
                ("Nick", "mira"),
                ("Its account", "mira"),
                ("Password of that account", "correct horse"),
                ("Rooms", "#tea #garden"),
                ("Your own account", "alice"),
            ],
        }
        dialog = [("Platforms", platforms)]
        dialog += [question for platform in platforms.split() for question in pages[platform]]
        dialog += [("Who answers", "anthropic"), ("Key", KEY), ("Model", "2")]
        dialog += [("Its name", "Mira"), ("Its character", "Calm."), ("May it speak up", "never")]
        made = list[dict[str, str]]()
        for goes_back in (False, True):
            directory = tmp_path / str(goes_back)
            async with at_terminal("--config", str(directory), *urls) as person:
                await person.answers(*dialog)
                if goes_back:
                    await person.answers(("Write it", "back"), *((one, "") for one, _ in dialog))
                await person.says("Write it", "yes")
                assert await person.over() == 0, person.screen
            files = written(directory)
            files.pop("secrets/ops.token")
            made.append(files)
        assert made[0] == made[1]


async def test_a_server_that_refused_for_want_of_a_key_is_taken_to_want_one(tmp_path: Path) -> None:
    async with model() as fake, at_terminal("--config", str(tmp_path / "bot")) as person:
        await person.answers(
            ("Platforms", "irc"),
            ("Server", "127.0.0.1:1"),
            ("TLS", "no"),
            ("nothing listens.*Your choice", "go on"),
            ("Nick", ""),
            ("Its account", "none"),
            ("nothing listens.*Your choice", "go on"),
            ("Rooms", "none"),
            ("Your own account", "later"),
            ("Who answers", "compatible"),
            ("Its address", f"{fake.url}/v1"),
            (r"need a key[^\n]*\[no\]", ""),
            ("none is configured.*Your choice", ""),
            ("Who answers", ""),
            ("Its address", ""),
            (r"need a key[^\n]*\[yes\]", ""),
            ("Key", KEY),
            ("Model", "1"),
        )
        await person.sees("claude-sonnet-5-5 answers")


# `reverie setup` on a configuration that is there, without anybody to ask, and when it goes wrong

HAND = """\
# Ours. Do not let anybody touch the flood limits: {why}
channels:
  telegram.main:
    platform: telegram
    token: "${{TG}}"          # the old bot
    base_url: {url}
    rooms:
      - "-100999"           # the lounge
    flood: {{per_chat_s: 1.0}}  # stays

agents: [{{id: mira}}]

llm:
  providers: {{anthropic: {{kind: anthropic, base_url: "{model}", api_key: "${{KEY}}"}}}}
  models:
    main: {{provider: anthropic, name: claude-haiku-5-5}}   # cheap

attention: {{coalesce: 1s}}
"""


def by_hand(directory: Path, api: BotApi, fake: ModelApi) -> str:
    text = HAND.format(why="they are measured", url=api.url, model=fake.url)
    directory.mkdir()
    (directory / "reverie.yaml").write_text(text)
    return text


async def test_a_second_run_changes_what_is_answered_and_shows_it_before(
    directory: Path, api: BotApi, fake: ModelApi
) -> None:
    text = by_hand(directory, api, fake)
    env = {"TG": api.token, "KEY": KEY}
    async with at_terminal("--config", str(directory), **env) as person:
        await person.answers(
            ("Platforms .telegram.", ""),
            ("Token .hidden; Enter keeps it.", ""),
            ("Use @reverie_bot", ""),
            ("Your id", "later"),
            ("Groups.*-100999", "-100999 -100888"),
            ("Who answers .anthropic.", ""),
            ("Key", ""),
            ("Model .claude-haiku-5-5.", ""),
            ("Its character", ""),
        )
        await person.sees("What would change")
        await person.says("Write it")
        assert await person.over() == 0
    assert '       - "-100999"           # the lounge\n+      - "-100888"' in person.screen
    after = (directory / "reverie.yaml").read_text()
    assert after != text
    for kept in ("# the old bot", "# Ours.", "# stays", "# cheap", "coalesce: 1s", "${TG}"):
        assert kept in after
    assert api.token not in person.screen
    assert KEY not in person.screen


async def test_who_says_no_finds_all_as_it_was(
    directory: Path, api: BotApi, fake: ModelApi
) -> None:
    by_hand(directory, api, fake)
    before = written(directory)
    words = "\n\n\nlater\n" + "\n" * 5 + "Somebody else.\n" + "n\n"
    code, out, err = await piped("--config", str(directory), words=words, TG=api.token, KEY=KEY)
    assert (code, "nothing was written" in err) == (1, True), (out, err)
    assert written(directory) == before


def flags(directory: Path, api: BotApi, fake: ModelApi) -> list[str]:
    return [
        *("--non-interactive", "--config", str(directory)),
        *("--telegram-url", api.url, "--model-url", fake.url),
        *("--telegram-token-env", "TG", "--model-key-env", "KEY"),
    ]


async def test_without_anybody_to_ask_flags_answer(
    tmp_path: Path, api: BotApi, fake: ModelApi
) -> None:
    directory, secret = tmp_path / "my bot; rm", tmp_path / "token"
    ann = api.person("Ann")
    api.private_says(ann, "hello")
    secret.write_text(api.token)
    secret.chmod(0o600)
    given = [
        one for one in flags(directory, api, fake) if one not in {"--telegram-token-env", "TG"}
    ]
    more = (
        "--telegram-token-file",
        str(secret),
        "--telegram-owner",
        str(ann.id),
        "--persona-name",
        "Mira",
    )
    code, out, err = await piped(*given, *more, KEY=KEY)
    assert (code, err) == (0, ""), (out, err)
    for name in ("doctor", "run"):
        assert f"reverie {name} --config {shlex.quote(str(directory))}" in out
    text = (directory / "reverie.yaml").read_text()
    assert f"${{file:{secret}}}" in text
    assert 'owner: ["telegram.main:1001"]' in text
    assert "${KEY}" in text
    assert api.token not in text + out
    again, out, _ = await piped(*given, *more, KEY=KEY)
    assert (again, "Nothing has changed." in out) == (0, True)


class DelphiConfig(RemoteSettings):
    """A server without a key, and without a usual address."""

    names_models: ClassVar = False
    choices: ClassVar = (SetupChoice("delphi", "an oracle"),)

    kind: Literal["delphi"]

    def make(self, options: ModelOptions, **_: object) -> Model:
        return Oracle("know thyself", options)


class DelphiPlugin(Plugin):
    name = "delphi"
    providers: ClassVar = {"delphi": DelphiConfig}


WITH_DELPHI = f"""\
from gateway.plugins import use_plugins
from tests.gateway.plugins.setup.test_setup import DelphiPlugin
with use_plugins(DelphiPlugin):
    {MAIN}
"""


async def test_a_provider_without_a_key_is_asked_for_its_address_and_keeps_its_section(
    tmp_path: Path, api: BotApi, fake: ModelApi
) -> None:
    given = [
        *flags(tmp_path / "bot", api, fake)[:5],
        "--telegram-token-env",
        "TG",
        "--non-interactive",
    ]
    given += ["--model-provider", "delphi", "--yes"]
    code, out, err = await piped(*given, code=WITH_DELPHI, TG=api.token)
    assert (code, "--model-url is missing" in err) == (2, True), (out, err)
    directory = tmp_path / "bot"
    text = by_hand(directory, api, fake).replace(
        'kind: anthropic, base_url: "', 'kind: delphi, proxy: none, base_url: "'
    )
    text = text.replace(', api_key: "${KEY}"', "").replace(", name: claude-haiku-5-5", "")
    (directory / "reverie.yaml").write_text(text)
    code, out, err = await piped(*given, code=WITH_DELPHI, TG=api.token)
    assert code == 0, (out, err)
    kept = f'{{kind: delphi, proxy: none, base_url: "{fake.url}"}}'
    assert kept in (directory / "reverie.yaml").read_text()
    other = "http://127.0.0.1:9/v1"
    code, out, err = await piped(*given, "--model-url", other, code=WITH_DELPHI, TG=api.token)
    assert code == 0, (out, err)
    assert other in (directory / "reverie.yaml").read_text()


async def test_a_run_without_the_flags_of_secrets_keeps_those_that_are_there(
    directory: Path, api: BotApi
) -> None:
    async with ModelApi() as fake:
        fake.key, fake.models = KEY, [{"id": "gpt-4.1"}]
        base = ["--non-interactive", "--config", str(directory), "--telegram-url", api.url]
        first = [
            "--telegram-token-env",
            "TG",
            "--model-provider",
            "compatible",
            "--model-url",
            fake.url,
        ]
        secrets = {"TG": api.token, "K": KEY}
        code, out, err = await piped(
            *base, *first, "--model-key-env", "K", "--model-name", "gpt-4.1", **secrets
        )
        assert code == 0, (out, err)
        for more in ([], ["--force"]):
            given = [*base, *more, "--yes", "--telegram-groups", "-100777" if more else "-100888"]
            code, out, err = await piped(*given, **secrets)
            assert code == 0, (out, err)
            text = (directory / "reverie.yaml").read_text()
            assert 'api_key: "${K}"' in text
            assert "${TG}" in text


async def test_a_secret_that_stands_in_the_file_is_not_shown_with_what_changes(
    tmp_path: Path, api: BotApi, fake: ModelApi
) -> None:
    text = by_hand(tmp_path / "bot", api, fake).replace("${TG}", api.token)
    (tmp_path / "bot" / "reverie.yaml").write_text(text)
    given = ["--non-interactive", "--yes", "--config", str(tmp_path / "bot")]
    code, out, err = await piped(*given, "--telegram-groups", "-100888", KEY=KEY)
    assert (code, "token: " in out, api.token in out + err) == (0, True, False), (out, err)


async def test_what_cannot_be_edited_is_told_and_left(
    tmp_path: Path, api: BotApi, fake: ModelApi
) -> None:
    other = '  telegram.other: {platform: telegram, token: "1:other", rooms: *shared}\n'
    text = by_hand(tmp_path / "bot", api, fake)
    text = re.sub(r"rooms:\n +- .*", 'rooms: &shared ["-100999"]', text)
    text = text.replace("\nagents:", f"{other}\nagents:")
    (tmp_path / "bot" / "reverie.yaml").write_text(text)
    given = ["--non-interactive", "--yes", "--config", str(tmp_path / "bot")]
    code, out, err = await piped(*given, "--telegram-groups", "-100888", TG=api.token, KEY=KEY)
    assert code == 0, err
    assert 'write yourself:\n  channels.telegram.main.rooms: ["-100888"]' in out
    assert 'rooms: &shared ["-100999"]' in written(tmp_path / "bot")["reverie.yaml"]


@pytest.mark.parametrize(
    ("more", "env", "code", "says"),
    [
        pytest.param(
            [], {"TG": ""}, 2, "--telegram-token-env: TG is not set", marks=pytest.mark.system
        ),
        ([], {"TG": "1:wrong-token-of-somebody"}, 1, "Telegram does not know this token"),
        pytest.param(
            ["--platforms", "matrix"],
            {},
            2,
            "--platforms: matrix is not one of",
            marks=pytest.mark.system,
        ),
        (["--platforms", "irc", "--force"], {}, 2, "--irc-contact is missing"),
        pytest.param(
            ["--platforms", "discord"],
            {},
            2,
            "--discord-token-env NAME or --discord-token-file PATH is missing",
            marks=pytest.mark.system,
        ),
        (["--telegram-owner", "@ann"], {}, 2, "--telegram-owner: a @name can get another owner"),
        pytest.param(
            ["--telegram-groups", "look"],
            {},
            1,
            "--telegram-groups: 'look' was not accepted",
            marks=pytest.mark.system,
        ),
        (["--model-name", "claude-sonet"], {}, 1, "it has claude-sonnet-5-5"),
        pytest.param(
            ["--model-provider", "oracle"],
            {},
            2,
            "--model-provider: one of anthropic",
            marks=pytest.mark.system,
        ),
    ],
)
async def test_what_is_wrong_names_its_flag(
    more: list[str],
    env: dict[str, str],
    code: int,
    says: str,
    *,
    directory: Path,
    api: BotApi,
    fake: ModelApi,
) -> None:
    given = {"TG": api.token, "KEY": KEY} | env
    ended, out, err = await piped(*flags(directory, api, fake), *more, **given)
    assert ended == code, (out, err)
    assert says in err
    assert not directory.exists()
    assert "wrong-token-of-somebody" not in out + err


@pytest.mark.system
async def test_force_writes_what_does_not_work_and_yes_does_not(
    directory: Path, api: BotApi, fake: ModelApi
) -> None:
    given = flags(directory, api, fake)
    assert (await piped(*given, "--yes", TG="1:wrong", KEY=KEY))[0] == 1
    code, out, err = await piped(*given, "--force", TG="1:wrong", KEY=KEY)
    assert code == 0, (out, err)
    changed = [*given, "--persona-text", "A gardener.", "--speaks-up", "sometimes"]
    code, _, err = await piped(*changed, TG=api.token, KEY=KEY)
    assert (code, "--yes changes it" in err) == (1, True)
    assert (await piped(*changed, "--yes", TG=api.token, KEY=KEY))[0] == 0
    assert "A gardener." in (directory / "workspace" / "IDENTITY.md").read_text()
    assert "speaks_up: sometimes" in (directory / "reverie.yaml").read_text()


async def test_what_is_missing_in_the_environment_is_named_and_nothing_else(tmp_path: Path) -> None:
    answers = {
        "platforms": "irc",
        "irc-server": "127.0.0.1:1",
        "irc-tls": "no",
        "irc-nick": "rev",
        "irc-account": "none",
        "irc-rooms": "none",
        "irc-owner": "later",
        "model-provider": "anthropic",
        "model-name": "claude-x",
        "model-key-env": "NOT_SET",
    }
    flags_ = [word for name, value in answers.items() for word in (f"--{name}", value)]
    where = "--non-interactive", "--force", "--config", str(tmp_path / "bot")
    _, out, _ = await piped(*where, *flags_)
    assert [one.split()[0] for one in out.split("note: ")[1:]] == ["NOT_SET"]


@pytest.mark.system
async def test_input_that_ends_says_how_to_do_without(tmp_path: Path) -> None:
    code, _, err = await piped("--config", str(tmp_path / "bot"), words="telegram\n")
    assert (code, "--non-interactive" in err) == (2, True)
    assert untouched(tmp_path)
    async with at_terminal("--config", str(tmp_path / "bot")) as person:
        await person.sees("Platforms")
        person.presses(b"\x04")
        assert await person.over() == 2
        assert (
            "\nsetup: the input ended before all questions were answered; nothing was written"
            in person.screen
        )


async def test_a_directory_of_the_proposed_name_is_left_to_whom_it_belongs(tmp_path: Path) -> None:
    """A checkout has one: the package of the public interface."""
    code, out, _ = await piped(HOME=str(tmp_path))
    assert (code, "[~/.config/reverie]" in out) == (2, True)


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.system)],
)
async def test_an_end_while_it_looks_leaves_nothing(tmp_path: Path, number: int) -> None:
    async with (
        BotApi() as api,
        at_terminal("--config", str(tmp_path / "bot"), "--telegram-url", api.url) as person,
    ):
        api.faults.stall("getMe")
        await person.answers(
            ("Platforms", ""),
            ("Token", api.token),
        )
        await api.called("getMe")
        os.kill(person.process.pid, number)
        assert await person.over() == 1
        assert "nothing was written" in person.screen
        assert "Traceback" not in person.screen
        assert api.token not in person.screen
        api.faults.release()
        assert untouched(tmp_path)


async def test_ctrl_c_at_a_question_leaves_nothing(tmp_path: Path) -> None:
    async with at_terminal("--config", str(tmp_path / "bot")) as person:
        await person.sees(r"Platforms[^\n]*: $")
        assert await person.interrupts() == 1
        assert "nothing was written" in person.screen
        assert untouched(tmp_path)


async def test_a_bug_is_told_without_what_was_typed(
    tmp_path: Path, api: BotApi, fake: ModelApi
) -> None:
    sabotage = (
        "import gateway.plugins.setup.program as p\n"
        "def broken(person, config):\n"
        "    token = person.reveal(config['channels']['telegram.main']['token'])\n"
        "    raise RuntimeError(f'broken at {token}')\n"
        f"p.ask_model = broken\n{MAIN}"
    )
    code, out, err = await piped(
        *flags(tmp_path / "bot", api, fake), code=sabotage, TG=api.token, KEY=KEY
    )
    assert (code, "this is a bug" in err, "RuntimeError" in err) == (1, True, True)
    assert api.token not in out + err


@pytest.mark.system
async def test_a_running_gateway_is_not_disturbed(
    directory: Path, api: BotApi, fake: ModelApi
) -> None:
    given = flags(directory, api, fake)
    assert (await piped(*given, TG=api.token, KEY=KEY))[0] == 0
    os.environ |= {"TG": api.token, "KEY": KEY}
    try:
        async with gateway(directory):
            await api.until(lambda: api.updates.polling)
            before = len(api.asked("getUpdates"))
            code, _, err = await piped(
                *given, "--persona-text", "A gardener.", "--yes", TG=api.token, KEY=KEY
            )
            assert code == 0, err
            assert len(api.asked("getUpdates")) == before
    finally:
        del os.environ["TG"], os.environ["KEY"]


@pytest.mark.system
async def test_secrets_may_stay_in_the_environment(
    directory: Path, api: BotApi, fake: ModelApi
) -> None:
    urls = "--telegram-url", api.url, "--model-url", fake.url
    async with at_terminal("--config", str(directory), *urls, TG=api.token) as person:
        await person.answers(
            ("Platforms", ""),
            ("Token", "${TG}"),
            ("Use @reverie_bot", ""),
            ("Your id", "later"),
            ("Groups", ""),
            ("Who answers", ""),
            ("Key", "${NOT_SET}"),
        )
        await person.sees("NOT_SET. is not set here")
        await person.answers(
            ("Model", ""),
            ("Its name", ""),
            ("Its character", ""),
            ("May it speak up", ""),
            ("Write it", ""),
        )
        assert await person.over() == 3
        assert "NOT_SET must be set in the environment" in person.screen
        assert api.token not in person.screen
    files = written(directory)
    assert "${TG}" in files["reverie.yaml"]
    assert "${NOT_SET}" in files["reverie.yaml"]
    assert [path for path in files if path.startswith("secrets/")] == ["secrets/ops.token"]


@pytest.mark.system
async def test_what_does_not_work_can_be_left_so(
    directory: Path, api: BotApi, fake: ModelApi
) -> None:
    urls = "--telegram-url", api.url, "--model-url", fake.url
    async with at_terminal("--config", str(directory), *urls) as person:
        await person.answers(
            ("Platforms", ""),
            ("Token", "1:wrong-token-of-somebody"),
            ("Your choice", "g"),
            ("Your id", ""),
            ("No message has arrived yet.*Your id", "later"),
            ("Groups", ""),
            ("Who answers", "llama"),
            ("Does it need a key", "no"),
            ("Your choice", "go on"),
            ("Its name", ""),
            ("Its character", ""),
            ("May it speak up", ""),
            ("Write it", ""),
        )
        assert await person.over() == 0
        assert "wrong-token-of-somebody" not in person.screen
    assert "kind: llamacpp" in written(directory)["reverie.yaml"]


@pytest.mark.system
async def test_flags_say_all_that_a_person_could_of_irc(directory: Path) -> None:
    options = IrcOptions(
        caps=f"{CAPS} sasl=PLAIN", sasl={"mira": "correct horse"}, password="open sesame"
    )
    async with Ircd(options, tls=server_context()) as ircd, model() as fake:
        given = ["--non-interactive", "--config", str(directory), "--platforms", "irc"]
        given += [
            "--irc-server",
            f"127.0.0.1:{ircd.port}",
            "--irc-tls",
            str(LOCALHOST),
            "--irc-nick",
            "mira",
        ]
        given += [
            "--irc-account",
            "mira",
            "--irc-password-env",
            "PW",
            "--irc-server-password-env",
            "SPW",
        ]
        given += [
            "--irc-contact",
            "ann, ann@example.org",
            "--irc-rooms",
            "one #two",
            "--irc-owner",
            "ann",
            "--model-url",
            fake.url,
            "--model-key-env",
            "KEY",
        ]
        given += ["--discord-owner", "12"]
        env = {"PW": "correct horse", "SPW": "open sesame", "KEY": KEY}
        code, out, err = await piped(*given, **env)
        assert (code, err) == (0, ""), (out, err)
        assert "--discord-owner was not used: nothing asked for it" in out
        text = written(directory)["reverie.yaml"]
        for said in (
            f'ca_file: "{LOCALHOST}"',
            'password: "${SPW}"',
            'password: "${PW}"',
            'rooms: ["#one", "#two"]',
            "ann@example",
            'owner: ["irc.local:account:ann"]',
        ):
            assert said in text
        again, out, _ = await piped(*given, **env)
        assert (again, "Nothing has changed." in out) == (0, True)
        code, _, err = await piped(*given, **{**env, "SPW": "wrong"})
        assert (code, "the server password is refused" in err) == (1, True)


@pytest.mark.parametrize("below", ["file", pytest.param("file/bot", marks=pytest.mark.system)])
async def test_a_place_that_cannot_be_written_is_told_before_the_first_question(
    tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = await piped("--config", str(tmp_path / below), words="\n" * 20)
    assert (code, "cannot be written" in err, "Platforms" in out) == (2, True, False)


async def test_a_configuration_that_is_no_yaml_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "reverie.yaml").write_text("channels: [\n")
    code, _, err = await piped("--config", str(tmp_path), words="\n" * 20)
    assert (code, "correct the configuration first" in err, "reverie.yaml:2" in err) == (
        2,
        True,
        True,
    ), err
