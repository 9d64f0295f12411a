"""Atheme services linked to a real InspIRCd, on free loopback ports, from throw-away configuration.

with services(link_port): ...     # once it is linked; the server needs `link(link_port)` in its configuration

Raises FileNotFoundError if the program is not installed. Atheme refuses to run as root, so there it runs as nobody.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers.real_ircd import end

_START_S = 15.0
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
        command = [program, "-n", "-c", f"{name}/atheme.conf", "-l", str(log), "-D", name, "-p", f"{name}/pid"]
        process = subprocess.Popen(command, cwd=name, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            give_up_s = time.monotonic() + _START_S
            while not (log.exists() and "finished synching" in log.read_text(errors="replace")):
                if process.poll() is not None or time.monotonic() > give_up_s:
                    raise RuntimeError(f"services did not link:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.05)
            yield
        finally:
            end(process)
