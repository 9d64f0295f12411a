"""The persona files of an agent."""

import logging
from pathlib import Path

logger = logging.getLogger("reverie.workspace")

FILES = ("IDENTITY", "SOUL", "AGENTS")
MAX_FILE_CHARS = 12_000
"""More than this in one file is noise in every prompt, paid for every hour."""


def default_workspace() -> Path:
    """The persona that ships with the product: in the wheel, or in the checkout's `config/`."""
    here = Path(__file__).resolve().parent.parent
    packaged = here / "gateway" / "defaults" / "workspace"
    return packaged if packaged.is_dir() else here / "config" / "workspace"


def persona(workspace: Path, family: str) -> str:
    """Identity text: each file that exists, in order, as its variant for this model family if there is one.

    The `local` family (a very small model) gets its `IDENTITY.local.md` and nothing else. Blocks on disk.
    Raises OSError if a file is there but cannot be read.
    """
    if family == "local" and (tiny := workspace / "IDENTITY.local.md").is_file():
        return _read(tiny)
    texts = []
    for name in FILES:
        for candidate in (workspace / f"{name}.{family}.md", workspace / f"{name}.md"):
            if candidate.is_file():
                texts.append(_read(candidate))
                break
    if not texts:
        logger.warning("no persona in %s: expected IDENTITY.md; going on without one", workspace)
    return "\n\n".join(text for text in texts if text)


def _read(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(text) > MAX_FILE_CHARS:
        logger.warning("%s has %d characters; only the first %d are used", path, len(text), MAX_FILE_CHARS)
        return f"{text[:MAX_FILE_CHARS]}\n[cut: {len(text) - MAX_FILE_CHARS} more characters]"
    return text
