"""Context: everything an agent knows when a turn begins, and how it is kept.

Input of a turn
- `conversation.py`: unread messages and system events, rendered as lines and fitted into a budget.
- `digest.py`: the same for the inner conversation, over all public rooms.
- `requesters.py`: the people on whose behalf a turn acts.

Around the input
- `prompt_context.py`: persona, binding and pinned channel card, in front of the conversation.
- `history.py`: earlier turns as later ones see them. `compaction.py`: folds and summaries that keep
  them small.
- `evidence.py`: results that are shown in part, kept whole.

`observer.py` records the turns in progress.

Rules: the log is the only truth. Caches may be dropped at any time. Whatever a tool or a prompt
shows of another place has passed `Visibility`, and carries the label of those whose words it holds.
"""
