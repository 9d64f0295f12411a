"""Write docs/configuration.md from the settings: `python tests/checks/configuration.py [--check]`,
or `make docs`.

The page is made of the settings' JSON schema. The meaning of a key is its field's docstring; where
it has none, the comment beside it in config/reverie.example.yaml.
"""

import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gateway.config.reload import RESTART_KEYS
from gateway.plugins.setup.schema import Schema, read_schema

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FILE = ROOT / "docs" / "configuration.md"
EXAMPLE = ROOT / "config" / "reverie.example.yaml"
HEAD = """\
# Configuration

The configuration is one directory of YAML files. Files are merged by their top-level keys; one file is fine. To begin,
run `reverie setup`, or copy one of these:

| example | for |
|---|---|
| [telegram](../config/examples/telegram/reverie.yaml) | one person on Telegram |
| [discord](../config/examples/discord/reverie.yaml) | a Discord community |
| [irc](../config/examples/irc/reverie.yaml) | an IRC channel |
| [everywhere](../config/examples/everywhere/reverie.yaml) | all three platforms, one agent |
| [reverie.example.yaml](../config/reverie.example.yaml) | every key with its default |

`reverie check-config --config DIR` reports everything that is wrong at once, with file, line and key: unknown keys,
missing secrets, wrong types, names that do not exist.

## Values

- A duration is seconds (`300`) or has a unit (`500ms`, `5m`, `1h`).
- A secret is `"${NAME}"` (an environment variable) or `"${file:PATH}"` (the content of a file), without the white
  space around it; a value in quotes is refused, because they would be a part of it. Any other value may be
  written in these two forms as well. Secrets never appear in messages, logs, prompts or the API.
- A relative path starts at the configuration directory.
- `<name>` in a key is a name of your choice.

## Changes while the gateway runs

The gateway reads its files again when one is written, on SIGHUP, and on `/reload` or `reverie ctl reload`. It
validates all of them first. If they are good, all changes apply from the next message on; a turn that is under way
keeps the settings that it began with. If anything is wrong, nothing changes and the log names the file, the line and
the key. Channels are
added, removed and changed without disturbing the others. Keys marked **restart** need a restart: when one
of them has changed, the log names it, and all changes wait for the restart.

## Several agents

```yaml
agents:
  - id: clerk
    workspace: ./clerk
    model: small
    bindings: [{match: {channel: "irc.*", room: "#office"}}]
  - id: mybot
```

A conversation belongs to the first agent, from the top, that has a matching binding. An agent without `bindings`
matches everything, so it stands last. Each agent has its own persona and model and knows the names of the others.

## All keys

The tables below are generated from the program's own models by `make docs`. "Left out" describes a key that has no
value.
"""

SAYS_WHICH = "Selects this kind."


class Key(NamedTuple):
    path: tuple[str, ...]
    type: str
    default: str
    meaning: str
    restart: bool


class Table(NamedTuple):
    title: str
    about: str
    keys: list[Key]


schema = functools.cache(read_schema)


def sections(told: Schema) -> list[Schema]:
    if "$ref" in told:
        found = schema()["$defs"][told["$ref"].rpartition("/")[2]]
        return [found] if "properties" in found else []
    inner = [*told.get("anyOf", []), *told.get("oneOf", [])]
    inner += [
        told[key] for key in ("items", "additionalProperties") if isinstance(told.get(key), dict)
    ]
    return [one for below in inner for one in sections(below)]


def type_of(told: Schema) -> str:
    if "$ref" in told:
        found = schema()["$defs"][told["$ref"].rpartition("/")[2]]
        return "keys below" if "properties" in found else type_of(found)
    if "enum" in told or "const" in told:
        return " · ".join(f"`{one}`" for one in told.get("enum", [told.get("const")]))
    if choices := told.get("anyOf") or told.get("oneOf"):
        return " · ".join(
            dict.fromkeys(type_of(one) for one in choices if one.get("type") != "null")
        )
    if told["type"] == "array":
        return f"list of {type_of(told['items'])}"
    if told["type"] == "object":
        return f"{type_of(told['additionalProperties'])} by name"
    words = {
        "boolean": "`true` · `false`",
        "integer": "whole number",
        "number": "number",
        "string": "text",
    }
    kinds = {"password": "secret", "uri": "address", "time-zone": "time zone"}
    kind = told.get("format", "")
    return kinds.get(kind, kind) or words[told["type"]]


def bounds(told: Schema) -> str:
    """What a number may be."""
    found: Schema = next(
        (one for one in (told, *told.get("anyOf", [])) if one.get("type") in ("integer", "number")),
        {},
    )
    if "exclusiveMinimum" in found:
        low = f"more than {found['exclusiveMinimum']:.15g}"
    else:
        low = f"at least {found['minimum']:.15g}" if found.get("minimum") else ""
    high = f"at most {found['maximum']}" if "maximum" in found else ""
    return ", ".join(part for part in (low, high) if part)


def default_of(told: Schema, *, required: bool) -> str:
    """As it would be written. Empty: there is none, and nothing need be."""
    if required:
        return "**required**"
    value = told.get("default", {"array": [], "object": {}}.get(told.get("type", "")))
    if value is None or (isinstance(value, dict) and "$ref" in told):
        return ""
    if type_of(told) == "duration":
        return f"`{_duration(value)}`"
    if isinstance(value, list):
        plain = all(not isinstance(one, dict) for one in value)
        return f"`[{', '.join(map(str, value))}]`" if plain else "one that matches all"
    if isinstance(value, bool | dict):
        return f"`{json.dumps(value)}`"
    return f"`{value}`" if value != "" else '`""`'


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def keys_of(section: Schema, path: tuple[str, ...], comments: dict[str, str]) -> Iterator[Key]:
    """Each, with those below it."""
    for name, told in section["properties"].items():
        here, below, words = (*path, name), sections(told), type_of(told)
        own = "" if below and words == "keys below" else words
        about = told.get("description") or next(
            (one.get("description", "") for one in below if own == ""), ""
        )
        meaning = (
            " ".join(about.split())
            or comments.get(".".join(here[-2:]), "")
            or comments.get(name, "")
        )
        meaning = SAYS_WHICH if name in ("platform", "kind") and "const" in told else meaning
        whole = ", ".join(part for part in (own, bounds(told)) if part).replace("keys below · ", "")
        default = default_of(told, required=name in section.get("required", []))
        yield Key(here, whole, default, meaning, restarts(here))
        listed = "[]" if told.get("type") == "array" else ""
        inside = (*here, "<name>") if told.get("type") == "object" else (*path, f"{name}{listed}")
        for one in below:
            yield from keys_of(one, inside, comments)


def restarts(path: tuple[str, ...]) -> bool:
    """Whether a change counts only after a restart."""
    plain = tuple("*" if part == "<name>" else part.removesuffix("[]") for part in path)
    listed = [
        (part, "*") if was.endswith("[]") else (part,)
        for part, was in zip(plain, path, strict=True)
    ]
    flat = tuple(part for parts in listed for part in parts)
    return any(flat[: len(key.split("."))] == tuple(key.split(".")) for key in RESTART_KEYS)


def comments_of(text: str) -> dict[str, str]:
    """What stands beside each key of the example, by it with the one above, and by it alone if none
    shares its name."""
    found, above, parents = dict[str, str](), list[tuple[int, str]](), dict[str, set[str]]()
    for line in text.splitlines():
        match = re.match(r"^(?P<indent>\s*(?:- |# )?)(?P<key>[a-z_]+):(?P<rest>.*)$", line)
        if match is None:
            continue
        depth = len(match["indent"])
        while above and above[-1][0] >= depth:
            above.pop()
        parent = above[-1][1] if above else ""
        parents.setdefault(match["key"], set()).add(parent)
        comment = re.search(r"\s# ?(.*)$", match["rest"])
        if comment is not None and comment[1] and not comment[1].startswith("required"):
            found.setdefault(f"{parent}.{match['key']}".lstrip("."), comment[1].strip())
            found.setdefault(match["key"], comment[1].strip())
        above.append((depth, match["key"]))
    return {key: said for key, said in found.items() if len(parents.get(key, ())) <= 1}


def tables() -> list[Table]:
    comments = comments_of(EXAMPLE.read_text(encoding="utf-8"))
    found = list[Table]()

    def table(title: str, section: Schema, *path: str) -> None:
        about = " ".join(section.get("description", "").split())
        found.append(Table(title, about, list(keys_of(section, path, comments))))

    for name, told in schema()["properties"].items():
        below = sections(told)
        if name == "channels":
            for one in below:
                table(f"channels: {one['properties']['platform']['const']}", one, name, "<name>")
        elif name == "llm":
            parts = below[0]["properties"]
            plain = {key: one for key, one in parts.items() if not sections(one)}
            table(name, {**below[0], "properties": plain}, name)
            for one in sections(parts["providers"]):
                table(
                    f"llm.providers: {one['properties']['kind']['const']}",
                    one,
                    "llm",
                    "providers",
                    "<name>",
                )
            table("llm.models", sections(parts["models"])[0], "llm", "models", "<name>")
            context = sections(parts["context_optimization"])[0]
            table("llm.context_optimization", context, "llm", "context_optimization")
        else:
            table(name, below[0], "agents[]" if name == "agents" else name)
    return found


def text() -> str:
    lines = [HEAD]
    for table in tables():
        lines += [
            f"### {table.title}",
            "",
            table.about,
            "",
            "| key | type | default | meaning |",
            "|---|---|---|---|",
        ]
        for key in table.keys:
            meaning = re.sub(r"\bNone: ", "Left out: ", key.meaning)
            meaning = f"{meaning} **restart**" if key.restart else meaning
            cells = (f"`{'.'.join(key.path)}`", key.type, key.default, meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write it, or with `--check` say whether it is what it should be."""
    if "--check" in sys.argv[1:]:
        if FILE.read_text(encoding="utf-8") == text():
            return 0
        print(f"{FILE.relative_to(ROOT)} does not match the settings: run make docs")
        return 1
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
