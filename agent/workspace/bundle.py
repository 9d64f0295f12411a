"""The text of a workspace. Pure: equal files give equal bytes, whatever wrote them, wherever they lie, at any hour.

What is in `identity` stands in front of every prompt in every channel, so nothing of it may depend on where the
agent speaks, on whether the private files were read, or on how long they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.workspace.avatar import CARD_FILES, MAX_CARD_FILE_BYTES, InvalidCard, read_card, render_card
from agent.workspace.text import decode_text

PersonaScope = Literal["public", "private"]
"""private: the agent is alone with its owner."""

AVATAR = "AVATAR"
IDENTITY = ("IDENTITY", "SOUL", "AGENTS", AVATAR)
PRIVATE = ("USER", "MEMORY")
TINY_PERSONA = "IDENTITY.local.md"
"""For the embedded model, which loses itself in more than a sentence: this and nothing else."""

MAX_FILE_CHARS = 12_000
MAX_BUNDLE_CHARS = 60_000
"""Of all files together, headings aside. More is noise in every prompt, paid for every hour."""
MAX_FILE_BYTES = 250_000
"""Of a file that are read: `MAX_FILE_CHARS` in any script, and what is dropped between them."""
CUT_MARK = "[cut here: the file goes on]"
"""Without a number: what is written behind the cut changes no byte of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonaBundle:
    """What the files say, ready for a prompt. Either may be empty."""

    identity: str
    """IDENTITY, SOUL, AGENTS and the character card. The same in every channel."""
    private: str
    """USER and MEMORY. Empty in public scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonaSection:
    """A part of the text, and where it comes from."""

    name: str
    files: tuple[str, ...]
    """The first that is there is taken."""
    max_bytes: int


def persona_sections(scope: PersonaScope, family: str) -> tuple[PersonaSection, ...]:
    """What is read for a model of `family`, in the order of the text.

    Raises ValueError for a family that cannot be part of a file's name.
    """
    if not family.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{family!r} is not the name of a model family")
    return tuple(
        PersonaSection(name=name, files=CARD_FILES, max_bytes=MAX_CARD_FILE_BYTES)
        if name == AVATAR
        else PersonaSection(name=name, files=(f"{name}.{family}.md", f"{name}.md"), max_bytes=MAX_FILE_BYTES)
        for name in (IDENTITY + PRIVATE if scope == "private" else IDENTITY)
    )


def compose_bundle(found: Mapping[str, tuple[str, bytes]]) -> tuple[PersonaBundle, tuple[str, ...]]:
    """The bundle, and what the operator should be told.

    `found`: by section's name, the file that was taken and its bytes. What cannot be used is left out and told.
    """
    if found.get("IDENTITY", ("", b""))[0] == TINY_PERSONA:
        return PersonaBundle(identity=decode_text(found["IDENTITY"][1])[:MAX_FILE_CHARS], private=""), ()
    notes: list[str] = []
    texts: dict[str, str] = {}
    left = MAX_BUNDLE_CHARS
    for section in IDENTITY + PRIVATE:
        if section not in found:
            continue
        file, content = found[section]
        text = _render_section(section, file, content, notes)
        most = min(MAX_FILE_CHARS, left)
        left -= min(len(text), most)
        if len(text) > most:
            notes.append(f"{file} has {len(text)} characters; only the first {most} are used")
            text = f"{text[:most].rstrip()}\n{CUT_MARK}".lstrip()
        if text:
            # Named alike from whichever file it came, so that a card is the same bytes as JSON and as PNG.
            texts[section] = f"# {section if section == AVATAR else f'{section}.md'}\n\n{text}"
    identity = "\n\n".join(texts[section] for section in IDENTITY if section in texts)
    return PersonaBundle(
        identity=identity, private="\n\n".join(texts[section] for section in PRIVATE if section in texts)
    ), tuple(notes)


def _render_section(section: str, file: str, content: bytes, notes: list[str]) -> str:
    if section == AVATAR:
        try:
            return render_card(read_card(content))
        except InvalidCard as bad:
            notes.append(f"{file} is left out: {bad}")
            return ""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < 4 * MAX_FILE_CHARS:  # else it is behind the cut, or is one: the reading stopped there
            notes.append(f"{file} is not UTF-8 at byte {error.start}; what cannot be read is replaced")
    return decode_text(content)
