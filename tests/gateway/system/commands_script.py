"""Every command of the table, each in a line of a play that makes sense of it."""

from collections.abc import Sequence
from typing import Final

from tests.gateway.system.commands_play import AskIn, Line, Say, Slow, Use
from tests.kits.platform_users import IRC

_ANSWER: Final = r"answer \d+: so much for that"
_CODE: Final = r"[A-Z0-9]{4}-[A-Z0-9]{4}"

ME_AND_YOU: Final[Sequence[Line]] = (
    Use(
        command="help",
        says="Me and you.*/help.*How I run.*shows how to use one command",
        on={IRC: "Commands: !help .*!why.*shows how to use one command"},
    ),
    Use(
        command="help",
        given={"command": "dmn", "sub": "sleep"},
        says=r"dmn sleep \[until\]: Rest until",
    ),
    Use(command="about", says=r"I am a bot, not a person.*\(fake-main\)"),
    Use(
        command="whoami",
        says=r"You are @channel@:\S+, which the platform confirms\. Your role: owner",
    ),
    Use(
        command="status",
        says=r"I have been running for .* fake-main.*telegram\.main: up.*discord\.main: "
        r"up.*irc\.main: up",
    ),
    Use(command="version", says=r"Reverie \d"),
    Use(command="link start", where="alone", says=rf"Your code is (?P<first>{_CODE})\."),
    Use(
        command="link code",
        where="elsewhere",
        given={"code": "@first@"},
        says=rf"send me /?.?link (?P<second>{_CODE}) from the other\s+one",
    ),
    Use(command="link code", where="alone", given={"code": "@second@"}, says="@other@"),
    Use(command="link list", where="alone", says="linked with this one.*@other@"),
    Use(
        command="link remove",
        where="alone",
        given={"account": "@other@"},
        says="@other@.* is not linked any more",
    ),
    Use(
        command="log tail",
        where="alone",
        given={"n": "40"},
        says=r"link \*\*\*",
        on={IRC: "up: connected"},
    ),
    Use(command="more", where="alone", says="nothing more to show", on={IRC: "command"}),
    Use(command="again", where="alone", says="All my messages here have arrived"),
)
CONVERSATION: Final[Sequence[Line]] = (
    Say(text="hello there", says=_ANSWER),
    Use(command="usage", says=r"Here today: \d+ requests?"),
    Use(
        command="seen", given={"who": "nobody"}, says="I have not seen `?nobody`? write here lately"
    ),
    Use(command="recap", given={"since": "1h"}, says=r"Since .*lines?.*answers?"),
    Use(command="cache", says=r"Here today: \d+ requests?"),
    Use(command="tools", says="anybody.*remember: ", on={IRC: "anybody: .*remember"}),
    Use(command="why", where="alone", given={"entry": "1"}, says="1 .*(link|dmn|cursor)"),
    Slow(text="take your time", says=""),
    Use(command="stop", says="Stopped"),
    Use(command="files undo", says="In the last day I changed no file of this conversation"),
    Say(text="and now?", says=_ANSWER),
    Use(command="retry", says=f"I take back my last answer.*{_ANSWER}", told=True),
    Use(command="rewind", given={"n": "1"}, says="I took back the last exchange."),
    Use(command="compact", says="I am shortening what I see of this conversation.*already short"),
    Say(
        text="note the tea",
        calls=(("journal", '{"title": "tea", "text": "There was tea."}'),),
        says=_ANSWER,
    ),
    Say(
        text="remember it", calls=(("remember", '{"text": "Olga likes green tea."}'),), says=_ANSWER
    ),
    Use(command="journal", given={"n": "5"}, says="There was tea"),
    Use(command="memory show", says=r"(?P<note>n\d+) .*Olga likes green tea"),
    Use(command="memory pending", says="Only an owner can do that"),
    Use(command="memory approve", given={"note": "@note@"}, says="Only an owner can do that"),
    Use(command="memory forget", given={"note": "@note@"}, says="I forgot note @note@"),
    Say(
        text="remind me",
        calls=(("remind", '{"text": "the kettle", "at": "in 5 h"}'),),
        says=_ANSWER,
    ),
    Say(
        text="look later",
        calls=(("intend", '{"what": "look at the tickets", "when": "in 6 h"}'),),
        says=_ANSWER,
    ),
    Use(
        command="intentions add", given={"what": "7h biscuits"}, says="I will remind you.*biscuits"
    ),
    Use(
        command="intentions list",
        says="(?P<reminder>[0-9A-Z]{6}): .*the kettle.*[0-9A-Z]{6}: .*look at the tickets",
    ),
    Use(command="intentions drop", given={"id": "@reminder@"}, says="@reminder@ is dropped"),
    Use(command="new", says="I started over"),
)
APPROVALS: Final[Sequence[Line]] = (
    Say(text="who is here?", calls=(("who", "{}"),), says="May reverie use who"),
    Use(command="approve", says=r"here:\W+(?P<asked>[2-9a-z]{4})\W+who"),
    Use(command="show", given={"id": "@asked@"}, says="@asked@: who with this"),
    Use(command="approve", given={"id": "@asked@"}, says=_ANSWER, told=True),
    Say(text="who is here now?", calls=(("who", "{}"),), says="May reverie use who"),
    Use(command="approve", says=r"here:\W+(?P<asked>[2-9a-z]{4})\W+who"),
    Use(command="deny", given={"id": "@asked@"}, says=_ANSWER, told=True),
)
PEOPLE: Final[Sequence[Line]] = (
    Use(command="block", given={"who": "@nora@", "where": "everywhere"}, says="Blocked: @nora@"),
    Use(command="unblock", given={"who": "@nora@"}, says="Not blocked any more: @nora@"),
    Use(
        command="role set",
        given={"who": "@nora@", "role": "member", "where": "everywhere"},
        says="@nora@ is member",
    ),
    Use(command="role list", says="@nora@.*member"),
    Use(command="role clear", given={"who": "@nora@"}, says="@nora@.*is no longer member"),
    Say(by="nora", where="alone", text="good day", says=rf"pair approve (?P<code>{_CODE})"),
    Use(command="pair list", says="@nora@"),
    Use(command="pair approve", given={"code": "@code@"}, says="Approved: @nora@"),
    Say(by="nora", where="alone", text="good day again", says=_ANSWER),
    Use(command="pair revoke", given={"who": "@nora@"}, says="I took back the approval of @nora@"),
)
ROOMS: Final[Sequence[Line]] = (
    AskIn(
        by="nora",
        where="den",
        says=rf"I may not (?:talk|enter).*yet.*room approve (?P<code>{_CODE})",
    ),
    Use(command="room list", says="@nora@.*@den@"),
    Use(
        command="room approve", given={"code": "@code@"}, says=r"Approved: (.* \()?@channel@/@den@"
    ),
)
INSIDE: Final[Sequence[Line]] = (
    Use(command="rooms", says=r"@channel@/@den@[^\n]*: approved"),
    Use(
        command="say",
        given={"room": "@den@", "text": "Good evening."},
        says="I post it in .*@channel@/@den@",
        told=True,
    ),
    Use(command="part", given={"room": "@den@"}, says="I leave .*@channel@/@den@"),
)
OUTSIDE: Final[Sequence[Line]] = (
    Use(
        command="join",
        given={"room": "@den@"},
        says="On this platform, people add me to rooms",
        on={IRC: "I enter @channel@/@den@"},
    ),
)
CLOSING: Final[Sequence[Line]] = (
    Use(
        command="room revoke",
        given={"room": "@den@"},
        says="I took back the approval of .*@channel@/@den@",
    ),
)
WHAT_I_DO: Final[Sequence[Line]] = (
    Use(command="notify types", says=r"@channel@\.command"),
    Use(
        command="notify threshold",
        given={"type": "mail.new", "urgency": "low"},
        says="for mail.new: only low and above reach me",
    ),
    Use(
        command="notify threshold",
        given={"type": "mail.new", "urgency": "reset"},
        says="The threshold is removed",
    ),
    Use(command="dmn sleep", given={"until": "30m"}, says="reverie is asleep until"),
    Use(command="dmn quiet", given={"until": "30m"}, says="reverie .*quiet until"),
    Use(command="dmn pause", says="reverie is paused"),
    Use(command="dmn status", says="reverie is paused"),
    Use(command="dmn off", says="reverie is off"),
    Use(command="dmn wake", says="reverie is awake"),
    Use(command="model here", given={"name": "second"}, says="This room uses second from"),
    Use(command="model here", given={"name": "default"}, says="uses the model of its agent again"),
    Use(command="persona here", says="reverie answers here. The agents are reverie"),
    Use(command="model list", says="main: openai fake-main.*used by reverie.*second: openai"),
    Use(
        command="model switch",
        given={"name": "second"},
        says="reverie uses second from its next answer on",
    ),
    Say(text="who are you now?", says=_ANSWER),
    Use(command="model reset", says="reverie uses main"),
    Use(
        command="channels",
        says=r"telegram\.main \(Telegram\): up.*discord\.main.*irc\.main \(IRC\): up",
    ),
    Use(command="reload", says="Nothing in it has changed"),
)
