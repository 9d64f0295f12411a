"""The gateway: everything between the platforms (`channels`) and the agent core (`agent`).

Each package imports only those before it:

- `core`: vocabulary (events, facts, identity) and helpers. `config`: settings. `store`: the log and
  its projections. `cluster`: the processes that share it.
- `access`: people and their permissions. `stream`: channels, attention, inbox and outbox.
- `context`: what an agent knows. `plugin.py`: the interface of features, `hooks.py` calls it.
  `tools`: what an agent can do. `runtime`: agents, turns, models.
- `commands`: commands in rooms. `ingest`: intake of events.
- `plugins`: the features. `app.py`: composition root. `cli`: command line.

ARCHITECTURE.md follows a message through them.
"""

__version__ = "0.2.0"
"""Version of this release: the one place that says it."""
