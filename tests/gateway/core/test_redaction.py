"""Redaction of secrets: found in any text, quickly, and words stay."""

import base64
import json
import random
import re
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from channels.text import clean_outgoing
from gateway.core.redaction import CREDENTIAL_RULES, MIN_KNOWN_SECRET_CHARS, REDACTED, Redactor
from gateway.core.text_safety import escape_unprintable, reveal_hidden
from tests.kits.examples import examples
from tests.kits.planted_secrets import COUNT, passwords, planted
from tests.kits.scaling import assert_in_proportion

ROOT = Path(__file__).parents[3]
redact = Redactor()


def test_two_hundred_secrets_of_all_kinds_are_found_and_what_stands_beside_them_stays() -> None:
    all_ = planted()
    assert len({one.secret for one in all_}) == COUNT
    for one in all_:
        told = redact(f"so: {one.text} and that was it")
        assert not [form for form in one.forms() if form in told], (one.kind, told)
        assert told.startswith("so:"), one.kind
        assert told.endswith("that was it"), (one.kind, told)
        assert REDACTED in told


@pytest.mark.parametrize(
    "one", planted()[: len({one.kind for one in planted()})], ids=lambda one: one.kind
)
def test_each_kind_is_found_by_its_own_line_too(one: object) -> None:
    text, secret = getattr(one, "text", ""), getattr(one, "secret", "")
    assert secret not in redact(text)
    assert secret not in redact(json.dumps({"said": text}))
    assert secret not in redact(repr(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("password=hunter2-9, and so on", "password=[redacted], and so on"),
        ('{"token": "abcdef123", "user": "bob"}', '{"token": "[redacted]", "user": "bob"}'),
        ("password=hunter2-9\x1b[2J", "password=[redacted]\x1b[2J"),
        ("my password: swordfish", "my password: [redacted]"),
        ("postgres://bob:pa55@db/x", "postgres://bob:[redacted]@db/x"),
        ("GET /f?a=b&sig=abc%2Fdef&c=d HTTP/1.1", "GET /f?a=b&sig=[redacted]&c=d HTTP/1.1"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer [redacted]"),
        ("PRIVMSG NickServ :IDENTIFY bob s3cret", "PRIVMSG NickServ :IDENTIFY [redacted]"),
        (
            "https://api.telegram.org/bot123456:" + "A1b" * 11 + "xy/getMe",
            "https://api.telegram.org/bot123456:[redacted]/getMe",
        ),
    ],
)
def test_what_is_said_stays_readable(text: str, told: str) -> None:
    assert redact(text) == told


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4000",
        "token: SecretStr | None = None",
        "password: str",
        "token = settings.token",
        "token=sha256(x), secret=keys[0]",
        "self._account, self._password = account, password",
        "the secret: never give up",
        "token: required",
        "password: ${IRC_PASSWORD}",
        "api_key: <your key>",
        "please identify yourself to services",
        "bearer certificates are basic understanding",
        "AUTHENTICATE PLAIN",
        "CAP ACK :sasl",
        "PASS tests/test_x.py",
        "https://example.org:8080/a?b=c#d",
        "mail me at bob@example.org: it is fine",
        "tiktoken==0.14.0",
        "PWD=/srv/some/place OLDPWD=~/elsewhere",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "it is 12:30:45, and 1234567890:x",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN CERTIFICATE-----\nMIIEowIBAAKCAQEAabcdefghijkl\n-----END CERTIFICATE-----",
    ],
)
def test_words_and_programs_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_secrets_of_the_configuration_are_found_in_every_form() -> None:
    for secret in passwords(40):
        mine = Redactor([secret])
        forms = [
            secret,
            quote(secret, safe=""),
            quote_plus(secret),
            quote(secret, safe="").lower() if secret.isascii() and secret.islower() else secret,
            json.dumps(secret)[1:-1],
            json.dumps(secret, ensure_ascii=False)[1:-1],
            json.dumps(json.dumps({"a": secret})),
            repr(secret)[1:-1],
            secret.encode("unicode_escape").decode(),
            base64.b64encode(secret.encode()).decode(),
            base64.b64encode(f"someone:{secret}".encode()).decode(),
            base64.b64encode(f"ab{secret}!?".encode()).decode(),
            base64.urlsafe_b64encode(f"a{secret}".encode()).decode(),
        ]
        for form in forms:
            told = mine(f"<{form}>")
            assert REDACTED in told, form
            assert secret not in told
            assert form[4:-4] not in told


def test_short_secrets_would_blot_out_words_and_are_left() -> None:
    assert Redactor(["abc", "", " x "])("abc x") == "abc x"
    assert len("abcdef") == MIN_KNOWN_SECRET_CHARS
    assert Redactor(["abcdef"])("an abcdef!") == f"an {REDACTED}!"


@pytest.mark.parametrize(
    "unseen", ["\u200b", "\u2060", "\u00ad", "\ufe0f", "\x01", "\u200e", "\U000e0041", "\u200b" * 9]
)
@pytest.mark.parametrize(
    "secret", ["hunter2-secret-abcd-99", "sk-ant-api03-AbCdEf0123456789AbCdEf0123"]
)
def test_what_nobody_sees_hides_no_secret_that_shows_once_it_is_left_out(
    secret: str, unseen: str
) -> None:
    mine = Redactor(["hunter2-secret-abcd-99"])
    for text in (
        f"it is {unseen.join(secret)}",
        f"\u05d0 {secret[:9]}{unseen}{secret[9:]}",
        f"a{unseen}{secret}",
    ):
        told = mine(text)
        assert mine(told) == told
        for shown in (told, clean_outgoing(told), reveal_hidden(told), escape_unprintable(told)):
            assert secret not in shown.replace(unseen, "")
    family = f"{secret}: \U0001f468\u200d\U0001f469 and\u200b"
    assert mine(family) == family.replace(secret, REDACTED)


def test_what_was_redacted_stays_even_if_a_secret_reads_like_that() -> None:
    mine = Redactor(["redacted", "edacte", "[redacted]"])
    assert mine(mine("it is redacted here: [redacted]")) == f"it is {REDACTED} here: {REDACTED}"


def test_it_learns() -> None:
    mine = Redactor(["first-one"])
    assert mine("first-one second-one third-one") == f"{REDACTED} second-one third-one"
    mine.add_secrets(["second-one"])
    assert mine("first-one second-one third-one") == f"{REDACTED} {REDACTED} third-one"


PIECES = [
    "sk-",
    "sk-ant-",
    "eyJ",
    "eyJaaaaaaaa.",
    "://",
    "://a:",
    "@b",
    "password=",
    'password="',
    "token: ",
    "=",
    ":",
    "'",
    '"',
    "\\",
    '\\"',
    "-----BEGIN PRIVATE KEY-----",
    "-----END PRIVATE KEY-----",
    "-",
    "--password ",
    "a",
    "A",
    "1",
    " ",
    "\n",
    "123456:",
    "AKIA",
    "IDENTIFY ",
    "nickserv@",
    "ns ",
    "AUTHENTICATE ",
    "Bearer ",
    "Basic ",
    "authorization: bearer ",
    "[redacted]",
    "[",
    "]",
    "?sig=",
    "&token=",
    "/webhooks/12345/",
    "hooks.slack.com/services/",
    "PASS ",
    "OPER a ",
    "é",
    "github_pat_",
    "xoxb-",
    "M" * 24 + ".",
    " -u a:",
    "secret_key",
    "pwd:=",
    "x" * 40,
    "hunter2hunter2",
    "{",
    "(",
    "`",
]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@settings(max_examples=examples(600))
@given(st.one_of(st.text(max_size=200), HOSTILE))
@example("token=[redacted]sk-ant-" + "a1" * 20)
@example('password="[redacted')
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    for one in (redact, Redactor(["hunter2hunter2", "dactedx", "x" * 12])):
        once = one(text)
        assert one(once) == once


@pytest.mark.parametrize("piece", PIECES, ids=repr)
def test_much_of_any_piece_takes_no_long_time(piece: str) -> None:
    assert_in_proportion(lambda size: redact((piece * (size // len(piece) + 1))[:size]), 25_000)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.system) for seed in (1, 2))]
)
def test_a_megabyte_of_hostile_text_takes_time_in_proportion(seed: int) -> None:
    chance = random.Random(seed)
    text = "".join(chance.choices(PIECES, k=200_000))[:1_000_000]
    assert_in_proportion(lambda size: redact(text[:size]), 250_000)


def test_our_own_texts_have_hardly_anything_that_looks_like_a_secret() -> None:
    """Each exception is listed here: a false match hides a word from readers, and must stay
    rare."""
    hits = []
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("gateway/**/*.py"),
        *ROOT.glob("channels/**/*.py"),
        *ROOT.glob("agent/**/*.py"),
    ]:
        before = path.read_text(encoding="utf-8")
        after = redact(before)
        hits += [
            f"{path.name}: {a.strip()}"
            for a, b in zip(before.split("\n"), after.split("\n"), strict=True)
            if a != b
        ]
    known = (
        "redaction.py: ",  # its own example, and patterns
        "outgoing.py: token = f",  # a template
        "connection.py: password=f",  # the same
        'site.py: "send `Authorization: ',  # what is to be sent, in general
        "model.py: wants = person.ask(replace(question, secret_key=",  # the name of an answer
        "config_edit.py: server_password=server,",  # a name behind a name that ends in `password`
        'platforms.py: "password": _ask_irc_password,',  # the same
        "acme_server.py: self.token = ",  # of a server that is an example
        "test_acme.py: self.server.token = ",  # the same
        'loader.py: "use `sasl`, or write `PRIVMSG NickServ',  # what to write, in general
        "config.py: `PRIVMSG NickServ :IDENTIFY account password`",  # the same
    )
    assert [hit for hit in hits if not hit.startswith(known)] == []


def test_every_rule_finds_something_in_the_kit_or_in_these_tests() -> None:
    texts = [one.text for one in planted(8) + planted(3) + planted(5)]
    texts += [
        "git clone https://abcdef0123456789@example.org/x",
        "NickServ REGISTER s3cretpw a@b.org",
        "IDENTIFY s3cretpw",
    ]
    idle = [
        rule.needles
        for rule in CREDENTIAL_RULES
        if not any(rule.is_credential(m) for text in texts for m in re.finditer(rule.pattern, text))
    ]
    assert idle == []
