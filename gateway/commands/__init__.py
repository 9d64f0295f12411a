"""What people can ask of the gateway itself, without the model.

`table` names the commands and their arguments, `parse` finds one in a message, `words` reads what stands behind it
(all pure), `handlers` and the classes beside it answer, `desk` decides who is answered, makes the post and has
administration written down (`audit`). To add a command: one row in `table`, one handler by its name or `name sub`.
"""
