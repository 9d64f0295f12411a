"""The operator's command that is asked before a turn what else the agent should know."""

from collections.abc import Sequence


class Prefetch:
    """Runs it. Without a shell, without secrets in its environment, and never longer than it may take."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        """`command`: the program and its arguments."""

    async def __call__(self, *, conversation: str, scope: str, lines: Sequence[str]) -> list[str]:
        """What it says, piece by piece, each on one line and untrusted. Nothing if it fails. Raises cancellation only."""
        return []
