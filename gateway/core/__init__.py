"""Vocabulary and services that every layer uses. Imports nothing of ours but other modules of this
package.

Vocabulary:
  events.py            platform events, posts and model usage; the types that channels and the agent
                       also use
  facts.py             entries of the log: events, and what the gateway decided and did
  identity.py          roles: who a sender is, from the configuration, the log and the platform
  scopes.py            visibility: which notes and messages may be shown in which place
  labels.py            who wrote a text, and who may read it
  permissions.py       decision whether a tool may be called, refused, or needs an approval
  tool.py              `Tool` and the `ToolContext` of a call; tool_spec.py: arguments and JSON
                       Schema for the model
  fields.py            types of configuration values: durations, time zones, guarded regular
                       expressions
  control_messages.py  requests to a running gateway and its responses; control_socket.py carries
                       them; process_files.py: the files beside the store, and what a client needs

Services:
  clock.py             clocks and ULIDs; metrics.py: counters and Prometheus text
  logging.py           log lines and progress; context_var.py: what log lines are about
  redaction.py         removal of secrets from text; text_safety.py: invisible characters, lookalike
                       names, mentions
  addresses.py         URLs and IP addresses that may be fetched; media_types.py: images, sound,
                       text
  private_files.py     files that an agent keeps; process.py: child processes; format.py: text for
                       people

Deciding code takes the time, ids and settings as arguments; only `clock`, `logging`,
`private_files`, `process`, `process_files` and `control_socket` do IO. Texts from platforms and
models are untrusted: redact before showing, escape before printing.
"""
