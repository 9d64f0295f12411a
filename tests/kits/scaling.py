"""How the cost of work grows with its size: compared within one run, so that a busy machine changes
nothing."""

import time
from collections.abc import Callable
from typing import Any

_TRIES = 6


def assert_in_proportion(
    work: Callable[[int], Any], size: int, *, times: int = 4, at_most: float | None = None
) -> None:
    """The work of `times` the size takes at most `at_most` times as long: by default twice `times`.

    What grows with the square takes `times` squared. Both sizes are run in turn until the fastest
    run of each agrees: other work on the machine makes single runs slower, and none faster than
    they are.
    """
    bound = 2.0 * times if at_most is None else at_most
    small = large = float("inf")
    for _ in range(_TRIES):
        small, large = min(small, _spent_s(work, size)), min(large, _spent_s(work, size * times))
        if large <= bound * small:
            return
    raise AssertionError(
        f"{times} times the size took {large / small:.1f} times as long, more than {bound:g}"
    )


def _spent_s(work: Callable[[int], Any], size: int) -> float:
    began_s = time.process_time()
    work(size)
    return time.process_time() - began_s
