"""Mutants of the network: each changes one line of it, and the proofs named with it must fail."""

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
    (
        "a busy chat shuts out rooms",
        "others = len(state.running) - len(state.chats)",
        "others = len(state.running)",
        "rows laws",
    ),
    (
        "the last is first",
        "(*state.waiting, PendingTurn(conversation=conversation, direct=direct))",
        "(PendingTurn(conversation=conversation, direct=direct), *state.waiting)",
        "laws",
    ),
    (
        "one more in a row",
        "state.autonomous >= policy.max_autonomous_turns",
        "state.autonomous > policy.max_autonomous_turns",
        "laws",
    ),
    ("several at once pass the daily turns", "        policy.daily_turns - state.turns_today,\n", "", "rows"),
    ("refused money is asked for again", "is_over_budget = state.spent_up or 0 <", "is_over_budget = 0 <", "rows laws"),
    ("an answer's cost is the agent's", "if signal.autonomous else 0.0", "if True else 0.0", "rows"),
    (
        "an autonomous turn costs nothing",
        "max(0.0, signal.cost_usd) if signal.autonomous",
        "0.0 if signal.autonomous",
        "rows",
    ),
    (
        "quiet is forgotten",
        '        (is_quiet, f"it is quiet until {_format_date(state.quiet_until)}"),\n',
        "",
        "rows laws",
    ),
    ("sleepers are disturbed", 'state.presence == "sleeping"', "False", "rows laws"),
    (
        "a pause is lifted by an older word",
        "if signal.left >= URGENT and not passive:",
        "if signal.left >= URGENT:",
        "grid rows",
    ),
    (
        "what came meanwhile is lost",
        "    state = _queue_turn(state, conversation, signal.left, direct=signal.direct)\n",
        "",
        "grid rows laws",
    ),
    ("talk puts off the tick", "sooner=sooner", "sooner=False", "rows"),
    ("the timer is not set again", "isinstance(signal, Tick | Directive) or after.mode", "after.mode", "rows laws"),
    (
        "idle is not free",
        "if candidates := due_conversations(state, policy):",
        "if candidates := due_conversations(state, policy) or (policy.inner,):",
        "grid rows laws",
    ),
    ("people wait for the inner turn", "not (state.spared and at_once)", "not state.spared", "rows laws"),
    ("the inner turn never ends", "not (state.spared and at_once)", "True", "rows"),
    (
        "off is not off",
        "stays = state.mode is DmnMode.OFF or (state.mode is DmnMode.PAUSED and not signal.trusted)",
        "stays = state.mode is DmnMode.PAUSED and not signal.trusted",
        "grid rows",
    ),
    ("yielding goes on", "signal.used_tools and not signal.yielded and", "signal.used_tools and", "rows"),
    ("a cache dies before each tick", "wait_s = lifetime_s - CACHE_MARGIN_S", "wait_s = lifetime_s", "rows"),
    (
        "the row never ends",
        "mode=mode, autonomous=0, stored_until=None, wake_on=()",
        "mode=mode, stored_until=None, wake_on=()",
        "rows",
    ),
    ("one conversation, two turns", "if conversation in state.running or is_waiting", "if is_waiting", "rows laws"),
]


def mutant(old: str, new: str) -> Core:
    """`agent.dmn` with one line changed."""
    source = Path(dmn.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} stands there {source.count(old)} times"
    module = ModuleType("mutant")
    exec(compile(source.replace(old, new), "mutant.py", "exec"), module.__dict__)
    return cast("Core", module)


@pytest.mark.system
@pytest.mark.parametrize(("old", "new", "proofs"), [row[1:] for row in MUTANTS], ids=[row[0] for row in MUTANTS])
def test_mutant_is_found_out(old: str, new: str, proofs: str) -> None:
    core = mutant(old, new)
    for name in proofs.split():
        with pytest.raises(AssertionError):
            PROOFS[name](core)


def test_the_network_itself_passes() -> None:
    check_grid(dmn.step)
    check_rows(dmn.step)
