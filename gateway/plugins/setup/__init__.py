"""`reverie setup`: asks for what matters, tests the answers, and writes the configuration.

`program` is the command. `platforms` and `model` ask; their pages take a section of the
configuration and return it with the answers. `dialog` has all questions and their flags, and has
them answered by a person or by these. `config_edit` renders a new file, or edits an existing one.
`schema` is what editors check it with.

Rules: nothing is written before all is answered. An existing file keeps its comments and its order.
Secrets go to files of their own below `secrets/`, or stay in environment variables; the
configuration only refers to them.
"""

from typing import ClassVar

from gateway.plugin import Plugin


class Setup(Plugin):
    """Writes the configuration with somebody."""

    name = "setup"
    summary = "writes the configuration, by reverie setup"
    subcommands: ClassVar = {
        "setup": (
            "ask questions, test the answers, and write the configuration",
            "gateway.plugins.setup.dialog:add_arguments",
        ),
        "schema": (
            "print the JSON schema of the configuration, for editors",
            "gateway.plugins.setup.schema:add_arguments",
        ),
    }
