"""What the Messages API refuses of `cache_control`. Pure.

Source: platform.claude.com/docs/en/build-with-claude/prompt-caching. Where a mark cannot stand at all is told by
`messages_content`: it knows which keys each block has.
"""

from collections.abc import Iterator

from tests.servers.messages_prompt import THINKING, Json, blocks

_MAX_MARKS = 4


def marks(body: Json) -> Iterator[str]:
    """Check every `cache_control`, in the order in which the API reads them."""
    marked = list(_marked(body))
    automatic = body.get("cache_control")
    for where, mark in [*marked, *([("", automatic)] if automatic is not None else [])]:
        yield from _mark(f"{where}.cache_control".lstrip("."), mark)
    if automatic is not None:
        last = next((block for block in _backwards(body) if block.get("type") not in THINKING), {})
        own = last.get("cache_control")
        if own is None:
            marked.append(("", automatic))
        elif own.get("ttl", "5m") != automatic.get("ttl", "5m"):
            yield "cache_control: the last cacheable block already has a cache_control with a different ttl"
    if len(marked) > _MAX_MARKS:
        yield f"A maximum of {_MAX_MARKS} blocks with cache_control may be provided. Found {len(marked)}."
    short = False
    for where, mark in marked:
        ttl = mark.get("ttl", "5m")
        if short and ttl == "1h":
            yield (
                f"{f'{where}.cache_control.ttl'.lstrip('.')}: a ttl='1h' cache_control block must not come after a "
                "ttl='5m' cache_control block. Note that blocks are processed in the following order: `tools`, "
                "`system`, `messages`."
            )
        short = short or ttl == "5m"


def _mark(where: str, mark: Json) -> Iterator[str]:
    if mark.get("type") != "ephemeral":
        yield f"{where}: Input tag '{mark.get('type')}' found using 'type' does not match any of the expected tags"
    for key in mark.keys() - {"type", "ttl"}:
        yield f"{where}.ephemeral.{key}: Extra inputs are not permitted"
    if mark.get("ttl", "5m") not in {"5m", "1h"}:
        yield f"{where}.ephemeral.ttl: Input should be '5m' or '1h'"


def _marked(body: Json) -> Iterator[tuple[str, Json]]:
    """Yield the place and the mark of every marked block, in the API's order."""
    for place, tool in enumerate(body.get("tools") or []):
        if "cache_control" in tool:
            yield f"tools.{place}", tool["cache_control"]
    for place, block in enumerate(blocks(body.get("system") or [])):
        if "cache_control" in block:
            yield f"system.{place}", block["cache_control"]
    for place, message in enumerate(body["messages"]):
        for index, block in enumerate(blocks(message["content"])):
            if "cache_control" in block:
                yield f"messages.{place}.content.{index}", block["cache_control"]


def _backwards(body: Json) -> Iterator[Json]:
    for message in reversed(body["messages"]):
        yield from reversed(blocks(message["content"]))
    yield from reversed(blocks(body.get("system") or []))
    yield from reversed(body.get("tools") or [])
