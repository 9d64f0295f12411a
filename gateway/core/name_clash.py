"""Packages of other distributions that have the name of one of ours.

`gateway`, `channels` and `agent` are plain names (the distribution `channels` is Django's). Two
distributions with a package of one name write into one directory, or one hides the other. Only the
standard library is imported here: `reverie.__main__` runs this file where `gateway` is another one.
"""

import re
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OURS: Final = "reverie-gateway"
PACKAGES: Final = ("agent", "channels", "gateway", "reverie")
_ROOT: Final = Path(__file__).resolve().parents[2]
_FILES: Final = re.compile(rf"^({'|'.join(PACKAGES)})(?:[/\\]|\.py\b|$)", re.MULTILINE)
_ALONE: Final = f"install {OURS} in an environment of its own"


def find_name_clashes() -> list[tuple[str, str]]:
    """Return all such packages of this environment, for each distribution what is wrong, and the
    fix.

    Reads the lists of files of all distributions, which takes some milliseconds.
    """
    found, named = [], set[str]()
    for one in distributions():
        files = f"{one.read_text('RECORD') or ''}\n{one.read_text('top_level.txt') or ''}"
        names = sorted({match[1] for match in _FILES.finditer(files)})
        name = re.sub(r"[^\w.+-]", "?", one.name) if names else ""
        if names and re.sub(r"[-_.]+", "-", name).lower() != OURS:
            named.update(names)
            what = f"{name} has packages of our names, too ({', '.join(names)})"
            again = f"`pip uninstall {name}` and install {OURS} again, or {_ALONE}"
            found.append((what, again))
    for package in PACKAGES:
        spec = find_spec(package)
        places = [] if spec is None else [*(spec.submodule_search_locations or [spec.origin or ""])]
        place = Path(places[0]).resolve() if places else _ROOT / package
        if place != _ROOT / package and package not in named:
            what = f"{package} is loaded from {ascii(str(place))[1:-1]}, which is not ours"
            found.append((what, f"take that directory out of PYTHONPATH, or {_ALONE}"))
    return found
