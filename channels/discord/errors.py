"""Error for requests that Discord refuses, with its codes."""

from channels.base import Rejected


class DiscordRefused(Rejected):
    """Discord answered with a 4xx: surely not done."""

    def __init__(self, reason: str, *, status: int, code: int = 0) -> None:
        super().__init__(reason)
        self.status, self.code = status, code
