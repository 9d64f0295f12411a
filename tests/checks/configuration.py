"""Write docs/configuration.md from the settings: `python tests/checks/configuration.py [--check]`, or `make docs`.

The meaning of a key is its field's docstring; where it has none, the comment beside it in config/reverie.example.yaml.
"""

import ast
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agent.models.config import ProviderUrl
from gateway.config.models import Settings
from gateway.config.reload import RESTART_KEYS
from gateway.core.fields import ConfigSection, Duration, TimeZone

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
- A secret is `"${NAME}"` (an environment variable) or `"${file:PATH}"` (the content of a file). Any other value may be
  written in these two forms as well. Secrets never appear in messages, logs, prompts or the API.
- A relative path starts at the configuration directory.
- `<name>` in a key is a name of your choice.

## Changes while the gateway runs

The gateway reads its files again when one is written, on SIGHUP, and on `/reload` or `reverie ctl reload`. It
validates all of them first. If they are good, all changes apply from the next message on; a turn that is under way
keeps the settings that it began with. If anything is wrong, nothing changes and the log names the file, the line and
the key. Channels are
added, removed and changed without disturbing the others. Keys marked **restart** take effect only after a restart; the
log names them when they change.

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
    """One that can be written."""

    path: tuple[str, ...]
    type: str
    default: str
    meaning: str
    restart: bool


class Table(NamedTuple):
    """Keys that stand together."""

    title: str
    about: str
    keys: list[Key]


def docs_of(model: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field, those that are inherited, too."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, ConfigSection) or cls is ConfigSection:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for line, below in zip(body.body, body.body[1:], strict=False):
            named = isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                assert isinstance(line, ast.AnnAssign)
                assert isinstance(line.target, ast.Name)
                found[line.target.id] = " ".join(str(below.value.value).split())
    return found


def sections(told: Any) -> list[type[ConfigSection]]:
    """Those that a type holds."""
    if isinstance(told, type) and issubclass(told, ConfigSection):
        return [told]
    return [one for inner in get_args(told) for one in sections(inner)] if get_origin(told) is not Literal else []


def type_of(told: Any) -> str:
    """In words."""
    origin, args = get_origin(told), get_args(told)
    for known, word in ((Duration, "duration"), (TimeZone, "time zone"), (ProviderUrl, "address")):
        if told == known:
            return word
    if origin is Annotated:
        return type_of(args[0])
    if origin is Literal:
        return " · ".join(f"`{one}`" for one in args)
    if origin in (Union, types.UnionType):
        return " · ".join(dict.fromkeys(type_of(one) for one in args if one is not type(None)))
    if origin is tuple:
        return f"list of {type_of(args[0])}"
    if origin is dict:
        return f"{type_of(args[1])} by name"
    words = {bool: "`true` · `false`", int: "whole number", float: "number", str: "text", Path: "path"}
    words |= {SecretStr: "secret"}
    return words.get(told, "keys below" if sections(told) else str(told))


def bounds(field: FieldInfo) -> str:
    """What a number may be."""
    found: list[Any] = []
    for one in field.metadata:
        found += list(one) if isinstance(one, annotated_types.GroupedMetadata) else [one]
    low = next((f"at least {one.ge}" for one in found if isinstance(one, annotated_types.Ge)), "")
    low = low or next((f"more than {one.gt}" for one in found if isinstance(one, annotated_types.Gt)), "")
    high = next((f"at most {one.le}" for one in found if isinstance(one, annotated_types.Le)), "")
    return ", ".join(part for part in (low, high) if part and part != "at least 0")


def default_of(field: FieldInfo, told: Any) -> str:
    """As it would be written. Empty: there is none, and nothing need be."""
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**required**"
    if value is None or isinstance(value, BaseModel):
        return ""
    if told == Duration or (get_origin(told) is Annotated and Duration in get_args(told)):
        return f"`{_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        plain = all(not isinstance(one, BaseModel) for one in value)
        return f"`[{', '.join(map(str, value))}]`" if plain else "one that matches all"
    if isinstance(value, dict):
        return "`{}`"
    return f"`{value}`" if value != "" else '`""`'


def _duration(seconds: float) -> str:
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"


def keys_of(model: type[BaseModel], path: tuple[str, ...], comments: dict[str, str]) -> Iterator[Key]:
    """Each, with those below it."""
    docs, hints = docs_of(model), get_type_hints(model, include_extras=True)
    for name, field in model.model_fields.items():
        here = (*path, name)
        told = hints[name]
        below = sections(told)
        base = told
        while get_origin(base) is Annotated:
            base = get_args(base)[0]
        named = get_origin(base) is dict
        own = type_of(told) if not (below and type_of(told) == "keys below") else ""
        about = docs.get(name) or next((inspect.getdoc(one) or "" for one in below if own == ""), "")
        meaning = about or comments.get(".".join(here[-2:]), "") or comments.get(name, "")
        meaning = SAYS_WHICH if name in ("platform", "kind") and get_origin(base) is Literal else meaning
        limit = bounds(field)
        whole = f"{own}, {limit}" if limit else own
        yield Key(here, whole.replace("keys below · ", ""), default_of(field, told), meaning, restarts(here))
        listed = "[]" if get_origin(base) is tuple else ""
        inside = (*here, "<name>") if named else (*path, f"{name}{listed}")
        for one in below:
            yield from keys_of(one, inside, comments)


def restarts(path: tuple[str, ...]) -> bool:
    """Whether a change counts only after a restart."""
    plain = tuple("*" if part == "<name>" else part.removesuffix("[]") for part in path)
    listed = [(part, "*") if was.endswith("[]") else (part,) for part, was in zip(plain, path, strict=True)]
    flat = tuple(part for parts in listed for part in parts)
    return any(flat[: len(key.split("."))] == tuple(key.split(".")) for key in RESTART_KEYS)


def comments_of(text: str) -> dict[str, str]:
    """What stands beside each key of the example, by it with the one above, and by it alone if none shares its name."""
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
    """All of it."""
    comments = comments_of(EXAMPLE.read_text(encoding="utf-8"))
    found = list[Table]()
    hints = get_type_hints(Settings, include_extras=True)
    for name in Settings.model_fields:
        below = sections(hints[name])
        if name == "channels":
            for one in below:
                platform = get_args(get_type_hints(one)["platform"])[0]
                keys = list(keys_of(one, (name, "<name>"), comments))
                found.append(Table(f"channels: {platform}", inspect.getdoc(one) or "", keys))
        elif name == "llm":
            found += _of_models(below[0], comments)
        else:
            prefix = (f"{name}[]",) if name == "agents" else (name,)
            keys = [key for one in below for key in keys_of(one, prefix, comments)]
            found.append(Table(name, inspect.getdoc(below[0]) or "", keys))
    return found


def _of_models(llm: type[ConfigSection], comments: dict[str, str]) -> Iterator[Table]:
    hints = get_type_hints(llm, include_extras=True)
    for one in sections(hints["providers"]):
        kind = get_args(get_type_hints(one)["kind"])[0]
        yield Table(
            f"llm.providers: {kind}",
            inspect.getdoc(one) or "",
            list(keys_of(one, ("llm", "providers", "<name>"), comments)),
        )
    (model,) = sections(hints["models"])
    yield Table("llm.models", inspect.getdoc(model) or "", list(keys_of(model, ("llm", "models", "<name>"), comments)))
    (context,) = sections(hints["context_optimization"])
    keys = list(keys_of(context, ("llm", "context_optimization"), comments))
    yield Table("llm.context_optimization", inspect.getdoc(context) or "", keys)


def text() -> str:
    """The whole page."""
    lines = [HEAD]
    for table in tables():
        lines += [f"### {table.title}", "", table.about, "", "| key | type | default | meaning |", "|---|---|---|---|"]
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
