"""Who there is in the matrix, and where: in words, from which the configuration and what is
expected are both made.

Nothing here asks the product. A person has claims; which of them hold in a place says `roles`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

Platform = Literal["irc", "telegram", "discord"]
Role = Literal["owner", "admin", "member", "guest", "blocked"]
Place = Literal[
    "direct",
    "listed",
    "other",
    "approved",
    "closed",
    "thread",
    "closed thread",
    "space",
    "approved space",
]
Where = Literal["all", "any room", "here", "other", "closed", "agent", "echo", "guild"]
By = Literal["config", "run", "link", "rank"]

PLATFORMS: Final[tuple[Platform, ...]] = ("irc", "telegram", "discord")
ORDER: Final[tuple[Role, ...]] = ("guest", "member", "admin", "owner")
PLACES: Final[dict[Platform, tuple[Place, ...]]] = {
    "irc": ("direct", "listed", "other", "approved", "closed"),
    "telegram": ("direct", "listed", "other", "approved", "closed", "thread", "closed thread"),
    "discord": (
        "direct",
        "listed",
        "other",
        "approved",
        "closed",
        "thread",
        "closed thread",
        "space",
        "approved space",
    ),
}
OPEN: Final[frozenset[Place]] = frozenset(
    {"listed", "other", "approved", "thread", "space", "approved space"}
)
"""Listed by the operator or approved by an admin, by itself or with the guild that it is of; and
their threads."""
_HOLDS: Final[dict[Where, frozenset[Place]]] = {
    "here": frozenset({"listed", "thread"}),
    "other": frozenset({"other"}),
    "echo": frozenset({"other"}),
    "closed": frozenset({"closed", "closed thread"}),
    "guild": frozenset({"listed", "other", "approved", "closed", "thread", "closed thread"}),
}
"""`echo` is the agent of `other`; `guild` is that of most rooms on Discord."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody has that role there, because of that."""

    role: Role
    where: Where = "all"
    by: By = "config"

    def holds(self, place: Place) -> bool:
        if self.where == "all":
            return True
        if self.where == "any room":
            return place != "direct"
        return place != "other" if self.where == "agent" else place in _HOLDS[self.where]


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    claims: tuple[Claim, ...] = ()
    verified: bool = True
    """False: IRC without an account, Telegram in the name of a chat, a webhook of Discord."""
    bot: bool = False
    rank: str = ""
    """What their platform says of them in all its rooms."""
    only: tuple[Platform, ...] = PLATFORMS
    relayed: bool = False

    def is_bot(self, platform: Platform) -> bool:
        return self.bot or (platform == "discord" and not self.verified)


def _one(name: str, *claims: Claim, **more: bool | str | tuple[Platform, ...]) -> Person:
    return Person(name=name, claims=claims, **more)  # type: ignore[arg-type]  # as the fields have it


_IRC: Final[tuple[Platform, ...]] = ("irc",)
_DISCORD: Final[tuple[Platform, ...]] = ("discord",)
_NAMED: Final[tuple[Platform, ...]] = ("telegram", "discord")
_RANKED: Final[tuple[Platform, ...]] = ("irc", "discord")

PEOPLE: Final[tuple[Person, ...]] = (
    _one("stranger"),
    *(_one(role, Claim(role)) for role in (*ORDER, "blocked")),
    *(
        _one(f"{role} at run time", Claim(role, by="run"))
        for role in ("owner", "admin", "member", "blocked")
    ),
    *(
        _one(f"{role} by a link", Claim(role, by="link"))
        for role in ("owner", "admin", "member", "blocked")
    ),
    _one("admin here by a link", Claim("admin", "here", "link")),
    _one("owner here", Claim("owner", "here")),
    _one("admin here", Claim("admin", "here")),
    _one("admin here at run time", Claim("admin", "here", "run")),
    _one("member here at run time", Claim("member", "here", "run")),
    _one("blocked here", Claim("blocked", "here")),
    _one("blocked here at run time", Claim("blocked", "here", "run")),
    _one("admin elsewhere", Claim("admin", "other")),
    _one("blocked elsewhere at run time", Claim("blocked", "other", "run")),
    _one("admin of the closed room", Claim("admin", "closed", "run")),
    _one("member of the closed room", Claim("member", "closed")),
    _one("admin of this agent", Claim("admin", "agent")),
    _one("admin of another agent", Claim("admin", "echo")),
    _one("blocked by another agent", Claim("blocked", "echo")),
    _one("owner blocked here", Claim("owner"), Claim("blocked", "here", "run")),
    _one("admin blocked at run time", Claim("admin"), Claim("blocked", by="run")),
    _one("member and admin here", Claim("member"), Claim("admin", "here", "run")),
    _one("linked owner, blocked", Claim("owner", by="link"), Claim("blocked", by="run")),
    _one("admin of the guild", Claim("admin", "guild"), only=_DISCORD),
    _one("blocked in the guild", Claim("blocked", "guild", "run"), only=_DISCORD),
    _one("admin here by rank", Claim("admin", "here", "rank"), rank="admin here"),
    _one("member by rank", Claim("member", "any room", "rank"), rank="member"),
    _one("blocked by rank", Claim("blocked", "any room", "rank"), rank="blocked", only=_RANKED),
    _one(
        "admin of the guild by rank", Claim("admin", "guild", "rank"), rank="guild", only=_DISCORD
    ),
    _one("with a rank that means nothing", rank="nothing", only=_RANKED),
    _one("with a rank that means something elsewhere", rank="foreign", only=_RANKED),
    _one("bot", bot=True),
    _one("bot and member", Claim("member"), bot=True),
    _one("bot and admin", Claim("admin"), bot=True),
    _one("unverified", verified=False),
    _one("unverified owner", Claim("owner"), verified=False, only=_NAMED),
    _one("unverified owner at run time", Claim("owner", by="run"), verified=False),
    _one("unverified admin here at run time", Claim("admin", "here", "run"), verified=False),
    _one("unverified member", Claim("member"), verified=False),
    _one("unverified, blocked", Claim("blocked"), verified=False),
    _one("unverified, linked to an owner", Claim("owner", by="link"), verified=False),
    _one(
        "unverified admin by rank",
        Claim("admin", "here", "rank"),
        verified=False,
        rank="admin here",
        only=_IRC,
    ),
    _one("relayed", verified=False, relayed=True, only=_IRC),
)


def people(platform: Platform) -> Iterator[tuple[int, Person]]:
    """All of that platform, each with a number of their own."""
    for number, person in enumerate(PEOPLE):
        if platform in person.only:
            yield number, person


def roles(person: Person, place: Place) -> tuple[Role, Role]:
    """Who that is there, and who in all places. The strongest claim counts; being blocked counts
    before all.

    Administration needs an id that the platform vouches for: who only claims one is at most a
    member. What another account may do counts only for whom the platform vouches for.
    """
    holding = [
        one for one in person.claims if one.holds(place) and (one.by != "link" or person.verified)
    ]
    if any(one.role == "blocked" for one in holding):
        return "blocked", "blocked"
    strongest: Role = "member" if not person.verified else "owner"

    def best(claims: list[Claim]) -> Role:
        found = [min(one.role, strongest, key=ORDER.index) for one in claims]
        return max(found, key=ORDER.index, default="guest")

    return best(holding), best([one for one in holding if one.where == "all"])
