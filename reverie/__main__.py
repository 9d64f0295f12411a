"""The command `reverie` as it is installed, and `python -m reverie`."""

import runpy
import sys
from pathlib import Path


def main() -> int:
    """Run one command, and return its exit code: 2 if another package is loaded in place of one of
    ours, which is told. argparse exits by itself on bad usage.
    """
    try:
        from gateway.cli.__main__ import main as run  # noqa: PLC0415 - it may be another's

        return run()
    except ImportError as error:
        finder = Path(__file__).resolve().parents[1] / "gateway" / "core" / "name_clash.py"
        names = runpy.run_path(str(finder))
        clashes = names["find_name_clashes"]()
        if not clashes or (error.name or "").partition(".")[0] not in names["PACKAGES"]:
            raise
        sys.stderr.writelines(f"reverie: {what}: {fix}\n" for what, fix in clashes)
        return 2


if __name__ == "__main__":
    sys.exit(main())
