"""Real IRC servers, ZNC, and Atheme services linked to InspIRCd, on free loopback ports, from
throw-away configuration.

with inspircd(directory) as port: ... with ngircd(directory) as port: ... with services(link_port):
...     # once it is linked; the server needs `link(link_port)` in its configuration

They run in the foreground as children and are ended on the way out. Raises FileNotFoundError if the
program is not installed, and RuntimeError with its output if it does not come up.
Atheme refuses to run as root, so there it runs as nobody.
"""

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from reverie.testing.servers.ports import free_port

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
    'hardsendq="1M" softsendq="100k" recvq="64k" threshold="1000" commandrate="1000000" '
    'fakelag="no" maxchans="20"'
)
_MODULES = (
    "ircv3 ircv3_accounttag ircv3_batch ircv3_capnotify ircv3_chghost ircv3_ctctags "
    "ircv3_echomessage ircv3_labeledresponse ircv3_msgid ircv3_servertime cap namesx uhnames "
    "services_account setname botmode"
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
def inspircd(
    directory: Path, *, limits: bool | str = False, more: str = "", port: int = 0
) -> Iterator[int]:
    """InspIRCd 3 with the IRCv3 modules; the port it listens on, `port` if that is not 0.

    `limits`: True for its own defaults against floods, or attributes of `<connect>`. `more` is
    added to its configuration.
    """
    port = port or free_port()
    modules = "\n".join(f'<module name="{name}">' for name in _MODULES.split())
    (directory / "motd").write_text("hello\n")
    file = directory / "inspircd.conf"
    against = limits if isinstance(limits, str) else "" if limits else _UNLIMITED
    file.write_text(
        _INSPIRCD.format(port=port, directory=directory, modules=modules, limits=against, more=more)
    )
    with _running(
        [_program("inspircd"), "--nofork", "--runasroot", f"--config={file}"], port, directory
    ):
        yield port


@contextlib.contextmanager
def ngircd(directory: Path, *, limits: bool = False, more: str = "") -> Iterator[int]:
    """ngIRCd, which knows little of CAP; the port it listens on. `limits`: its own defaults against
    floods.

    `more` is added to its options.
    """
    port = free_port()
    file = directory / "ngircd.conf"
    file.write_text(
        _NGIRCD.format(port=port, limits="" if limits else "MaxPenaltyTime = 0", more=more)
    )
    with _running([_program("ngircd"), "-n", "-f", str(file)], port, directory):
        yield port


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None:
        raise FileNotFoundError(f"{name} is not installed")
    return found


@contextlib.contextmanager
def _running(
    command: list[str], port: int, directory: Path, user: str | None = None
) -> Iterator[None]:
    output = directory / "output"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd="/" if user else directory,
            user=user,
        )
    try:
        give_up_s = time.monotonic() + _START_S
        while not _listening(port):
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise RuntimeError(
                    f"{command[0]} did not come up:\n{output.read_text(errors='replace')}"
                )
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


_LINK = """
<module name="spanningtree"><module name="sasl">
<bind address="127.0.0.1" port="{port}" type="servers">
<link name="services.real.test" ipaddr="127.0.0.1" port="{port}" allowmask="127.0.0.0/8" timeout="10"
      sendpass="linkpass" recvpass="linkpass">
<uline server="services.real.test" silent="yes">
<sasl target="services.real.test" requiressl="no">
"""
_ATHEME = """
loadmodule "modules/protocol/inspircd";
loadmodule "modules/backend/opensex";
loadmodule "modules/crypto/posix";
loadmodule "modules/nickserv/main";
loadmodule "modules/nickserv/register";
loadmodule "modules/nickserv/identify";
loadmodule "modules/nickserv/logout";
loadmodule "modules/nickserv/enforce";
loadmodule "modules/nickserv/ghost";
loadmodule "modules/saslserv/main";
loadmodule "modules/saslserv/authcookie";
loadmodule "modules/saslserv/plain";
serverinfo {{
    name = "services.real.test"; desc = "services"; numeric = "00A"; recontime = 1; netname = "Test";
    adminname = "test"; adminemail = "test@localhost"; registeremail = "noreply@localhost";
    auth = none; casemapping = rfc1459; maxusers = 0; maxlogins = 50; maxnicks = 50; maxchans = 50;
    mta = "/bin/true"; loglevel = {{ all; }}; hidehostsuffix = "users.test"; mdlimit = 30; emaillimit = 10;
    emailtime = 300; vhost = "127.0.0.1";
}};
uplink "irc.real.test" {{
    host = "127.0.0.1"; vhost = "127.0.0.1"; send_password = "linkpass"; receive_password = "linkpass";
    port = {port};
}};
nickserv {{ nick = "NickServ"; user = "NickServ"; host = "services.real.test"; real = "NickServ"; }};
saslserv {{ nick = "SaslServ"; user = "SaslServ"; host = "services.real.test"; real = "SaslServ"; }};
general {{ commit_interval = 1; operstring = "is an operator"; servicestring = "is a service"; }};
database {{ }};
"""


def link(port: int) -> str:
    """What InspIRCd's configuration needs for it."""
    return _LINK.format(port=port)


@contextlib.contextmanager
def services(port: int) -> Iterator[None]:
    """Run them until the way out."""
    program = shutil.which("atheme-services") or shutil.which("atheme-services", path="/usr/sbin")
    if program is None:
        raise FileNotFoundError("atheme-services is not installed")
    with tempfile.TemporaryDirectory() as name:
        directory, user = Path(name), ("nobody" if os.geteuid() == 0 else None)
        (directory / "atheme.conf").write_text(_ATHEME.format(port=port))
        if user is not None:
            shutil.chown(directory, user)
        log = directory / "log"
        command = [
            program,
            "-n",
            "-c",
            f"{name}/atheme.conf",
            "-l",
            str(log),
            "-D",
            name,
            "-p",
            f"{name}/pid",
        ]
        process = subprocess.Popen(
            command, cwd=name, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            give_up_s = time.monotonic() + _START_S
            while not (log.exists() and "finished synching" in log.read_text(errors="replace")):
                if process.poll() is not None or time.monotonic() > give_up_s:
                    raise RuntimeError(
                        f"services did not link:\n{log.read_text(errors='replace')[-3000:]}"
                    )
                time.sleep(0.05)
            yield
        finally:
            end(process)


_ZNC = """
Version = 1.8.2
ConnectDelay = 1
ServerThrottle = 1
<Listener l>
  Port = {port}
  IPv4 = true
  IPv6 = false
  SSL = false
  Host = 127.0.0.1
</Listener>
<User bot>
  <Pass p>
    Method = MD5
    Hash = {digest}
    Salt = salt
  </Pass>
  Nick = reverie
  Ident = rev
  RealName = rev
  Admin = true
  <Network test>
    Server = 127.0.0.1 {upstream}
    FloodBurst = 100
    FloodRate = 0.1
    JoinDelay = 0
    {rooms}
  </Network>
</User>
"""
ZNC_LOGIN = "bot/test:hush"
"""Password of a client (PASS)."""


@contextlib.contextmanager
def znc(directory: Path, upstream: int, *rooms: str) -> Iterator[int]:
    """ZNC, connected to a server at the port `upstream`, and in these rooms; the port it listens
    on.

    It refuses to run as root, so there it runs as nobody.
    """
    program, port = _program("znc"), free_port()
    digest = hashlib.md5(b"hushsalt", usedforsecurity=False).hexdigest()
    chans = "\n".join(f"<Chan {room}>\n</Chan>" for room in rooms)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "configs" / "znc.conf"
        file.parent.mkdir()
        file.write_text(_ZNC.format(port=port, digest=digest, upstream=upstream, rooms=chans))
        user = "nobody" if os.geteuid() == 0 else None
        if user is not None:
            for path in (Path(name), file.parent, file):
                shutil.chown(path, user)
        with _running([program, "-f", "-d", name], port, directory, user):
            yield port
