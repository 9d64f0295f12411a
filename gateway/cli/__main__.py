"""The command `reverie` as it is installed, and `python -m gateway.cli`."""

import gc
import sys


def main() -> int:
    """Import the command line and run one command. Return its exit code. argparse exits by itself on bad usage."""
    # Collections during the imports found nothing and took a tenth of the start; what was imported stays.
    gc.disable()
    from gateway.cli.main import main as run  # noqa: PLC0415 - after that

    gc.freeze()
    gc.enable()
    return run()


if __name__ == "__main__":
    sys.exit(main())
