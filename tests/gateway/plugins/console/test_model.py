"""What the panes tell of what the API tells. No terminal, no network."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.core import api_models
from gateway.plugins.console import client, model
from gateway.plugins.console.model import ALL_CONVERSATIONS, ConsoleModel, PaneName
from tests.kits.console import AT, OWN, filled, mind, turn

NOW = datetime(2026, 11, 22, 10, 0, 30, tzinfo=UTC)
ROOM = "irc.x/#lobby"


def answer(kind: type[client.ModelT], told: dict[str, Any]) -> client.ModelT:
    return kind.model_validate_json(json.dumps(filled(kind, told)))


def apply(console: ConsoleModel, kind: str, /, **fields: Any) -> None:
    event = client.parse_event(
        kind, json.dumps(filled(api_models.EVENT_MODELS[kind], {"at": AT, **fields}))
    )
    assert event is not None
    console.apply_event(event)


def pane_texts(console: ConsoleModel, pane: PaneName) -> list[str]:
    """The rows of a pane, and what is growing below it."""
    shown = [text for place, text in console.entries if place == pane]
    return [
        row for text in (*shown, console.growing(pane)) if text for row in text.plain.split("\n")
    ]


@pytest.fixture
def console() -> ConsoleModel:
    return ConsoleModel(zone=UTC)


def delta(
    kind: str,
    console: ConsoleModel,
    said: str,
    *,
    autonomous: bool = False,
    where: str = OWN,
    **more: Any,
) -> None:
    fields = {
        "turn": "t1",
        "agent": "reverie",
        "conversation": where,
        "autonomous": autonomous,
        "delta": said,
    }
    apply(console, kind, **{**fields, **more})


def test_a_conversation_grows_and_becomes_what_was_said(console: ConsoleModel) -> None:
    apply(
        console,
        "notification",
        seq=1,
        kind="direct",
        conversation=OWN,
        who="operator",
        text="hello",
        urgency=2,
    )
    apply(console, "turn", **turn("started"))
    delta("text", console, "Good ")
    delta("text", console, "morning")
    assert pane_texts(console, "conversation") == [
        "10:00:00 operator  hello",
        "reverie  is writing ... Good morning",
    ]
    apply(console, "post", seq=2, conversation=OWN, text="Good morning!")
    apply(console, "turn", **turn("ended"))
    assert pane_texts(console, "conversation") == [
        "10:00:00 operator  hello",
        "10:00:00 reverie  Good morning!",
    ]
    assert pane_texts(console, "autonomous") == []
    assert not console.turns


def test_another_answer_replaces_the_one_that_was_growing(console: ConsoleModel) -> None:
    delta("text", console, "first try")
    delta("text", console, "second", begins=True)
    assert pane_texts(console, "conversation") == ["reverie  is writing ... second"]


def test_what_ends_without_words_is_told(console: ConsoleModel) -> None:
    apply(console, "turn", **turn("started"))
    delta("text", console, "half a sen")
    apply(console, "turn", **turn("ended", outcome="interrupted"))
    assert pane_texts(console, "conversation") == [
        "10:00:00 reverie interrupted: nothing more comes"
    ]


def test_only_the_followed_conversation_is_shown_and_all_are_told_apart(
    console: ConsoleModel,
) -> None:
    said = {"kind": "room", "conversation": ROOM, "who": "ann", "text": "hi", "urgency": 3}
    apply(console, "notification", seq=1, **said)
    assert pane_texts(console, "conversation") == []
    console.follow(ALL_CONVERSATIONS, None)
    apply(console, "notification", seq=2, **said)
    apply(
        console,
        "notification",
        seq=3,
        kind="reaction",
        conversation=ROOM,
        who="bob",
        text="+1",
        urgency=0,
    )
    assert pane_texts(console, "conversation") == [
        "10:00:00 irc.x/#lobby ann  hi",
        "10:00:00 irc.x/#lobby bob (reaction)  +1",
    ]


def test_a_conversation_is_filled_from_the_log_and_nothing_is_shown_twice(
    console: ConsoleModel,
) -> None:
    past = answer(
        api_models.ConversationDetail,
        {
            "messages": [
                {
                    "seq": 4,
                    "at": AT,
                    "who": "ann",
                    "ours": False,
                    "text": "hi",
                    "kind": "room",
                    "fate": "answered",
                },
                {
                    "seq": 7,
                    "at": AT,
                    "who": "",
                    "ours": True,
                    "text": "hello ann",
                    "kind": "post",
                    "fate": "sent",
                },
            ]
        },
    )
    console.follow(ROOM, past)
    apply(console, "post", seq=7, conversation=ROOM, text="hello ann")
    apply(console, "post", seq=9, conversation=ROOM, text="more")
    assert pane_texts(console, "conversation") == [
        "10:00:00 ann  hi",
        "10:00:00 agent  hello ann",
        "10:00:00 agent  more",
    ]


def test_what_is_done_by_itself_is_above_with_all_thinking(console: ConsoleModel) -> None:
    apply(
        console,
        "turn",
        **turn("started", autonomous=True, conversation="inner/reverie", cause="low"),
    )
    delta("thinking", console, "what is\nnew?", autonomous=True, where="inner/reverie")
    delta("text", console, "I look around.", autonomous=True, where="inner/reverie")
    spent: dict[str, Any] = {
        "input_tokens": 100,
        "read_tokens": 9_900,
        "written_tokens": 0,
        "output_tokens": 50,
        "cost_usd": 0.01,
    }
    apply(console, "turn", **turn("ended", autonomous=True, conversation="inner/reverie", **spent))
    assert pane_texts(console, "autonomous") == [
        "10:00:00 reverie starts by itself: low  inner/reverie",
        "10:00:00 reverie thinks, in inner/reverie",
        "  what is",
        "  new?",
        "10:00:00 reverie writes  inner/reverie",
        "  I look around.",
        "10:00:00 reverie is done: replied, 0 s, 10.0k in (99 % read), 50 out, $0.0100",
    ]
    assert pane_texts(console, "conversation") == []


def test_the_network_is_told_when_it_changes_only(console: ConsoleModel) -> None:
    for after_s in (30.0, 29.0, 28.0):
        apply(console, "dmn", **mind("foraging", next_tick_s=after_s))
    apply(console, "dmn", **mind("foraging", held=["the day's money is spent"]))
    assert pane_texts(console, "autonomous") == [
        "10:00:00 reverie is awake; it checks again in 30 s",
        (
            "10:00:00 reverie is awake; it checks again in 5 min; it starts nothing by itself: the "
            "day's money is spent"
        ),
    ]


def test_tools_are_shown_whole(console: ConsoleModel) -> None:
    call = {"turn": "t1", "agent": "reverie", "conversation": ROOM, "call": "c1", "name": "shell"}
    apply(
        console,
        "tool",
        **call,
        state="started",
        arguments=json.dumps({"command": "ls\ncat x", "n": 3}),
        result="",
        error=False,
    )
    assert console.find_turn(has_call=True) is None  # it is not looked at
    console.follow(ROOM, answer(api_models.ConversationDetail, {}))
    found = console.find_turn(has_call=True)
    assert found is not None
    assert ([name for name, _ in found.calls.values()], found.conversation) == (["shell"], ROOM)
    apply(console, "tool", **call, state="ended", arguments="{", result="one\ntwo\n", error=False)
    assert console.find_turn(has_call=True) is None
    apply(
        console,
        "tool",
        **{**call, "call": "c2"},
        state="ended",
        arguments='{"cut',
        result="no such file",
        error=True,
    )
    apply(
        console,
        "tool",
        **{**call, "call": "c3"},
        state="started",
        arguments='{"cut',
        result="",
        error=False,
    )
    assert pane_texts(console, "tools") == [
        "10:00:00 ▶ shell  irc.x/#lobby",
        "  command: ls",
        "    cat x",
        "  n: 3",
        "10:00:00 ✓ shell  0 s",
        "  one",
        "  two",
        "10:00:00 ✗ shell",
        "  no such file",
        "10:00:00 ▶ shell  irc.x/#lobby",
        '  {"cut',
    ]


def test_what_concerns_the_gateway_is_above(console: ConsoleModel) -> None:
    apply(console, "channel", channel="irc.x", platform="IRC", state="down", reason="cut")
    apply(console, "reloaded", taken=["agents"], later=["ops"], problems=[])
    apply(console, "reloaded", taken=[], later=[], problems=["a.yaml:3: dmn: no such key"])
    apply(console, "log", level="warning", logger="reverie.x", message="odd")
    apply(console, "lost", count=7)
    assert pane_texts(console, "autonomous") == [
        "10:00:00 channel irc.x is down: cut",
        "10:00:00 configuration read again; now in force: agents; after a restart: ops",
        "10:00:00 configuration read again; 1 problems: a.yaml:3: dmn: no such key",
        "10:00:00 warning reverie.x: odd",
        "10:00:00 7 events are missing here: they came too fast",
    ]


def test_posts_that_do_not_arrive_are_told(console: ConsoleModel) -> None:
    apply(console, "delivery", seq=1, conversation=OWN, outcome="sent", reason="")
    apply(console, "delivery", seq=2, conversation=OWN, outcome="failed", reason="no such room")
    assert pane_texts(console, "conversation") == [
        "10:00:00 not delivered (failed): no such room",
    ]


@pytest.mark.parametrize("kind", [*api_models.EVENT_MODELS, "unheard-of"])
def test_odd_events_harm_nobody(kind: str, console: ConsoleModel) -> None:
    for data in (
        "",
        "{",
        "[]",
        "null",
        "1",
        '{"at": "soon"}',
        '{"seq": "x"}',
        "{}",
        '{"text": null, "who": null}',
    ):
        event = client.parse_event(kind, data)
        if event is not None:
            console.apply_event(event)


def test_what_is_stopped_is_what_is_looked_at(console: ConsoleModel) -> None:
    apply(console, "turn", **turn("started", key="room", conversation=ROOM))
    assert console.find_turn() is None
    inner = "inner/reverie"
    apply(console, "turn", **turn("started", key="alone", conversation=inner, autonomous=True))
    apply(console, "turn", **turn("started", key="room2", conversation=ROOM))
    found = console.find_turn()
    assert found is not None
    assert found.conversation == inner
    apply(console, "turn", **turn("started", key="mine"))
    found = console.find_turn()
    assert found is not None
    assert found.conversation == OWN


def test_reasoning_can_be_hidden(console: ConsoleModel) -> None:
    console.shows_thinking = False
    delta("thinking", console, "deep thoughts")
    apply(console, "turn", **turn("ended"))
    assert pane_texts(console, "autonomous") == []


KEYS = st.sampled_from(["t1", "t2", "t3"])
HAPPENS = st.one_of(
    st.tuples(st.just("turn"), KEYS, st.sampled_from(["started", "ended"]), st.booleans()),
    st.tuples(
        st.sampled_from(["text", "thinking"]),
        KEYS,
        st.text(alphabet="ab \n", max_size=20),
        st.booleans(),
    ),
    st.tuples(st.just("tool"), KEYS, st.sampled_from(["started", "ended"]), st.booleans()),
    st.tuples(st.just("post"), KEYS, st.text(alphabet="ab \n", max_size=20), st.booleans()),
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.lists(HAPPENS, max_size=40))
def test_in_whatever_order_things_happen_nothing_stays_open_behind_the_end(
    happened: list[tuple[Any, ...]],
) -> None:
    console = ConsoleModel(zone=UTC)
    for kind, key, what, autonomous in happened:
        where = "inner/reverie" if autonomous else OWN
        if kind == "turn":
            apply(console, kind, **turn(what, key=key, autonomous=autonomous, conversation=where))
        elif kind == "tool":
            apply(
                console,
                kind,
                turn=key,
                agent="reverie",
                conversation=where,
                call=key,
                name="shell",
                state=what,
            )
        elif kind == "post":
            apply(console, kind, seq=0, conversation=where, text=what)
        else:
            delta(kind, console, what, autonomous=autonomous, where=where, turn=key)
    for _ in range(2):  # an end that was lost is found out when the gateway has been asked twice
        console.update_status(answer(api_models.GatewayStatus, {}))
    assert not console.turns
    assert not console.growing("conversation")
    assert not console.growing("autonomous")


def test_after_a_cut_what_ended_meanwhile_is_over(console: ConsoleModel) -> None:
    apply(console, "turn", **turn("started"))
    delta("thinking", console, "hm")
    delta("text", console, "half")
    apply(
        console,
        "tool",
        turn="t1",
        agent="reverie",
        conversation=OWN,
        call="c",
        name="shell",
        state="started",
    )
    console.handle_connected(
        answer(api_models.GatewayStatus, {"now": AT, "agents": [mind()], "activity": []})
    )
    assert not console.turns
    assert pane_texts(console, "conversation") == []
    assert pane_texts(console, "autonomous")[:2] == [
        "10:00:00 reverie thinks, in console/operator",
        "  hm",
    ]


def test_the_status_tells_everything_and_fits(console: ConsoleModel) -> None:
    told = {
        "now": AT,
        "ready": True,
        "model": "claude-sonnet-5-5",
        "agents": [mind("foraging")],
        "today": {
            "input_tokens": 10_000,
            "read_tokens": 1_180_000,
            "written_tokens": 10_000,
            "output_tokens": 12_345,
            "cost_usd": 1.234,
            "read_share": 0.983,
        },
        "activity": [
            {"turn": "t1", "agent": "reverie", "conversation": ROOM, "since": AT, "tool": ""}
        ],
    }
    console.handle_connected(answer(api_models.GatewayStatus, told))
    first, second = model.render_status(console, "● attached", NOW)
    assert first == "● attached │ reverie foraging │ thinks 30 s irc.x/#lobby"
    assert second == (
        "today 1.2M in 98 % read 12.3k out $1.23 │ model claude-sonnet-5-5 │ autonomous turns 2 of "
        "200"
    )
    apply(
        console,
        "tool",
        turn="t1",
        agent="reverie",
        conversation=ROOM,
        call="c",
        name="shell",
        state="started",
    )
    assert "shell 30 s" in model.render_status(console, "● attached", NOW)[0]


def test_the_status_of_nothing() -> None:
    first, second = model.render_status(ConsoleModel(), "○ nobody answers there; again in 3 s", NOW)
    assert (first, second) == (
        "○ nobody answers there; again in 3 s │ idle",
        "nothing is known yet",
    )


@pytest.mark.parametrize(
    ("number", "short"),
    [
        (0, "0"),
        (999, "999"),
        (1_234, "1.2k"),
        (123_456, "123k"),
        (1_500_000, "1.5M"),
        (2**40, "1100G"),
    ],
)
def test_counts(number: int, short: str) -> None:
    assert model.format_tokens(number) == short


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ("/quit", ("quit", "")),
        ("/clear", ("clear", "")),
        ("/help", (None, "/help")),
        ("/help status", (None, "/help status")),
        ("/follow irc.x/#a b", ("follow", "irc.x/#a b")),
        ("/follow", ("follow", "")),
        ("/quite so", (None, "/quite so")),
        (" hello\nthere ", (None, "hello\nthere")),
        ("/dmn pause", (None, "/dmn pause")),
    ],
)
def test_what_a_line_means(typed: str, what: tuple[str | None, str]) -> None:
    assert model.parse_input(typed) == what


def console_with_commands() -> ConsoleModel:
    rows = (("status", ""), ("dmn pause", " [agent]"), ("reload", ""))
    console = ConsoleModel()
    console.commands = {
        name: api_models.CommandEntry(name=name, usage=name + args, help="...", role="admin")
        for name, args in rows
    }
    return console


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("/qu", ["quit"]),
        ("/dmn pau", ["pause"]),
        ("/follow irc.l", ["irc.libera/#python"]),
        ("/follow irc.libera/#python ", []),
        ("/nonsense x", []),
        ("hello", []),
    ],
)
def test_completion(typed: str, found: list[str]) -> None:
    place = filled(api_models.ConversationSummary, {"conversation": "irc.libera/#python"})
    console = console_with_commands()
    console.conversations = (api_models.ConversationSummary.model_validate(place),)
    assert console.find_completions(typed) == found


def test_completion_knows_every_command_and_what_it_is_for() -> None:
    console = console_with_commands()
    names = console.find_completions("/")
    assert {"status", "dmn", "quit", "follow", "reload"} <= set(names)
    assert console.format_usage("/status").startswith("/status: ")
    assert console.format_usage("/dmn pause x") == "/dmn pause [agent]: ..."
    assert console.format_usage("/follow x") == model.LOCAL_COMMANDS["follow"]
    assert console.format_usage("/nonsense") == console.format_usage("status") == ""
