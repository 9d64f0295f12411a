"""What an agent looks with and acts with, wired."""

from collections.abc import Callable

from agent.signals import Directive
from agent.tools import mind as tools
from gateway.acting import Acting
from gateway.digest import Digests
from gateway.events import ConversationId
from gateway.hands import Hand
from gateway.hearing import Hearing
from gateway.repose import Repose
from gateway.shared import Shared


def looking(
    shared: Shared,
    agent: str,
    hearing: Hearing,
    owns: Callable[[ConversationId], bool],
    *,
    plain: Callable[[], bool],
) -> Digests:
    """What its inner conversation is told. `plain`: its model is a very small one."""
    return Digests(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        places=shared.background_services.places,
        hearing=hearing,
        plain=plain,
        mine=owns,
        busy=shared.room_locks.is_busy,
    )


def doing(shared: Shared, agent: str, digests: Digests, forget: Callable[[ConversationId], None]) -> Acting:
    """What it does in other places."""
    return Acting(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        bindings=shared.bindings,
        places=shared.background_services.places,
        who=shared.access_policy,
        channels=shared.channels,
        doors=shared.room_locks,
        digests=digests,
        post=shared.post,
        forget=forget,
    )


def own(shared: Shared, agent: str, acting: Acting, send: Callable[[Directive], None]) -> tuple[Hand, ...]:
    """What it does with itself. `send`: to its DMN."""
    repose = Repose(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        timezone=lambda: shared.live.settings.dmn.timezone,
        send=send,
    )
    return (
        Hand.create(tools.SEND_MESSAGE, tools.SendMessage, acting.send_message, risks=acting.risk),
        Hand.create(tools.MARK_HANDLED, tools.MarkHandled, acting.mark_handled),
        Hand.create(tools.REST_UNTIL, tools.RestUntil, repose.rest_until),
        Hand.create(tools.GO_QUIET, tools.GoQuiet, repose.go_quiet),
    )
