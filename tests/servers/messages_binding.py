"""Signatures of thinking blocks, and what they bind a block to. Pure.

Source: platform.claude.com/docs/en/models/fable-5-1/whats-new-fable-5-1 and build-with-claude/preserved-thinking.
A signature says what was thought, by which model, after which tools, system and messages. Marks and effort are no
part of that, a leading run of thinking may be taken away, and blocks that the model cannot read are dropped.
A model that is not known here signs as compatible servers do: always the same, and nothing is checked.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Iterator
from typing import NamedTuple

from tests.servers.messages_models import known, profile, undated
from tests.servers.messages_prompt import THINKING, Json, blocks, canonical

CONTROLS = "thinking-binding-controls-2026-08-01"
UNCHECKED = "c2lnbmVk"
_PARTS = {
    "tools": "The `tools` differ",
    "system": "The `system` prompt differs",
    "messages": "An earlier message differs",
}


class Verdict(NamedTuple):
    """What becomes of a request's thinking."""

    wrong: str | None
    """Why the request is refused."""
    body: Json
    """Without the blocks that are dropped."""
    dropped: list[Json]
    """`input_transformations`."""


def sign(body: Json, said: list[Json], thought: str) -> str:
    """Return the signature of a block that comes behind the request and behind `said`, in the same answer."""
    if not known(body["model"]):
        return UNCHECKED
    end = {"role": "assistant", "content": [*said, {"type": "thinking", "thinking": thought, "signature": ""}]}
    *_, (_, _, behind) = _thoughts({**body, "messages": [*body["messages"], end]})
    return _seal({"model": undated(body["model"]), "thought": _hash(thought), **behind})


def verify(body: Json, betas: list[str]) -> Verdict:
    """Check all thinking that is sent back."""
    if not known(body["model"]):
        return Verdict(None, body, [])
    mild = ((body.get("thinking") or {}).get("block_binding") or {}).get("prefix_mismatch_behavior") == "drop_block"
    latest = max((i for i, m in enumerate(body["messages"]) if m["role"] == "assistant"), default=-1)
    dropped: list[Json] = []
    gone: set[tuple[int, int]] = set()
    for (place, index), block, behind in _thoughts(body):
        where = f"messages.{place}.content.{index}"
        told = _open(block)
        if told is None or told["thought"] != _hash(block.get("thinking", "")):
            if place == latest:
                return Verdict(
                    f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                    "modified. These blocks must remain as they were in the original response.",
                    body,
                    [],
                )
            return Verdict(f"{where}: Invalid `signature` in `{block['type']}` block", body, [])
        reason = ""
        if told["model"] != undated(body["model"]):
            reason = "model_binding_mismatch" if profile(told["model"]).binds else ""
        elif profile(body["model"]).binds and (differs := _difference(told, behind)):
            if not mild:
                return Verdict(_bound(where, block, differs), body, [])
            reason = "prefix_binding_mismatch"
        if reason:
            gone.add((place, index))
            dropped.append({"type": "thinking_dropped", "path": where, "reason": reason})
    return Verdict(None, _without(body, gone) if gone else body, dropped if CONTROLS in betas else [])


def _bound(where: str, block: Json, differs: str) -> str:
    return (
        f"{where}: Invalid `signature` in `{block['type']}` block. The block is bound to a different conversation. "
        'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That setting '
        f"requires the `{CONTROLS}` value in the `anthropic-beta` header. {_PARTS[differs]} from the one this block "
        "was created with."
    )


def _thoughts(body: Json) -> Iterator[tuple[tuple[int, int], Json, Json]]:
    """Yield each thinking block: its place, itself, and what is in front of it."""
    if not any(b["type"] in THINKING for m in body["messages"] for b in blocks(m["content"])):
        return
    tools = _hash(*(canonical(tool) for tool in body.get("tools") or []))
    system = _hash(*(canonical(block) for block in blocks(body.get("system") or [])))
    messages = hashlib.sha256()
    run: list[str] = []
    for place, message in enumerate(body["messages"]):
        for index, block in enumerate(blocks(message["content"])):
            if block["type"] in THINKING:
                front = {"tools": tools, "system": system, "messages": messages.hexdigest()[:16], "run": [*run]}
                yield (place, index), block, front
                run.append(_hash(block.get("signature") or block.get("data") or "")[:8])
            elif block["type"] != "text" or block["text"].strip():
                messages.update(f"{message['role']}\0{canonical(block)}\0".encode())


def _difference(told: Json, behind: Json) -> str:
    """Return which part of the prefix is another one: tools, system, messages; empty: none."""
    for part in _PARTS:
        if told[part] != behind[part]:
            return part
    kept = behind["run"]
    return "" if not kept or told["run"][-len(kept) :] == kept else "messages"


def _without(body: Json, gone: set[tuple[int, int]]) -> Json:
    messages = []
    for place, message in enumerate(body["messages"]):
        content = [b for index, b in enumerate(blocks(message["content"])) if (place, index) not in gone]
        if content:
            messages.append({**message, "content": content})
    return {**body, "messages": messages}


def _seal(told: Json) -> str:
    text = json.dumps(told, sort_keys=True)
    return base64.b64encode(f"{_hash(text)}{text}".encode()).decode()


def _open(block: Json) -> Json | None:
    written = block.get("signature") if block["type"] == "thinking" else block.get("data")
    try:
        text = base64.b64decode(str(written), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    if text[:16] != _hash(text[16:]):
        return None
    told: Json = json.loads(text[16:])
    return told


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
