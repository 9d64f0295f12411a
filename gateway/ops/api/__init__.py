"""The operator's API: what can be asked about a running gateway and of it, over HTTP, for whoever bears its token.

`table` has a row for each path; `shapes` and `events` say what is answered and told. Loaded when somebody first asks.
"""
