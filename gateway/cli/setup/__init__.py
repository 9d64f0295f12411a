"""`reverie setup`: asks for what matters, tests the answers, and writes the configuration.

`program` is the command: it answers the interview in a terminal or from flags, and puts the files
in place as a whole. `interview` is the whole conversation, with `platforms` and `model` for its
parts: it asks a `Respondent` (`dialog`) and probes the answers, so it knows no terminal.
`config_edit` turns the answers (`SetupAnswers`) into entries of the configuration, renders a new
file, or edits an existing one in place.

Rules: nothing is written before all is answered. An existing file keeps its comments and its order.
Secrets go to files of their own below `secrets/`, or stay in environment variables; the
configuration only refers to them.
"""
