"""The `reverie` command: which commands it has, and `reverie dashboard` as a person and a program run it."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from pydantic import SecretStr

from gateway.cli.main import main
from gateway.cli.operate import dashboard_url
from gateway.config.models import OpsConfig
from gateway.core.process_files import heartbeat_file
from tests.servers.ports import free_port


def commands(capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit):
        main(["no such command"])
    return re.findall(r"'([a-z-]+)'", capsys.readouterr().err.partition("choose from")[2])


def test_every_command_is_found_by_its_name_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(capsys)
    assert len(found) > 15
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


@pytest.mark.parametrize("module", ["gateway.cli.main", "gateway.cli.operate", "gateway.cli.setup.program"])
def test_ctrl_c_while_it_still_loads_ends_it_without_a_word(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED.format(module=module), "setup", "--config", str(tmp_path / "new")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120)
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
    """Answers like any gateway."""

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


def test_a_program_is_not_told_the_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        beat = heartbeat_file(tmp_path / "reverie.db")
        assert run_on_terminal(config) == (
            1,
            f"http://127.0.0.1:{port}/",
            "another gateway or another program answers there",
        )
        beat.touch()
        assert run_on_terminal(config) == (0, f"http://127.0.0.1:{port}/#token=a-secret%2Fof%23tests%26more%2B", "")
        os.utime(beat, (1, 1))
        assert run_on_terminal(config)[0] == 1


@pytest.mark.parametrize(
    ("ops", "words"), [({"token": None}, "set ops.token"), ({"port": 0}, "the log of the gateway shows which")]
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


def test_a_role_needs_a_store_that_processes_share(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--role", "edge", "--config", str(configured(tmp_path))]) == 2
    assert "--role edge is for several processes, which share a PostgreSQL database: set store.url" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("bad", [["--name", "a/b"], ["--ops-port", "65536"], ["--ops-port", "-1"], ["--role", "x"]])
def test_what_no_process_can_be_is_bad_usage(tmp_path: Path, bad: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *bad, "--config", str(configured(tmp_path))])
    assert ended.value.code == 2
