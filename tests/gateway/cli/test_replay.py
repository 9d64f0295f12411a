"""A run of the whole gateway, decided again from its log: nothing differs, and whatever is tampered with is found."""

import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.cli.replay import (
    MAX_DIFFERENCES,
    REPLAY_CHECKS,
    ReplayReport,
    describe_text_difference,
    format_replay_report,
    open_log,
    replay_log,
)
from gateway.core.events import Address, ChannelName, Command, EventId, MessageDeleted, MessageEdited, MessageId, RoomId
from gateway.core.facts import Seq, is_inner
from tests.kits.simulated_gateway import IRC, REST, TELEGRAM, Ask, Brain, Say, World, message, settings, world
from tests.kits.simulated_time import BEGIN, JumpingClock, simulate

LONG = " ".join(f"word{number}" for number in range(120))


class Small(Brain):
    """With a window that a talk fills."""

    context_tokens = 9_000


def answer(ask: Ask) -> Say:
    if is_inner(ask.place):
        return Say(calls=(("attend", '{"room":"irc.libera/#one"}'),)) if "## irc" in ask.heard else REST
    if ask.results:
        return Say(text="It is written down.")
    if "note" in ask.heard:
        return Say(calls=(("journal", json.dumps({"title": "", "text": LONG})), ("recall", '{"query":"word7"}')))
    return Say(text=f"{LONG} {len(ask.heard)}", takes_s=3.0)


def command(name: str, number: int, clock: JumpingClock, args: str = "") -> Command:
    at = Address(channel=ChannelName(TELEGRAM), room=RoomId("olga"))
    said = message(TELEGRAM, "olga", "", clock, id="x")
    return Command(
        id=EventId(f"c{number}"),
        at=at,
        sender=said.sender,
        name=name,
        args=args,
        sent=clock.now(),
        origin="native",
        direct=True,
    )


async def talk(gateway: World, clock: JumpingClock, turns: int, *, begin: int = 0) -> None:
    """Somebody and the agent, and a room beside them."""
    for number in range(begin, begin + turns):
        words = f"note number {number}" if number % 3 == 0 else f"say {number} {LONG}"
        said = message(TELEGRAM, "olga", words, clock, id=f"m{number}")
        if number % 4 == 1:
            said = replace(said, reply_to=MessageId(f"m{number - 1}"))
        await gateway.tell(TELEGRAM, said)
        if number % 5 == 2:  # before it is answered
            edited = MessageEdited(
                id=EventId(f"e{number}"),
                at=said.at,
                message=said.id,
                sender=said.sender,
                text=f"{words}, I meant",
                sent=clock.now(),
                direct=True,
            )
            await gateway.tell(TELEGRAM, edited)
        room = message(
            IRC, "ann", f"reverie: {number}" if number % 4 == 0 else "tea?", clock, room="#one", id=f"r{number}"
        )
        await gateway.tell(IRC, room)
        await clock.sleep(40.0 if number % 6 else 4_000.0)


async def lived(clock: JumpingClock, folder: Path) -> None:
    """Two lives of a gateway."""
    made = settings(folder, dmn={"forage": True})
    async with world(made, clock, Small(clock, answer)) as gateway:
        await talk(gateway, clock, 14)
        for number, (name, args) in enumerate([("rewind", "2"), ("retry", ""), ("compact", "")]):
            await gateway.tell(TELEGRAM, command(name, number, clock, args))
            await clock.sleep(60.0)
        gone = message(TELEGRAM, "olga", "forget this", clock, id="gone")
        await gateway.tell(TELEGRAM, gone)
        deleted = MessageDeleted(id=EventId("d"), at=gone.at, message=gone.id, sender=gone.sender, sent=clock.now())
        await gateway.tell(TELEGRAM, deleted)
        await clock.sleep(60.0)
    async with world(made, clock, Small(clock, answer)) as gateway:
        await talk(gateway, clock, 8, begin=20)
        await gateway.tell(TELEGRAM, command("new", 9, clock))
        await talk(gateway, clock, 6, begin=40)


@functools.cache
def _log() -> bytes:
    """The log of that run, as it is exported."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(lambda clock: lived(clock, Path(folder)))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert main(["log", "export", "--jsonl", "--store", str(Path(folder, "reverie.db"))]) == 0
    return out.getvalue().encode()


def entries() -> list[dict[str, Any]]:
    return [json.loads(line) for line in _log().splitlines()]


def export(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "export.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def replayed(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    code = main(["replay", str(path), "--json", *more])
    return code, json.loads(capsys.readouterr().out)


def test_a_run_comes_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = replayed(export(tmp_path, entries()), capsys)
    assert found["differences"] == []
    assert code == 0
    for sort in REPLAY_CHECKS:
        assert found["sorts"][sort]["compared"] > 3, found["sorts"]
        assert found["sorts"][sort]["compared"] == found["sorts"][sort]["agree"]
    kinds = [row["kind"] for row in entries()]
    assert {"rewound", "dmn", "turn_ended", "noted"} <= set(kinds)
    assert kinds.count("folded") > 3  # not only those that somebody asked for


def test_a_part_of_a_run_comes_out_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was in view when it began is made of what stands in front of it."""
    path, whole = export(tmp_path, entries()), [row["seq"] for row in entries()]
    compared = []
    for hours in (0, 1, 2, 4, 5, 9):
        since = BEGIN + timedelta(hours=hours)
        code, found = replayed(path, capsys, "--since", since.isoformat())
        assert (code, found["differences"]) == (0, [])
        assert not found["since"] or found["since"] >= since.isoformat()
        compared.append(sum(one["compared"] for one in found["sorts"].values()))
    assert compared == sorted(compared, reverse=True)
    assert compared[0] > compared[-2] > compared[-1] == 0
    assert whole


Row = dict[str, Any]


def first(rows: list[Row], kind: str, where: Callable[[Row], object] = bool) -> Row:
    """Of the talk with olga, or of no place."""
    return next(
        row
        for row in rows
        if row["kind"] == kind and row["conversation"] in ("telegram.main/olga", None) and where(row)
    )


def wrong_state(rows: list[Row]) -> int:
    row = first(rows, "dmn", lambda row: row["body"]["signals"] and row["seq"] > 100)
    state = json.loads(row["body"]["state"]) | {"errors": 7}
    row["body"]["state"] = json.dumps(state)
    return int(row["seq"])


def wrong_effect(rows: list[Row]) -> int:
    row = first(rows, "dmn", lambda row: "StartTurn" in row["body"]["signals"])
    row["body"]["signals"] = row["body"]["signals"].replace("StartTurn", "Steer")
    return int(row["seq"])


def wrong_verdict(rows: list[Row]) -> int:
    row = first(rows, "folded")
    row["body"]["weighed"]["verdict"] += "!"
    return int(row["seq"])


def wrong_fold(rows: list[Row]) -> int:
    row = first(rows, "folded", lambda row: row["body"]["kinds"] != ["drop"])
    row["body"]["kinds"] = ["drop"]
    return int(row["seq"])


def wrong_digest(rows: list[Row]) -> int:
    row = [row for row in rows if row["kind"] == "turn_ended" and row["conversation"] == "telegram.main/olga"][3]
    row["body"]["view"] = "0" * 32
    return int(row["seq"])


def wrong_reply(rows: list[Row]) -> int:
    """A record says that the agent has said something else: the next turn was shown what it said."""
    turns = [row for row in rows if row["kind"] == "turn_ended" and row["conversation"] == "telegram.main/olga"]
    turns[3]["body"]["text"] += " never"
    return int(turns[4]["seq"])


def wrong_heard(rows: list[Row]) -> int:
    row = [row for row in rows if row["kind"] == "turn_ended" and row["conversation"] == "telegram.main/olga"][3]
    row["body"]["heard"] = row["body"]["heard"].replace("olga", "anna")
    return int(row["seq"])


def lost_rewind(rows: list[Row]) -> int:
    """An entry that took turns back is not there: the next turn was shown less."""
    place = rows.index(first(rows, "rewound"))
    del rows[place]
    return int(next(row["seq"] for row in rows[place:] if row["kind"] == "turn_ended" and row["body"]["view"]))


@pytest.mark.parametrize(
    ("plant", "sort", "words"),
    [
        (wrong_state, "dmn", "errors was 7, and is 0"),
        (wrong_effect, "dmn", "the effects were Steer"),
        (wrong_verdict, "planner", "the verdict was "),
        (wrong_fold, "planner", "it was folded by drop from"),
        (wrong_digest, "view", f"the view was {'0' * 32}, and it is "),
        (wrong_reply, "view", "the view was "),
        (wrong_heard, "heard", "was '[2026"),
        (lost_rewind, "view", "the view was "),
    ],
)
def test_what_is_tampered_with_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plant: Callable[[list[Row]], int], sort: str, words: str
) -> None:
    rows = entries()
    seq = plant(rows)
    code, found = replayed(export(tmp_path, rows), capsys)
    assert code == 1
    told = [one for one in found["differences"] if (one["seq"], one["sort"]) == (seq, sort)]
    assert told, found["differences"]
    assert any(words in one["what"] for one in told)
    begin = next(was["seq"] for was, row in zip(entries(), rows, strict=False) if was != row)
    assert min(one["seq"] for one in found["differences"]) >= begin


def test_why_a_turn_was_not_folded_for_is_decided_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a situation in which something could go, and does not pay."""
    rows = entries()
    folded = first(rows, "folded")
    at = json.loads(folded["body"]["weighed"]["situation"]) | {"cold": False, "write": 1.25, "read": 0.1, "ahead": 2.0}
    turn = next(row for row in rows[: rows.index(folded)][::-1] if row["kind"] == "turn_ended" and row["seq"] > 16)
    weighed = {"situation": json.dumps(at), "written": None, "verdict": "no"}
    turn["body"]["weighed"] = weighed
    code, found = replayed(export(tmp_path, rows), capsys)
    (one,) = found["differences"]
    assert (code, one["seq"], one["sort"]) == (1, turn["seq"], "planner")
    assert one["what"].startswith("the verdict was 'no', and is ")
    weighed["verdict"] = one["what"].removeprefix("the verdict was 'no', and is ").strip("'")
    assert replayed(export(tmp_path, rows), capsys)[0] == 0
    weighed["situation"] = '{"moon":"full"}'
    code, found = replayed(export(tmp_path, rows), capsys)
    assert (code, found["sorts"]["planner"]["skipped"]) == (0, {"another version weighed it": 1})


def test_it_reads_a_store_beside_the_gateway_that_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def story(clock: JumpingClock) -> None:
        async with world(settings(tmp_path), clock, Small(clock, answer)) as gateway:
            await talk(gateway, clock, 4)
            async with open_log(gateway.settings.store.path) as reader:
                done: list[tuple[int, int]] = []
                report = await replay_log(reader, since=None, progress=lambda *at: done.append(at))
            assert report.is_identical
            assert report.tallies["view"].compared >= 4
            assert done[-1][0] <= done[-1][1]

    simulate(story)
    assert main(["replay", str(tmp_path / "reverie.db"), "--since", "1d"]) == 0  # it was long ago
    assert capsys.readouterr().out == "nothing of the log is in this stretch that could be decided again\n"
    assert main(["replay", str(tmp_path / "reverie.db")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "nothing differs"
    assert out[0].startswith("entries ")


CONFIG = """
channels: {console: {platform: console, rooms: [lobby]}}
agents: [{id: reverie}]
llm: {providers: {s: {kind: scripted}}, models: {main: {provider: s}}}
dmn: {resting: 100s}
store: {path: reverie.db}
"""


def test_another_policy_than_the_log_has_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reverie.yaml").write_text(CONFIG)
    path = export(tmp_path, entries())
    code, found = replayed(path, capsys, "--config", str(tmp_path))
    assert (code, len(found["remarks"])) == (0, 1)
    assert found["remarks"][0].startswith("reverie: the configuration says another policy for the DMN than the log")
    (tmp_path / "reverie.yaml").write_text(CONFIG.replace("resting: 100s", "forage: true"))
    assert replayed(path, capsys, "--config", str(tmp_path))[1]["remarks"] == []
    assert main(["replay", "--config", str(tmp_path)]) == 2  # its store is not there
    assert "cannot read " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([], "name a file, or a configuration directory with --config"),
        (["{}/none.db"], "cannot read "),
        (["{}/notes.txt"], "line 1 of "),
        (["{}/twice.jsonl"], "is no log: "),
        (["{}/notes.txt", "--since", "yesterday"], "not a duration or a date: 'yesterday'"),
        (["{}/notes.txt", "--since", "5-m"], "not a duration or a date"),
    ],
)
def test_what_cannot_be_replayed_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], reason: str
) -> None:
    (tmp_path / "notes.txt").write_text("dear diary\n")
    (tmp_path / "twice.jsonl").write_text(f"{json.dumps(entries()[0])}\n" * 2)
    assert main(["replay", *(arg.format(tmp_path) for arg in args)]) == 2
    assert reason in capsys.readouterr().err


def test_what_differs_is_told_up_to_a_bound_and_counted_beyond() -> None:
    report = ReplayReport()
    for number in range(1, MAX_DIFFERENCES + 6):
        report.add_entry(Seq(number), BEGIN)
        report.add_differences("view", Seq(number), None, "it is")
    report.add_skipped("heard", "a digest")
    assert not report.is_identical
    told = format_replay_report(report)
    assert told[-1] == f"{MAX_DIFFERENCES + 5} differ"
    assert sum(line.endswith("it is") for line in told) == MAX_DIFFERENCES
    assert "  not compared: 1, a digest" in told


def test_where_two_texts_part_is_told() -> None:
    assert (
        describe_text_difference("abc", "abd") == "from character 2 on it was 'abc', and is 'abd' (3 and 3 characters)"
    )
    assert describe_text_difference("ab", "abc").startswith("from character 2 on")
