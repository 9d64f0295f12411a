"""Tools of servers, as far as a model's window has room for them."""

import asyncio

import pytest

from gateway.core.tool_spec import ToolCall
from gateway.tools.dispatch import ToolDispatcher
from tests.gateway.tools.test_dispatch import WHERE, Servers, hand
from tests.kits.tools import dispatcher

SIZE = 24
"""Tokens of one of these, about."""


def names(hands: ToolDispatcher) -> list[str]:
    return [spec.name for spec in hands.specs]


def test_what_does_not_fit_is_not_told_but_can_be_called(caplog: pytest.LogCaptureFixture) -> None:
    many = Servers(*[hand(f"mcp_s_{number:02}") for number in range(40)])
    hands = dispatcher([hand("echo")], dynamic=many, max_dynamic_tokens=10 * SIZE)
    assert names(hands)[0] == "echo"
    assert names(hands)[1:] == [f"mcp_s_{number:02}" for number in range(len(hands.specs) - 1)]
    assert 2 < len(hands.specs) < 20
    assert hands.changed_names == ([], [])
    (warned,) = caplog.records
    assert "mcp_s_39" in warned.getMessage()
    call = ToolCall(id="c", name="mcp_s_39", arguments='{"word": "hi"}')
    assert asyncio.run(hands.for_turn(WHERE).call(call)).text == "hi"


def test_what_fits_is_told_whole(caplog: pytest.LogCaptureFixture) -> None:
    hands = dispatcher([], dynamic=Servers(hand("mcp_b"), hand("mcp_a")), max_dynamic_tokens=1_000)
    assert names(hands) == ["mcp_a", "mcp_b"]
    assert not caplog.records
