"""What is called to mind before a turn: what was said or written down before, and has to do with the newest messages."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from agent.journal import Entry as Written
from gateway.clock import Clock
from gateway.hands import Whereabouts
from gateway.prefetch import Prefetch
from gateway.recall import Scopes
from gateway.records import Seq
from gateway.store import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What a turn is told of the past, for itself alone."""

    text: str = ""
    """Words of people, a line each behind a header. Empty: nothing."""
    names: tuple[str, ...] = ()
    """What of, so that it is not told again: `s<seq>` of the log, and by hash `j:` of what people wrote into the
    journal, `m:` of a line of MEMORY.md, `p:` of what the prefetch command said."""


class Recalling:
    """Looks things up unasked."""

    def __init__(  # noqa: PLR0913 - each is another place to look
        self,
        reader: Reader,
        places: Scopes,
        memory: Callable[[str], Awaitable[str]],
        by_hand: Callable[[str], Awaitable[Sequence[Written]]],
        clock: Clock,
        prefetch: Prefetch | None = None,
    ) -> None:
        """`memory` and `by_hand`: as of `gateway.recall.Recall`. `prefetch`: the operator's command; None: there is none."""

    async def __call__(  # noqa: PLR0913 - one call a turn, and all of it counts
        self,
        where: Whereabouts,
        lines: Sequence[str],
        *,
        seen: Collection[str],
        since: Seq,
        tokens: int,
        asked: bool,
    ) -> Recalled:
        """What comes to mind of these new messages, oldest first, in at most `tokens` of `estimate_tokens`.

        Every piece has gone through `where.sight`. `seen`: names of what is not told again. `since`: where the first
        turn in view ended; what this conversation said from there on is in view. `asked`: somebody has spoken to the
        agent, so the prefetch command is run. Raises nothing but cancellation: what fails, or takes too long, is left out.
        """
        return Recalled()
