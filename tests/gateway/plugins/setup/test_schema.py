"""The JSON schema for editors says of a configuration what the program says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from gateway.config.loader import ConfigError, parse_config
from gateway.plugins.setup.schema import schema_for_editors

CONFIG = Path(__file__).resolve().parents[4] / "config"
IRC = {"platform": "irc", "host": "127.0.0.1", "nick": "reverie"}


@pytest.fixture(scope="module")
def editor() -> Draft202012Validator:
    schema = json.loads(schema_for_editors())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    "file", sorted(CONFIG.glob("**/reverie*.yaml")), ids=lambda one: f"{one.parent.name}/{one.name}"
)
def test_every_shipped_configuration_is_good(editor: Draft202012Validator, file: Path) -> None:
    assert [*editor.iter_errors(YAML(typ="safe", pure=True).load(file))] == []


@pytest.mark.parametrize(
    ("section", "is_good"),
    [
        ({"channels": {"irc.net": {**IRC, "port": 6697}}}, True),
        ({"channels": {"irc.net": {**IRC, "port": "six"}}}, False),
        ({"channels": {"irc.net": {**IRC, "prot": 6697}}}, False),
        ({"channels": {"irc.net": {"platform": "irc", "nick": "reverie"}}}, False),
        ({"channels": {"fax": {**IRC, "platform": "fax"}}}, False),
        ({"access": {"dm": "open"}}, True),
        ({"access": {"dm": "ajar"}}, False),
        ({"media": {"keep": "12h"}}, True),
        ({"media": {"keep": 30}}, True),
        ({"media": {"keep": "a while"}}, False),
        ({"memory": {"no_such_key": 1}}, False),
        ({"no_such_section": {}}, False),
    ],
)
def test_the_schema_and_the_program_agree(
    editor: Draft202012Validator, section: dict[str, Any], is_good: bool
) -> None:
    whole = {
        "agents": [{"id": "reverie"}],
        "llm": {"providers": {"s": {"kind": "scripted"}}, "models": {"main": {"provider": "s"}}},
        **section,
    }
    assert editor.is_valid(whole) == is_good
    try:
        parse_config(whole, CONFIG)
    except ConfigError:
        assert not is_good
    else:
        assert is_good


def test_a_reference_may_stand_for_any_value(editor: Draft202012Validator) -> None:
    channel = {**IRC, "port": "${PORT}", "nick": "${NICK}", "tls": "${file:tls}"}
    assert editor.is_valid({"channels": {"irc.net": channel}, "media": {"keep": "${KEEP}"}})
