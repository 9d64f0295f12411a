"""Commands to the gateway itself, answered without the model.

- `table`: names, arguments and roles of all commands (pure): the source of help, native slash commands, menus and
  parsing.
- `parser`: finds a command in a message, and parses its arguments (pure).
- `dispatcher`: checks who may use it, calls its handler, and builds the reply post and the audit record.
- `context`: what a handler receives (`CommandCall`, `CommandContext`) and returns (`CommandReply`).
- `info`, `people`, `rooms`, `agent`, `journal`, `notifications`: the handlers.
- `help`: help texts, and suggestions while somebody types a native command.
- `registry`: builds all handlers from the gateway's services.

To add a command, add a row to `table` and a handler under its name or `name sub`; `info.find_handler_gaps` finds what
is missing. A handler changes nothing by itself: it returns facts (`CommandReply.effect`) that become durable together
with the command and its answer, so a repeated command changes nothing twice. Handlers may raise; the dispatcher answers
for them.
"""
