"""Tools of the agents: registration, permission and execution.

- `dispatch.py`: the permission gate that every call passes, calls under way, one agent's tools, and
  those of all (`ToolRegistry`).
- `metrics.py`: counters.

Rules:

- The list of tools is the same in every turn, because it stands before everything that is cached. A
  tool that is not allowed is refused at the call, with a reason that the model understands
  (`ToolCallRefused`).
- Permission is checked for each call, by who asks and by the label of all that the request holds,
  and again after an approval. A result has a label of its own, which counts for later calls of the
  turn.
- A call that may change something outside is written to the log before it begins.
"""
