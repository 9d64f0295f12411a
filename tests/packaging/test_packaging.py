"""The container, its compose file and the service: what they name is there, and nothing of the
hardening is lost."""

import asyncio
import contextlib
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from asyncio.subprocess import DEVNULL
from datetime import UTC, datetime
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.build import build_sdist, build_wheel
from packaging.requirements import Requirement

from channels.aio import cancel_and_wait
from gateway import __version__
from gateway.cli.main import main
from gateway.config.loader import read_config
from gateway.core.control_messages import CommandRequest, ControlResponse
from gateway.core.control_socket import ControlServer
from gateway.core.events import ChannelName, ConnectionChanged, EventId
from gateway.core.metrics import GatewayStats
from reverie.testing.waiting import until
from tests.kits.installed import count_installed_bytes

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "config" / "reverie.service"
COMPOSE = ROOT / "config" / "compose.yaml"
CLUSTER = ROOT / "config" / "compose.cluster.yaml"
DOCKERFILE = ROOT / "Dockerfile"
MOST_EXPOSED = 2.0
"""Of ten, as `systemd-analyze security` counts: below it is what that calls OK, at its lower
end."""


def unit() -> dict[str, list[str]]:
    """Each key with its values, of all sections."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def parses(arguments: list[str]) -> bool:
    """Whether the command line has this command, and its help names these options."""
    with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as told:
        sys.exit(main([*arguments, "--help"]))
    options = {one.partition("=")[0] for one in arguments if one.startswith("--")}
    return told.value.code == 0 and options <= set(re.findall(r"--[\w-]+", shown.getvalue()))


def test_an_unknown_option_is_found() -> None:
    assert parses(["run", "--config", "x"])
    assert not parses(["run", "--config", "x", "--no-such-option"])


def test_the_service_runs_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    (start,) = unit()["ExecStart"]
    program, *arguments = start.split()
    assert Path(program).name == "reverie"
    assert parses(arguments)
    capsys.readouterr()
    assert unit()["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert unit()["RestartPreventExitStatus"] == ["2"], "bad usage or configuration"
    assert int(unit()["TimeoutStopSec"][0]) > 10, "what a stop takes at most"
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["check-config", "--config", str(ROOT / "nowhere")])
    for said in re.findall(
        r"`(?:sudo -u reverie /opt/reverie/bin/)?reverie ([a-z][a-z-]*)[^`]*`", UNIT.read_text()
    ):
        assert parses([said]), said


def test_the_service_keeps_its_hardening() -> None:
    keys = unit()
    for key, value in (
        ("User", "reverie"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("RestrictNamespaces", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("UMask", "0077"),
        ("StateDirectory", "reverie"),
        ("Restart", "on-failure"),
    ):
        assert keys[key] == [value], key
    assert keys["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None and not os.environ.get("CI"),
    reason="systemd is not installed",
)
def test_systemd_finds_nothing_wrong_with_it_and_little_exposed(tmp_path: Path) -> None:
    here = tmp_path / "reverie.service"
    here.write_text(UNIT.read_text().replace("/opt/reverie/bin/reverie", sys.executable))
    found = subprocess.run(
        ["systemd-analyze", "verify", here],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ,
    )
    about = [
        line for line in (found.stdout + found.stderr).splitlines() if "reverie.service" in line
    ]
    assert about == []
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", here],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    ).stdout
    exposed = re.search(r"Overall exposure level for reverie\.service: ([\d.]+)", told)
    assert exposed is not None, told
    print("exposure", exposed[1])
    assert float(exposed[1]) <= MOST_EXPOSED


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def test_the_container_can_write_nothing_but_its_data_and_gain_nothing() -> None:
    service = compose()["services"]["reverie"]
    hardened = {
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    assert service | hardened == service
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == ["data:/data"]
    assert not {"privileged", "ports"} & {*service}, "nothing is open unless the operator opens it"
    assert all(
        [service["mem_limit"], service["pids_limit"], service["logging"]["options"]["max-size"]]
    )
    assert service["tmpfs"][0].startswith("/tmp:")
    assert int(service["stop_grace_period"].removesuffix("s")) > 10


def test_the_processes_of_the_cluster_keep_the_hardening_and_differ_only_in_their_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, several = compose(), yaml.safe_load(CLUSTER.read_text())
    alone, services = one["services"]["reverie"], several["services"]
    database = services.pop("database")
    assert list(services) == ["process-1", "process-2", "process-3"]
    for name, service in services.items():
        command = service["command"]
        assert command[-2:] == ["--name", name]
        assert parses(command)
        same = (
            "read_only",
            "tmpfs",
            "cap_drop",
            "security_opt",
            "volumes",
            "restart",
            "init",
            "logging",
            "pids_limit",
        )
        for key in (*same, "mem_limit", "stop_grace_period", "env_file"):
            assert service[key] == alone[key], key
        assert "ports" not in service
        assert service["build"]["args"] == {**alone["build"]["args"], "POSTGRES": "yes"}
        assert service["depends_on"] == {"database": {"condition": "service_healthy"}}
        assert "/ready" in service["healthcheck"]["test"][-1]
        compile(service["healthcheck"]["test"][-1], "healthcheck", "exec")
    assert "ports" not in database
    assert {volume.partition(":")[0] for volume in database["volumes"]} == {"database", "archive"}
    assert "DB_PASSWORD" in database["environment"]["POSTGRES_PASSWORD"]
    assert set(several["volumes"]) == {"database", "archive", "data"}
    capsys.readouterr()


def test_the_configuration_that_the_cluster_names_reaches_its_database(tmp_path: Path) -> None:
    text, environment = (
        CLUSTER.read_text(),
        yaml.safe_load(CLUSTER.read_text())["services"]["database"]["environment"],
    )
    shutil.copy(ROOT / "config" / "examples" / "irc" / "reverie.yaml", tmp_path / "reverie.yaml")
    (store,) = re.findall(r"^#   (store: .*)$", text, re.MULTILINE)
    (tmp_path / "store.yaml").write_text(store)
    secrets = {"IRC_PASSWORD": "x", "ANTHROPIC_API_KEY": "sk-ant", "DB_PASSWORD": "secret"}
    found = read_config(tmp_path, secrets).settings.store
    user, database = environment["POSTGRES_USER"], environment["POSTGRES_DB"]
    assert found.url is not None
    assert found.url.get_secret_value() == f"postgresql://{user}:secret@database/{database}"
    assert found.path.parent == Path("/data")
    (status,) = re.findall(r"exec process-1 reverie (.*)$", text, re.MULTILINE)
    assert parses(status.split())


def test_the_container_and_its_compose_file_agree() -> None:
    service, text = compose()["services"]["reverie"], DOCKERFILE.read_text()
    declared = set(re.findall(r"^ARG (\w+)=", text, re.MULTILINE))
    assert set(service["build"]["args"]) == declared
    assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT
    assert "healthcheck" not in service, "the image has one"
    mounted = {volume.removesuffix(":ro").rpartition(":")[2] for volume in service["volumes"]}
    assert mounted == {"/config", "/data"}
    for path in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE):
        for name in path.split():
            assert (ROOT / name).exists(), name


def test_the_container_runs_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = DOCKERFILE.read_text()
    (run,) = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)
    for command in (re.findall(r'"([^"]*)"', run), compose()["services"]["reverie"]["command"]):
        assert parses(command)
    assert re.search(r"^USER reverie$", text, re.MULTILINE), "not as root"
    capsys.readouterr()


async def test_the_container_is_healthy_while_a_gateway_in_it_is_ready(tmp_path: Path) -> None:
    told = re.search(r"^HEALTHCHECK .* CMD \[(.*)\]$", DOCKERFILE.read_text(), re.MULTILINE)
    assert told is not None
    *python, script, data = re.findall(r'"([^"]*)"', told[1])
    assert (python[1:], data) == (["-I", "-S"], "/data")

    async def judge() -> int:
        command = [sys.executable, *python[1:], ROOT / "config" / Path(script).name, tmp_path]
        return await (await asyncio.create_subprocess_exec(*command, stderr=DEVNULL)).wait()

    async def refuse(_: CommandRequest) -> ControlResponse:
        raise NotImplementedError

    now, name = datetime.now(UTC), ChannelName("irc.net")
    stats, path = GatewayStats({name: "irc"}, now), tmp_path / "reverie.db.sock"
    assert await judge() == 1, "none runs"
    running = asyncio.create_task(ControlServer(path, refuse, stats.snapshot).run())
    try:
        await until(path.is_socket)
        assert await judge() == 1, "it is not connected"
        up = ConnectionChanged(id=EventId("1"), channel=name, up=True, reason="", sent=now)
        stats.record_link(up, now)
        assert await judge() == 0
    finally:
        await cancel_and_wait(running)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert await judge() == 1, "it was killed"


def test_what_the_container_is_made_of_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*", "all but what is named"
    named = {line.removeprefix("!").rstrip("/") for line in lines if line.startswith("!")}
    copied = {
        name
        for group in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
        for name in group.split()
    }
    for name in copied:
        assert any(one == name.rstrip("/") or one.startswith(name) for one in named), name


def test_a_release_is_proven_before_anything_is_published_and_only_of_a_tag() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]
    for script in re.findall(r"\.ci/\w+", str(jobs)):
        assert os.access(ROOT / script, os.X_OK), script
    assert set(jobs["publish"]["needs"]) == {"build", "image"}
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}, "no stored secret"
    (push,) = (one for one in jobs["image"]["steps"] if "docker push" in one.get("run", ""))
    assert push["if"] == "github.ref_type == 'tag'"
    assert "secrets." not in str(jobs)


def test_what_is_downloaded_is_named_exactly() -> None:
    """A tag that moves, or a library of any later version, would change what runs without a change
    here."""
    workflow = "".join(one.read_text() for one in (ROOT / ".github/workflows").glob("*.yaml"))
    images = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    images += re.findall(
        r"^ *image: (\S+:\S+)$", workflow + CLUSTER.read_text() + COMPOSE.read_text(), re.MULTILINE
    )
    assert len(images) == 4
    assert all(re.search(r"@sha256:[0-9a-f]{64}$|:\d+\.\d+\S*$", one) for one in images), images
    actions = re.findall(r"uses: (\S+)", workflow)
    assert actions
    assert all(re.search(r"@[0-9a-f]{40}$", one) for one in actions), actions
    installs = re.findall(r"pip install (.*)", UNIT.read_text())
    assert installs
    assert all("--require-hashes" in one or "--no-deps" in one for one in installs), installs
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for some in project["optional-dependencies"].values() for one in some),
    ]
    is_bounded = {
        Requirement(one).name: any(
            spec.operator in ("<", "~=") for spec in Requirement(one).specifier
        )
        for one in wanted
    }
    assert {name for name, bounded in is_bounded.items() if not bounded} == {"tzdata"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution, and the wheel made of it."""
    there, here = tmp_path_factory.mktemp("dist"), Path.cwd()
    try:
        os.chdir(ROOT)
        sdist = there / build_sdist(str(there))
        with tarfile.open(sdist) as files:
            files.extractall(there, filter="data")
        os.chdir(there / sdist.name.removesuffix(".tar.gz"))
        return sdist, there / build_wheel(str(there))
    finally:
        os.chdir(here)


def test_what_is_published_is_small_and_has_no_tests(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    assert sdist.stat().st_size < 3_000_000
    assert wheel.stat().st_size < 3_000_000
    with tarfile.open(sdist) as files:
        names = [name.partition("/")[2] for name in files.getnames()]
    assert {name.partition("/")[0] for name in names} == {
        *("reverie", "gateway", "channels", "agent", "config"),
        *("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"),
        *(".gitignore", "PKG-INFO"),
    }
    assert f"gateway-{__version__}" in sdist.name


def test_an_installation_without_extras_is_small(built: tuple[Path, Path]) -> None:
    megabytes = count_installed_bytes(built[1]) / 1_000_000
    print(f"an installation without extras takes {megabytes:.1f} MB")
    assert megabytes <= 65


def test_the_wheel_brings_typed_packages_and_what_tests_of_plugins_need_without_pytest(
    built: tuple[Path, Path],
) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        told = message_from_bytes(wheel.read(metadata))
    packages = ("reverie", "gateway", "channels", "agent")
    assert {"gateway/defaults/prices.yaml", "gateway/locale/de/LC_MESSAGES/reverie.mo"} <= names
    assert told["Version"] == __version__
    assert set(told.get_all("License-File", [])) == {
        one.relative_to(ROOT).as_posix()
        for package in (".", *packages)
        for one in (ROOT / package).glob("*LICENSE" if package == "." else "**/*LICENSE")
    }
    assert {f"{name}/py.typed" for name in packages} <= names
    assert "reverie/testing/servers/localhost.test-only.pem" in names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {*packages}
    needed = [Requirement(one) for one in told.get_all("Requires-Dist", [])]
    assert [str(one.marker) for one in needed if one.name == "pytest"] == ['extra == "testing"']


def test_a_compose_file_beside_the_configuration_is_no_part_of_it(tmp_path: Path) -> None:
    shutil.copy(COMPOSE, tmp_path / "compose.yaml")
    shutil.copy(CLUSTER, tmp_path / "compose.cluster.yaml")
    shutil.copy(ROOT / "config" / "examples" / "irc" / "reverie.yaml", tmp_path / "reverie.yaml")
    loaded = read_config(tmp_path, {"IRC_PASSWORD": "x", "ANTHROPIC_API_KEY": "sk-ant"})
    settings, warnings = loaded.settings, loaded.warnings
    assert warnings == ()
    assert list(settings.channels) == ["irc.libera"]


# requirements/install on machines that lack something. Nothing is fetched here.


@pytest.mark.system
def test_an_environment_without_pip_gets_it_where_there_is_no_uv(tmp_path: Path) -> None:
    """As an earlier run leaves it that was stopped half-way, or a uv that is no longer there."""
    (tmp_path / "requirements").mkdir()
    for name in ("install", "uv.txt"):
        shutil.copy(ROOT / "requirements" / name, tmp_path / "requirements" / name)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True, timeout=60
    )
    folders = [one for one in os.environ["PATH"].split(":") if not (Path(one) / "uv").exists()]
    env = {"PATH": ":".join(folders), "HOME": str(tmp_path), "PIP_NO_INDEX": "1"}
    tried = subprocess.run(
        ["bash", tmp_path / "requirements" / "install"],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "No matching distribution found for uv" in tried.stderr, "pip is there, and asked"


ADD_MCP = "from gateway.core.installing import install_command as tell; print(tell('mcp'))"


@pytest.mark.parametrize(
    ("marker", "folder", "starts"),
    [
        ("uv-receipt.toml", "reverie-gateway", "uv tool install "),
        ("pipx_metadata.json", "reverie-gateway", "pipx install --force "),
        ("pyvenv.cfg", "archive-v0/abc", "uvx --from "),
        ("pyvenv.cfg", "venv", r"(uv pip install --python \S+|\S+ -m pip install) "),
    ],
)
def test_what_installs_an_extra_is_told_as_the_installer_wants_it(
    tmp_path: Path, marker: str, folder: str, starts: str
) -> None:
    """The environments are as those programs leave them: of uv 0.13, and of pipx 1.18."""
    venv = tmp_path / folder
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    (venv / marker).touch()
    files = [ROOT, *(one for one in sys.path if one.endswith("site-packages"))]
    done = subprocess.run(
        [venv / "bin/python", "-c", ADD_MCP],
        env={"PYTHONPATH": ":".join(map(str, files))},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert re.match(starts, done), done
    assert re.search(r"\[(\w+,)*mcp(,\w+)*\]", done), done


def test_the_http_client_comes_without_its_command_line() -> None:
    code = """
import contextlib, io, sys
from gateway.cli.__main__ import main
sys.argv = ["reverie", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
import httpx
print({"rich", "pygments", "click"} & set(sys.modules), httpx.Client)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert told == "set() <class 'httpx.Client'>\n"
