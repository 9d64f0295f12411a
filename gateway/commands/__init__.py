"""What people can ask of the gateway itself, without the model.

`table` names the commands, `parse` finds one in a message (both pure), `handlers` answer (`context`: those that change
something), `desk` decides who is answered and makes the post. To add a command: one row in `table`, one handler in
`handlers`.
"""
