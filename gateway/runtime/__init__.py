"""Runtime: the agents at work, their loops, turns and models.

- `agents.py`: all agents; routing of arrivals to them, and the administration of their DMNs.
- `agent.py`: one agent; `AgentRuntime` holds everything that depends on its model.
- `loop.py`: outer loop of an agent, which carries out what `agent.dmn` decides.
- `turn.py`: a turn from unread entries to its record and post; `/stop`. `turn_input.py`: the turn's input and requests.
- `dream_turn.py`: a dream as a turn. `lane.py`: handles, by which running turns are interrupted.
- `models.py`: models, counters and budgets. `model_choice.py`: `/model`.
- `rewind.py`: `/new`, `/rewind`, `/retry` and `/compact`.

Rules: one turn at a time runs in a conversation, under its lock (`gateway.tools.platform.ConversationLocks`). A turn is
durable as one transaction, its record and its post; until then its input is unread, and is read again after a crash.
A model may change at any time: running turns keep the `AgentRuntime` that they began with, which holds its models open.
"""
