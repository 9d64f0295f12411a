"""Dashboard of the operator: the files of its page."""
