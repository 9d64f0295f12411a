"""Tools whose descriptions a model's window has room for: of its own, and of those that come and go."""

import logging
from collections.abc import Mapping, Sequence

from agent.view import estimate_tokens
from gateway.hands import Tool
from gateway.tools.dispatch import DynamicTools, is_off

logger = logging.getLogger("reverie.tools")


MAX_WINDOW_SHARE = 0.25
"""Of a model's window, for what it is told of tools; and the same again for tools of servers."""


def fit_families(
    agent: str, families: Mapping[str, list[Tool]], window: int, off: Sequence[str]
) -> dict[str, list[Tool]]:
    """Those whose descriptions the window has room for, the first always. `off`: globs of tools that there are not."""
    kept, left, tokens = dict[str, list[Tool]](), list[str](), 0
    for family, some in families.items():
        specs = [hand.spec for hand in some if not is_off(hand.spec.name, off)]
        tokens += sum(estimate_tokens(spec.name + spec.description + spec.schema) for spec in specs)
        if kept and (left or tokens > window * MAX_WINDOW_SHARE):
            left.append(family)
        else:
            kept[family] = some
    if left:
        logger.warning(
            "%s has no tools for %s: the window of its model has %d tokens, and they would fill too much of it. "
            "Choose a model with a larger one, or leave others out by tools.off",
            agent,
            ", ".join(left),
            window,
        )
    return kept


class FittedDynamicTools:
    """`DynamicTools` for one agent: what there is no room for is not told, and said to the operator once."""

    def __init__(self, late: DynamicTools, agent: str, most_tokens: int) -> None:
        self._dynamic = late
        self._agent = agent
        self._max_tokens = most_tokens
        self._omitted: list[str] = []

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that fit, the first by name before the others."""
        kept, left, tokens = list[Tool](), list[str](), 0
        for hand in sorted(self._dynamic.tools, key=lambda one: one.spec.name):
            spec = hand.spec
            size = estimate_tokens(spec.name + spec.description + spec.schema)
            if tokens + size <= self._max_tokens:
                kept.append(hand)
                tokens += size
            else:
                left.append(spec.name)
        if left and left != self._omitted:
            logger.warning(
                "%s is not told of %d tools of servers, %s: they would take more than %d tokens of its model's window. "
                "Choose a model with a larger one, or name those that are needed in tools.mcp.NAME.tools",
                self._agent,
                len(left),
                f"{left[0]} to {left[-1]}" if len(left) > 1 else left[0],
                self._max_tokens,
            )
        self._omitted = left
        return kept

    def all_tools(self) -> Mapping[str, Tool]:
        """All, by name: one that is not told can be called all the same."""
        return self._dynamic.all_tools()
