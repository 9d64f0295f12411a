"""Logging in: CAP, SASL (never a word to anybody before it has succeeded), passwords, and nicks
that are taken."""

import base64
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from channels.base import Denied
from channels.irc.config import IrcConfig, SaslConfig
from channels.irc.registration import SaslError, SaslExchange, encode_chunks
from gateway.core.clock import ManualClock
from reverie.testing.servers.ircd import CAPS, CERTIFIED, LOCALHOST, Ircd, Options, server_context
from tests.channels.irc.channel_kit import part, running, settled

SECTION = {
    "platform": "irc",
    "host": "irc.libera.chat",
    "nick": "reverie",
    "contact": "alice@example.org",
}


def test_the_documented_section_is_read() -> None:
    config = IrcConfig.model_validate(
        SECTION
        | {
            "port": 6697,
            "tls": {"ca_file": "x.pem", "verify": True},
            "sasl": {"mechanism": "plain", "account": "reverie", "password": "hush"},
            "on_connect": ["PRIVMSG Q :AUTH reverie hush"],
            "rooms": ["#reverie"],
            "flood": {"burst": 4, "per_s": 1},
        }
    )
    assert config.rooms == ("#reverie",)
    assert "hush" not in repr(config)


LOGIN = {"mechanism": "plain", "account": "a", "password": "p"}


@pytest.mark.parametrize(
    "fine",
    [
        {"tls": True, "sasl": LOGIN, "password": "x"},
        {"tls": {"verify": False}, "sasl": LOGIN},
        {"tls": False, "sasl": LOGIN | {"mechanism": "scram-sha-256"}},
        {"tls": False, "sasl": LOGIN, "host": "127.0.0.2"},
        {"tls": False, "password": "x", "host": "::1"},
        {"tls": False},
    ],
)
def test_passwords_go_over_tls_or_to_this_machine(fine: dict[str, Any]) -> None:
    assert IrcConfig.model_validate(SECTION | fine).host


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_loopback_needs_no_contact(host: str) -> None:
    assert IrcConfig.model_validate({"host": host, "nick": "r"}).contact is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"contact": None}, "contact is missing: add who runs"),
        ({"nick": "1x"}, "not a nick"),
        ({"nick": "a b"}, "not a nick"),
        ({"rooms": ["reverie"]}, "in quotes"),
        ({"rooms": ["#a,#b"]}, "in quotes"),
        ({"rooms": ["#a\r\nQUIT"]}, "in quotes"),
        ({"sasl": {"mechanism": "plain"}}, "needs account and password"),
        ({"sasl": {"mechanism": "magic"}}, "mechanism"),
        ({"on_connect": ["MODE {nick} +x\r\nQUIT"]}, "line 1 cannot be sent"),
        ({"on_connect": ["/mode x"]}, "line 1 cannot be sent"),
        ({"on_connect": ["MODE " + "x" * 400]}, "line 1 cannot be sent"),
        ({"on_connect": ["AWAY", "join #elsewhere"]}, "line 2 is JOIN"),
        ({"on_connect": ["AWAY"] * 21}, "20 lines"),
        (
            {"tls": False, "sasl": LOGIN},
            r"sasl.password would be sent .* `tls: true` .* scram-sha-256",
        ),
        (
            {"tls": False, "password": "x"},
            r"^1 .*\n.*password would be sent to irc.libera.chat over plain text",
        ),
        ({"tls": False, "sasl": LOGIN, "host": "127.0.0.1.example.org"}, "over plain text"),
        ({"tls": False, "sasl": LOGIN, "host": "10.0.0.1"}, "over plain text"),
        (
            {"tls": False, "host": "10.0.0.1", "on_connect": ["PRIVMSG NickServ :identify me pw"]},
            "on_connect would be sent to 10.0.0.1 over plain text",
        ),
        ({"port": 0}, "port"),
        ({"host": ""}, "not the name of a host"),
        ({"host": "irc..example"}, "not the name of a host"),
        ({"host": "x" * 64 + ".example"}, "not the name of a host"),
        ({"host": "irc.example\0"}, "not the name of a host"),
        ({"host": "irc.example "}, "not the name of a host"),
        ({"flood": {"burst": 0}}, "burst"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_mistakes_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        IrcConfig.model_validate(SECTION | wrong)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(cap_lines=4),
        Options(caps=None),
        Options(caps=""),
        Options(caps="multi-prefix"),
        Options(caps=CAPS + " sts=duration=300 unknown/thing=1"),
        Options(nak=frozenset({"batch", "chghost"})),
        Options(isupport=()),
        Options(password="letmein"),
        Options(pong_token=False),
    ],
)
async def test_comes_up_joins_and_talks(options: Options) -> None:
    changes: dict[str, Any] = {"password": "letmein"} if options.password else {}
    async with Ircd(options) as ircd, running(ircd, **changes) as run:
        bot = await ircd.joined("reverie", "#room")
        await run.up()
        await run.channel.send(part("hello"))
        assert "PRIVMSG #room :hello" in bot.lines
        assert not any("sts" in line for line in bot.lines)
        assert bot.caps == (
            set() if options.caps is None else set(CAPS.split()) & _offered(options)
        )


def _offered(options: Options) -> set[str]:
    return {name.partition("=")[0] for name in (options.caps or "").split()} - options.nak


async def test_a_taken_nick_is_replaced_and_regained() -> None:
    clock = ManualClock()
    options = Options(
        caps="multi-prefix", taken={"reverie", "reverie_"}
    )  # its clock stands still while ours goes on
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        bot = await ircd.joined("reverie_2", "#room")
        await run.up()
        await ircd.say("#room", "reverie_2: hi")
        assert (await run.message()).kind == "mention"
        ircd.options.taken.clear()
        clock.advance(61)
        await ircd.until(lambda: bot.nick == "reverie")
        await ircd.say("#room", "reverie: hi")
        assert (await run.message(2)).kind == "mention"


# The example of RFC 7677 section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _exchange(mechanism: Any, account: str = "", password: str = "") -> SaslExchange:
    secret = SecretStr(password) if password else None
    return SaslExchange(SaslConfig(mechanism=mechanism, account=account, password=secret), NONCE)


def test_scram_is_that_of_the_rfc() -> None:
    scram = _exchange("scram-sha-256", "user", "pencil")
    assert scram.respond(b"") == b"n,,n=user,r=" + NONCE.encode()
    assert scram.respond(SERVER_FIRST) == CLIENT_FINAL
    assert not scram.is_server_proven
    assert scram.respond(SERVER_FINAL) == b""
    assert scram.is_server_proven


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=W22Z,i=4096",
        SERVER_FIRST.replace(b"4096", b"99999999"),
        b"\xff",
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22Z,i=1",
    ],
)
def test_scram_refuses_a_false_server(challenge: bytes) -> None:
    scram = _exchange("scram-sha-256", "user", "pencil")
    scram.respond(b"")
    with pytest.raises(SaslError):
        scram.respond(challenge)


@pytest.mark.parametrize(
    ("size", "lengths"), [(1, [4]), (299, [400, 1]), (300, [400, 1]), (301, [400, 4])]
)
def test_payloads_are_cut_at_400(size: int, lengths: list[int]) -> None:
    cut = encode_chunks(b"x" * size)
    assert [len(chunk) for chunk in cut] == lengths
    assert base64.b64decode("".join(chunk for chunk in cut if chunk != "+")) == b"x" * size


MECHANISMS = "PLAIN,EXTERNAL,SCRAM-SHA-256"
OFFER = f"{CAPS} sasl={MECHANISMS}"
PLAIN = {"mechanism": "plain", "account": "rev,e=rie", "password": "hush"}
SCRAM = PLAIN | {"mechanism": "scram-sha-256"}
ACCOUNTS = {"rev,e=rie": "hush"}
CLIENT_CERTIFICATE = {"ca_file": str(LOCALHOST), "cert_file": str(LOCALHOST)}
TALK = ("JOIN", "PRIVMSG", "NOTICE", "MODE")


def _talked_before_login(lines: list[str]) -> bool:
    """Whether we let the registration end, or spoke, before the last answer of the login."""
    last = max(index for index, line in enumerate(lines) if line.startswith("AUTHENTICATE"))
    return any(line.startswith((*TALK, "CAP END")) for line in lines[:last])


def _wrong(sasl: dict[str, str]) -> dict[str, str]:
    return sasl | {"password": "guess"}


@pytest.mark.parametrize("sasl", [PLAIN, SCRAM], ids=["plain", "scram"])
@pytest.mark.parametrize("offer", [OFFER, CAPS + " sasl"], ids=["3.2", "3.1"])
async def test_logs_in_with_a_password_before_anything_else(
    sasl: dict[str, str], offer: str
) -> None:
    async with Ircd(Options(caps=offer, sasl=ACCOUNTS)) as ircd, running(ircd, sasl=sasl) as run:
        await run.up()
        await run.channel.send(part("hello"))
        assert ircd.clients[0].account == "rev,e=rie"
        assert not _talked_before_login(ircd.clients[0].lines)


@pytest.mark.parametrize("account", ["", CERTIFIED])
async def test_logs_in_with_a_certificate(account: str) -> None:
    sasl = {"mechanism": "external", "account": account}
    options = Options(caps=OFFER)
    async with (
        Ircd(options, tls=server_context()) as ircd,
        running(ircd, sasl=sasl, tls=CLIENT_CERTIFICATE) as run,
    ):
        await run.up()
        assert ircd.clients[0].account == CERTIFIED
        assert not _talked_before_login(ircd.clients[0].lines)


async def test_a_certificate_that_is_not_shown_is_refused() -> None:
    options = Options(caps=OFFER)
    tls = {"ca_file": str(LOCALHOST)}
    async with (
        Ircd(options, tls=server_context()) as ircd,
        running(ircd, sasl={"mechanism": "external"}, tls=tls) as run,
    ):
        with pytest.raises(Denied, match="SASL"):
            await run.task
        assert not any(line.startswith(TALK) for line in ircd.lines)


@pytest.mark.parametrize(
    ("options", "sasl", "says"),
    [
        (Options(caps=OFFER, sasl=ACCOUNTS), _wrong(PLAIN), "904"),
        (Options(caps=OFFER, sasl=ACCOUNTS), _wrong(SCRAM), "904"),
        (Options(caps=OFFER, sasl={}), SCRAM, "904"),
        (
            Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="false"),
            SCRAM,
            "does not know the password",
        ),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="none"), SCRAM, "skipped"),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="error"), SCRAM, "skipped"),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="error"), _wrong(SCRAM), "904"),
        *(
            (Options(caps=OFFER, sasl_fails=code), PLAIN, code)
            for code in ("902", "904", "905", "906", "907", "908")
        ),
        (Options(caps=CAPS, sasl=ACCOUNTS), PLAIN, "does not offer SASL PLAIN"),
        (Options(caps=CAPS + " sasl=EXTERNAL"), SCRAM, "does not offer SASL SCRAM-SHA-256"),
        (Options(caps=OFFER, nak=frozenset({"sasl"})), PLAIN, "refused the sasl"),
        (Options(caps=None), PLAIN, "without the SASL login"),
    ],
)
async def test_a_first_login_that_fails_ends_the_channel_without_a_word(
    options: Options, sasl: dict[str, str], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with Ircd(options) as ircd, running(ircd, sasl=sasl) as run:
        with pytest.raises(Denied, match=says):
            await run.task
        assert run.links == [False]
        await ircd.until(lambda: all(client.closed for client in ircd.clients))
        bot = ircd.clients[0]
        assert not any(line.startswith((*TALK, "CAP END")) for line in bot.lines)
        assert ("AUTHENTICATE *" in bot.lines) == (says == "does not know the password")
        assert len(ircd.clients) == 1
        secrets = [
            line.split(" ")[1]
            for line in bot.lines
            if line.startswith("AUTHENTICATE ") and len(line) > 30
        ]
        assert not any(secret in caplog.text for secret in ["hush", *secrets])


async def test_one_refused_capability_costs_no_other() -> None:
    options = Options(nak=frozenset({"batch", "chghost"}))
    clock = ManualClock()
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        assert ircd.clients[0].caps == set(CAPS.split()) - options.nak
        asked = [line for line in ircd.lines if line.startswith("CAP REQ")]
        assert len(asked) == 1 + len(CAPS.split()), "once together, then each alone"
        assert clock.monotonic() == ManualClock().monotonic(), "without waiting for anything"


async def test_a_nick_that_the_services_hold_is_regained_when_they_let_go() -> None:
    clock, options = ManualClock(), Options(reserved={"reverie"})
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        assert run.channel.nicks(part("").to) == (bot.nick, "reverie") == ("reverie_", "reverie")
        options.reserved.clear()
        for second in range(8):
            clock.advance(10)
            await settled(bot, f"t{second}")
        await ircd.until(lambda: bot.nick == "reverie")


async def test_lines_of_the_operator_are_sent_before_rooms_which_are_tried_again_once_logged_in() -> (
    None
):
    lines = ["MODE {nick} +x", "PRIVMSG NickServ :IDENTIFY rev hush"]
    options = Options(refused={"#room": "477"})
    async with Ircd(options) as ircd, running(ircd, on_connect=lines) as run:
        await run.up()
        sent = [line for line in ircd.lines if line.startswith(("MODE", "PRIVMSG", "JOIN"))]
        assert sent == ["MODE reverie +x", lines[1], "JOIN #room"]
        options.refused = {}
        ircd.clients[0].numeric("900", "*", "rev", ":You are now logged in")
        await ircd.joined("reverie", "#room")
