"""Real IRC servers on free loopback ports, from throw-away configuration.

with inspircd(directory) as port: ...
with ngircd(directory) as port: ...

They run in the foreground as children and are ended on the way out. Raises FileNotFoundError if the
program is not installed, and RuntimeError with its output if it does not come up.
"""

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.ports import free_port

_START_S = 15.0

_INSPIRCD = """
<config format="xml">
<server name="irc.real.test" description="test" network="Test">
<admin name="test" nick="test" email="test@localhost">
<bind address="127.0.0.1" port="{port}" type="clients">
<connect allow="*" timeout="60" pingfreq="120" localmax="50" globalmax="50" useident="no" resolvehostnames="no"
         {limits}>
<files motd="{directory}/motd">
<path pid="{directory}/inspircd.pid" configdir="{directory}" datadir="{directory}" logdir="{directory}">
<log method="file" type="*" level="normal" target="{directory}/inspircd.log" flush="1">
{modules}
{more}
"""
_UNLIMITED = (
    'hardsendq="1M" softsendq="100k" recvq="64k" threshold="1000" commandrate="1000000" fakelag="no" maxchans="20"'
)
_MODULES = (
    "ircv3 ircv3_accounttag ircv3_batch ircv3_capnotify ircv3_chghost ircv3_ctctags ircv3_echomessage "
    "ircv3_labeledresponse ircv3_msgid ircv3_servertime cap namesx uhnames services_account setname botmode"
)
_NGIRCD = """
[Global]
Name = irc.real.test
Info = test
Listen = 127.0.0.1
Ports = {port}
MotdPhrase = hello
[Limits]
MaxConnectionsIP = 50
MaxNickLength = 20
{limits}
PingTimeout = 120
[Options]
DNS = no
Ident = no
PAM = no
SyslogFacility = local1
{more}
[SSL]
"""


@contextlib.contextmanager
def inspircd(directory: Path, *, limits: bool = False, more: str = "") -> Iterator[int]:
    """InspIRCd 3 with the IRCv3 modules; the port it listens on. `limits`: its own defaults against floods.

    `more` is added to its configuration.
    """
    port = free_port()
    modules = "\n".join(f'<module name="{name}">' for name in _MODULES.split())
    (directory / "motd").write_text("hello\n")
    file = directory / "inspircd.conf"
    against = "" if limits else _UNLIMITED
    file.write_text(_INSPIRCD.format(port=port, directory=directory, modules=modules, limits=against, more=more))
    with _running([_program("inspircd"), "--nofork", "--runasroot", f"--config={file}"], port, directory):
        yield port


@contextlib.contextmanager
def ngircd(directory: Path, *, limits: bool = False, more: str = "") -> Iterator[int]:
    """ngIRCd, which knows little of CAP; the port it listens on. `limits`: its own defaults against floods.

    `more` is added to its options.
    """
    port = free_port()
    file = directory / "ngircd.conf"
    file.write_text(_NGIRCD.format(port=port, limits="" if limits else "MaxPenaltyTime = 0", more=more))
    with _running([_program("ngircd"), "-n", "-f", str(file)], port, directory):
        yield port


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


@contextlib.contextmanager
def _running(command: list[str], port: int, directory: Path) -> Iterator[None]:
    output = directory / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, cwd=directory)
    try:
        give_up_s = time.monotonic() + _START_S
        while not _listening(port):
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(f"{command[0]} did not come up:\n{output.read_text(errors='replace')}")
            time.sleep(0.02)
        yield
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to go, and see that it does."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False
