"""Access: who may talk to the agents, with which role, how often, and at what cost.

Everything that is decided at run time is a fact in the log: codes, roles, approved rooms, blocks
and links. `Roster` holds the current state, and every change is appended first; what could not be
appended does not hold.

- `policy`: the decision about one event (pure).
- `roster`: the current state, the rules on who may change it, and its lists for people.
- `limits`: rates and budgets.
- `texts`: forms of codes, and texts about people and rooms.
- `channels`: the channels that exist at present, and what is asked of them; `place_names`: titles
  of places.

How people are let in, and what owners are told, are plugins (`gateway.plugins.pairing`,
`gateway.plugins.owners`). Names and ids come from others, so every text shows them as code.
Functions that answer a command return a `CommandEffect`: a text, and the facts to append with it.
"""
