"""`reverie setup`: asks for what matters, tests the answers, and writes the configuration.

`program` is the command: it runs the interview in a terminal or unattended with flags, runs probes, and puts the files
in place as a whole. `interview` is the whole conversation as a generator, with `platforms` and `model` for its parts:
it yields steps and receives replies (`dialog`), so it knows neither terminals nor networks. `config_edit` turns the
answers (`SetupAnswers`) into entries of the configuration, renders a new file, or edits an existing one in place.

Rules: only `program` has side effects. An existing file keeps its comments and its order. Secrets go to files of their
own below `secrets/`, or stay in environment variables; the configuration only refers to them.
"""
