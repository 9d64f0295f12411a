"""Runtime: the agents at work, their turns and models.

- `agent.py`: one agent, which carries out what `agent.dmn` decides, and takes its turns.
  `turn_handle.py`: how a running turn is steered and ended. `dmn_admin.py`: state and orders.
- `agents.py`: whose a conversation is, where arrivals go, `/stop`, and what an earlier process left
  undone.
- `turn.py`: a turn from top to bottom. `turn_input.py`: what it needs, and what is new to it.
  `turn_record.py`: its record and post.
- `models.py`: models and counters. `model_choice.py`: `/model`.

Rules: one turn at a time runs in a conversation, under its lock (`ConversationLocks`). A turn is
durable as one transaction, its record and its post; until then its input is unread, and is read
again after a crash. A model may change at any time: running turns keep the `AgentContext` that they
began with, and its models open.
"""
