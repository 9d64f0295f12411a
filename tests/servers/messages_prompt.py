"""A Messages request as the sequence of positions that the API caches. Pure.

Sources: platform.claude.com/docs/en/build-with-claude/prompt-caching (order, what invalidates what) and
extended-thinking (which thinking is taken out of the prompt).
"""

import json
from collections.abc import Iterator
from typing import Any

from tests.servers.messages_models import profile

Json = dict[str, Any]
THINKING = {"thinking", "redacted_thinking"}


def canonical(block: Json) -> str:
    """Return the block's bytes without its mark. The order of keys inside of it counts, as it does there."""
    bare = {key: block[key] for key in sorted(block) if key != "cache_control"}
    return json.dumps(bare, separators=(",", ":"), ensure_ascii=False)


def blocks(content: str | list[Json]) -> list[Json]:
    """Return the content as blocks, however it is written."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def positions(body: Json) -> Iterator[tuple[str, str, Json | None]]:
    """Yield level, role and block; without a block, what the level depends on besides."""
    for tool in body.get("tools") or []:
        yield "tools", "tool", tool
    yield "system", str(body.get("speed") or "standard"), None
    for block in blocks(body.get("system") or []):
        yield "system", "system", block
    yield "messages", _settings(body), None
    stale = _stale(body["messages"]) if profile(body["model"]).strips else 0
    for place, message in enumerate(body["messages"]):
        for block in blocks(message["content"]):
            if place >= stale or block["type"] not in THINKING:
                yield "messages", message["role"], block


def _settings(body: Json) -> str:
    """Return what the cached messages depend on besides what is in front of them."""
    content = [block for message in body["messages"] for block in blocks(message["content"])]
    thinking = body.get("thinking") or {}
    effort = (body.get("output_config") or {}).get("effort") or profile(body["model"]).effort
    choice = {"type": "auto"} | (body.get("tool_choice") or {})
    seen = any(block["type"] == "image" or pictures(block) for block in content)
    return canonical({"choice": choice, "images": seen, "effort": effort, "thinking": _mode(thinking)})


def _mode(thinking: Json) -> list[Any]:
    return [thinking.get("type"), thinking.get("budget_tokens")]


def _stale(messages: list[Json]) -> int:
    """Return the place of the newest message in which the user says something: thinking before it is taken out."""
    said = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user" and any(block["type"] != "tool_result" for block in blocks(message["content"]))
    ]
    return max(said, default=0)


def pictures(block: Json) -> int:
    content = block.get("content") if block.get("type") == "tool_result" else None
    return sum(part.get("type") == "image" for part in content) if isinstance(content, list) else 0
