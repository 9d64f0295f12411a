"""Web hands on a loopback site, with an invented DNS."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from agent.models.base import ToolResult
from gateway.config.tools import ToolsConfig, WebConfig
from gateway.core.clock import Clock, SystemClock
from gateway.core.events import Address, ChannelName, Message, MessageId, RoomId, Sender, SenderId
from gateway.core.facts import TurnId
from gateway.core.labels import RequestLabel
from gateway.core.scopes import PUBLIC, Visibility
from gateway.core.tool import Requester, ToolContext, tools_of
from gateway.core.tool_spec import ToolCall
from gateway.plugins.web import Web
from gateway.store import NewEntry, Store
from gateway.stream.media import MediaStore
from reverie.testing.servers.web_server import WebServer
from tests.kits.access import POLICY
from tests.kits.commands import parts_of
from tests.kits.handle import handle_of
from tests.kits.tools import dispatcher, live_tools

LOOPBACK = ("127.0.0.0/8",)
ANN = Requester(id=SenderId("42"), name="Ann", role="member", verified=True)
ROOM = ToolContext(
    turn=TurnId("t"),
    agent="reverie",
    at=Address(channel=ChannelName("irc.main"), room=RoomId("#a")),
    visibility=Visibility(scope=PUBLIC),
    autonomous=False,
    requesters=(ANN,),
)


class Names:
    """A DNS: what a name leads to, one answer after the other; the last one stays."""

    def __init__(
        self, names: Mapping[str, Sequence[Sequence[str]]] | None = None, *, default: str = ""
    ) -> None:
        """`default`: the address of all other names. Empty: they do not exist."""
        self._names = {name: list(answers) for name, answers in (names or {}).items()}
        self._default = default
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        assert port
        self.asked.append(host)
        answers = self._names.get(host, [[self._default] if self._default else []])
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Desk:
    """The tools as a turn has them."""

    def __init__(self, web: Web, site: WebServer, names: Names, store: Store) -> None:
        self.web, self.site, self.names, self.store = web, site, names, store
        self.where = replace(ROOM, request=RequestLabel())
        self._hands = dispatcher(tools_of(web))

    async def call(self, name: str, **arguments: object) -> ToolResult:
        return await self._hands.call(
            ToolCall(id="1", name=name, arguments=json.dumps(arguments)), self.where
        )

    async def says(self, who: Sender, text: str, carried: str = "") -> None:
        """Somebody writes to the agent there."""
        message = Message(
            id=MessageId(f"m{len(text)}{carried}"),
            at=self.where.at,
            sender=who,
            text=text,
            sent=SystemClock().now(),
            kind="direct",
            carried=carried,
        )
        await self.store.append(
            [NewEntry(fact=message, at=message.sent, conversation=message.at.conversation)]
        )

    async def fetch(self, url: str) -> ToolResult:
        """A page that comes."""
        result = await self.call("web_fetch", url=url)
        assert not result.is_error, result.text
        return result

    async def refused(self, url: str) -> str:
        """Why it does not come."""
        result = await self.call("web_fetch", url=url)
        assert result.is_error, result.text
        return result.text


@asynccontextmanager
async def desk(
    config: WebConfig | None = None,
    *,
    names: Names | None = None,
    clock: Clock | None = None,
    server: ssl.SSLContext | None = None,
    trusts: ssl.SSLContext | None = None,
) -> AsyncIterator[Desk]:
    """Without `config`, loopback may be fetched. `server`: the site speaks TLS; `trusts`: what its
    client does."""
    names = names if names is not None else Names()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        store = await stack.enter_async_context(
            await Store.open(Path(folder) / "reverie.db", SystemClock())
        )
        site = await stack.enter_async_context(WebServer(server))
        live = live_tools(ToolsConfig(web=config or WebConfig(allow_private=LOOPBACK)))
        media = MediaStore(live, Path(folder) / "media", {}, SystemClock())
        gateway = handle_of(store, clock or SystemClock(), live=live, people=POLICY)
        web = Web(parts_of(gateway=gateway, media=media), resolve=names, tls=trusts)
        stack.push_async_callback(web.stop)
        yield Desk(web, site, names, store)
