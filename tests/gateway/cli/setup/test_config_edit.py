"""What setup writes: new files, changes of those that are there, and how they are put in place."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.setup.config_edit import (
    ASIDE_FILE,
    CannotEdit,
    SetupFile,
    build_entries,
    change_value,
    check_files,
    draft_config,
    find_changes,
    parse_yaml,
    read_answers,
    read_config_files,
    redact_diff,
    render_config,
    write_files,
)
from gateway.cli.setup.dialog import (
    DiscordAnswers,
    IrcAnswers,
    ModelAnswers,
    SecretReference,
    SetupAnswers,
    TelegramAnswers,
)
from gateway.cli.setup.interview import build_farewell, next_commands
from gateway.config.loader import read_config
from gateway.config.source import Tree, value_at

PERSONA = {"IDENTITY.md": "You are Reverie.\n", "SOUL.md": "Calm.\n", "AGENTS.md": "Brief.\n"}


def secret(name: str, value: str = "s3cret-of-a-test") -> SecretReference:
    return SecretReference(reference=f"${{file:secrets/{name}}}", value=value, is_new=True)


ALL = SetupAnswers(
    telegram=TelegramAnswers(channel="telegram.main", token=secret("t"), rooms=("-1001", "*")),
    discord=DiscordAnswers(
        channel="discord.main",
        token=SecretReference(reference="${DISCORD}", value="d"),
        rooms=("123",),
    ),
    irc=IrcAnswers(
        channel="irc.libera",
        host="irc.libera.chat",
        nick="mira",
        account="mira",
        account_password=secret("i"),
        server_password=secret("p"),
        contact='ann: "a" # not {a} comment, off',
        rooms=("#a", "#b"),
    ),
    model=ModelAnswers(
        provider="anthropic", kind="anthropic", api_key=secret("k"), name="claude-haiku-5-5"
    ),
    owners=("telegram.main:1001", "irc.libera:account:ann"),
    agent_id="mira",
    workspace="./workspace",
    ops_token=secret("o"),
)
LEAST = SetupAnswers(
    irc=IrcAnswers(channel="irc.local", host="127.0.0.1", port=6667, tls=False, nick="off"),
    model=ModelAnswers(provider="llamacpp", kind="llamacpp", base_url="http://127.0.0.1:9931"),
    agent_id="on",
    ops_token=secret("o"),
)


def put(directory: Path, answers: SetupAnswers) -> None:
    made = draft_config(answers, read_config_files(directory), PERSONA, {}, "2026-11-22")
    assert check_files(directory, made.files, {"DISCORD": "d"}) == ([], [])
    write_files(directory, made.files)


@pytest.mark.parametrize("answers", [ALL, LEAST])
def test_a_new_file_says_what_was_answered_and_is_taken(
    tmp_path: Path, answers: SetupAnswers
) -> None:
    directory = tmp_path / "a" / "bot"
    put(directory, answers)
    loaded = read_config(directory, {"DISCORD": "d"})
    settings, warnings = loaded.settings, loaded.warnings
    assert warnings == ()
    assert settings.agents[0].id == answers.agent_id
    names = {one.channel for one in (answers.telegram, answers.discord, answers.irc) if one}
    assert set(settings.channels) == names
    assert settings.access.roles.owner == answers.owners
    text = (directory / "reverie.yaml").read_text()
    assert max(map(len, text.splitlines())) <= 120
    assert yaml.safe_load(text)
    assert "s3cret" not in text
    assert [path.name for path in (*tmp_path.iterdir(), *directory.parent.iterdir())] == [
        "a",
        "bot",
    ]  # no leavings


@pytest.mark.parametrize("answers", [ALL, LEAST])
def test_what_was_written_is_proposed_and_changes_nothing(
    tmp_path: Path, answers: SetupAnswers
) -> None:
    put(tmp_path / "bot", answers)
    now = read_config_files(tmp_path / "bot")
    tree = parse_yaml(now["reverie.yaml"])
    assert isinstance(tree, dict)
    again = read_answers(tree, lambda _: None)
    assert find_changes(tree, build_entries(again)) == []
    assert (again.owners, again.agent_id) == (answers.owners, answers.agent_id)
    assert draft_config(again, now, PERSONA, {}, "2027-01-01").files == ()


def test_secrets_are_for_their_owner_alone_and_written_before_they_are_named(
    tmp_path: Path,
) -> None:
    old = os.umask(0)
    try:
        put(tmp_path / "bot", ALL)
    finally:
        os.umask(old)
    modes = {
        str(p.relative_to(tmp_path / "bot")): p.stat().st_mode & 0o777
        for p in (tmp_path / "bot").rglob("*")
    }
    assert modes["secrets"] == 0o700
    assert {mode for path, mode in modes.items() if path.startswith("secrets/")} == {0o600}
    assert modes["reverie.yaml"] == 0o644


def test_what_cannot_be_put_in_place_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "bot"
    made = draft_config(ALL, {}, PERSONA, {}, "2026-11-22")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_files(directory, made.files)
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_that_would_not_be_good_is_told_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "bot").mkdir()
    wrong, _ = check_files(
        tmp_path / "bot", (SetupFile(path="reverie.yaml", text="agents: []\nllm: {}\n"),), {}
    )
    assert any(f"{tmp_path}/bot/reverie.yaml:1: agents" in one for one in wrong)
    assert not any(".reverie-setup" in one for one in wrong)
    assert list((tmp_path / "bot").iterdir()) == []


TEXT = """\
# first
a:
  b: 1   # one
  c: {x: "y", z: [1, 2]}   # two
  d:
    - p
    - q

# between
e: [{id: m, r: [u]}]
f:
"""


@pytest.mark.parametrize(
    ("keys", "value", "line"),
    [
        (("a", "b"), 2, "  b: 2   # one"),
        (("a", "b"), [1], "  b: [1] # one"),
        (("a", "c", "x"), "w: {", '  c: {x: "w: {", z: [1, 2]}'),
        (("a", "c", "n"), True, '  c: {x: "y", z: [1, 2], n: true}'),
        (("a", "c", "x"), None, "  c: {z: [1, 2]}"),
        (("a", "c", "z"), None, '  c: {x: "y"}'),
        (("a", "d"), ["s"], '    - "s"'),
        (("a", "g", "h"), "i", "  g:"),
        (("e", 0, "id"), "n", 'e: [{id: "n", r: [u]}]'),
        (("e", 0, "w"), "n", 'e: [{id: m, r: [u], w: "n"}]'),
        (("f", "k"), "v", "f:\n  k: v"),
        (("n", "o", 0, "p"), "v", "n:"),
        (("a", "b"), None, "  c: {x"),
        (("a", "d"), None, "  c: {x"),
    ],
)
def test_one_value_is_changed_and_all_else_stays(keys: Any, value: Tree, line: str) -> None:
    after = change_value(TEXT, keys, value)
    assert line in after
    assert value_at(parse_yaml(after), *keys) == value
    for remark in ("# first", "\n\n# between\n", "# two"):
        assert remark in after
    changed = [one for one in TEXT.splitlines() if one not in after.splitlines()]
    assert len(changed) <= (3 if keys == ("a", "d") else 1)


ODD = """\
%YAML 1.2
---
# a file as people write it
channels:

    irc.a :   {host:  irc.example ,port: 0x1F}   #  odd
    # not yet
    # irc.b: {}
    telegram.main:
        token:   '${T}'
        rooms: [ "-1",
                 '*' ]   # two lines
        groups:
            - '-1'  # the lounge
            - '*'

agents:
    - id:     yes       # a word
      text: >
           folded
           text
      more: "a\\tb"
flag:  True
last: ~  # no line end"""


@pytest.mark.parametrize(
    ("keys", "value", "taken", "put"),
    [
        (("flag",), False, ["flag:  True"], ["flag: false"]),
        (
            ("agents", 0, "id"),
            "mira",
            ["    - id:     yes       # a word"],
            ["    - id: mira          # a word"],
        ),
        (
            ("channels", "telegram.main", "groups"),
            ["-1", "-3"],
            ["            - '*'"],
            ['            - "-3"'],
        ),
        (("agents", 0, "workspace"), "./w", [], ["      workspace: ./w"]),
        (("channels", "telegram.main", "token"), None, ["        token:   '${T}'"], []),
        (
            ("channels", "discord.main", "token"),
            "${D}",
            [],
            ["    discord.main:", '        token: "${D}"'],
        ),
        (("ops", "token"), "${O}", [], ["ops:", '    token: "${O}"']),
    ],
)
def test_lines_that_are_not_changed_stay_to_the_byte(
    keys: Any, value: Tree, taken: list[str], put: list[str]
) -> None:
    before, after = ODD.splitlines(), change_value(ODD, keys, value).splitlines()
    assert [one for one in before if one not in after] == taken
    assert [one for one in after if one not in before] == put
    assert [one for one in before if one not in taken] == [one for one in after if one not in put]


KEYS = st.sampled_from("abcd")
LEAVES = st.one_of(
    st.integers(), st.booleans(), st.text(max_size=8), st.lists(st.text(max_size=4), max_size=3)
)
TREES = st.recursive(LEAVES, lambda below: st.dictionaries(KEYS, below, max_size=4), max_leaves=8)


def drop(tree: Any, keys: Any) -> Any:
    """The tree without what is there, and without what gave way or was made for it on the way."""
    if not isinstance(tree, dict) or not keys:
        return tree
    below = {key: drop(value, keys[1:]) if key == keys[0] else value for key, value in tree.items()}
    if len(keys) == 1 or not isinstance(below.get(keys[0]), dict) or below[keys[0]] == {}:
        below.pop(keys[0], None)
    return below


@given(
    st.dictionaries(KEYS, TREES, max_size=4),
    st.lists(KEYS, min_size=1, max_size=3),
    st.one_of(st.none(), LEAVES),
    st.sampled_from([None, False, True]),
)
def test_any_change_of_any_file_is_exact_or_refused(
    tree: dict[str, Any], keys: list[str], value: Any, style: bool | None
) -> None:
    text = "# kept\n" + yaml.safe_dump(tree, default_flow_style=style, allow_unicode=True)
    before_ = parse_yaml(text)
    try:
        after = change_value(text, tuple(keys), value)
    except CannotEdit:
        return
    assert after.startswith("# kept\n")
    assert value_at(parse_yaml(after), *keys) == value
    assert drop(parse_yaml(after), keys) == drop(before_, keys)


def test_a_file_that_setup_cannot_change_is_left_alone_and_the_answers_stand_beside_it() -> None:
    now = {"reverie.yaml": "x: &x {a: 1}\nchannels: {telegram.main: *x}\nagents: &m [{id: mira}]\n"}
    made = draft_config(ALL, now, PERSONA, {}, "2026-11-22")
    assert "reverie.yaml" not in [file.path for file in made.files]
    assert ASIDE_FILE in [file.path for file in made.files]
    assert any(ASIDE_FILE in line for line in made.notices)


def test_each_change_goes_into_the_file_that_has_the_most_of_the_way() -> None:
    now = {
        "a.yaml": "llm:\n  models:\n    main: {provider: anthropic, name: x}\n",
        "b.yaml": "access: {dm: open}\n",
    }
    made = draft_config(ALL, now, PERSONA, {}, "2026-11-22")
    texts = {file.path: file.text for file in made.files if not file.secret}
    assert "claude-haiku-5-5" in texts["a.yaml"]
    assert "telegram.main:1001" in texts["b.yaml"]
    assert "dm: open" in texts["b.yaml"]


def test_a_secret_that_stands_in_the_file_is_not_shown_in_the_diff() -> None:
    now = {
        "reverie.yaml": (
            'channels:\n  telegram.main: {platform: telegram, token: "s3cret-of-a-test"}\n'
        )
    }
    made = draft_config(ALL, now, PERSONA, {}, "2026-11-22")
    assert any("s3cret-of-a-test" in line for line in made.diff)
    assert not any("s3cret-of-a-test" in line for line in redact_diff(made, ["s3cret-of-a-test"]))


def test_a_dump_of_answers_shows_no_secret() -> None:
    assert "s3cret" not in repr(ALL)
    assert "s3cret" not in str(draft_config(ALL, {}, PERSONA, {}, "2026-11-22").diff)


def test_a_rendered_file_reads_well() -> None:
    assert render_config(build_entries(LEAST), "2026-11-22").splitlines()[4:] == [
        "channels:                                     # accounts on platforms",
        "  irc.local:",
        "    platform: irc",
        '    host: "127.0.0.1"',
        "    port: 6667",
        "    tls: false",
        '    nick: "off"',
        "    rooms: []",
        "",
        "agents:                                       # who answers",
        '  - id: "on"',
        "",
        "llm:                                          # with which model",
        "  providers:",
        "    llamacpp:",
        "      kind: llamacpp",
        '      base_url: "http://127.0.0.1:9931"',
        "  models:",
        "    main:",
        "      provider: llamacpp",
        "",
        "ops:                                          # dashboard and console of the operator",
        (
            '  token: "${file:secrets/o}"                  # the password of the dashboard at '
            "127.0.0.1:9090"
        ),
    ]


def test_the_last_words_can_be_copied_into_a_shell() -> None:
    there = "/home/ann/my bot; rm"
    answers = SetupAnswers(
        telegram=TelegramAnswers(channel="telegram.main", token=SecretReference(reference="${T}"))
    )
    said = [*next_commands(there), *build_farewell(answers, there, running=False)]
    told = [line for line in said if "--config" in line]
    assert len(told) == 5
    for line in told:
        words = shlex.split(line.partition("     ")[0])
        assert words[words.index("--config") + 1] == there


def test_what_is_no_configuration_is_left_alone(tmp_path: Path) -> None:
    for name in ("compose.yaml", "prices.yaml", ".old.yaml", "reverie.example.yaml"):
        (tmp_path / name).write_text("services: {}\n")
    (tmp_path / "prices.local.yaml").write_text("dmn: {}\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    assert [*read_config_files(tmp_path)] == ["prices.local.yaml"]


def test_where_one_file_cannot_be_put_none_is(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("old")
    (tmp_path / "reverie.yaml").mkdir()
    with pytest.raises(IsADirectoryError):
        write_files(
            tmp_path,
            (SetupFile(path="a.yaml", text="new"), SetupFile(path="reverie.yaml", text="new")),
        )
    assert (tmp_path / "a.yaml").read_text() == "old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.yaml", "reverie.yaml"]


def test_what_a_killed_setup_left_behind_is_taken_away(tmp_path: Path) -> None:
    old, new = tmp_path / ".reverie-setup-00000001", tmp_path / ".reverie-setup-00000002"
    for left in (old, new):
        left.mkdir(mode=0o700)
        (left / "token").write_text("typed")
    os.utime(old, (1, 1))
    check_files(
        tmp_path / "config", (SetupFile(path="reverie.yaml", text="agents: [{id: r}]\n"),), {}
    )
    assert not old.exists()
    assert new.exists(), "it may be another one's, just now"
