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

    Ids of calls are unique in a turn, so what is stored under one already is the same result. On
    cancellation it is stored or not, and nothing refers to it.
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
    key = f"evidence:{turn}:{call.id}"
    (written,) = await gateway.store.append(
        [NewEntry(fact=fact, at=gateway.clock.now(), conversation=conversation, key=key)]
    )
    return build_evidence_ref(f"e{written.seq}", fact.what, origin, fact.text)


def build_evidence_ref(handle: str, kind: str, origin: str, text: str) -> EvidenceRef:
    """Return the reference of a text under a handle, with its hash."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    return EvidenceRef(handle=handle, kind=kind, origin=origin, chars=len(text), sha256=digest)
