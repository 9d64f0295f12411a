"""Getting in past servers that answer CAP, NICK and their capabilities in odd ways."""

from typing import Any

import pytest

from channels.irc.registration import WANTED_CAPS, CapNegotiation
from channels.irc.wire import parse_line
from gateway.core.clock import ManualClock
from gateway.core.events import ConnectionChanged
from tests.channels.irc.channel_kit import running, settled
from tests.kits.channels import story
from tests.servers.ircd import Ircd
from tests.servers.ircd_options import CAPS, Options

SASL = {"mechanism": "plain", "account": "rev", "password": "hush"}


def _feed(caps: CapNegotiation, raw: str) -> tuple[str, list[list[str]]]:
    said = parse_line(raw)
    assert said is not None
    return caps.feed(said)


@pytest.mark.parametrize("names", ["all", "refused", "none"])
@story
async def test_one_refused_capability_costs_no_other(names: Any) -> None:
    options = Options(nak=frozenset({"batch", "setname"}), nak_names=names)
    clock = ManualClock()
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        assert ircd.clients[0].caps == set(CAPS.split()) - options.nak
        asked = [line for line in ircd.lines if line.startswith("CAP REQ")]
        assert len(asked) == 1 + len(CAPS.split()), "once together, then each alone"
        assert clock.monotonic() == ManualClock().monotonic(), "without waiting for anything"


@story
async def test_one_refused_capability_costs_no_other_after_the_welcome_either() -> None:
    async with Ircd(Options(caps="multi-prefix")) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        ircd.options.caps, ircd.options.nak, ircd.options.nak_names = CAPS, frozenset({"batch"}), "refused"
        bot.send(":irc.test CAP reverie NEW :server-time batch account-tag")
        await ircd.until(lambda: {"server-time", "account-tag"} <= bot.caps)
        await settled(bot, "on")
        assert "CAP REQ batch" in bot.lines
        assert run.links == [True]


def test_what_was_never_wanted_is_never_on() -> None:
    caps = CapNegotiation()
    _feed(caps, "CAP * LS :server-time sts=duration=1 evil")
    assert caps.request() == [["server-time"]]
    assert _feed(caps, "CAP * ACK :evil sts " + " ".join(f"x{number}" for number in range(999))) == ("", [])
    assert caps.enabled == set()
    assert _feed(caps, "CAP * ACK :server-time") == ("settled", [])
    assert caps.enabled == {"server-time"} <= WANTED_CAPS
    _feed(caps, "CAP * ACK :-server-time")
    assert caps.enabled == set()


@pytest.mark.parametrize(
    ("options", "lacks"),
    [
        (Options(cap_endless=True), set()),
        (Options(cap_endless=True, cap_lines=3), set()),
        (Options(cap_deaf=frozenset({"setname"})), set(CAPS.split())),
        (Options(nak=frozenset({"batch"}), cap_deaf=frozenset({"setname"}), nak_names="refused"), set(CAPS.split())),
    ],
)
@story
async def test_a_server_that_leaves_out_a_part_of_cap_is_not_waited_for(options: Options, lacks: set[str]) -> None:
    clock = ManualClock()
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.until_advancing(clock, lambda: bool(run.links))
        assert run.links == [True]
        assert 9 < clock.monotonic() - ManualClock().monotonic() < 40
        assert ircd.clients[0].caps == set(CAPS.split()) - lacks


@pytest.mark.parametrize("odd", [{"cap_deaf": frozenset({"sasl"})}, {"cap_endless": True, "caps": CAPS}])
@story
async def test_without_the_login_that_is_configured_no_part_of_cap_is_left_out(odd: dict[str, Any]) -> None:
    clock = ManualClock()
    options = Options(**({"caps": CAPS + " sasl=PLAIN", "sasl": {"rev": "hush"}} | odd))
    async with Ircd(options) as ircd, running(ircd, clock, sasl=SASL) as run:
        await run.until_advancing(clock, lambda: bool(run.links))
        (link,) = [event for event in run.seen if isinstance(event, ConnectionChanged)]
        assert link.reason == "the server did not welcome us in time", "slowness is not a refusal: we come back"
        assert not any(line.startswith(("CAP END", "JOIN")) for line in ircd.lines)


@story
async def test_a_list_that_comes_after_the_welcome_is_used() -> None:
    async with Ircd(Options(caps=None)) as ircd, running(ircd) as run:
        await run.up()
        bot = ircd.clients[0]
        ircd.options.caps = "server-time account-tag"
        bot.send(":irc.test CAP reverie LS :server-time account-tag")
        await ircd.until(lambda: bot.caps == {"server-time", "account-tag"})


class _Everything(set[str]):
    def __contains__(self, nick: object) -> bool:
        return True


@story
async def test_a_server_that_takes_no_nick_is_left_and_tried_again_later() -> None:
    clock = ManualClock()
    async with Ircd(Options(taken=_Everything())) as ircd, running(ircd, clock) as run:
        await run.until(lambda: bool(run.links))
        (link,) = [event for event in run.seen if isinstance(event, ConnectionChanged)]
        assert not link.up
        assert "all names like it are taken" in (link.reason or "")
        nicks = [line.split()[1] for line in ircd.lines if line.startswith("NICK")]
        assert len(nicks) == len(set(nicks)) == 21
        ircd.options.taken = set()
        await run.until_advancing(clock, lambda: run.links == [False, True])


@story
async def test_a_longer_nick_that_the_server_does_not_allow_is_not_the_last_try() -> None:
    nick = "a" * 9
    async with Ircd(Options(taken={nick}, nick_length=9)) as ircd, running(ircd, nick=nick) as run:
        await run.up()
        assert ircd.clients[0].nick == "aaaaaa_6"


@story
async def test_a_nick_that_the_services_hold_is_regained_when_they_let_go() -> None:
    clock, options = ManualClock(), Options(reserved={"reverie"})
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        assert bot.nick == "reverie_"
        options.reserved.clear()
        for second in range(8):
            clock.advance(10)
            await settled(bot, f"t{second}")
        await ircd.until(lambda: bot.nick == "reverie")


@pytest.mark.parametrize("code", ["435", "438", "484"])
@story
async def test_a_watched_nick_that_is_free_but_not_yet_for_us_is_asked_for_again(code: str) -> None:
    clock = ManualClock()
    options = Options(taken={"reverie"}, isupport=("MONITOR=100",))
    async with Ircd(options) as ircd, running(ircd, clock) as run:
        await run.up()
        bot = ircd.clients[0]
        bot.send(f":irc.test {code} reverie_ reverie :not now")
        await settled(bot, "told")
        options.taken.clear()
        for second in range(10):
            clock.advance(10)
            await settled(bot, f"t{second}")
        await ircd.until(lambda: bot.nick == "reverie")
