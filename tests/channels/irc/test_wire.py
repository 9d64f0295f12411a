import pytest
from hypothesis import given
from hypothesis import strategies as st
from irc.client import NickMask

from channels.irc.wire import (
    IrcLine,
    Isupport,
    format_line,
    mentions_nick,
    parse_line,
    split_relayed,
)
from tests.channels.irc.channel_kit import features
from tests.kits.scaling import assert_in_proportion

ANY = st.text(st.characters(), max_size=80)


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        ("PING :a b", IrcLine("PING", ("a b",))),
        (":n!u@h privmsg #c :hi there", IrcLine("PRIVMSG", ("#c", "hi there"), NickMask("n!u@h"))),
        (":n!u@h PRIVMSG #c hi", IrcLine("PRIVMSG", ("#c", "hi"), NickMask("n!u@h"))),
        (":srv 005 me  A=b   :are", IrcLine("005", ("me", "A=b", "are"), NickMask("srv"))),
        (
            "@a=1;b;+c=x\\:\\s\\\\\\r\\n\\q :n X",
            IrcLine("X", (), NickMask("n"), {"a": "1", "b": "", "+c": "x; \\\r\nq"}),
        ),
        ("@a=tail\\ :n X", IrcLine("X", (), NickMask("n"), {"a": "tail"})),
        (":n@h TOPIC #c :", IrcLine("TOPIC", ("#c", ""), NickMask("n!@h"))),
        ("X\x00Y :z", IrcLine("XY", ("z",))),
        ("", None),
        (" ", None),
        (":only", None),
        ("@only", None),
        (":", None),
        ("@a=1 :n", None),
    ],
)
def test_reads_lines(raw: str, read: IrcLine | None) -> None:
    assert parse_line(raw) == read


@given(ANY)
def test_reads_anything_without_failing(raw: str) -> None:
    read = parse_line(raw)
    assert read is None or read.command == read.command.upper()


@given(room=ANY, text=ANY)
def test_no_parameter_ends_a_line_or_becomes_another(room: str, text: str) -> None:
    try:
        built = format_line("PRIVMSG", room, trailing=text)
    except ValueError:
        return
    assert not set(built) & set("\r\n\0")
    read = parse_line(built.encode().decode())
    assert read is not None
    assert read.command == "PRIVMSG"
    assert len(read.params) == 2


@pytest.mark.parametrize("room", ["", "a b", ":a", "\r\n"])
def test_refuses_what_is_no_parameter(room: str) -> None:
    with pytest.raises(ValueError, match="not a parameter"):
        format_line("JOIN", room)


def test_injection_is_disarmed() -> None:
    assert (
        format_line("PRIVMSG", "#c", trailing="hi\rQUIT :x\n\0\ud800") == "PRIVMSG #c :hi QUIT :x ?"
    )
    assert format_line("JOIN", "#a\r\nQUIT") == "JOIN #aQUIT"


@pytest.mark.parametrize(
    ("mapping", "same", "different"),
    [
        ("ascii", ("NiCk", "nick"), ("a[", "a{")),
        ("rfc1459", ("A[]\\~", "a{}|^"), ("Ä", "ä")),
        ("rfc1459-strict", ("A[]\\", "a{}|"), ("~", "^")),
    ],
)
def test_folds_as_the_server_does(
    mapping: str, same: tuple[str, str], different: tuple[str, str]
) -> None:
    isupport = features(f"CASEMAPPING={mapping}")
    assert isupport.fold(same[0]) == isupport.fold(same[1])
    assert isupport.fold(different[0]) != isupport.fold(different[1])


def test_isupport_takes_what_makes_sense_and_ignores_the_rest() -> None:
    tokens = "PREFIX=@+ CASEMAPPING=klingon TOPICLEN=x = - STATUSMSG=@+ BOT=B WHOX MONITOR"
    isupport = features(*tokens.split(" "), "")
    assert isupport.rank_modes == {"@": "o", "+": "v"}
    assert isupport.topic_bytes == 0
    assert (isupport.bot_mode, isupport.has_whox, isupport.monitors) == ("B", True, 100)
    assert (isupport.fold("A["), isupport.room_of("@#c")) == ("a{", "#c")
    isupport.load(["me", "-STATUSMSG", "-BOT", "-WHOX", "-MONITOR", "-PREFIX", "x"])
    assert isupport.rank_modes == {"@": "o", "+": "v"}
    assert (isupport.bot_mode, isupport.has_whox, isupport.monitors) == ("", False, 0)
    assert isupport.room_of("@#c") is None
    assert features("TOPICLEN=" + "9" * 5000).topic_bytes == 0
    assert not features("PREFIX=").rank_modes
    assert features("NETWORK=A\\x20b").network_name == "A b"
    assert features("NETWORK=12").network_name == "12"


@pytest.mark.parametrize(
    "name", ["LOAD_FEATURE", "SET", "FOLD", "TOPIC_BYTES", "__CLASS__", "MODE_GROUPS"]
)
def test_no_feature_replaces_what_reads_them(name: str) -> None:
    isupport = features(f"{name}=x", name, f"-{name}")
    isupport.load(["me", "BOT=B", "x"])
    assert (isupport.bot_mode, isupport.fold("A"), isupport.topic_bytes) == ("B", "a", 0)
    assert isupport.mode_groups == ["beI", "k", "l", "imnpst"]


@given(st.lists(ANY))
def test_isupport_survives_anything(tokens: list[str]) -> None:
    assert features(*tokens).topic_bytes >= 0


@pytest.mark.parametrize(
    ("target", "room"),
    [
        ("#c", "#c"),
        ("@#c", "#c"),
        ("@+#c", "#c"),
        ("nick", None),
        ("@nick", None),
        ("", None),
        ("&c", "&c"),
    ],
)
def test_knows_rooms(target: str, room: str | None) -> None:
    assert features("STATUSMSG=@+").room_of(target) == room


@pytest.mark.parametrize(
    "text",
    [
        "reverie: hi",
        "hey reverie, hi",
        "(reverie)",
        "hi reverie",
        "REVERIE!",
        "@reverie hi",
        "is that reverie?",
        "reverie's here",
        "I like reverie.",
        "reverie",
        'reverie: what is "a reverie"?',
        "it's reverie, isn't it",
        'that is 5" reverie, or 6"',
        "12:00 reverie: wake me",
        "<3 reverie",
        "reverie:http://example.org",
        "你好reverie",
        "reverie你好",
        "reverieは?",
        "reverie님 안녕",
        "سلام يا لreverie",
        "你好reverie、天気は？",
        "ขอบคุณreverieครับ",
        "éreverie",  # not a letter of any nick there
    ],
)
def test_mentions(text: str) -> None:
    assert mentions_nick(text, "Reverie", Isupport())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "reveries",
        "myreverie",
        "reverie_ hi",
        "reverie-bot hi",
        "[reverie]",
        "`reverie`",
        "reverie|away",
        "https://example.org/reverie",
        "https://example.org/x?reverie",
        "www.x.org/a-reverie b",
        "/usr/share/reverie/x",
        "github.com/reverie",
        "bob@reverie.org",
        "mail.reverie.org",
        "reverie.org",
        "看https://example.org/reverie你好",
        "你好_reverie",
        "<reverie> I said that",
        "[12:00] <@reverie> I said that",
        "12:00:59 <bob> ask reverie",
        "[12:00] bob: ask reverie",
        "> reverie said so",
        'he said "reverie: hi" to it',
        "the name 'reverie' is odd",
        "„reverie“ und «reverie» und “reverie”",
        "run `pip install reverie` first",
        "#reverie is a channel",
        "reverie++ for that",
        "reverie--",
    ],
)
def test_does_not_mention(text: str) -> None:
    assert not mentions_nick(text, "reverie", Isupport())


@given(
    st.text(alphabet="re verie \"'`<>[]#+-:/12", max_size=30),
    st.sampled_from(["{}", "{}: hi", "hey {}, {}"]),
)
def test_names_in_quotes_code_and_pasted_lines_never_count_and_those_around_do(
    junk: str, line: str
) -> None:
    said = line.format("robin", "robin")
    junk = junk.translate({ord(mark): None for mark in '"`'})
    for talked_about in (
        f'"{junk} robin {junk}"',
        f"`{junk}robin{junk}`",
        f"<robin> {junk} robin",
        f"https://x/{said[:5]}",
    ):
        assert not mentions_nick(talked_about, "robin", Isupport())
    assert mentions_nick(f'{said} "{junk}"', "robin", Isupport())


def test_where_nicks_have_letters_of_any_script_these_continue_a_word() -> None:
    wide = features("CASEMAPPING=rfc8265")
    assert [
        mentions_nick(text, "reverie", wide)
        for text in ("éreverie", "reverieя", "reverie_", "x|reverie")
    ] == [False] * 4
    assert [
        mentions_nick(text, "reverie", wide) for text in ("你好reverie", "reverieは", "reverie: é")
    ] == [True] * 3
    assert not mentions_nick("Ünï2", "Ünï", Isupport())
    assert not mentions_nick("éÜnï", "Ünï", Isupport()), (
        "a nick of such letters is continued by them"
    )
    wide.load(["me", "-CASEMAPPING", "x"])
    assert mentions_nick("éreverie", "reverie", wide)


def test_nicks_of_odd_characters_are_matched_folded() -> None:
    assert mentions_nick("hey {rev}|: x", "[Rev]\\", Isupport())
    assert not mentions_nick("hey {rev}|: x", "[Rev]\\", features("CASEMAPPING=ascii"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<kai> hi", ("kai", "hi")),
        ("<kai>hi", ("kai", "hi")),
        ("<@kai> hi", ("kai", "hi")),
        ("<Kai M.> hi <there>", ("Kai M.", "hi <there>")),
        ("[tg] <kai/x> a\nb", ("kai/x", "a\nb")),
        ("\x02[tg]\x0f \x0304,01<k\u200bai>\x03: hi", ("k\u200bai", "hi")),
        ("\u200b<kai> ", ("kai", "")),
        ("<boss> x> hi", ("boss", "x> hi")),
        ("<kai hi", None),
        ("<> hi", None),
        ("kai: hi", None),
        ("he said <kai> hi", None),
        ("[a b] <kai> hi", None),
        ("<k\nai> hi", None),
    ],
)
def test_what_a_bridge_passes_on_is_parted_from_the_name(
    text: str, found: tuple[str, str] | None
) -> None:
    assert split_relayed(text) == found


def test_long_lines_are_parted_in_time_that_grows_with_their_length() -> None:
    for bait in ("\x02", " ", "\x03", "[", "<", "\u200b"):
        assert_in_proportion(lambda size, bait=bait: split_relayed(bait * size), 4_000)  # type: ignore[misc]
