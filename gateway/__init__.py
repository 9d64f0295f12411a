"""The gateway: everything between the platforms and the agent. See ARCHITECTURE.md."""

import sys

# Wherever rich and click happen to be installed, httpx imports its command-line tool, and pygments with it: 6 MB and
# 70 ms that a gateway has no use for. With this it does as it does where they are not (httpx/__init__.py).
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None makes an import fail, by the language's rules

# httpcore asks for sniffio several times in each request, to learn which event loop this is, and takes asyncio where
# it is not installed (httpcore/_synchronization.py). Looking for it in vain took half a millisecond of every message.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # the same
