"""The command line, which `reverie.__main__` starts; also `python -m gateway.cli`."""

import gc
import os
import signal
import sys

from gateway import __version__


def main() -> int:
    """Import the command line and run one command; `version` needs no import. Return its exit
    code. argparse exits by itself on bad usage.
    """
    if sys.argv[1:] in (["version"], ["--version"]):
        print(f"reverie {__version__}")
        return 0
    # Where rich and click are installed, httpx imports its command-line tool, and pygments with it:
    # 6 MB and 70 ms that no command needs. This entry makes it skip that, as it does where they are
    # missing (httpx/__init__.py).
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None makes an import fail, by the language's rules
    # Plugins of pydantic are for nobody here, and it reads the files of all distributions for them.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Collections during the imports found nothing and took a tenth of the start; what was imported
    # stays.
    gc.disable()
    try:
        from gateway.cli.client import ask_gateway  # noqa: PLC0415 - after that

        if (code := ask_gateway(sys.argv[1:])) is not None:
            return code
        from gateway.cli.main import main as run  # noqa: PLC0415 - as above

        gc.freeze()
        gc.enable()
        return run()
    except KeyboardInterrupt:  # while something is imported: nothing was begun
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
