"""The plugin on a gateway that is connected to a strict IRC server."""

import json
from pathlib import Path
from typing import Any

import pytest
from reverie_irc_extras import MAX_TELLS, IrcExtras

from reverie.testing.gateway import Gateway, Script, ScriptRule, settings
from reverie.testing.plugins import PluginConformance
from reverie.testing.servers.ircd import Ircd
from reverie.testing.servers.web_server import Page, WebServer

ROOM, OTHER = "#tea", "#coffee"
ALICE, BOB = "alice!a@host", "bob!b@host"
HTML = {"content-type": "text/html; charset=utf-8"}


class TestIrcExtras(PluginConformance):
    plugin = IrcExtras
    lines = ("see https://127.0.0.1/", "when did ann speak?")
    script = Script(
        rules=(ScriptRule(match="when did", calls=(("last_seen", '{"nick": "ann"}'),)),)
    )


def on_irc(directory: Path, ircd: Ircd, **more: Any) -> Gateway:
    """A gateway in two rooms, where it listens and says nothing by itself."""
    irc = {
        "platform": "irc",
        "host": "127.0.0.1",
        "port": ircd.port,
        "tls": False,
        "nick": "reverie",
        "rooms": [ROOM, OTHER],
    }
    return Gateway(settings(directory, channels={"irc.main": irc}, **more), Script())


async def test_the_title_of_a_link_is_posted_as_a_notice(tmp_path: Path, ircd: Ircd) -> None:
    async with WebServer() as site:
        site.pages["/"] = Page(b"<title>Tea\r\nQUIT :`x` &amp; cake</title>", HTML)
        near = {"web": {"allow_private": [f"127.0.0.1:{site.port}"]}}
        async with on_irc(tmp_path, ircd, tools=near):
            await ircd.joined("reverie", ROOM)
            await ircd.say(ROOM, f"look: {site.url('/')}", by=ALICE)
            said = await ircd.received(rf"NOTICE {ROOM} :(.*)")
            assert not [line for line in ircd.lines if line.startswith("QUIT")]
    assert "Tea QUIT" in said[1]
    assert "cake" in said[1]


async def test_a_page_of_this_machine_is_not_fetched(tmp_path: Path, ircd: Ircd) -> None:
    async with WebServer() as secret, WebServer() as site:
        secret.pages["/"] = Page(b"<title>secret</title>", HTML)
        site.pages["/"] = Page(b"<title>public</title>", HTML)
        near = {"web": {"allow_private": [f"127.0.0.1:{site.port}"]}}
        async with on_irc(tmp_path, ircd, tools=near, irc_extras={"links": 3}):
            await ircd.joined("reverie", ROOM)
            links = f"{secret.url('/')} http://localhost:{secret.port}/ {site.url('/')}"
            await ircd.say(ROOM, links, by=ALICE)  # the last one comes after the others
            assert "public" in (await ircd.received(rf"NOTICE {ROOM} :(.*)"))[1]
        assert secret.seen == []


async def test_titles_can_be_turned_off(tmp_path: Path, ircd: Ircd) -> None:
    async with WebServer() as site:
        near = {"web": {"allow_private": [f"127.0.0.1:{site.port}"]}}
        async with on_irc(tmp_path, ircd, tools=near, irc_extras={"titles": False}):
            await ircd.joined("reverie", ROOM)
            await ircd.say(ROOM, f"reverie: {site.url('/')}", by=ALICE)
            await ircd.received(rf"PRIVMSG {ROOM} :.*You said")
        assert site.seen == []


async def test_the_agent_can_ask_for_a_title(tmp_path: Path) -> None:
    async with WebServer() as site:
        site.pages["/"] = Page(b"<title>Tea</title>", HTML)
        call = ("link_title", json.dumps({"url": site.url("/")}))
        script = Script(rules=(ScriptRule(match="which page", calls=(call,)),))
        made = settings(
            tmp_path,
            access={"dm": "open", "roles": {"owner": ["console:olga"]}},
            tools={"web": {"allow_private": [f"127.0.0.1:{site.port}"]}},
        )
        async with Gateway(made, script) as gateway:
            assert "Tea" in await gateway.ask("which page?", sender="olga")


async def parts_sent(gateway: Gateway, count: int) -> bool:
    return len(await gateway.entries("part")) >= count


def told_lines(ircd: Ircd) -> list[str]:
    return [line for line in ircd.lines if "NOTICE" in line and "biscuits" in line]


async def test_a_message_is_delivered_once_where_it_was_left(tmp_path: Path, ircd: Ircd) -> None:
    """In spite of crashes before and behind the delivery."""
    gateway = on_irc(tmp_path, ircd)
    gateway.start()
    await ircd.joined("reverie", OTHER)
    await ircd.say(ROOM, "!tell Bob bring biscuits", by=ALICE)
    await ircd.received(r"NOTICE alice :.*when they speak")
    await gateway.kill()
    gateway.start()
    await gateway.until(lambda: gateway.entries("link"))
    await ircd.joined("reverie", OTHER)
    await ircd.say(OTHER, "anybody here?", by=BOB)
    await ircd.say(ROOM, "I am not bob", by=ALICE)
    await ircd.say(ROOM, "hello", by=BOB)
    await ircd.received(rf"NOTICE {ROOM} :.*biscuits")
    await gateway.until(lambda: parts_sent(gateway, 3))  # until then it is uncertain
    await gateway.kill()
    async with gateway:
        await ircd.joined("reverie", OTHER)
        await ircd.say(ROOM, "hello again", by=BOB)
        await ircd.say(ROOM, "!tell carol hi", by=ALICE)  # what is sent comes in order
        await ircd.received(r"NOTICE alice :.*carol")
        delivered = await gateway.entries("irc_extras.delivered")
    assert len(told_lines(ircd)) == 1
    assert len(delivered) == 1


@pytest.mark.parametrize("text", ["x" * 401, "once too often"])
async def test_too_much_is_not_kept(text: str, tmp_path: Path, ircd: Ircd) -> None:
    async with on_irc(tmp_path, ircd) as gateway:
        await ircd.joined("reverie", ROOM)
        if text == "once too often":
            for number in range(MAX_TELLS):
                await ircd.say(ROOM, f"!tell bob {number}", by=ALICE)
        await gateway.until(lambda: kept(gateway, MAX_TELLS if text[0] == "o" else 0))
        await ircd.say(ROOM, f"!tell bob {text}", by=ALICE)
        await ircd.received(r"NOTICE alice :.*(longer than|wait for)")
        assert await kept(gateway, MAX_TELLS if text[0] == "o" else 0)


async def kept(gateway: Gateway, count: int) -> bool:
    return len(await gateway.entries("irc_extras.told")) == count


async def test_a_message_cannot_be_left_in_private(tmp_path: Path, ircd: Ircd) -> None:
    async with on_irc(tmp_path, ircd):
        await ircd.joined("reverie", ROOM)
        await ircd.say("reverie", "!tell bob hi", by=ALICE)
        assert "room" in (await ircd.received(r"PRIVMSG alice :(.*)"))[1]
