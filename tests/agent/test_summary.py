"""Summaries by a model: the request, the judgement of the answer, and the names that must survive
word for word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.base import ModelRequest, TextPart
from agent.prompt import PromptInput, PromptTurn, build_request
from agent.prompts import load_prompt
from agent.summary import (
    CUT_MARK,
    NO_CALLS_HINT,
    build_summary_request,
    extract_identifiers,
    find_missing_identifiers,
    judge_summary,
    truncate_at_sentence,
)
from agent.view import FoldedTurns, extract_exact_names, render_head
from gateway.core.events import ToolCallRecord, TurnStep
from tests.agent.test_view import NOON
from tests.kits.scaling import assert_in_proportion

SPOKEN = """\
[2026-11-21 19:40] Ada Lovelace (owner): the door code is 4711, my address ada@example.org. Read /srv/data/report.csv!
[2026-11-21 19:41] bob (guest) (overheard): see (https://example.org/a/b?c=1), deploy v2.3.1-rc1
  on build-07.example.net:8443 by 21 November 2026 at 14:30; it costs $1,200.50 for 12 kg, 15 % off.
Marta Lindqvist said that "Aunt Marge" likes `rm -rf build`, in #ops with @kim; and/or not, e.g. commit 3fa9c1d2e.
See ABC-1234 in HttpServer or max_age_seconds, call +49 170 1234567,
550e8400-e29b-41d4-a716-446655440000, C:\\me\\x.txt."""
FOUND = {
    "Ada Lovelace",
    "4711",
    "ada@example.org",
    "/srv/data/report.csv",
    "https://example.org/a/b?c=1",
    "v2.3.1-rc1",
    "build-07.example.net:8443",
    "21 November 2026",
    "14:30",
    "$1,200.50",
    "12 kg",
    "15 %",
    "Marta Lindqvist",
    "Aunt Marge",
    "rm -rf build",
    "#ops",
    "@kim",
    "3fa9c1d2e",
    "ABC-1234",
    "HttpServer",
    "max_age_seconds",
    "+49 170 1234567",
    "550e8400-e29b-41d4-a716-446655440000",
    "C:\\me\\x.txt",
}
STEPS = (
    TurnStep(
        text="", calls=(ToolCallRecord(id="a", name="look_up", arguments="{}", result="found"),)
    ),
)


def request(*history: PromptTurn, most: int = 4_096) -> ModelRequest:
    brief = PromptInput(
        persona="You are Ana.", card="# Where", history=history, input_text="", now="It is late."
    )
    whole = build_request(brief, tools=(), max_output_tokens=most, key="ana", plain=False)
    said = (
        whole.conversation
        if whole.conversation and whole.conversation[-1].parts
        else whole.conversation[:-1]
    )
    return ModelRequest(
        blocks=whole.blocks,
        conversation=said,
        aside="words",
        now="now",
        max_output_tokens=most,
        shared_key="ana",
    )


# What is asked

PAST = st.lists(
    st.builds(
        PromptTurn,
        input_text=st.sampled_from(["", "hello", "more"]),
        reply=st.sampled_from(["", "Yes."]),
        steps=st.sampled_from([(), STEPS]),
    ),
    max_size=5,
)


@given(PAST, st.integers(0, 3))
def test_asking_begins_with_all_that_was_there_and_ends_on_the_side_of_the_user(
    history: list[PromptTurn], tail: int
) -> None:
    before = request(*history)
    asked = build_summary_request(before, tail=tail)
    assert (asked.blocks, asked.tools, asked.shared_key) == (
        before.blocks,
        before.tools,
        before.shared_key,
    )
    *_, last = asked.conversation
    pieces = [part for said in before.conversation for part in said.parts]
    assert [part for said in asked.conversation for part in said.parts][:-1] == pieces
    roles = [said.role for said in asked.conversation]
    assert roles == [("user", "assistant")[place % 2] for place in range(len(roles))]
    assert (last.role, asked.aside, asked.now) == ("user", "", "")


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (0, "Summarise the whole conversation for yourself, in"),
        (1, "Summarise the conversation except its last exchange for yourself, in"),
        (7, "Summarise the conversation except its last 7 exchanges for yourself, in"),
    ],
)
def test_the_model_is_told_what_to_summarise_and_how_long(tail: int, says: str) -> None:
    asked = build_summary_request(request(), tail=tail, most_tokens=400).conversation[-1].parts[-1]
    assert isinstance(asked, TextPart)
    assert says in asked.text
    assert "at most 200 words" in asked.text
    assert "{" not in asked.text
    assert asked.text.startswith(load_prompt("summarise")[:20])


@pytest.mark.parametrize(
    ("model", "wanted", "most"), [(4_096, 2_000, 4_000), (4_096, 400, 800), (160, 2_000, 160)]
)
def test_an_answer_is_bounded_by_what_is_wanted_and_what_the_model_may_say(
    model: int, wanted: int, most: int
) -> None:
    assert (
        build_summary_request(request(most=model), tail=1, most_tokens=wanted).max_output_tokens
        == most
    )


def test_what_was_wrong_is_told_behind_all_that_is_cached() -> None:
    first, second = (
        build_summary_request(request(), tail=1),
        build_summary_request(request(), tail=1, hint=NO_CALLS_HINT),
    )
    assert (second.conversation, second.now) == (first.conversation, NO_CALLS_HINT)


# What is taken of the answer


def test_a_summary_is_taken_as_it_is() -> None:
    assert (
        judge_summary(" Ada wants the report.\n", stop="end", called=False).text
        == "Ada wants the report."
    )


@pytest.mark.parametrize(
    ("text", "stop", "called", "reason"),
    [
        ("", "end", False, "wrote no summary"),
        (" \n\x00", "end", False, "wrote no summary"),
        ("Ada wants", "refused", False, "declined"),
        ("Ada wants the report.", "tools", True, "called tools"),
        ("I'm sorry, but I can't help with that.", "end", False, "excused itself"),
        ("I cannot summarise this conversation.", "end", False, "excused itself"),
        ("Ada wants the rep", "length", False, "cut off"),
    ],
)
def test_what_is_no_summary_says_why(text: str, stop: str, called: bool, reason: str) -> None:
    draft = judge_summary(text, stop=stop, called=called)  # type: ignore[arg-type]  # each is one of them
    assert (draft.text, reason in draft.reason) == ("", True)


@given(st.text(max_size=300), st.integers(-5, 400))
def test_shortened_never_exceeds_and_is_a_beginning(text: str, most: int) -> None:
    short = truncate_at_sentence(text, most)
    assert len(short.encode()) <= max(most, 0)
    assert short == text or text.startswith(short.removesuffix(CUT_MARK).rstrip())


# What must survive


def test_what_looks_like_one_is_an_identifier() -> None:
    assert set(extract_identifiers([SPOKEN])) >= FOUND


def test_who_counts_names_nothing_until_a_number_comes_again() -> None:
    counted = [f"ann: {number}" for number in range(150, 190)]
    assert extract_identifiers([*counted, "bob: room 187, code 4711"]) == ["187", "4711"]


@pytest.mark.parametrize(
    "piece",
    [
        "a-",
        "a.",
        "a_",
        "1",
        "1,",
        "/a",
        "Aa ",
        "aA",
        '"a',
        "`",
        "a/",
        "+1 ",
        "a1-",
        "ht",
        "9 ",
        "x@",
        "1 Jan",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    assert_in_proportion(lambda size: extract_identifiers([piece * (size // len(piece))]), 25_000)


@pytest.mark.parametrize(
    ("summary", "gone"),
    [
        ("See /srv/a.txt and port 8080.", []),
        ("See /srv/a.txt.old and port 80801.", ["/srv/a.txt", "8080"]),
        ("See x/srv/a.txt: 1.8080", ["/srv/a.txt", "8080"]),
    ],
)
def test_what_a_summary_does_not_say_word_for_word_stands_beside_it(
    summary: str, gone: list[str]
) -> None:
    assert find_missing_identifiers(summary, ["/srv/a.txt", "8080"]) == gone


def test_a_name_that_is_none_by_its_form_stands_beside_the_summary_unless_it_is_quoted() -> None:
    names = ["Aunt Marge", "rm -rf build", "4711", "gone_file"]
    missing = find_missing_identifiers("Aunt Marge did rm -rf build at 4711.", names)
    assert missing == ["rm -rf build", "gone_file"]
    assert find_missing_identifiers("Marge did `rm -rf build`.", names[1:2]) == []


@given(st.lists(st.sampled_from(sorted(FOUND)), min_size=1, max_size=20, unique=True), st.data())
def test_identifiers_are_carried_over_any_number_of_compactions(
    planted: list[str], data: st.DataObject
) -> None:
    """Said once, in a summary or word for word beside it, whatever each summary keeps."""
    carried, said = list[str](), ", ".join(f"`{name}`" for name in planted)
    for number in range(data.draw(st.integers(1, 5))):
        names = extract_identifiers([said] if number == 0 else [], kept=carried)
        told = data.draw(st.lists(st.sampled_from(planted), unique=True))
        summary = f"In part {number} it was about {' and '.join(told)}."
        text = render_head(
            FoldedTurns(handle="v1-9", turns=2, since=NOON, until=NOON),
            summary=summary,
            journal=(),
            exact=names,
            last_request="",
            budget_tokens=2_000,
        )
        assert all(name in text for name in planted)
        carried = extract_exact_names(text)
