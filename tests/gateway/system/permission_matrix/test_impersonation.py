"""Nobody passes for somebody else: through each platform's reader, the intake and the desk, beside
an owner who may."""

from pathlib import Path

import pytest

from gateway.core.facts import RoleAssigned
from reverie.testing.channels import story
from tests.gateway.system.permission_matrix.impersonations import (
    GENUINE,
    SPOOFS,
    attempted,
    came_through,
)
from tests.gateway.system.permission_matrix.matrix_kit import BETWEEN_S, house
from tests.gateway.system.permission_matrix.people import PEOPLE
from tests.gateway.system.permission_matrix.platform_payloads import FOREIGN, Irc


@pytest.mark.parametrize("dm", ["pairing", "open"])
@story
async def test_no_spoof_comes_through(tmp_path: Path, dm: str) -> None:
    async with house(tmp_path, dm) as home:  # type: ignore[arg-type]
        tried = {name: came_through(await attempted(home, spoof)) for name, spoof in SPOOFS.items()}
    through = {name: what for name, what in tried.items() if what}
    print(f"{len(tried)} spoofs, {len(through)} came through")
    assert len(tried) > 80
    assert through == {}


@pytest.mark.parametrize("name", GENUINE)
@story
async def test_the_owner_does_it_once_however_often_it_is_replayed(
    tmp_path: Path, name: str
) -> None:
    async with house(tmp_path) as home:
        home.clock.advance(BETWEEN_S)
        events = GENUINE[name](home)
        seen = await home.take(*events)
        assert came_through(seen) == "changed a role"
        given = next(fact for fact in seen.facts if isinstance(fact, RoleAssigned))
        assert given.person.endswith(f":{FOREIGN}")
        assert (await home.take(*events)).facts == []
        await home.write(RoleAssigned(person=given.person, role="", by="operator", why="role"))
        home.clock.advance(BETWEEN_S)
        assert (await home.take(*events)).facts == [], "what was taken back comes back by a replay"
    async with house(tmp_path) as home:
        assert (await home.take(*events)).facts == []


@story
async def test_an_account_is_the_same_in_any_case(tmp_path: Path) -> None:
    """Also one that is blocked."""
    async with house(tmp_path) as home:
        for name, fate in (("blocked", "refused"), ("owner", "heard")):
            number = [one.name for one in PEOPLE].index(name)
            line = f"@account=P{number} :p{number}!u@h PRIVMSG #listed :reverie: hello"
            assert (await home.take(*Irc(home.clock).heard(line))).outcome.fate == fate
