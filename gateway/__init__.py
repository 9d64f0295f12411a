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

__version__ = "0.2.0"
"""Version of this release: the one place that says it."""
