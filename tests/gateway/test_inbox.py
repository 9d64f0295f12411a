import asyncio

from gateway.clock import ManualClock
from gateway.events import ConversationId
from gateway.inbox import Inbox
from gateway.records import NORMAL, URGENT

ROOM = ConversationId("irc.test/#room")


def test_a_closed_inbox_notices_nothing_and_leaves_no_task_behind() -> None:
    noticed: list[int] = []

    async def story() -> int:
        inbox = Inbox(ManualClock(), 1.5, lambda _, urgency: noticed.append(urgency))
        inbox.arrived(ROOM, URGENT)
        await inbox.close()
        for urgency in (NORMAL, URGENT):
            inbox.arrived(ROOM, urgency)
        return len(asyncio.all_tasks())

    assert asyncio.run(story()) == 1
    assert not noticed
