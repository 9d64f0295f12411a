"""Tools as the model sees them. Pure.

`specs` holds the specification of every built-in tool: name, description and arguments. The handlers are in
`gateway/tools`. `surface` decides how tools are offered to a model: each by itself, or all through one tool and a
catalogue.

A specification is part of every cached prompt, so the same code must always give the same bytes. Docstrings of the
argument models do not reach the model.
"""
