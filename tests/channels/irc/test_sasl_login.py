"""SASL on the wire: never a word to anybody before it has succeeded, never a word after it has failed."""

from typing import Any

import pytest

from channels.base import Denied
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from tests.channels.irc.channel_kit import Running, part, running
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, CERTIFIED, Options
from tests.servers.ircd_tls import LOCALHOST, server_context

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
@story
async def test_logs_in_with_a_password_before_anything_else(sasl: dict[str, str], offer: str) -> None:
    async with Ircd(Options(caps=offer, sasl=ACCOUNTS)) as ircd, running(ircd, sasl=sasl) as run:
        await run.up()
        await run.channel.send(part("hello"))
        assert ircd.clients[0].account == "rev,e=rie"
        assert not _talked_before_login(ircd.clients[0].lines)


@pytest.mark.parametrize("account", ["", CERTIFIED])
@story
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


@story
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


# The account (9) and two NULs make the payload 11 bytes longer than the password; 298 to 300 bytes are 400 in base64.
@pytest.mark.parametrize(
    ("length", "lengths"),
    [(277, [396]), (278, [400, 1]), (280, [400, 1]), (281, [400, 4]), (577, [400, 396]), (580, [400, 400, 1])],
)
@story
async def test_long_passwords_go_in_chunks_of_400(length: int, lengths: list[int]) -> None:
    password = "p" * length
    options = Options(caps=OFFER, sasl={"rev,e=rie": password})
    async with Ircd(options) as ircd, running(ircd, sasl=PLAIN | {"password": password}) as run:
        await run.up()
        said = [line.split()[1] for line in ircd.lines if line.startswith("AUTHENTICATE")][1:]
        assert [len(chunk) for chunk in said] == lengths
        assert (said[-1] == "+") == (lengths[-1] == 1)


@pytest.mark.parametrize(
    ("options", "sasl", "says"),
    [
        (Options(caps=OFFER, sasl=ACCOUNTS), _wrong(PLAIN), "904"),
        (Options(caps=OFFER, sasl=ACCOUNTS), _wrong(SCRAM), "904"),
        (Options(caps=OFFER, sasl={}), SCRAM, "904"),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="false"), SCRAM, "does not know the password"),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="none"), SCRAM, "skipped"),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="error"), SCRAM, "skipped"),
        (Options(caps=OFFER, sasl=ACCOUNTS, scram_proof="error"), _wrong(SCRAM), "904"),
        *((Options(caps=OFFER, sasl_fails=code), PLAIN, code) for code in ("902", "904", "905", "906", "907", "908")),
        (Options(caps=CAPS, sasl=ACCOUNTS), PLAIN, "does not offer SASL PLAIN"),
        (Options(caps=CAPS + " sasl=EXTERNAL"), SCRAM, "does not offer SASL SCRAM-SHA-256"),
        (Options(caps=OFFER, nak=frozenset({"sasl"})), PLAIN, "refused the sasl"),
        (Options(caps=None), PLAIN, "without the SASL login"),
    ],
)
@story
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
        assert len(ircd.clients) == 1
        assert "hush" not in caplog.text


async def _reconnected(run: Running, ircd: Ircd, clock: ManualClock) -> None:
    attempts = len(ircd.clients)
    await run.until_advancing(clock, lambda: len(ircd.clients) > attempts)
    await ircd.until(lambda: ircd.clients[-1].closed)
    assert not run.task.done()


@pytest.mark.parametrize(
    "changes",
    [
        {"caps": CAPS},
        {"caps": CAPS + " sasl=EXTERNAL"},
        {"caps": None},
        {"nak": frozenset({"sasl"})},
        *({"sasl_fails": code} for code in ("906", "907", "908")),
    ],
    ids=str,
)
@story
async def test_services_that_are_away_at_a_reconnect_are_waited_for(changes: dict[str, Any]) -> None:
    clock = ManualClock()
    options = Options(caps=OFFER, sasl=ACCOUNTS)
    async with Ircd(options) as ircd, running(ircd, clock, sasl=PLAIN) as run:
        await run.up()
        usual = {name: getattr(options, name) for name in changes}
        for name, value in changes.items():
            setattr(options, name, value)
        ircd.clients[0].drop()
        for _ in range(3):
            await _reconnected(run, ircd, clock)
            assert not any(line.startswith(TALK) for line in ircd.clients[-1].lines)
        assert run.links == [True, False]
        for name, value in usual.items():
            setattr(options, name, value)
        await run.until_advancing(clock, lambda: run.links == [True, False, True])
        assert ircd.clients[-1].account == "rev,e=rie"


@story
async def test_an_impostor_at_a_reconnect_is_not_waited_for() -> None:
    clock = ManualClock()
    options = Options(caps=OFFER, sasl=ACCOUNTS)
    async with Ircd(options) as ircd, running(ircd, clock, sasl=SCRAM) as run:
        await run.up()
        options.scram_proof = "false"
        ircd.clients[0].drop()
        await run.until(lambda: run.links == [True, False])
        clock.advance(1.1)
        with pytest.raises(Denied, match="does not know the password"):
            await run.task


@story
async def test_another_run_begins_without_the_trust_of_the_last() -> None:
    clock = ManualClock()
    options = Options(caps=OFFER, sasl=ACCOUNTS)
    async with Ircd(options) as ircd, running(ircd, clock, sasl=PLAIN) as run:
        await run.up()
        run.task.cancel()
        await ircd.until(lambda: ircd.clients[0].closed)
        options.sasl_fails = "904"
        again = Running(run.channel)
        with pytest.raises(Denied):
            await again.task
        assert [event.up for event in again.seen if isinstance(event, ConnectionChanged)] == [False]
