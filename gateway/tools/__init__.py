"""Tools of the agents: registration, permission, approval and execution.

- `registry.py`: all tools of all agents, wired. Start here.
- `dispatch.py`: one agent's tools, the permission gate that every call passes, calls under way.
- `approvals.py`: calls that need an admin's approval.
- `agent.py`: skills and rest. `memory.py`: journal, notes, recall, evidence and reminders.
- `platform.py`, `read_room.py`: messages, reactions, rooms and people.
- `files.py` on `workspace_fs.py`: the agent's files, and the only way from tools to the disk.
  `undo.py`: copies of what is changed.
- `shell.py`, `sandbox.py`, `warden.py`: commands, their sandbox and limits.
- `web.py`, `pinned_connection.py`: pages and searches.
- `mcp/`: tools of Model Context Protocol servers. `metrics.py`: counters.

Rules:

- The list of tools is the same in every turn, because it stands before everything that is cached. A
  tool that is not allowed is refused at the call, with a reason that the model understands
  (`ToolCallRefused`).
- Permission is checked for each call, by who asks and by the label of all that the request holds,
  and again after an approval. A result has a label of its own, which counts for later calls of the
  turn.
- A call that may change something outside is written to the log before it begins.
- `warden.py` is a program of its own: it imports nothing of this package.
"""
