"""What probes find out about platforms, against servers that refuse what the real ones refuse."""

import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from channels.discord.check import find_discord_name, probe_discord
from channels.discord.config import DiscordConfig
from channels.irc.check import probe_irc
from channels.irc.config import IrcConfig
from channels.telegram.check import find_contacts, find_telegram_name, probe_telegram
from channels.telegram.config import TelegramConfig
from gateway.core.findings import Finding
from gateway.core.net_probe import explain_connection_error, probe_net, probe_url
from reverie.testing.servers.bot_api import BotApi
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.ircd import CAPS, LOCALHOST, Ircd, Options, server_context
from reverie.testing.servers.ports import free_port
from tests.channels.irc.test_real_servers import Raw, served
from tests.servers.real_ircd import inspircd, ngircd


def levels(findings: list[Finding]) -> dict[str, str]:
    return {finding.code: finding.level for finding in findings}


def fixes(findings: list[Finding], code: str) -> str:
    return "\n".join(finding.fix for finding in findings if finding.code == code)


def sound(findings: list[Finding], *secrets: str) -> None:
    """What holds of all findings, whatever they are about."""
    for finding in findings:
        assert bool(finding.fix) == (finding.level != "ok"), finding
        assert finding.what.isprintable()
        assert not any(secret in f"{finding}" for secret in secrets)


def telegram(api: BotApi, **more: Any) -> TelegramConfig:
    return TelegramConfig.model_validate(
        {"platform": "telegram", "token": api.token, "base_url": api.url} | more
    )


async def test_what_will_surprise_a_telegram_operator_is_told_with_what_to_do() -> None:
    async with BotApi() as api:
        api.world.sees_all = False
        alone = await probe_telegram(telegram(api))
        assert (
            levels(alone.findings)["telegram.privacy"] == "ok"
        )  # who is in no group need not care
        news = api.group("news")
        news.type = "channel"
        listed = await probe_telegram(telegram(api, rooms=[str(news.id)]))
        assert "list groups only" in fixes(listed.findings, "telegram.rooms")


async def test_a_telegram_probe_confirms_no_update_and_changes_no_setting() -> None:
    async with BotApi() as api:
        ann = api.person("Ann")
        for text in ("one", "two"):
            api.private_says(ann, text)
        allowed = api.updates.allowed
        await probe_telegram(telegram(api))
        assert len(api.updates.pending) == 2
        assert api.updates.allowed == allowed


def discord(api: DiscordApi, **more: Any) -> DiscordConfig:
    base = {
        "platform": "discord",
        "token": api.token,
        "api_url": api.api_url,
        "gateway_url": api.gateway_url,
    }
    return DiscordConfig.model_validate(base | more)


def irc(ircd: Ircd, **more: Any) -> IrcConfig:
    return IrcConfig.model_validate(
        {"host": "127.0.0.1", "port": ircd.port, "tls": False, "nick": "reverie"} | more
    )


async def test_an_irc_network_that_lets_us_in_is_left_with_a_goodbye() -> None:
    options = Options(
        caps=f"{CAPS} sasl=PLAIN,EXTERNAL",
        sasl={"bot": "correct horse"},
        isupport=("NETWORK=TestNet", "CHANTYPES=#"),
        modes={"#room": "+nt"},
    )
    async with Ircd(options) as ircd:
        sasl = {"mechanism": "plain", "account": "bot", "password": "correct horse"}
        seen = await probe_irc(irc(ircd, sasl=sasl, rooms=["#room"]))
        told = {one.code: one.what for one in seen}
        assert "(TestNet)" in told["irc.network"]
        assert told["irc.nick"] == "the nick reverie is free"
        assert told["irc.sasl"] == "logged in to the services as bot"
        assert set(levels(seen).values()) == {"ok"}
        sound(seen, "correct horse")
        await ircd.received("QUIT")
        assert not any(line.startswith(("JOIN", "PRIVMSG")) for line in ircd.lines)


SASL = {"mechanism": "plain", "account": "bot", "password": "wrong horse"}


@pytest.mark.parametrize(
    ("options", "more", "code", "level"),
    [
        (Options(nick_length=3), {}, "irc.nick", "bad"),
        (Options(), {"sasl": SASL}, "irc.sasl", "bad"),
    ],
)
async def test_why_an_irc_network_does_not_take_us(
    options: Options, more: Any, code: str, level: str
) -> None:
    async with Ircd(options) as ircd:
        seen = await probe_irc(irc(ircd, **more))
        assert levels(seen).get(code) == level, seen
        sound(seen, "wrong horse")


@pytest.mark.parametrize(
    ("pem", "tls", "code"),
    [
        (LOCALHOST, {"ca_file": "/nowhere.pem"}, "irc.tls"),
        (LOCALHOST, {"fingerprints": ["0" * 64]}, "net.tls"),
    ],
)
async def test_why_tls_with_an_irc_server_fails(pem: Any, tls: Any, code: str) -> None:
    async with Ircd(
        Options(greeting=b":irc.test NOTICE * :hello\r\n"), server_context(pem)
    ) as ircd:
        seen = await probe_irc(irc(ircd, tls=tls), where="irc.test")
        assert levels(seen) == {code: "bad"}
        sound(seen)


def test_errors_of_connections_have_names() -> None:
    expired = ssl.SSLCertVerificationError(1, "certificate verify failed")
    expired.verify_code, expired.verify_message = 10, "certificate has expired"
    assert explain_connection_error(expired, "h", 1).code == "net.tls.expired"
    assert explain_connection_error(TimeoutError(), "h", 1).code == "net.timeout"
    assert explain_connection_error(OSError(113, "No route to host"), "h", 1).code == "net.route"
    assert explain_connection_error(ConnectionResetError(), "h", 1).code == "net.lost"


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "", "."])
async def test_a_name_that_nobody_has_is_told_as_that(host: str) -> None:
    found = [await probe_net(host, 443)]
    assert levels(found) == {"net.name": "bad"}
    sound(found)


async def test_what_stands_in_an_address_beside_the_host_is_never_told() -> None:
    port, hidden = free_port(), "hunter2-of-a-proxy"
    url = f"http://ann:{hidden}@127.0.0.1:{port}/{hidden}"
    looks = [
        (await probe_telegram(telegram(BotApi(), base_url=url))).findings,
        (
            await probe_discord(
                DiscordConfig.model_validate({"platform": "discord", "token": "t", "api_url": url})
            )
        ).findings,
        [await probe_url(url)],
    ]
    for findings in looks:
        assert any(finding.level == "bad" for finding in findings)
        sound(findings, hidden)


async def test_who_wrote_to_a_bot_is_told_and_stays_unanswered() -> None:
    async with BotApi() as api:
        ann, ben = api.person("Ann", username="ann"), api.person("Ben \x1b[31m")
        lounge = api.group("lounge")
        for who in (ann, ben, ann):
            api.private_says(who, "hello")
        api.mentions(lounge, ben, "and here")
        before = list(api.updates.pending)
        waiting = await find_contacts(telegram(api))
        assert waiting.people[0] == (str(ann.id), "Ann (@ann)")
        assert [number for number, _ in waiting.people] == [str(ann.id), str(ben.id)]
        assert all(name.isprintable() for _, name in waiting.people)
        assert waiting.groups == ((str(lounge.id), "lounge"),)
        assert list(api.updates.pending) == before
        api.updates.put_raw({"message": "odd"})
        assert len((await find_contacts(telegram(api))).people) == 2
        api.faults.fail("getUpdates", 409)
        assert levels((await find_contacts(telegram(api))).findings) == {
            "telegram.poller": "warning"
        }


async def test_who_has_an_id_is_told_where_the_platform_says_so() -> None:
    async with BotApi() as api, DiscordApi() as dc:
        ann = api.person("Ann")
        assert await find_telegram_name(telegram(api), str(ann.id)) == ""  # they have not met
        api.private_says(ann, "hello")
        assert await find_telegram_name(telegram(api), str(ann.id)) == "Ann"
        for unknown in ("4711", str(api.group("lounge").id), "x"):
            assert await find_telegram_name(telegram(api), unknown) == ""
        assert await find_discord_name(discord(dc), dc.ann) == "ann"
        assert await find_discord_name(discord(dc), "4711") == ""
        assert await find_discord_name(discord(dc, token="wrong"), dc.ann) == ""


async def test_a_proxy_of_the_environment_is_named_as_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", f"http://ann:hunter2-of-a-proxy@127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    found = [await probe_url("https://api.telegram.org")]
    assert levels(found) == {"net.proxy": "bad"}
    sound(found, "hunter2-of-a-proxy")
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    assert levels([await probe_url(f"https://127.0.0.1:{free_port()}")]) == {"net.refused": "bad"}


@pytest.mark.parametrize("url", ["", "nothing", "http://", "http://[", "https://host:99999"])
async def test_what_is_no_address_is_told_as_that(url: str) -> None:
    assert levels([await probe_url(url)]) == {"net.name": "bad"}


# What real IRC servers say of rooms to somebody who is not in them


@pytest.mark.parametrize("server", [inspircd, ngircd])
async def test_what_real_servers_say_of_rooms(
    server: Callable[[Path], AbstractContextManager[int]], tmp_path: Path
) -> None:
    with served(server, tmp_path) as port:
        alice = await Raw.joined(port)
        alice.say("JOIN #closed", "MODE #closed +i")
        await alice.until(r":alice!\S+ MODE #closed :?\+i")
        rooms = ("#room", "#closed", "#nowhere")
        config = IrcConfig(host="127.0.0.1", port=port, tls=False, nick="reverie", rooms=rooms)
        told = {
            one.what.split("#")[1].split()[0]: one
            for one in await probe_irc(config)
            if "#" in one.what
        }
        assert {room: one.level for room, one in told.items()} == {
            "room": "ok",
            "closed": "warning",
            "nowhere,": "warning",
        }
        assert "+I" in told["closed"].fix
        await alice.close()
