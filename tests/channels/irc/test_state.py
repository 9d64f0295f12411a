"""What is known of rooms and people, against a server that knows all of it."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from channels.irc.state import Changes, IrcState
from tests.channels.irc.channel_kit import hear
from tests.kits.examples import examples

ROOMS = ("#room", "#Two[")
NICKS = ("reverie", "Ann[", "bob", "Eve", "kai", "ANN", "Bob_", "zoe")
SPLIT = "a.example b.example"
DEEDS = ("join", "part", "kick", "quit", "split", "return", "nick", "login", "logout", "op", "deop")


@dataclass(eq=False)
class Person:
    nick: str
    account: str = "*"
    rooms: dict[str, str] = field(default_factory=dict)
    """Room -> their rank there: `o`, or none."""
    is_online: bool = True
    is_split: bool | None = False
    """Whether they are back from a netsplit and have done nothing since. None: the bot cannot know,
    because they did something where it did not see them."""

    @property
    def mask(self) -> str:
        return f"{self.nick}!u@{id(self)}"


class Network:
    """People who do what they may, and a bot that is told of it as clients of a server are."""

    def __init__(self, casemapping: str) -> None:
        self.people = [Person(nick) for nick in NICKS[:5]]
        self.bot, self.state = self.people[0], IrcState("reverie")
        self.known = set[Person]()
        """People of whom the bot was told the account, and whom it has seen ever since."""
        self.tell(f":irc.test 005 reverie CASEMAPPING={casemapping} PREFIX=(ov)@+ :are supported")

    def tell(self, raw: str) -> Changes:
        return hear(self.state, raw)

    def fold(self, name: str) -> str:
        return self.state.isupport.fold(name)

    def sees(self, person: Person) -> bool:
        return person is self.bot or not self.bot.rooms.keys().isdisjoint(person.rooms)

    def end_split(self, who: Person, *, is_seen: bool, again: bool = False) -> None:
        """Keep that they have done something. `again`: they were lost in a netsplit."""
        if who.is_split is not None:
            who.is_split = again if is_seen else None if who.is_split else False

    def act(self, who: Person, deed: str, room: str, whom: Person) -> None:
        """Do what was drawn, if it is possible."""
        told, shared = None, self.bot.rooms.keys() & who.rooms
        is_seen = self.sees(who)
        match deed:
            case "join" if who.is_online and room not in who.rooms:
                who.rooms[room] = ""
                if room in self.bot.rooms:
                    told = self.tell(f":{who.mask} JOIN {room} {who.account} :real")
                    assert who.is_split in (told.is_netsplit, None)
                    self.known.add(who)
                    if who is self.bot:
                        here = [one for one in self.people if room in one.rooms]
                        names = " ".join("@"[: len(one.rooms[room])] + one.nick for one in here)
                        self.tell(f":irc.test 353 reverie = {room} :{names}")
                        assert told.entered == self.fold(room)
            case "part" | "kick" if room in who.rooms:
                line = f"KICK {room} {who.nick}" if deed == "kick" else f"PART {room}"
                if room in self.bot.rooms:
                    told = self.tell(f":{whom.mask if deed == 'kick' else who.mask} {line}")
                    assert told.left == (self.fold(room) if who is self.bot else "")
                    told = told if deed == "part" else None
                del who.rooms[room]
                self.end_split(who, is_seen=room in self.bot.rooms or room in shared)
            case "quit" | "split" if who is not self.bot and who.is_online:
                if is_seen:
                    told = self.tell(f":{who.mask} QUIT :{SPLIT if deed == 'split' else 'bye'}")
                    assert told.is_netsplit == (deed == "split")
                    self.end_split(who, is_seen=True, again=deed == "split")
                else:
                    self.end_split(who, is_seen=False)
                who.is_online, who.rooms = False, {}
            case "return":
                who.is_online = True
            case "nick" if who.is_online:
                used = {self.fold(one.nick) for one in self.people if one is not who}
                new = next(nick for nick in NICKS if self.fold(nick) not in used | {who.nick})
                if is_seen:
                    told = self.tell(f":{who.mask} NICK {new}")
                who.nick = new
                self.end_split(who, is_seen=is_seen)
            case "login" | "logout" if who is not self.bot and who.is_online:
                who.account = f"account{self.people.index(who)}" if deed == "login" else "*"
                if is_seen:
                    told = self.tell(f":{who.mask} ACCOUNT {who.account}")
                    self.known.add(who)
            case "op" | "deop" if room in who.rooms:
                who.rooms[room] = "o" if deed == "op" else ""
                if room in self.bot.rooms:
                    sign = "+" if deed == "op" else "-"
                    self.tell(f":irc.test MODE {room} {sign}o {who.nick}")
        if told is not None and deed != "join":
            assert told.rooms.keys() == {self.fold(one) for one in shared}
        self.known = {one for one in self.known if self.sees(one)}


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["ascii", "rfc1459"]),
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(DEEDS),
            st.sampled_from(ROOMS),
            st.integers(0, 4),
        ),
        min_size=60,  # so that each example has people who have met
        max_size=120,
    ),
)
def test_rooms_people_ranks_and_accounts_are_those_of_the_server_after_any_order_of_events(
    casemapping: str, deeds: list[tuple[int, str, str, int]]
) -> None:
    network = Network(casemapping)
    people, state, fold = network.people, network.state, network.fold
    for who, deed, room, whom in deeds:
        network.act(people[who], deed, room, people[whom])
        assert state.me == fold(network.bot.nick)
        assert state.rooms == {
            fold(room): {
                fold(one.nick): frozenset(one.rooms[room]) for one in people if room in one.rooms
            }
            for room in network.bot.rooms
        }
        accounts = {nick: one.account for nick, one in state.people.items() if one.account}
        assert accounts == {
            fold(one.nick): one.account for one in network.known if one.account != "*"
        }
