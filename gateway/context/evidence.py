"""The archive of tool results that are shown in part; `gateway.plugins.evidence` opens it.

A turn keeps a result before the model sees a part of it, so that the handle beside the part names
something.
"""

import hashlib
from typing import Final

from agent.models.base import ToolResult
from agent.prompt import MAX_SOURCE_CHARS
from gateway.core.events import ConversationId, EvidenceRef
from gateway.core.facts import Evidence, TurnId
from gateway.core.text_safety import to_single_line
from gateway.core.tool_spec import ToolCall
from gateway.store import NewEntry
from gateway.stream.handle import GatewayHandle

LEFT_LOG: Final = (
    "That is so old that it has left the log: only an operator can read it, with "
    "`reverie log show FILE`."
)


async def keep_result(
    gateway: GatewayHandle,
    turn: TurnId,
    conversation: ConversationId,
    call: ToolCall,
    result: ToolResult,
) -> EvidenceRef:
    """Store the result of a call and return its reference. Raises StoreError.

    An equal result of the call is not stored twice. On cancellation it is stored or not, and
    nothing refers to it.
    """
    arguments = call.arguments if call.arguments.strip() != "{}" else ""
    origin = to_single_line(result.origin[:MAX_SOURCE_CHARS], MAX_SOURCE_CHARS) or to_single_line(
        f"{call.name} {arguments}"[: 2 * MAX_SOURCE_CHARS], MAX_SOURCE_CHARS
    )
    fact = Evidence(
        turn=turn,
        call=call.id,
        tool=call.name,
        what=result.kind,
        origin=origin,
        text=result.text,
    )
    store, number = gateway.store, 0
    while True:
        key = f"evidence:{turn}:{call.id}:{number}"
        (written,) = await store.append(
            [NewEntry(fact=fact, at=gateway.clock.now(), conversation=conversation, key=key)]
        )
        previous = None if written.is_new else await store.entry(written.seq)
        if written.is_new or (
            previous is not None and (previous.conversation, previous.fact) == (conversation, fact)
        ):
            return build_evidence_ref(f"e{written.seq}", fact.what, origin, fact.text)
        number += 1  # the key names another result, which the same call returned before


def build_evidence_ref(handle: str, kind: str, origin: str, text: str) -> EvidenceRef:
    """Return the reference of a text under a handle, with its hash."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return EvidenceRef(handle=handle, kind=kind, origin=origin, chars=len(text), sha256=digest)
