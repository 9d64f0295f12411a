"""What an agent looks with and acts with, wired."""

from collections.abc import Callable

from agent.signals import Directive
from agent.tools import mind
from gateway.acting import MessagingTools
from gateway.digest import DigestBuilder
from gateway.events import ConversationId
from gateway.hands import Tool
from gateway.hearing import ConversationReader
from gateway.repose import RestTools
from gateway.shared import GatewayServices


def build_digest_builder(
    shared: GatewayServices,
    agent: str,
    hearing: ConversationReader,
    owns: Callable[[ConversationId], bool],
    *,
    plain: Callable[[], bool],
) -> DigestBuilder:
    """What its inner conversation is told. `plain`: its model is a very small one."""
    return DigestBuilder(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        places=shared.background_services.places,
        hearing=hearing,
        plain=plain,
        mine=owns,
        busy=shared.room_locks.is_busy,
    )


def build_platform_actions(
    shared: GatewayServices, agent: str, digests: DigestBuilder, forget: Callable[[ConversationId], None]
) -> MessagingTools:
    """What it does in other places."""
    return MessagingTools(
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


def build_own_tools(
    shared: GatewayServices, agent: str, acting: MessagingTools, send: Callable[[Directive], None]
) -> tuple[Tool, ...]:
    """What it does with itself. `send`: to its DMN."""
    repose = RestTools(
        agent=agent,
        store=shared.store,
        clock=shared.clock,
        timezone=lambda: shared.live.settings.dmn.timezone,
        send=send,
    )
    return (
        Tool.create(mind.SEND_MESSAGE, mind.SendMessageArgs, acting.send_message, risks=acting.risk),
        Tool.create(mind.MARK_HANDLED, mind.MarkHandledArgs, acting.mark_handled),
        Tool.create(mind.REST_UNTIL, mind.RestUntilArgs, repose.rest_until),
        Tool.create(mind.GO_QUIET, mind.GoQuietArgs, repose.go_quiet),
    )
