"""Character cards: the parts that are used, and malicious files that must do no harm."""

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.workspace import character_card
from agent.workspace.character_card import MAX_CARD_FILE_BYTES, InvalidCard, render_card
from agent.workspace.persona import compose_bundle, read_workspace


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture(*chunks: bytes) -> bytes:
    """A red dot and what comes with it, in front of its end, where SillyTavern writes it."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0\xff\0\0")
    return b"".join(
        (
            character_card.PNG_SIGNATURE,
            chunk(b"IHDR", head),
            chunk(b"IDAT", pixels),
            *chunks,
            chunk(b"IEND", b""),
        )
    )


def embedded(card: object, keyword: bytes = b"chara") -> bytes:
    return chunk(b"tEXt", keyword + b"\0" + base64.b64encode(json.dumps(card).encode()))


def v2(**data: object) -> dict[str, Any]:
    return {"spec": "chara_card_v2", "spec_version": "2.0", "data": {"name": "Haruhi", **data}}


def v3(**data: object) -> dict[str, Any]:
    return {"spec": "chara_card_v3", "spec_version": "3.0", "data": {"name": "Haruhi", **data}}


def text(card: object) -> str:
    return render_card(json.dumps(card).encode())


FULL = v2(
    description="{{char}} leads a club. <BOT> never rests.",
    personality="loud",
    scenario="A school.",
    first_mes="Hey, {{user}}!",
    mes_example="<START>\n{{User}}: hi\n{{CHAR}}: You are late.",
    creator_notes="never shown",
    system_prompt="{{original}}Stay in character.",
    post_history_instructions="Be short.",
    alternate_greetings=["never shown"],
    tags=["never shown"],
    creator="never shown",
    character_version="never shown",
    extensions={"depth_prompt": "never shown"},
)
FULL_TEXT = """\
You play Haruhi. What stands above holds also for this character.

## Description

Haruhi leads a club. Haruhi never rests.

## Personality

loud

## Scenario

A school.

## Instructions

Stay in character.

Be short.

## Greeting

Samples of style; they never happened.

Hey, the person you talk to!

## Conversations

Samples of style; they never happened.

<START>
the person you talk to: hi
Haruhi: You are late."""


def test_all_fields_that_are_for_the_model_and_no_others() -> None:
    assert text(FULL) == FULL_TEXT
    assert text(FULL | {"spec": "chara_card_v3"}) == FULL_TEXT


def test_a_card_is_the_same_bytes_as_json_and_as_a_picture() -> None:
    as_json = compose_bundle({"AVATAR": ("AVATAR.json", json.dumps(FULL).encode())})
    as_png = compose_bundle({"AVATAR": ("AVATAR.png", picture(embedded(FULL)))})
    assert as_json == as_png
    assert as_json[0].identity == f"# AVATAR\n\n{FULL_TEXT}"


def test_the_json_counts_where_a_workspace_has_both(tmp_path: Path) -> None:
    (tmp_path / "AVATAR.json").write_text(json.dumps(v2(name="Json")))
    (tmp_path / "AVATAR.png").write_bytes(picture(embedded(v2(name="Png"))))
    (tmp_path / "other.card.png").write_bytes(picture(embedded(v2(name="Other"))))
    (tmp_path / "SOUL.md").write_text("s")
    assert read_workspace(tmp_path, "public", "x").bundle.identity.startswith(
        "# SOUL.md\n\ns\n\n# AVATAR\n\nYou play Json."
    )
    (tmp_path / "AVATAR.json").unlink()
    assert "You play Png." in read_workspace(tmp_path, "public", "x").bundle.identity


def test_version_3_has_nicknames_and_its_own_text_in_pictures() -> None:
    assert text(v3(nickname="Boss", description="{{char}}")).endswith("## Description\n\nBoss")
    both = picture(embedded(v2(name="Old")), embedded(v3(name="New"), b"ccv3"))
    assert render_card(both).startswith("You play New. ")


@pytest.mark.parametrize(
    ("said", "read_as"),
    [
        ("{{time}} {{unknown::x}} { {char} }", "{{time}} {{unknown::x}} { {char} }"),
        ("<User> and <CHAR>", "the person you talk to and Haruhi"),
        ("{{char", "{{char"),
    ],
)
def test_macros(said: str, read_as: str) -> None:
    assert text(v2(description=said)).partition("## Description\n\n")[2] == read_as


def test_lore_that_always_holds_in_its_order() -> None:
    book = {
        "entries": [
            {
                "keys": [],
                "content": "third",
                "enabled": True,
                "insertion_order": 10**400,
                "constant": True,
            },
            {
                "keys": [],
                "content": "second {{char}}",
                "enabled": True,
                "insertion_order": 2,
                "constant": True,
            },
            {"keys": [], "content": "first", "insertion_order": -1, "constant": True},
            {"keys": ["k"], "content": "only on its key", "enabled": True, "insertion_order": 0},
            {
                "keys": ["k"],
                "content": "off",
                "enabled": False,
                "insertion_order": 0,
                "constant": True,
            },
            {"keys": [], "content": "", "insertion_order": 0, "constant": True},
            {"content": 5, "constant": True},
            "junk",
        ]
    }
    lore = text(v3(character_book=book)).partition("## World\n\n")[2]
    assert lore == "first\n\nsecond Haruhi\n\nthird"


WHOLE = picture(embedded(v2()))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "too deeply"),
        (b'{"a":' + b"9" * 10_000 + b"}", "too long"),
        (b"{}", "no character card"),
        (b'{"spec":"lorebook_v3","data":{}}', "no character card"),
        (b'{"spec":["chara_card_v2"],"data":{}}', "no character card"),
        (b'{"spec":"chara_card_v2"}', "`data` is not an object"),
        (b'{"spec":"chara_card_v2","data":{"name":" "}}', "no name"),
        (b" " * 5_000_000, "longer than 4000000 bytes"),
        (b" " * (MAX_CARD_FILE_BYTES + 1), "larger than"),
        (character_card.PNG_SIGNATURE, "no text"),
        (WHOLE[:-25], "cut off"),
        (picture(), "no text `ccv3` or `chara`"),
        (picture(chunk(b"tEXt", b"chara\0***")), "not base64"),
    ],
)
def test_a_card_that_cannot_be_read_says_why_and_is_left_out(content: bytes, why: str) -> None:
    with pytest.raises(InvalidCard, match=why):
        render_card(content)
    made, notes = compose_bundle({"SOUL": ("SOUL.md", b"s"), "AVATAR": ("AVATAR.png", content)})
    assert made.identity == "# SOUL.md\n\ns"
    assert len(notes) == 1
    assert notes[0].startswith("AVATAR.png is left out: ")


def harmless(content: bytes) -> None:
    """Either a card whose text is fit for the wire, or a reason."""
    try:
        told = render_card(content)
    except InvalidCard:
        return
    told.encode("utf-8")
    assert "\0" not in told
    assert "{{char}}" not in told.lower()
    assert "<user>" not in told.lower()
    assert re.match(r"You play \S.*\. What stands above", told), "a name on one line"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
WORDS = st.lists(
    st.sampled_from(
        [
            "{{char}}",
            "{{user}}",
            "<bot>",
            "{{",
            "}}",
            "{{random:",
            ",",
            "@@",
            "\n",
            "\ud83d",
            "a",
            "{",
            "\\",
        ]
    ),
    max_size=20,
).map("".join)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "content": WORDS | JSON,
        "constant": st.just(True) | JSON,
        "insertion_order": st.floats() | JSON,
    },
)
CARDS = st.fixed_dictionaries(
    {"name": WORDS | st.just("A") | JSON},
    optional={
        "description": WORDS | JSON,
        "mes_example": WORDS,
        "nickname": WORDS | JSON,
        "character_book": st.fixed_dictionaries(
            {"entries": st.lists(ENTRY | JSON, max_size=4) | JSON}
        )
        | JSON,
    },
)


@given(CARDS, st.sampled_from(["chara_card_v2", "chara_card_v3", None]))
def test_no_card_does_harm(data: dict[str, object], spec: str | None) -> None:
    root = {"spec": spec, "data": data} if spec else data
    content = json.dumps(root).encode()
    harmless(content)
    harmless(picture(embedded(root)))


def damaged(data: st.DataObject, whole: bytes) -> bytes:
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        match data.draw(st.sampled_from(["flip", "cut", "put", "drop"])):
            case "flip":
                content[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del content[at:]
            case "put":
                content[at:at] = data.draw(st.binary(max_size=12))
            case _:
                del content[at : at + data.draw(st.integers(1, 12))]
    return bytes(content)


@given(st.data())
def test_no_damaged_picture_does_harm(data: st.DataObject) -> None:
    harmless(damaged(data, picture(embedded(FULL))))
