"""Distributions as an installer leaves them."""

from pathlib import Path


def install(place: Path, distribution: str, package: str) -> None:
    """Put a distribution with one empty package into a directory, as pip does (PEP 376, PEP 427)."""
    (place / package).mkdir(parents=True)
    (place / package / "__init__.py").touch()
    info = place / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    files = [f"{package}/__init__.py,,", f"{info.name}/METADATA,,", f"{info.name}/RECORD,,"]
    (info / "RECORD").write_text("\n".join(files) + "\n")
