"""The image that the Dockerfile describes, built and run with what Debian has: mmdebstrap, podman
and runc. A machine that lacks one of them fails. Needs root, Debian's mirrors and a package index."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
LEFT_OUT = ("doc", "info", "locale", "man")
"""Folders of /usr/share that Debian's slim images lack."""

pytestmark = pytest.mark.soak


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a podman that has nothing in common with the machine's own.

    Its state is in a directory of a short name: a socket's path has at most 107 characters.
    """
    state = tempfile.mkdtemp()  # goes with the rest of it
    containers, storage = tmp_path / "containers.conf", tmp_path / "storage.conf"
    # Podman in a container may not set its usual limits, and crun refuses cgroups of two kinds.
    containers.write_text(
        '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\n'
        f'lock_type = "file"\ntmp_dir = "{state}"\n'
    )
    storage.write_text(
        '[storage]\ndriver = "overlay"\n'
        f'graphroot = "{tmp_path}/images"\nrunroot = "{tmp_path}/run"\n'
    )
    env = {"CONTAINERS_CONF": str(containers), "CONTAINERS_STORAGE_CONF": str(storage)}
    yield os.environ | env
    subprocess.run(["podman", "system", "reset", "--force"], env=os.environ | env, check=True)


def test_the_image_is_small_and_runs_hardened(engine: dict[str, str], tmp_path: Path) -> None:
    """The base is made here, under the name that the Dockerfile has for it."""
    (base,) = set(re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    # What looks for packages trusts whom this machine trusts.
    (tmp_path / "pip.conf").write_text("[global]\ncert = /run/certificates\n")
    commands: list[list[str | Path]] = [
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--include=usr-is-merged"),
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            *(f"--dpkgopt=path-exclude=/usr/share/{one}/*" for one in LEFT_OUT),
            *("bookworm", tmp_path / "base.tar"),
        ],
        ["podman", "import", tmp_path / "base.tar", base],
        [
            *("podman", "build", "--isolation=chroot", "--format=docker", "--pull=never"),
            *("--network=host", "--tag=reverie", f"--volume={CERTIFICATES}:/run/certificates:ro"),
            *(f"--volume={tmp_path / 'pip.conf'}:/etc/pip.conf:ro", ROOT),
        ],
        [ROOT / ".ci/image", "reverie", "podman"],
    ]
    for command in commands:
        subprocess.run(command, env=engine, check=True)
