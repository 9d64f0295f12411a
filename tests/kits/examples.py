"""How many examples a law is tried with: a sample of them, and with `EXAMPLES=all` as many as it
says."""

import os

ALL = 100
"""Of a law that does not say how many."""
SHARE = 4


def examples(every: int = ALL) -> int:
    """How many of `every` are tried here."""
    return every if os.environ.get("EXAMPLES") == "all" else max(5, every // SHARE)
