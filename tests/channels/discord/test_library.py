"""What we use of discord.py beside its documentation exists, and no name with an underscore is used."""

import ast
import inspect
from pathlib import Path

import pytest
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import HTTPClient, Route

PACKAGE = Path(__file__).parents[3] / "channels" / "discord"


@pytest.mark.parametrize(
    ("owner", "name", "parameters"),
    [
        (HTTPClient, "request", {"route", "kwargs"}),
        (HTTPClient, "__init__", {"connector"}),
        (Route, "__init__", {"method", "path", "parameters"}),
        (
            DiscordWebSocket,
            "from_client",
            {"client", "initial", "gateway", "shard_id", "session", "sequence", "resume"},
        ),
        (DiscordWebSocket, "__init__", {"socket", "loop"}),
        (DiscordWebSocket, "log_receive", {"_"}),
        (DiscordWebSocket, "poll_event", set()),
        (DiscordWebSocket, "resume", set()),
        (DiscordWebSocket, "close", {"code"}),
        (ReconnectWebSocket, "__init__", {"shard_id", "resume"}),
    ],
)
def test_a_name_that_we_lean_on_exists(owner: type, name: str, parameters: set[str]) -> None:
    assert parameters <= set(inspect.signature(getattr(owner, name)).parameters)


def test_its_address_and_its_numbers_are_where_we_look() -> None:
    assert Route("GET", "/gateway").url == f"{Route.BASE}/gateway"
    assert (DiscordWebSocket.DISPATCH, DiscordWebSocket.HELLO) == (0, 10)
    assert {"self.session_id", "self.sequence", "self.socket", "self.log_receive(msg)"} <= set(
        _words(inspect.getsource(DiscordWebSocket))
    )


def _words(source: str) -> set[str]:
    return {ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute | ast.Call)}


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.name)
def test_no_inner_name_of_another_object_is_used(file: Path) -> None:
    tree = ast.parse(file.read_text())
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    ours = {"self", "before"}  # `before`: the same class
    used = {ast.unparse(node) for node in names if not node.attr.endswith("__")}
    assert {name for name in used if name.split(".")[0] not in ours or name.count(".") > 1} == set()
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert [name for name in imported if name.startswith("_")] == []
