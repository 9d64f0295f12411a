"""A Messages request as the sequence of positions that the API caches; what each Claude model
takes; signatures. Pure.

Sources, below platform.claude.com/docs/en: build-with-claude/prompt-caching (order, what
invalidates what, minimum cacheable prompt), extended-thinking (which thinking is taken out of the
prompt), thinking-troubleshooting (types of thinking), mid-conversation-system-messages,
preserved-thinking, and the what's-new pages of Opus 5.5 and Fable 5.1.

A signature says what was thought, by which model, after which tools, system and messages. Marks and
effort are no part of that, a leading run of thinking may be taken away, and blocks that the model
cannot read are dropped. A model that is not known here signs as compatible servers do: always the
same, and nothing is checked.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

_DATED = re.compile(r"-20\d{6}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model."""

    minimum: int = 1024
    """Tokens: a shorter prefix is silently not cached."""
    thinking: frozenset[str] = frozenset({"adaptive", "disabled"})
    """The types that `thinking` may have."""
    mild_only: frozenset[str] = frozenset()
    """Of these types, those that are refused at effort `xhigh` and `max`."""
    efforts: tuple[str, ...] = ("low", "medium", "high", "xhigh", "max")
    """The levels that `output_config.effort` may have. Empty: it must not be there."""
    effort: str = "high"
    """The default: to say it explicitly changes nothing."""
    system_messages: bool = True
    """Whether `messages` may hold the role `system`."""
    binds: bool = False
    """Thinking is bound to the exact prefix that it came after. Mythos 5.1 does not check that."""
    strips: bool = False
    """Thinking in front of the newest words of the user is taken out, and with it the cache behind
    that place."""


_ADAPTIVE = frozenset({"adaptive"})
_OLD = Profile(thinking=frozenset({"enabled", "disabled"}), efforts=(), system_messages=False)
_MIDDLE = Profile(
    thinking=frozenset({"adaptive", "enabled", "disabled"}),
    efforts=("low", "medium", "high", "max"),
    system_messages=False,
)
_UNKNOWN = Profile(
    thinking=frozenset({"adaptive", "disabled", "enabled", "between_tools"}), system_messages=False
)
_NEWEST = Profile(minimum=512, thinking=_ADAPTIVE, binds=True)
_NEW = Profile(minimum=512, thinking=_ADAPTIVE)
_LATER = Profile(thinking=_ADAPTIVE, binds=True)
"""Their minimum is not documented: the most common one."""

_PROFILES = {
    "claude-fable-5-2": _LATER,
    "claude-mythos-5-2": replace(_LATER, binds=False),
    "claude-fable-5-1": _NEWEST,
    "claude-mythos-5-1": replace(_NEWEST, binds=False),
    "claude-opus-5-5": Profile(minimum=512, thinking=_ADAPTIVE, effort="medium", binds=True),
    "claude-sonnet-5-5": Profile(
        minimum=512,
        thinking=frozenset({"adaptive", "between_tools"}),
        mild_only=frozenset({"between_tools"}),
        binds=True,
    ),
    "claude-haiku-5-5": Profile(
        minimum=512, mild_only=frozenset({"disabled"}), effort="medium", binds=True
    ),
    "claude-fable-5": _NEW,
    "claude-mythos-5": _NEW,
    "claude-opus-5": Profile(minimum=512, mild_only=frozenset({"disabled"})),
    "claude-sonnet-5": Profile(system_messages=False),
    "claude-opus-4-8": Profile(),
    "claude-opus-4-7": Profile(minimum=2048, system_messages=False),
    "claude-mythos-preview": Profile(
        minimum=2048,
        thinking=_ADAPTIVE,
        efforts=("low", "medium", "high", "max"),
        system_messages=False,
    ),
    "claude-opus-4-6": replace(_MIDDLE, minimum=4096),
    "claude-sonnet-4-6": _MIDDLE,
    "claude-opus-4-5": replace(_OLD, minimum=4096, efforts=("low", "medium", "high")),
    "claude-sonnet-4-5": replace(_OLD, strips=True),
    "claude-haiku-4-5": replace(_OLD, minimum=4096, strips=True),
}


def undated(model: str) -> str:
    """Return the name without the date that a pinned version ends in: it is the same model."""
    return _DATED.sub("", model)


def known(model: str) -> bool:
    """Return whether the table has it."""
    return undated(model) in _PROFILES


def profile(model: str) -> Profile:
    """Return what is known of the model; one that is not known refuses little."""
    return _PROFILES.get(undated(model), _UNKNOWN)


Json = dict[str, Any]
THINKING = {"thinking", "redacted_thinking"}


def canonical(block: Json) -> str:
    """Return the block's bytes without its mark. The order of keys inside of it counts, as it does
    there.
    """
    bare = {key: block[key] for key in sorted(block) if key != "cache_control"}
    return json.dumps(bare, separators=(",", ":"), ensure_ascii=False)


def blocks(content: str | list[Json]) -> list[Json]:
    """Return the content as blocks, however it is written."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def positions(body: Json) -> Iterator[tuple[str, str, Json | None]]:
    """Yield level, role and block; without a block, what the level depends on besides."""
    for tool in body.get("tools") or []:
        yield "tools", "tool", tool
    yield "system", "standard", None
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
    seen = any(block["type"] == "image" for block in content)
    return canonical(
        {"choice": choice, "images": seen, "effort": effort, "thinking": thinking.get("type")}
    )


def _stale(messages: list[Json]) -> int:
    """Return the place of the newest message in which the user says something: thinking before it
    is taken out.
    """
    said = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "user"
        and any(block["type"] != "tool_result" for block in blocks(message["content"]))
    ]
    return max(said, default=0)


UNCHECKED = "c2lnbmVk"
_PARTS = {
    "tools": "The `tools` differ",
    "system": "The `system` prompt differs",
    "messages": "An earlier message differs",
}


def sign(body: Json, said: list[Json], thought: str) -> str:
    """Return the signature of a block that comes behind the request and behind `said`, in the same
    answer.
    """
    if not known(body["model"]):
        return UNCHECKED
    end = {
        "role": "assistant",
        "content": [*said, {"type": "thinking", "thinking": thought, "signature": ""}],
    }
    *_, (_, _, behind) = _thoughts({**body, "messages": [*body["messages"], end]})
    return _seal({"model": undated(body["model"]), "thought": _hash(thought), **behind})


def verify(body: Json) -> str | None:
    """Check all thinking that is sent back. Return why the request is refused; None: it is not."""
    if not known(body["model"]):
        return None
    latest = max(
        (i for i, m in enumerate(body["messages"]) if m["role"] == "assistant"), default=-1
    )
    for (place, index), block, behind in _thoughts(body):
        where = f"messages.{place}.content.{index}"
        told = _open(block)
        if told is None or told["thought"] != _hash(block.get("thinking", "")):
            if place == latest:
                return (
                    f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant "
                    "message cannot be modified. These blocks must remain as they were in the "
                    "original response."
                )
            return f"{where}: Invalid `signature` in `{block['type']}` block"
        same_model = told["model"] == undated(body["model"])
        if same_model and profile(body["model"]).binds and (differs := _difference(told, behind)):
            return _bound(where, block, differs)
    return None


def _bound(where: str, block: Json, differs: str) -> str:
    return (
        f"{where}: Invalid `signature` in `{block['type']}` block. The block is bound to a "
        "different conversation. "
        f"Remove the block. {_PARTS[differs]} from "
        "the one this block was created with."
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
                front = {
                    "tools": tools,
                    "system": system,
                    "messages": messages.hexdigest()[:16],
                    "run": [*run],
                }
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
