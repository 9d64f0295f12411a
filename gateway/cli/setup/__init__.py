"""`reverie setup`: asks for what matters, tests the answers, and writes the configuration.

`program` is the command. `platforms` and `model` ask; their pages take a section of the
configuration and return it with the answers. `dialog` has all questions, and has them answered by a
person or by flags. `config_edit` renders a new file, or edits an existing one.

Rules: nothing is written before all is answered. An existing file keeps its comments and its order.
Secrets go to files of their own below `secrets/`, or stay in environment variables; the
configuration only refers to them.
"""
