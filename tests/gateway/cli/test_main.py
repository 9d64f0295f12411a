"""The `reverie` command: which commands it has, and `reverie dashboard` as a person and a program
run it."""

import contextlib
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from pydantic import SecretStr

from gateway.cli.main import main
from gateway.command_line import dashboard_url
from gateway.config.models import OpsConfig
from gateway.core.process_files import socket_path
from gateway.core.removed import find_removed
from gateway.plugin import Plugin
from gateway.plugins import use_plugins
from reverie.testing.servers.ports import free_port


def commands(capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        main(["help"])
    return re.findall(r"^    ([a-z-]+)\b", capsys.readouterr().out, re.MULTILINE)


def test_every_command_is_found_by_its_name_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(capsys)
    assert len(found) > 10
    for name in found:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0, name
        assert capsys.readouterr().out.startswith(f"usage: reverie {name} "), name


INTERRUPTED = """
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from gateway.cli.__main__ import main
sys.exit(main())
"""


NO_NAMES = """
import socket, sys, threading
def look_up(*args, **more):
    print("asked", flush=True)
    threading.Event().wait()
socket.getaddrinfo = look_up
from gateway.cli.main import main
sys.exit(main())
"""


def test_a_gateway_ends_while_no_server_of_names_answers(tmp_path: Path) -> None:
    irc = {
        "platform": "irc",
        "host": "irc.example.org",
        "nick": "reverie",
        "contact": "me@example.org",
    }
    config = {
        "channels": {"irc.a": irc},
        "agents": [{"id": "reverie"}],
        "llm": {"providers": {"p": {"kind": "scripted"}}, "models": {"main": {"provider": "p"}}},
        "ops": {"port": 0},
    }
    (tmp_path / "reverie.yaml").write_text(yaml.safe_dump(config))
    program = [sys.executable, "-c", NO_NAMES, "run", "--config", str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"asked\n"
        process.terminate()
        try:
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    "module", ["gateway.cli.main", "gateway.plugins.setup", "gateway.plugins.setup.program"]
)
def test_ctrl_c_while_it_still_loads_ends_it_without_a_word(module: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        INTERRUPTED.format(module=module),
        "setup",
        "--config",
        str(tmp_path / "new"),
    ]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


# `reverie dashboard`, as a person and a program run it

TOKEN = "a-secret/of#tests&more+"


def configured(folder: Path, **ops: object) -> Path:
    settings = {
        "channels": {"screen": {"platform": "console", "rooms": ["a"]}},
        "agents": [{"id": "reverie"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        "store": {"path": "reverie.db"},
        "ops": {"port": free_port(), "token": TOKEN, **ops},
    }
    file = folder / "reverie.yaml"
    file.write_text(yaml.safe_dump(settings))
    file.chmod(0o600)
    return folder


@contextlib.contextmanager
def somebody() -> Iterator[int]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def run_on_terminal(config: Path) -> tuple[int, str, str]:
    """Exit code, stdout and the first part of stderr of `dashboard`, run on a terminal."""
    ours, theirs = pty.openpty()
    code = "import sys; from gateway.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "dashboard", "--config", str(config)]
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(theirs)
    said = os.read(ours, 10_000).decode().strip()
    os.close(ours)
    return done.returncode, said, done.stderr.decode().partition(";")[0]


def test_a_program_is_not_told_the_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", "--config", str(configured(tmp_path, port=9))]) == 1
    out, err = capsys.readouterr()
    assert out == "http://127.0.0.1:9/\n"
    assert "reverie run" in err
    assert "secret" not in out + err


def test_a_person_is_told_an_address_that_opens_the_page(tmp_path: Path) -> None:
    code, said, problem = run_on_terminal(configured(tmp_path, port=9))
    assert (code, said) == (1, "http://127.0.0.1:9/#token=a-secret%2Fof%23tests%26more%2B")
    assert problem == "nothing answers there"


@pytest.mark.system
def test_another_gateway_at_its_port_is_not_taken_for_it(tmp_path: Path) -> None:
    with somebody() as port:
        config = configured(tmp_path, port=port)
        assert run_on_terminal(config) == (
            1,
            f"http://127.0.0.1:{port}/",
            "another gateway or another program answers there",
        )
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(str(socket_path(tmp_path / "reverie.db")))
            assert run_on_terminal(config)[0] == 1, "it was killed"
            own.listen()
            assert run_on_terminal(config) == (
                0,
                f"http://127.0.0.1:{port}/#token=a-secret%2Fof%23tests%26more%2B",
                "",
            )


@pytest.mark.parametrize(
    ("ops", "words"),
    [({"token": None}, "set ops.token"), ({"port": 0}, "the log of the gateway shows which")],
)
def test_where_there_is_no_page_it_is_said_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ops: dict[str, object], words: str
) -> None:
    assert main(["dashboard", "--config", str(configured(tmp_path, **ops))]) == 2
    out, err = capsys.readouterr()
    assert (out, words in err) == ("", True)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:9090/"),
        ("0.0.0.0", "http://127.0.0.1:9090/"),
        ("::", "http://[::1]:9090/"),
        ("::1", "http://[::1]:9090/"),
        ("gate.example", "http://gate.example:9090/"),
    ],
)
def test_the_address_is_one_that_can_be_opened(host: str, address: str) -> None:
    assert dashboard_url(OpsConfig(host=host, token=SecretStr("x" * 16))) == address


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run --role edge", "each process does everything for the channels that it holds"),
        ("console --run", "start the gateway with `reverie run`"),
        ("replay", "`why` explains"),
        ("log why 3", "write `reverie why ENTRY`"),
        ("context compact irc.x/a", "`--in CONVERSATION`"),
        ("audit --store=x", "name the configuration"),
        ("cache --conversation x", "write `--in CONVERSATION`"),
        ("ctl trust clear", "start over with `new`"),
    ],
)
def test_what_is_gone_is_answered_with_what_to_do(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert told in capsys.readouterr().err
    assert find_removed(["log", "show", "--match", "why"]) == ""


@pytest.mark.parametrize("bad", [["--name", "a/b"], ["--ops-port", "65536"], ["--ops-port", "-1"]])
def test_what_no_process_can_be_is_bad_usage(tmp_path: Path, bad: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *bad, "--config", str(configured(tmp_path))])
    assert ended.value.code == 2


# What is wrong is the same for `check-config` and `run`, and what a command does not need does not
# stop it

LLM = {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}}
IRC = {"platform": "irc", "host": "127.0.0.1", "port": 6697, "tls": False, "nick": "mira"}


def folder_with(folder: Path, channels: object, **sections: object) -> Path:
    """A configuration; each value of `channels` begins on a line of its own."""
    tree = {
        "channels": channels,
        "agents": [{"id": "mira"}],
        "llm": LLM,
        "ops": {"port": 0},
        **sections,
    }
    (folder / "reverie.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    (folder / "reverie.yaml").chmod(0o600)
    return folder


def outcome(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int | str | None, str]:
    """Exit code and standard error of a command."""
    try:
        code: int | str | None = main([*words])
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("channels", "place", "says"),
    [
        (
            {"c": {"platform": "console"}},
            "2: channels.c",
            "the console is for tests, which make it themselves; remove",
        ),
        ({}, "1: channels", "no channels are configured; add one"),
        (
            {
                name: {"platform": "telegram", "token": "1:abc"}
                for name in ("telegram.a", "telegram.b")
            },
            "7: channels.telegram.b.token",
            "is the token of channels.telegram.a, too; remove one of the two",
        ),
        (
            {name: {"platform": "discord", "token": "abc"} for name in ("discord.a", "discord.b")},
            "7: channels.discord.b.token",
            "is the token of channels.discord.a, too; remove one of the two",
        ),
        (
            {"irc.a": IRC, "irc.b": {**IRC}},
            "13: channels.irc.b.nick",
            "is the nick of channels.irc.a, too; remove one of the two",
        ),
        (
            {"telegram.a": {"platform": "telegram", "token": "1:abc", "rooms": ["@gardenfriends"]}},
            "5: channels.telegram.a.rooms",
            (
                "'@gardenfriends' is not the id of a group, a number that begins with a minus; write "
                "it in quotes"
            ),
        ),
    ],
)
def test_what_run_refuses_check_config_tells_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], channels: object, place: str, says: str
) -> None:
    directory = str(folder_with(tmp_path, channels))
    told = [outcome(capsys, command, "--config", directory) for command in ("check-config", "run")]
    assert told[0] == told[1]
    code, err = told[0]
    assert code == 2
    assert err.startswith(f"{tmp_path}/reverie.yaml:{place}: {says}"), err


@pytest.mark.parametrize(
    ("sections", "key", "says"),
    [
        (
            {"media": {"transcribe": ["whisper-nope", "{file}"]}},
            "media.transcribe",
            "there is no program whisper-nope",
        ),
        (
            {"tools": {"mcp": {"x": {"command": ["mcp-nope"]}}}},
            "tools.mcp.x.command",
            "there is no program mcp-nope",
        ),
        (
            {"channels": {"i": {**IRC, "tls": {"ca_file": "no.pem"}}}},
            "channels.i.tls",
            "cannot use the TLS files",
        ),
    ],
)
def test_what_is_not_on_this_machine_is_told_by_both_and_stops_nobody(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sections: dict[str, object],
    key: str,
    says: str,
) -> None:
    (tmp_path / "file").touch()
    sections = {"store": {"path": "file/reverie.db"}} | sections  # so `run` ends by itself
    directory = str(folder_with(tmp_path, sections.pop("channels", {"i": IRC}), **sections))
    code, err = outcome(capsys, "check-config", "--config", directory)
    assert code == 2  # for the place of the store
    assert re.match(rf"warning: {tmp_path}/reverie.yaml:\d+: {key}: {says}[^;]*; \w+", err), err
    command = [sys.executable, "-m", "gateway.cli.main", "run", "--config", directory]
    done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=120)
    told = err.splitlines()[0]  # the place of the store is told by each in its way
    assert (done.returncode, told in done.stderr) == (1, True), done.stderr


SECRETS = {
    "t": {"platform": "telegram", "token": "${NOT_SET}", "rooms": ["${NO_ROOM}", "-1001"]},
    "d": {"platform": "discord", "token": "${file:gone}"},
    "i": {
        **IRC,
        "port": "${NO_PORT}",
        "sasl": {"mechanism": "plain", "account": "mira", "password": "${NOT_SET_EITHER}"},
    },
}


@pytest.mark.parametrize(
    "words",
    ["log show", "audit", "cache", "health", "dashboard", "channels", "ctl pair list"],
)
def test_a_command_about_the_gateway_needs_no_secret_of_its_platforms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    ops = {"ops": {"port": 9, "token": TOKEN}}
    directory = str(folder_with(tmp_path, SECRETS, store={"path": "reverie.db"}, **ops))
    assert outcome(capsys, "ctl", "pair", "seed", "t:1001", "owner", "--config", directory) == (
        0,
        "",
    )
    code, err = outcome(capsys, *words.split(), "--config", directory)
    assert ("problem" in err, "not set" in err, "gone" in err) == (False, False, False)
    assert code == (1 if words in {"health", "dashboard"} else 2 if words == "channels" else 0), err
    for command in ("check-config", "run"):
        code, err = outcome(capsys, command, "--config", directory)
        assert (code, err.count("\n"), err.count("${file:...}")) == (2, 6, 4), err
        assert "the environment variable NOT_SET is not set" in err
        assert "cannot read the file gone" in err


@pytest.mark.parametrize(
    ("words", "section", "key"),
    [
        (["dashboard"], {"ops": {"token": "${NOT_SET}"}}, "ops.token"),
        (["audit"], {"store": {"url": "${NOT_SET}"}}, "store.url"),
        (["status"], {"channels": {"i": {"platform": "${NOT_SET}"}}}, "channels.i.platform"),
    ],
)
def test_the_one_value_that_a_command_needs_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    section: dict[str, object],
    key: str,
) -> None:
    directory = folder_with(tmp_path, section.pop("channels", SECRETS), **section)
    code, err = outcome(capsys, *words, "--config", str(directory))
    says = (
        f"{key}: the environment variable NOT_SET is not set; set it, or write ${{file:...}}\n1 "
        "problem found\n"
    )
    assert (code, err.partition(": ")[2]) == (2, says)


@pytest.mark.parametrize(
    "words", ["check-config", "status", "doctor --offline", "log show", "dashboard"]
)
def test_a_terminal_that_cannot_show_a_character_gets_another_one(
    tmp_path: Path, words: str
) -> None:
    folder = tmp_path / "My Bot ü"
    folder.mkdir()
    folder_with(folder, {"i": IRC}, ops={"port": 9, "token": TOKEN})
    command = [sys.executable, "-m", "gateway.cli.main", *words.split(), "--config", str(folder)]
    env = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, check=False, env=env, timeout=120)
    assert b"Traceback" not in done.stderr, done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert done.returncode == {"check-config": 0, "doctor --offline": 0, "dashboard": 1}.get(
        words, 2
    ), done.stderr


def test_a_path_that_the_encoding_of_file_names_lacks_is_told_with_its_line(tmp_path: Path) -> None:
    folder_with(tmp_path, {"i": IRC}, store={"path": "./dätä/reverie.db"})
    command = [sys.executable, "-m", "gateway.cli.main", "run", "--config", str(tmp_path)]
    env = {**os.environ, "LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env=env, timeout=120)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert (
        b"store.path: the encoding of file names is ascii here, which lacks a character of it"
        in done.stderr
    )


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Run a command. Return its exit code, and what it printed on both streams."""
    try:
        code = main([*argv])
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, *capsys.readouterr()


def test_version_and_help_are_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "version") == said(capsys, "--version")
    assert said(capsys, "help") == said(capsys, "--help") == said(capsys)
    assert said(capsys, "help", "backup") == said(capsys, "backup", "--help")
    code, out, _ = said(capsys, "help", "pair")
    assert code == 0
    assert "reverie pair approve" in out


@pytest.mark.parametrize(("typed", "meant"), [("doctr", "doctor"), ("statsu", "status")])
def test_a_command_that_is_not_there_is_told_with_the_nearest_one(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said(capsys, typed)
    assert (code, out) == (2, "")
    assert f"did you mean {meant}?" in error


def test_an_option_that_is_not_there_is_told_with_the_nearest_one_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, error = said(capsys, "run", "--confg", "x")
    assert (code, out) == (2, "")
    assert "usage: reverie run " in error
    assert "did you mean --config?" in error


def test_the_configuration_is_found_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, home = tmp_path / "here", tmp_path / "home"
    for path in (here, home / ".config"):
        path.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("REVERIE_CONFIG", raising=False)
    (here / "reverie").mkdir()  # a directory without a configuration is none
    for argv in (["check-config"], ["status"], ["log", "tail"], ["restore", "b.tar"]):
        code, _, error = said(capsys, *argv)
        assert (code, "$REVERIE_CONFIG" in error) == (2, True), argv

    text = (
        "channels: {irc.net: {platform: irc, host: 127.0.0.1, nick: reverie}}\n"
        "agents: [{id: reverie}]\n"
        "llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}\n"
    )
    for place in (home / ".config/reverie", here / "reverie", tmp_path / "named"):
        place.mkdir(exist_ok=True)
        (place / "reverie.yaml").write_text(text)
        if place.name == "named":
            monkeypatch.setenv("REVERIE_CONFIG", str(place))
        _, out, error = said(capsys, "check-config")
        assert f"in {'reverie' if place.parent == here else place} is good" in out, error


def test_a_place_that_cannot_be_looked_at_has_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REVERIE_CONFIG", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    code, _, error = said(capsys, "doctor")
    assert (code, "$REVERIE_CONFIG" in error) == (2, True)


def no_home(_: Path) -> Path:
    """Stands for `Path.expanduser` of a user without a home."""
    raise RuntimeError("Could not determine home directory.")


def test_a_plugin_takes_no_command_of_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    class Thief(Plugin):
        name = "thief"
        subcommands: ClassVar = {"run": ("run something else", "nowhere:nothing")}

    with use_plugins(Thief):
        code, out, error = said(capsys, "help")
    assert (code, "run the gateway" in out, "run something else" in out) == (0, True, False)
    assert "plugin thief: there is a command run already" in error


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands_of_the_shell_and_of_the_chat(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said(capsys, "completion", shell)
    assert code == 0
    assert all(name in out for name in ("doctor", "check-config", "whoami", "--config"))
