"""The command table on Discord: its menu, its options as text, suggestions, and what else is
pressed."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.base import (
    CanCompleteCommands,
    CommandArg,
    CommandCompletion,
    CommandSpec,
    Rejected,
    SubcommandSpec,
)
from channels.discord import interactions
from channels.discord.wire import format_options, quote_word
from gateway.commands.definition import CommandDefinition
from gateway.commands.parser import ParsedArguments, parse_arguments
from gateway.core.events import Command, Message, PostButton
from reverie.testing.servers.discord_api import DiscordApi
from reverie.testing.servers.discord_api_rest import wrong
from tests.channels.discord.channel_kit import Running, both, part, running
from tests.channels.discord.faults_kit import Hurried
from tests.kits.commands import TABLE

TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30
)


def test_discord_takes_the_whole_table() -> None:
    *menu, ask = cast("Any", interactions.menu_rows(TABLE.specs()))
    assert wrong([*menu, ask]) == []
    assert (ask["name"], ask["type"], ask["contexts"]) == ("Ask about this message", 3, [0, 1])
    assert [row["name"] for row in menu] == [row.name for row in TABLE.rows]
    for row, shown in zip(TABLE.rows, menu, strict=True):
        assert (shown["description"], shown["contexts"]) == (
            row.summary,
            [1] if row.direct_only else [0, 1],
        )
        managers = "32" if row.role in {"owner", "admin"} else None
        assert (
            shown["default_member_permissions"] and str(shown["default_member_permissions"])
        ) == managers
        options = shown["options"]
        if row.subs:
            assert [(one["type"], one["name"], one["description"]) for one in options] == [
                (1, sub.name, sub.summary) for sub in row.subs
            ]
        for args, told in zip(
            [sub.args for sub in row.subs] or [row.args],
            [one["options"] for one in options] if row.subs else [options],
            strict=True,
        ):
            assert [
                (one["type"], one["name"], one["description"], one["required"]) for one in told
            ] == [(3, arg.name, arg.summary, arg.required) for arg in args]
            assert [[choice["value"] for choice in one.get("choices", [])] for one in told] == [
                list(arg.choices) for arg in args
            ]
            assert [one.get("autocomplete", False) for one in told] == [
                arg.suggests and not arg.choices for arg in args
            ]


@pytest.mark.parametrize(
    "spec",
    [
        CommandSpec(name="Log", summary="Show"),
        CommandSpec(name="log entries", summary="Show"),
        CommandSpec(name="x" * 33, summary="Show"),
        CommandSpec(
            name="log",
            summary="Show",
            args=(CommandArg(name="n", summary=""), CommandArg(name="n", summary="")),
        ),
        CommandSpec(
            name="log",
            summary="S",
            args=(CommandArg(name="n", summary="N", choices=tuple(map(str, range(26)))),),
        ),
        CommandSpec(
            name="log", summary="S", args=(CommandArg(name="n", summary="N", choices=("x" * 101,)),)
        ),
        CommandSpec(
            name="log",
            summary="S",
            subs=tuple(SubcommandSpec(name=f"s{n}", summary="S") for n in range(26)),
        ),
        CommandSpec(
            name="log",
            summary="S",
            subs=tuple(
                SubcommandSpec(
                    name=f"s{n}",
                    summary="S" * 100,
                    args=tuple(CommandArg(name=f"a{m}", summary="A" * 100) for m in range(9)),
                )
                for n in range(10)
            ),
        ),
    ],
)
def test_what_discord_would_not_take_is_found_out(spec: CommandSpec) -> None:
    assert wrong(cast("Any", interactions.menu_rows([spec]))) != []


def data(name: str, sub: str = "", **options: Any) -> dict[str, Any]:
    values = [{"type": 3, "name": key, "value": value} for key, value in options.items()]
    return {
        "name": name,
        "options": [{"type": 1, "name": sub, "options": values}] if sub else values,
    }


@pytest.mark.parametrize(
    ("asked", "text", "understood"),
    [
        (data("status"), "", {}),
        (data("why", entry="17"), "17", {"entry": "17"}),
        (data("why", entry=17), "17", {"entry": "17"}),
        (data("role", "set", where="here", role="member", who="a:1"), "set a:1 member here", None),
        (
            data("role", "set", role="member", who="Ann Lee"),
            'set "Ann Lee" member',
            {"who": "Ann Lee", "role": "member"},
        ),
        (
            {"name": "help", "options": [{"type": 3, "name": "sub", "value": "list"}]},
            '"" list',
            {"sub": "list"},
        ),
        (
            data("say", room="#a", text='  "two  words" '),
            'say #a "two  words"',
            {"room": "#a", "text": '"two  words"'},
        ),
        (data("say", text="x", room="a b"), '"a b" x', {"room": "a b", "text": "x"}),
        (
            data("role", "set", who='a "b\\', role="owner"),
            'set "a \\"b\\\\" owner',
            {"who": 'a "b\\', "role": "owner"},
        ),
        (
            data("role", "set", who="a\nb", role="owner"),
            'set "a b" owner',
            {"who": "a b", "role": "owner"},
        ),
        (data("room", "list"), "list", {}),
        (data("status", old="1 2"), '"1 2"', None),
        (data("gone", "sub", old="1"), "sub 1", None),
        (data("role", "gone", who="a:1"), "gone a:1", None),
    ],
)
def test_options_are_what_people_would_write(
    asked: Any, text: str, understood: dict[str, str] | None
) -> None:
    said = format_options(asked, TABLE.specs())
    assert said == text.removeprefix("say " if asked["name"] == "say" else "")
    if understood is not None:
        use = parse_arguments(TABLE.people[asked["name"]], said)
        assert isinstance(use, ParsedArguments)
        assert use.arguments == understood


ROW = CommandDefinition(
    name="x",
    group="people",
    summary="X",
    args=(
        CommandArg(name="a", summary="A"),
        CommandArg(name="b", summary="B"),
        CommandArg(name="c", summary="C", rest=True),
    ),
)
SPEC = CommandSpec(name="x", summary="X", args=ROW.args)


@given(st.dictionaries(st.sampled_from("abc"), TEXT))
def test_no_value_ever_stands_for_another_argument(values: dict[str, str]) -> None:
    use = parse_arguments(ROW, format_options(data("x", **values), [SPEC]))
    assert isinstance(use, ParsedArguments)
    told = {name: " ".join(value.split()) for name, value in values.items() if value.split()}
    assert {name: " ".join(value.split()) for name, value in use.arguments.items()} == told


@given(TEXT)
def test_a_quoted_word_is_one_word(word: str) -> None:
    row = CommandDefinition(
        name="x", group="people", summary="X", args=(CommandArg(name="a", summary="A"),)
    )
    use = parse_arguments(row, quote_word(word))
    assert isinstance(use, ParsedArguments)
    assert use.arguments.get("a", "") == " ".join(word.split())


@pytest.mark.channel(commands=TABLE.specs())
async def test_what_may_be_meant_is_suggested(api: DiscordApi, run: Running) -> None:
    assert isinstance(run.channel, CanCompleteCommands)
    asked = list[CommandCompletion]()

    async def suggest(one: CommandCompletion) -> Sequence[str]:
        asked.append(one)
        return [
            "console:ann",
            "x" * 101,
            "",
            "two\nlines",
            "console:ann",
            *(f"console:{n}" for n in range(40)),
        ]

    run.channel.set_completer(suggest)
    typing = api.commands.type(api.room, api.ann, "role set", "who", "an", role="member")
    await api.until(lambda: typing.choices is not None)
    assert typing.choices == ["console:ann", *(f"console:{n}" for n in range(24))]
    (one,) = asked
    assert (one.name, one.sub, one.arg, one.prefix, one.direct) == (
        "role",
        "set",
        "who",
        "an",
        False,
    )
    assert one.given == {"role": "member"}
    assert (one.at.room, one.sender.id, one.sender.verified) == (api.room, api.ann, True)
    api.commands.replay(typing)
    last = api.slash(api.room, api.ann, "status")
    assert (await run.command()).id == f"interaction:{last.id}"
    assert len(asked) == 1
    assert api.offences == []


@pytest.mark.channel(commands=TABLE.specs())
async def test_buttons_and_forms_are_acknowledged_and_are_no_commands(
    api: DiscordApi, run: Running
) -> None:
    (said,) = (await run.channel.send(part("hi", api.room))).ids
    odd = ["", "Approve", "approve\nx", "x" * 33]
    pressed = [api.commands.press(api.room, api.ann, said, one, forged=True) for one in odd]
    pressed.append(api.commands.send_form(api.room, api.ann))
    await api.until(lambda: all(one.answered == 6 for one in pressed))
    for one in pressed:
        api.commands.replay(one)
    last = api.slash(api.room, api.ann, "status")
    command = await run.command()
    assert (command.id, len(run.messages)) == (f"interaction:{last.id}", 0)
    await api.until(lambda: last.answered is not None)
    assert len(api.made("POST /interactions/")) == 6
    assert api.offences == []


PICTURE = ("cat.png", b"\x89PNG", "image/png")


@pytest.mark.channel(commands=TABLE.specs())
async def test_a_question_about_a_message_brings_it_and_is_answered_as_a_reply_to_it(
    api: DiscordApi, run: Running
) -> None:
    await api.until(lambda: bool(api.commands.table.get("global")))
    long = "what the cat did " * 110
    inner = {"content": "a forward", "attachments": [api.keep(*PICTURE)], "mentions": []}
    said = api.says(
        api.room, api.ben, long, files=[PICTURE], message_snapshots=[{"message": inner}]
    )
    asked = api.commands.ask_about(api.room, api.ann, said)
    await api.until(lambda: asked.answered == 9)
    sent = api.commands.fill_in(asked, "Is that true?")
    await api.until(lambda: api.told(sent) != [])
    assert sent.ephemeral
    await run.until(lambda: len(run.messages) == 2)
    question = run.messages[1]
    assert (question.text, question.kind, question.reply_to) == (
        "Is that true?",
        "mention",
        said,
    )
    assert (question.sender.id, question.sender.verified, question.at.room) == (
        api.ann,
        True,
        api.room,
    )
    quoted = question.quoted
    assert quoted is not None
    assert quoted.sender.id == api.ben
    assert quoted.text == f"{long}\n[forwarded] a forward"
    assert [one.name for one in quoted.attachments] == ["cat.png", "cat.png"]
    picture = quoted.attachments[0]
    assert await run.channel.download(question.at, picture, limit_bytes=99) == PICTURE[1]
    await run.channel.send(part("Yes.", api.room, reply_to=question.id))
    answer = next(one for one in api.world.messages[api.room].values() if one["content"] == "Yes.")
    assert answer["message_reference"]["message_id"] == said
    api.commands.replay(sent)
    empty = api.commands.fill_in(asked, " ")
    await run.until(lambda: len(run.messages) == 3)
    assert run.messages[2].text == "Explain this message."
    assert run.messages[2].id == f"ask:{empty.id}:{said}"
    direct = api.world.dm(api.ben)
    other = api.commands.ask_about(direct, api.ben, api.says(direct, api.ben, "mine"))
    await api.until(lambda: bool(other.form))
    await run.end()
    async with running(api, commands=TABLE.specs()) as again:
        await again.up()
        api.commands.fill_in(other, "And this?")  # the message is forgotten: the log has it
        await again.until(lambda: "And this?" in again.texts)
        late = again.messages[-1]
        assert (late.text, late.kind, late.quoted) == ("And this?", "direct", None)
        assert api.offences == []


BUTTONS = (
    PostButton(label="Approve once", command="approve 7kq2"),
    PostButton(label="Deny", command="deny 7kq2"),
)


@pytest.mark.channel(commands=TABLE.specs())
async def test_buttons_stand_under_the_message_until_it_is_replaced(
    api: DiscordApi, run: Running
) -> None:
    (said,) = (await run.channel.send(part("May I?", api.room, buttons=BUTTONS))).ids
    shown = api.world.messages[api.room][said]
    assert [(one["label"], one["custom_id"]) for one in shown["components"][0]["components"]] == [
        ("Approve once", "approve 7kq2"),
        ("Deny", "deny 7kq2"),
    ]
    for _ in range(2):  # again, as after an attempt without an answer
        assert (await run.channel.send(part("May I? **No.**", api.room, replaces=said))).ids == (
            said,
        )
    assert (shown["content"], shown["components"]) == ("May I? **No.**", [])
    assert len(api.texts(api.room)) == 1
    with pytest.raises(Rejected, match="Unknown Message"):
        await run.channel.send(part("No.", api.room, replaces="999"))


@pytest.mark.channel(commands=TABLE.specs())
async def test_a_tap_is_a_command_and_is_answered_to_who_tapped(
    api: DiscordApi, run: Running
) -> None:
    """At once with a sign that we work on it, and that is replaced by the answer, which nobody else
    sees."""
    (said,) = (await run.channel.send(part("May I?", api.room, buttons=BUTTONS))).ids
    run.open.clear()
    tapped = api.commands.press(api.room, api.ben, said, "approve 7kq2")
    await api.until(lambda: tapped.answered == 5)
    assert tapped.ephemeral
    run.open.set()
    command = await run.command()
    assert (command.name, command.args, command.origin) == ("approve", "7kq2", "button")
    assert (command.sender.id, command.sender.verified, command.at.room) == (
        api.ben,
        True,
        api.room,
    )
    assert (command.id, command.direct) == (f"interaction:{tapped.id}", False)
    await run.channel.send(part("Approved.", api.room, reply_to=command.id, private=True))
    answer = api.world.messages[api.room][tapped.messages[0]]
    assert (answer["content"], answer["flags"] & 64) == ("Approved.", 64)
    api.commands.replay(tapped)
    second = api.commands.press(api.room, api.ann, said, "deny 7kq2")
    await api.until(lambda: second.answered == 5)
    assert [(await run.command(number)).args for number in (2, 3)] == ["7kq2", "7kq2"]
    assert len(api.made("POST /interactions/")) == 2
    assert api.offences == []


LOG = (CommandSpec(name="log", summary="Show the log", private=True),)


async def test_a_command_that_was_not_written_down_when_it_ended_is_told_in_the_next_run() -> None:
    async with both(clock=Hurried(50), commands=LOG) as (api, run):
        run.open.clear()
        asked = api.slash(api.room, api.ann, "log")
        api.says(api.room, api.ann, "and this")
        await api.until(lambda: bool(api.made(r"POST /interactions/.*")))
        await run.end()
        again = Running(run.channel)
        try:
            told = await again.one(Command)
            await again.until(lambda: bool(again.all(Message)))
            assert [message.text for message in again.messages] == ["and this"]
            await again.up()
            await again.channel.send(
                part("late, but here", api.room, reply_to=told.id, private=True)
            )
            assert api.told(asked) == ["late, but here"]
        finally:
            await again.end()
