"""Live tests of what an operator configured: tokens, servers, models, rooms.

`reverie setup` runs a probe while answers are typed, `reverie doctor` afterwards. `base` has `Finding`,
`FindingCollector` and the probe of a server's name, port and certificate; `irc`, `telegram`, `discord` and `model` have
one probe each, and what setup looks up there (names of people, contacts, lists of models).

Rules: a probe changes nothing, ends within `PROBE_TIMEOUT_S`, and raises nothing but CancelledError: what goes wrong
becomes a finding. Everything that a server says goes through `FindingCollector.clean`, so no secret and no control
character reaches a terminal. Codes of findings are stable; the module docstrings list them.
"""
