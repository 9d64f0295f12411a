"""The gateway: everything between the platforms and the agent. See ARCHITECTURE.md."""

import sys

# Wherever rich and click happen to be installed, httpx imports its command-line tool, and pygments with it: 6 MB and
# 70 ms that a gateway has no use for. With this it does as it does where they are not (httpx/__init__.py).
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None makes an import fail, by the language's rules
