"""Calls of tools: carried out, refused, timed, and found though they came late."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.models.base import ToolResult
from gateway.core.events import Address, ChannelName, RoomId
from gateway.core.facts import TurnId
from gateway.core.permissions import ALLOW_ADMINS, ALLOW_ANYBODY, ToolPermit
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Tool, ToolContext, ToolOutput, build_tool
from gateway.core.tool_spec import ToolCall, ToolCallRefused
from gateway.store import StoreClosed
from gateway.tools.dispatch import MAX_RESULT_CHARS, ToolDispatcher
from tests.kits.tools import dispatcher, running_calls

AT = Address(channel=ChannelName("irc.test"), room=RoomId("#a"))
OTHER = Address(channel=ChannelName("irc.test"), room=RoomId("#b"))
WHERE = ToolContext(turn=TurnId("T"), agent="ana", at=AT, visibility=Visibility(scope=PUBLIC), autonomous=False)


def hand(name: str, does: Any = None, permit: ToolPermit = ALLOW_ANYBODY, *, time_s: float = 0.0) -> Tool:
    async def echo(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        return word

    made = build_tool(does or echo, "Say it.", permit, name=name)
    return replace(made, timeout_s=lambda: time_s) if time_s else made


class Servers:
    """Tools that come and go."""

    def __init__(self, *hands: Tool) -> None:
        self.tools: Sequence[Tool] = hands
        self.known = {one.spec.name: one for one in hands}

    def all_tools(self) -> dict[str, Tool]:
        self.known |= {one.spec.name: one for one in self.tools}
        return self.known


def call(hands: ToolDispatcher, name: str, arguments: str = '{"word": "hi"}', where: ToolContext = WHERE) -> ToolResult:
    return asyncio.run(hands.for_turn(where).call(ToolCall(id="c", name=name, arguments=arguments)))


def test_a_call_is_carried_out_and_counted() -> None:
    running = running_calls()
    hands = dispatcher([hand("echo")], running=running)
    assert call(hands, "echo") == ToolResult(id="c", text="hi")
    assert call(hands, "echo", "{}").is_error
    assert call(hands, "other").text == "There is no tool named 'other'."
    counted = next(one for one in running.stats.metrics.collect() if one.name == "reverie_tool_calls")
    assert [(one.labels["tool"], one.labels["outcome"]) for one in counted.samples] == [
        ("echo", "ok"),
        ("echo", "refused"),
        ("other", "unknown"),
    ]


def test_what_takes_too_long_is_ended() -> None:
    ended = []

    async def slow(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(word)
        return ""

    result = call(dispatcher([hand("slow", slow, time_s=0.01)]), "slow")
    assert result.is_error
    assert "longer than 0.01 s" in result.text
    assert ended == ["hi"]


@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError("secret"), TimeoutError("secret")])
def test_a_bug_in_a_tool_is_an_error_result_without_its_words(error: Exception) -> None:
    async def broken(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        raise error

    result = call(dispatcher([hand("broken", broken)]), "broken")
    assert result.is_error
    assert "secret" not in result.text


def test_without_its_log_the_gateway_does_not_go_on() -> None:
    async def broken(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        raise StoreClosed

    with pytest.raises(StoreClosed):
        call(dispatcher([hand("broken", broken)]), "broken")


def test_where_nobody_can_be_asked_only_rights_count() -> None:
    result = call(dispatcher([hand("secret", permit=ALLOW_ADMINS)]), "secret")
    assert (result.is_error, result.text.startswith("Refused: secret is for the role admin")) == (True, True)


def test_text_from_outside_is_remembered_for_the_turn() -> None:
    async def page(where: ToolContext, *, word: str) -> ToolOutput:  # noqa: ARG001 - as all hands
        return ToolOutput(text=word, is_untrusted=True, is_foreign=True)

    where = ToolContext(turn=TurnId("T"), agent="ana", at=AT, visibility=Visibility(scope=PUBLIC), autonomous=False)
    hands = dispatcher([hand("page", page), hand("echo")])
    assert call(hands, "echo", where=where).is_untrusted is False
    assert where.trust.foreign == ""
    assert call(hands, "page", where=where).is_untrusted is True
    assert where.trust.foreign == "page"


def test_a_result_is_bounded() -> None:
    async def much(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        return "x" * (MAX_RESULT_CHARS + 7)

    told = call(dispatcher([hand("much", much)]), "much").text
    assert told[MAX_RESULT_CHARS:] == "\n[7 more characters are lost: ask for less at once]"


def test_what_is_off_is_neither_told_nor_carried_out() -> None:
    hands = dispatcher([hand("web_fetch"), hand("echo")], dynamic=Servers(hand("web_later")), off=["web_*"])
    assert [one.name for one in hands.specs] == ["echo"]
    assert call(hands, "web_fetch").text == "There is no tool named 'web_fetch'."
    assert call(hands, "web_later").text == "There is no tool named 'web_later'."


def test_the_list_is_pinned_and_what_comes_late_can_be_called_all_the_same() -> None:
    async def gone(where: ToolContext, *, word: str) -> str:  # noqa: ARG001 - as all hands
        raise ToolCallRefused("It is gone.")

    servers = Servers(hand("mcp_a"), hand("mcp_b", gone))
    hands = dispatcher([hand("echo")], dynamic=servers)
    before = hands.specs
    servers.tools = (hand("mcp_a"), hand("mcp_c"))
    assert hands.specs is before
    assert hands.changed_names == (["mcp_c"], ["mcp_b"])
    told = call(hands, "mcp_c", "{}")
    assert told.is_untrusted
    assert told.text == f"Say it.\nIt takes: {hand('mcp_c').spec.schema}"
    assert call(hands, "mcp_c").text == "hi"
    assert call(hands, "mcp_b").text == "It is gone."
    hands.pin_specs()
    assert [one.name for one in hands.specs] == ["echo", "mcp_a", "mcp_c"]
    assert hands.changed_names == ([], [])


def test_what_is_under_way_is_told_where_it_is() -> None:
    seen: list[list[str]] = []

    async def look(where: ToolContext, *, word: str) -> str:
        seen.extend([running.describe(where.at.conversation), running.describe(OTHER.conversation)])
        return word

    running = running_calls()
    hands = dispatcher([hand("look", look)], running=running)
    call(hands, "look")
    assert seen == [["look, for 0 s"], []]
    assert running.describe(AT.conversation) == []
