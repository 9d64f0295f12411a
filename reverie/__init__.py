"""The public interface of the gateway, for authors of plugins.

- `reverie`: `Plugin` and its hooks, tools, commands, checks of `reverie doctor`, and the types that
  they meet.
- `reverie.platforms`: all that an adapter of a chat platform needs.
- `reverie.providers`: all that a client of a model API needs.
- `reverie.testing` (extra `testing`): fakes, conformance kits, and a gateway for tests.

Nothing else in this distribution is part of the interface; docs/plugins-api.md lists each name. A
name is imported where it is first used: most plugins need a few of them, and `reverie health` none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agent.models.base import Model as Model
    from channels.base import Channel as Channel
    from gateway import __version__ as __version__
    from gateway.access.policy import Routed as Routed
    from gateway.commands.context import CommandCall as CommandCall
    from gateway.commands.definition import SuggestedArg as SuggestedArg, command as command
    from gateway.config.check_registry import CheckContext as CheckContext, check as check
    from gateway.context.observer import Progress as Progress, RunningTurn as RunningTurn
    from gateway.core.clock import Clock as Clock, new_id as new_id
    from gateway.core.events import (
        Address as Address,
        Attachment as Attachment,
        Message as Message,
        Notification as Notification,
        Post as Post,
        PostButton as PostButton,
        PostKey as PostKey,
        Sender as Sender,
    )
    from gateway.core.facts import (
        Fact as Fact,
        Judgement as Judgement,
        PluginFact as PluginFact,
        TurnRecord as TurnRecord,
    )
    from gateway.core.fields import (
        ConfigSection as ConfigSection,
        Duration as Duration,
        LocalFile as LocalFile,
        LocalPath as LocalPath,
    )
    from gateway.core.findings import (
        Finding as Finding,
        FindingCollector as FindingCollector,
        bad as bad,
        ok as ok,
        warning as warning,
    )
    from gateway.core.identity import Role as Role
    from gateway.core.labels import (
        OUTSIDE_LABEL as OUTSIDE_LABEL,
        TRUSTED_LABEL as TRUSTED_LABEL,
        Label as Label,
    )
    from gateway.core.permissions import (
        ALLOW_ADMINS as ALLOW_ADMINS,
        ALLOW_ANYBODY as ALLOW_ANYBODY,
        ALLOW_MEMBERS as ALLOW_MEMBERS,
        OUT as OUT,
        OWN as OWN,
        Effect as Effect,
        ToolPermit as ToolPermit,
    )
    from gateway.core.text_safety import inline_code as inline_code
    from gateway.core.route import RouteRefused as RouteRefused, route as route
    from gateway.core.tool import (
        Requester as Requester,
        Tool as Tool,
        ToolContext as ToolContext,
        ToolOutput as ToolOutput,
        run_in_thread as run_in_thread,
        tool as tool,
    )
    from gateway.core.tool_spec import (
        Image as Image,
        ToolCall as ToolCall,
        ToolCallRefused as ToolCallRefused,
    )
    from gateway.plugin import (
        API_VERSION as API_VERSION,
        Ask as Ask,
        Hooks as Hooks,
        Part as Part,
        Plan as Plan,
        PlatformFactory as PlatformFactory,
        Plugin as Plugin,
        PluginContext as PluginContext,
        Refuse as Refuse,
        TurnView as TurnView,
        hook as hook,
    )
    from gateway.store.effects import (
        CommandEffect as CommandEffect,
        Decision as Decision,
        EffectFact as EffectFact,
        done as done,
        queue_post as queue_post,
        refuse as refuse,
    )
    from gateway.store.projections import Table as Table
    from gateway.store.types import LogEntry as LogEntry, StoreError as StoreError
    from gateway.stream.media import (
        AttachmentNotFetched as AttachmentNotFetched,
        AttachmentReader as AttachmentReader,
        DescribedAttachment as DescribedAttachment,
    )
    from gateway.stream.notices import Notice as Notice
    from gateway.plugins.web import WebFetcher as WebFetcher, WebResponse as WebResponse
else:
    _NAMES: Final = {
        "agent.models.base": "Model",
        "channels.base": "Channel",
        "gateway": "__version__",
        "gateway.access.policy": "Routed",
        "gateway.commands.context": "CommandCall",
        "gateway.commands.definition": "SuggestedArg command",
        "gateway.config.check_registry": "CheckContext check",
        "gateway.context.observer": "Progress RunningTurn",
        "gateway.core.clock": "Clock new_id",
        "gateway.core.events": (
            "Address Attachment Message Notification Post PostButton PostKey Sender"
        ),
        "gateway.core.facts": "Fact Judgement PluginFact TurnRecord",
        "gateway.core.fields": "ConfigSection Duration LocalFile LocalPath",
        "gateway.core.findings": "Finding FindingCollector bad ok warning",
        "gateway.core.identity": "Role",
        "gateway.core.labels": "OUTSIDE_LABEL TRUSTED_LABEL Label",
        "gateway.core.permissions": (
            "ALLOW_ADMINS ALLOW_ANYBODY ALLOW_MEMBERS OUT OWN Effect ToolPermit"
        ),
        "gateway.core.text_safety": "inline_code",
        "gateway.core.route": "RouteRefused route",
        "gateway.core.tool": "Requester Tool ToolContext ToolOutput run_in_thread tool",
        "gateway.core.tool_spec": "Image ToolCall ToolCallRefused",
        "gateway.plugin": (
            "API_VERSION Ask Hooks Part Plan PlatformFactory Plugin PluginContext Refuse TurnView "
            "hook"
        ),
        "gateway.store.effects": "CommandEffect Decision EffectFact done queue_post refuse",
        "gateway.store.projections": "Table",
        "gateway.store.types": "LogEntry StoreError",
        "gateway.stream.media": "AttachmentNotFetched AttachmentReader DescribedAttachment",
        "gateway.stream.notices": "Notice",
        "gateway.plugins.web": "WebFetcher WebResponse",
    }
    """Names by the module that defines them, as above: the types are for checkers alone."""
    _HOMES: Final = {name: home for home, names in _NAMES.items() for name in names.split()}

    def __getattr__(name: str) -> object:
        """Import a name. Raises AttributeError for one that is not part of the interface."""
        if name not in _HOMES:
            raise AttributeError(f"module 'reverie' has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted(_HOMES)
