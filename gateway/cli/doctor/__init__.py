"""`reverie doctor`: checks everything that can be reached, and states a remedy with each finding.

`doctor` runs all checks side by side within time bounds (`examine`) and renders the report for people and programs.
`base` has what checks receive (`DoctorContext`) and their types. The other files hold one area each: `configuration`,
`instance` (the gateway process and its port), `models`, `services` (platforms, MCP servers, certificates), `store`, and
`system` (clock, files and modes, machine, sandbox, versions).

Rules: functions `check_*` look and judge, one for each thing. Checks only read: they take neither the store's lock nor
a session on a platform that a running gateway uses, so a running gateway is not disturbed. A finding is about one thing
and has a stable code whose first word is its area (`AREAS`); docs/troubleshooting.md has an entry for each code.
"""
