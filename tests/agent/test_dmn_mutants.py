"""The proofs bite: each of these changes to one line of the network is found out by those that are named with it."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from agent import dmn
from tests.agent.dmn_simulator import Core
from tests.agent.dmn_transitions import check_grid, check_rows
from tests.agent.test_dmn_laws import check_laws

PROOFS: dict[str, Callable[[Core], None]] = {
    "grid": lambda core: check_grid(core.step),
    "rows": lambda core: check_rows(core.step),
    "laws": lambda core: check_laws(core, examples=500, shrink=False),
}
MUTANTS: list[tuple[str, str, str, str]] = [
    # what it breaks, old, new, which proofs see it
    ("rooms take the last lane", "others < max(1, policy.lanes - 1)", "others < policy.lanes", "rows laws"),
    ("a busy chat shuts out rooms", "len(state.running) - len(state.chats)", "len(state.running)", "rows laws"),
    (
        "the last is first",
        "(*state.waiting, Owed(conversation=place, direct=direct))",
        "(Owed(conversation=place, direct=direct), *state.waiting)",
        "laws",
    ),
    (
        "one more in a row",
        "state.autonomous >= policy.max_autonomous_turns",
        "state.autonomous > policy.max_autonomous_turns",
        "laws",
    ),
    ("several at once pass the daily turns", "        policy.daily_turns - state.turns_today,\n", "", "laws"),
    ("refused money is asked for again", "broke = state.spent_up or 0 <", "broke = 0 <", "rows laws"),
    ("an answer's cost is the agent's", "if signal.autonomous else 0.0", "if True else 0.0", "rows"),
    (
        "an autonomous turn costs nothing",
        "max(0.0, signal.cost_usd) if signal.autonomous",
        "0.0 if signal.autonomous",
        "rows",
    ),
    ("quiet is forgotten", '        (quiet, f"it is quiet until {_date(state.quiet_until)}"),\n', "", "rows laws"),
    ("sleepers are disturbed", 'state.presence == "sleeping"', "False", "rows laws"),
    (
        "a pause is lifted by an older word",
        "if signal.left >= URGENT and not fixed:",
        "if signal.left >= URGENT:",
        "grid rows",
    ),
    (
        "what came meanwhile is lost",
        "    state = _owe(state, place, signal.left, direct=signal.direct)\n",
        "",
        "grid rows laws",
    ),
    ("talk puts off the tick", "sooner=keep", "sooner=False", "rows"),
    ("the timer is not set again", "isinstance(signal, Tick | Directive) or after.mode", "after.mode", "rows laws"),
    (
        "idle is not free",
        "    if due:\n        return _start(state, due, policy)",
        "    if True:\n        return _start(state, due or (policy.inner,), policy)",
        "grid rows laws",
    ),
    ("people wait for the inner turn", "not (state.spared and at_once)", "not state.spared", "rows laws"),
    ("the inner turn never ends", "not (state.spared and at_once)", "True", "rows"),
    (
        "off is not off",
        "mode = Mode.OFF if state.mode is Mode.OFF else Mode.ENGAGED",
        "mode = Mode.ENGAGED",
        "grid rows",
    ),
    ("yielding goes on", "signal.used_tools and not signal.yielded and", "signal.used_tools and", "rows"),
    ("a cache dies before each tick", "wait_s = lifetime_s - SNAP_S", "wait_s = lifetime_s", "rows"),
    (
        "the row never ends",
        "mode=mode, autonomous=0, stored_until=None, wake_on=()",
        "mode=mode, stored_until=None, wake_on=()",
        "rows",
    ),
    ("one conversation, two turns", "if place in state.running or any(", "if any(", "rows laws"),
]


def mutant(old: str, new: str) -> Core:
    """`agent.dmn` with one line changed."""
    source = Path(dmn.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} stands there {source.count(old)} times"
    module = ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant.py", "exec"), module.__dict__)
    return cast("Core", module)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new", "proofs"), [row[1:] for row in MUTANTS], ids=[row[0] for row in MUTANTS])
def test_mutant_is_found_out(old: str, new: str, proofs: str) -> None:
    for name in proofs.split():
        with pytest.raises(AssertionError):
            PROOFS[name](mutant(old, new))


def test_the_network_itself_passes() -> None:
    check_grid(dmn.step)
    check_rows(dmn.step)
