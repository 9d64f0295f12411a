"""The gateway: everything between the platforms (`channels`) and the agent core (`agent`).

Each package imports only those before it:

- `core`: vocabulary (events, facts, identity) and helpers. `config`: settings. `store`: the log and
  its projections.
- `access`: people and their permissions. `stream`: channels, attention, inbox and outbox.
- `context`: what an agent knows. `tools`: what it can do. `runtime`: agents, turns, models.
- `commands`: commands in rooms. `ingest`: intake of events.
- `ops`: HTTP API and metrics. `app.py`: composition root. `cli`: command line.

ARCHITECTURE.md follows a message through them.
"""

import sys

# Where rich and click are installed, httpx imports its command-line tool, and pygments with it: 6
# MB and 70 ms that a gateway does not need. This entry makes it skip that, as it does where they
# are missing (httpx/__init__.py).
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None makes an import fail, by the language's rules
