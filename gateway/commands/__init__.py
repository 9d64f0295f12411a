"""Commands to the gateway itself, answered without the model.

- `definition`: `@command` says of a handler what the command is called, takes and needs.
- `info`, `people`, `rooms`, `agent`, `model`, `notifications`: handlers; plugins have theirs.
- `table`: what they declare: the source of help, native slash commands, menus and parsing.
- `parser`: finds a command in a message, and parses its arguments (pure).
- `dispatcher`: checks who may use it, calls its handler, and builds the reply post and the audit
  record.
- `context`: what a handler receives (`CommandCall`, `CommandContext`). It answers with `done` or
  `refuse` (`gateway.store.effects`).
- `help`: help texts. `services`: what plugins take that show or steer the whole gateway.

A handler changes nothing by itself: it returns facts that become durable together with the command
and its answer, so a repeated command changes nothing twice. Handlers may raise; the dispatcher
answers for them.
"""
