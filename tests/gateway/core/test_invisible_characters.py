"""Invisible characters: those that are marked, those that are removed, and those that must stay."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.text_safety import reveal_hidden, strip_hidden

FILLERS = "\u115f\u1160\u3164\uffa0"
TAGS = "".join(chr(0xE0000 + ord(letter)) for letter in "ignore all")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("safe\u202eexe.txt", "safe[U+202E]exe.txt"),
        ("a\u2066b\u2069c", "a[U+2066]b[U+2069]c"),
        ("\u202a\u202e\u202c", "[U+202A and 2 more]"),
        (f"hi{TAGS}", "hi[U+E0069 and 9 more]"),
        (f"\U0001f3f4{TAGS}\U000e007f", "\U0001f3f4[U+E0069 and 10 more]"),
        ("a\ufff9b\ufffac\ufffb", "a[U+FFF9]b[U+FFFA]c[U+FFFB]"),
        ("pass\u200bword", "password"),
        ("\ufeffhello\u2060", "hello"),
        ("soft\u00adhyphen", "softhyphen"),
        ("a\u200db\u200cc", "abc"),
        ("a\u200b\u200c\u200b\u200cb", "a[U+200B and 3 more]b"),
        ("a\u200e\u200fb", "ab"),
        ("\u05d0\u200e\u200e\u200e", "\u05d0\u200e"),
        ("\u05d0\u200e\u202e\u200e", "\u05d0\u200e[U+202E]\u200e"),
        ("a\ufe0fb", "ab"),
        ("😀\ufe0f\ufe0e\ufe0f\ufe0e\ufe0f!", "😀\ufe0f[U+FE0E and 3 more]!"),
        ("😀\u200d text", "😀 text"),
        ("😀\u200d\u200d😀", "😀\u200d😀"),
        ("\u3164\uffa0", ""),
        ("bell\x07 \x1b[31mred\x00", "bell\x07 \x1b[31mred\x00"),
        ("line\ntab\t", "line\ntab\t"),
    ],
)
def test_what_hides_words_is_told_and_the_rest_is_left_out(text: str, told: str) -> None:
    assert reveal_hidden(text) == told
    assert "[U+" not in strip_hidden(text)


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox can't “jump” – over 10 €…",
        "Größe, Straße, naïve, façade, smørrebrød, Łódź, İstanbul, Việt Nam",
        "Съешь ещё этих мягких французских булок",
        "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
        "שלום עולם, מה שלומך?\u200f (טוב)",
        "مرحبا بالعالم، كيف حالك؟ ١٢٣",
        "می\u200cخواهم کتاب\u200cها را بخوانم",
        "क्\u200dष, क्\u200cष और हिन्दी",
        "শ্রী র\u200d্যাব বাংলা",
        "தமிழ் மொழி, తెలుగు, ಕನ್ನಡ, മലയാളം ന്\u200d",
        "ශ්\u200dරී ලංකා",
        "ภาษาไทย ไม่มีปัญหา",
        "日本語のテキスト、漢字とカナ。葛\U000e0100城市",
        "中文文本，没有问题。",
        "한국어 텍스트 문제없음 \u115f\u1161",
        "ქართული, Հայերեն, አማርኛ, ភាសាខ្មែរ, ພາສາລາວ, မြန်မာ",
        "ᠮᠣᠩᠭᠣᠯ\u180e᠊ᠠ ᠰᠠᠢᠨ\u180b",
        "ܫܠܡܐ ދިވެހި",
        "👨\u200d👩\u200d👧\u200d👦 👩🏽\u200d🚀 🏳\ufe0f\u200d🌈",
        "❤\ufe0f\u200d🔥 🙂\u200d↔\ufe0f 🧑🏿\u200d❤\ufe0f\u200d💋\u200d🧑🏻",
        "🇩🇪🇯🇵 1\ufe0f\u20e3 #\ufe0f\u20e3 ©\ufe0f ℹ\ufe0f ☺\ufe0e",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "x ≨\ufe00 y, 0\ufe00, \u0600١٢",
        "```\n  code\twith tabs\n```",
    ],
)
def test_ordinary_text_is_left_as_it_is(text: str) -> None:
    assert reveal_hidden(text) == text == strip_hidden(text)


ODD = st.text(
    st.one_of(
        st.sampled_from(
            "a1#😀❤🏴🏽अ्ם\u0627\u4e00\u1820\u1100\u200b\u200c\u200d\u200e\u200f\u061c\u202a\u202e\u2066\u2069\ufe00\ufe0e\ufe0f"
            "\U000e0100\U000e0067\U000e0062\U000e007f\u115f\u1160\u3164\u180b\u180e\ufeff\x00\n\ufff9"
        ),
        st.characters(),
    ),
    max_size=60,
)


@given(ODD)
def test_doing_it_twice_is_doing_it_once(text: str) -> None:
    for way in (reveal_hidden, strip_hidden):
        once = way(text)
        assert way(once) == once


def _seen(text: str) -> list[str]:
    return [char for char in text if unicodedata.category(char)[0] in "LNPSZ" and char not in FILLERS]


@given(ODD)
def test_what_is_seen_is_never_lost(text: str) -> None:
    assert _seen(strip_hidden(text)) == _seen(text)
    assert not any("\u202a" <= char <= "\u202e" or "\u2066" <= char <= "\u2069" for char in reveal_hidden(text))


def test_a_long_run_takes_no_long_time() -> None:
    assert reveal_hidden("\u200b" * 200_000) == "[U+200B and 199999 more]"
    assert len(strip_hidden("\u05d0" + "\u200e\u202e" * 100_000)) == 2
