"""Channels that come, go and change, on servers of their platforms: each for itself, and no other notices."""

from pathlib import Path

import pytest

from tests.gateway.system.reload.reload_kit import DISCORD, EXTRA, IRC, TELEGRAM, Town, editioned, town
from tests.kits.channels import story
from tests.kits.platform_users import so


def ways(it: Town) -> dict[str, int]:
    """How often each platform was connected to."""
    return {
        TELEGRAM: len(it.telegram.asked("getMe")),
        DISCORD: len(it.discord.identifies),
        IRC: len(it.ircd.clients),
    }


async def take(it: Town, **channels: object) -> None:
    """Have these channels from now on, by platform; `None`: not."""
    new = editioned(it.base, it.edition)
    for platform, config in channels.items():
        name = next((one for one in (TELEGRAM, DISCORD, IRC, EXTRA) if one.replace(".", "_") == platform), platform)
        if config is None:
            del new["channels"][name]
        else:
            new["channels"][name] = config
    there = [one for one in it.people if one.partition(":")[0] in new["channels"]]
    new["access"]["roles"] = dict.fromkeys(new["access"]["roles"], there)
    it.write(new)
    came = await it.asked("reload")
    assert (came["problems"], came["later"]) == ([], []), came


async def logged(it: Town, what: str, times: int = 1) -> None:
    await so(lambda: it.log().count(what) >= times, what)


async def everybody(it: Town) -> None:
    """Each is answered once."""
    for seat in it.seats:
        line = f"{seat.name}-{len(seat.said) + 1}."
        seat.said.append(line)
        seat.say(f"line {line}")
    await so(lambda: all(set(seat.answers().values()) == {1} for seat in it.seats), "all to be answered")


@story
async def test_a_channel_that_changes_is_made_anew_and_no_other_is_touched(tmp_path: Path) -> None:
    async with town(tmp_path, 1) as it:
        await everybody(it)
        for name in (TELEGRAM, DISCORD, IRC):
            before = ways(it)
            config = it.base["channels"][name]
            more = {"page_lines": 13} if name == IRC else {"request_timeout": 6}
            await take(it, **{name: config | more})
            await logged(it, f"{name} is up", 2)
            assert [one for one, times in ways(it).items() if times != before[one]] == [name]
            await take(it)
            await logged(it, f"{name} is up", 3)
            await everybody(it)
            assert [one for one, times in ways(it).items() if times != before[one]] == [name]


@story
async def test_other_rooms_on_irc_need_no_other_connection(tmp_path: Path) -> None:
    async with town(tmp_path, 1) as it:
        before, config = ways(it), it.base["channels"][IRC]
        await take(it, **{IRC: config | {"rooms": [*config["rooms"], "#attic"]}})
        await it.ircd.joined("reverie", "#attic")
        await take(it, **{IRC: config | {"rooms": [*config["rooms"], {"name": "#attic", "key": "ladder"}]}})
        await take(it, **{IRC: config | {"rooms": [*config["rooms"], {"name": "#loft", "key": "ladder"}, "#attic"]}})
        await it.ircd.received("JOIN #loft ladder")
        assert "ladder" not in it.log()
        await everybody(it)
        await take(it)
        await it.ircd.received("PART #attic")
        await everybody(it)
        assert ways(it) == before
        assert it.log().count(f"{IRC} is up") == 1


@pytest.mark.system
@story
async def test_one_goes_and_another_comes_and_no_other_is_touched(tmp_path: Path) -> None:
    async with town(tmp_path, 1) as it:
        await everybody(it)
        before, goodbyes = ways(it), len([one for one in it.ircd.lines if one.startswith("QUIT")])
        extra = it.base["channels"][IRC] | {"nick": "second", "rooms": ["#second"]}
        await take(it, **{DISCORD: None, EXTRA: extra})
        await logged(it, f"{EXTRA} is up")
        await logged(it, f"{DISCORD} is down: it is no longer configured")
        await so(lambda: not it.discord.live, "Discord to be left")
        assert {client.nick for client in it.ircd.here()} == {"olga", "reverie", "second"}
        left = it.seats[2]
        left.say("line dc-alone-2.")
        left.said.append("dc-alone-2.")
        await take(it)
        await so(lambda: {client.nick for client in it.ircd.here()} == {"olga", "reverie"}, "the second to leave")
        assert len([one for one in it.ircd.lines if one.startswith("QUIT")]) == goodbyes + 1
        await so(lambda: left.answers()["dc-alone-2."] == 1, "what was said meanwhile to be answered")
        await everybody(it)
        now = ways(it)
        assert (now[TELEGRAM], now[IRC]) == (before[TELEGRAM], before[IRC] + 1)


@pytest.mark.system
@story
async def test_a_token_that_is_new_and_refused_stands_in_no_log_and_the_others_go_on(tmp_path: Path) -> None:
    async with town(tmp_path, 1) as it:
        token = "987654321:AAH-not-the-right-one-at-all-0123456789"
        await take(it, **{TELEGRAM: it.base["channels"][TELEGRAM] | {"token": token}})
        await logged(it, f"{TELEGRAM} is refused: ")
        assert token not in it.log()
        await take(it)
        await logged(it, f"{TELEGRAM} is up", 2)
        await everybody(it)
