"""The command `reverie` as it is installed, and `python -m gateway.cli`."""

import gc
import signal
import sys


def main() -> int:
    """Import the command line and run one command. Return its exit code. argparse exits by itself
    on bad usage.
    """
    # Collections during the imports found nothing and took a tenth of the start; what was imported
    # stays.
    gc.disable()
    try:
        from gateway.cli.main import main as run  # noqa: PLC0415 - after that

        gc.freeze()
        gc.enable()
        return run()
    except KeyboardInterrupt:  # while something is imported: nothing was begun
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
