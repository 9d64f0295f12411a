"""Files of a configuration that setup writes and edits."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.source import Tree, value_at
from gateway.plugins.setup.config_edit import (
    CannotEdit,
    change_value,
    check_files,
    edit_files,
    find_changes,
    parse_yaml,
    render_config,
    write_files,
)

NEW: dict[str, Tree] = {
    "ops": {"token": "${file:secrets/o}"},
    "channels": {
        "irc.local": {
            "platform": "irc",
            "host": "127.0.0.1",
            "port": 6667,
            "tls": False,
            "nick": "off",
            "contact": None,
            "rooms": ["#a", 'x: "'],
        }
    },
    "agents": [{"id": "on", "workspace": "./workspace"}],
    "llm": {
        "providers": {"llamacpp": {"kind": "llamacpp", "base_url": "http://127.0.0.1:9931"}},
        "models": {"main": {"provider": "llamacpp", "name": None}},
    },
}


def test_a_new_file_reads_well_and_says_what_was_answered() -> None:
    text = render_config(NEW, "2026-11-22")
    assert list(find_changes(parse_yaml(text), NEW)) == []
    assert text.splitlines()[5:] == [
        "channels:                                     # accounts on platforms",
        "  irc.local:",
        "    platform: irc",
        '    host: "127.0.0.1"',
        "    port: 6667",
        "    tls: false",
        '    nick: "off"',
        '    rooms: ["#a", "x: \\""]',
        "",
        "agents:                                       # who answers",
        '  - id: "on"',
        (
            "    workspace: ./workspace                    # IDENTITY.md, SOUL.md, AGENTS.md: read "
            "again when they change"
        ),
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


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reverie.yaml").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_files(tmp_path, {"reverie.yaml": "new"})
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("reverie.yaml", "old")]


def test_an_error_is_told_by_the_name_of_its_file(tmp_path: Path) -> None:
    wrong = check_files(tmp_path, {"reverie.yaml": "agents: []\nllm: {}\n"}, {})
    assert any(one.startswith("reverie.yaml:2: llm") for one in wrong)
    assert list(tmp_path.iterdir()) == []


def test_each_change_goes_into_the_file_that_has_the_most_of_its_keys() -> None:
    texts = {
        "a.yaml": "llm:\n  models:\n    main: {provider: anthropic, name: x}\n",
        "b.yaml": "access: {dm: open}\n",
        "reverie.yaml": "agents: [{id: a}]\n",
    }
    changes: list[tuple[Any, Tree]] = [
        (("llm", "models", "main", "name"), "y"),
        (("access", "roles"), {"owner": ["x:1"]}),
        (("ops",), {"port": 0}),
    ]
    trees = {name: parse_yaml(text) for name, text in texts.items()}
    assert edit_files(texts, trees, changes) == {
        "a.yaml": 'llm:\n  models:\n    main: {provider: anthropic, name: "y"}\n',
        "b.yaml": 'access: {dm: open, roles: {owner: ["x:1"]}}\n',
        "reverie.yaml": "agents: [{id: a}]\nops:\n  port: 0\n",
    }


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
        (("a", "g"), {"h": "i"}, "  g:"),
        (("e", 0, "id"), "n", 'e: [{id: "n", r: [u]}]'),
        (("e", 0, "w"), "n", 'e: [{id: m, r: [u], w: "n"}]'),
        (("f",), {"k": "v"}, "f:\n  k: v"),
        (("n",), {"o": [{"p": "v"}]}, "n:"),
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
            ("channels", "discord.main"),
            {"token": "${D}"},
            [],
            ["    discord.main:", '        token: "${D}"'],
        ),
        (("ops",), {"token": "${O}"}, [], ["ops:", '    token: "${O}"']),
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
    try:
        before_ = parse_yaml(text)
    except ValueError:  # ruamel.yaml takes `._` for a number
        return
    try:
        after = change_value(text, tuple(keys), value)
    except CannotEdit:
        return
    assert after.startswith("# kept\n")
    assert value_at(parse_yaml(after), *keys) == value
    assert drop(parse_yaml(after), keys) == drop(before_, keys)
