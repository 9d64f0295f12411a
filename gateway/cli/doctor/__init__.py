"""`reverie doctor`: checks everything that can be reached, and states a remedy with each finding.

`doctor` runs all checks side by side within time bounds and renders the report. `base` has `Finding` and what checks
receive. Each other file is one area: `configuration`, `gateway` (the process and its port), `processes` (those that
share a store), `store`, `model`, `irc`, `telegram`, `discord`, `net` (addresses, certificates), `mcp`, and `system`
(clock, files, machine, sandbox, versions).

`reverie setup` shares the functions `probe_*`, which test what an operator typed, and `find_*` and `list_models`, which
look up what it offers as an answer.

Rules: checks and probes change nothing and take neither the store's lock nor a session that a running gateway uses. A
probe ends within `PROBE_TIMEOUT_S` and raises nothing but CancelledError: what goes wrong becomes a finding. A finding
is about one thing; its code is stable and its first word is its area (`AREAS`); docs/troubleshooting.md has an entry
for each code. What a server says goes through `FindingCollector.clean`, so no secret and no control character reaches a
terminal.
"""
