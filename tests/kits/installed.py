"""Bytes that an installation of a wheel without extras puts on the disk."""

from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def count_installed_bytes(wheel: Path) -> int:
    """Return the bytes of a wheel's files and of those of all distributions that it requires
    without an extra, as installed here, without byte code. Raises PackageNotFoundError.
    """
    with ZipFile(wheel) as ours:
        total = sum(one.file_size for one in ours.infolist())
        (metadata,) = (one for one in ours.namelist() if one.endswith(".dist-info/METADATA"))
        told = message_from_bytes(ours.read(metadata))
    wanted = [(Requirement(one), "") for one in told.get_all("Requires-Dist", [])]
    seen = set[tuple[str, str]]()
    while wanted:
        needed, extra = wanted.pop()
        if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
            continue
        name, found = canonicalize_name(needed.name), distribution(needed.name)
        for chosen in {"", *needed.extras} - {part for one, part in seen if one == name}:
            seen.add((name, chosen))
            wanted += [(Requirement(one), chosen) for one in found.requires or ()]
            if not chosen:
                files = found.files or ()
                total += sum(one.size or 0 for one in files if one.suffix != ".pyc")
    return total
