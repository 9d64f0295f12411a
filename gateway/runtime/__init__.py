"""Runtime: the agents at work, their loops, turns and models.

- `agents.py`: the agents, which services they share, and routing of arrivals to them; `/stop`.
- `loop.py`: outer loop of an agent, which carries out what `agent.dmn` decides. `dmn_admin.py`: its
  state, and orders.
- `turn.py`: a turn from unread entries to its record and post. `turn_input.py`: what it needs, and
  what is new to it.
- `delegation.py`: turns on other processes than the one that leads the agent, and what processes
  ask each other.
- `dream_turn.py`: a dream as a turn.
- `models.py`: models and counters. `model_choice.py`: `/model`.
- `rewind.py`: `/new`, `/rewind`, `/retry` and `/compact`.

Rules: one turn at a time runs in a conversation, under its lock (`ConversationLocks`). A turn is
durable as one transaction, its record and its post; until then its input is unread, and is read
again after a crash. A model may change at any time: running turns keep the `AgentContext` that they
began with, and its models open.
"""
