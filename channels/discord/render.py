"""From our Markdown to Discord's, which is nearly the same. Pure.

https://support.discord.com/hc/en-us/articles/210298617: no tables, no pictures, headings to the third
level, and fences of exactly three backticks. Mentions are made harmless by `allowed_mentions`, not here.
"""

import re

from channels.split import split_markdown
from channels.text import clean_outgoing

MAX_CONTENT_UNITS = 2000
"""https://discord.com/developers/docs/resources/message#create-message says characters, not which;
counted in UTF-16 units, which is never less."""
_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})([^`\n]*)")
_DEEP_HEADING = re.compile(r" {0,3}#{4,6} +(.+?)(?: +#+)?")
_PICTURE = re.compile(r"(`+[^`\n]+`+)|!(\[[^\]\n]*\]\()")
_TABLE_RULE = re.compile(r" {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?")


def render_bodies(text: str) -> tuple[str, ...]:
    """Messages that show `text`, each within the limit, none blank; none for blank text."""
    return split_markdown(render(text), MAX_CONTENT_UNITS)


def render(text: str) -> str:
    """`text` as Discord reads it. Code is never touched, only its fences."""
    lines = clean_outgoing(text).split("\n")
    shown: list[str] = []
    at = 0
    while at < len(lines):
        if found := _FENCE.fullmatch(lines[at]):
            end = _find_fence_end(lines, at, found[2])
            shown += _code_block(lines[at + 1 : end], found[3].strip())
            at = end + 1
        elif at + 1 < len(lines) and "|" in lines[at] and _TABLE_RULE.fullmatch(lines[at + 1].rstrip()):
            end = next((n for n in range(at + 1, len(lines)) if "|" not in lines[n]), len(lines))
            shown += _code_block(lines[at:end], "")
            at = end
        else:
            shown.append(_render_line(lines[at]))
            at += 1
    return "\n".join(shown)


def _render_line(line: str) -> str:
    if found := _DEEP_HEADING.fullmatch(line.rstrip()):
        return f"**{found[1]}**" if "**" not in found[1] else found[1]
    return _PICTURE.sub(lambda found: found[1] or found[2], line)


def _find_fence_end(lines: list[str], start: int, marks: str) -> int:
    """The line that closes it; behind the last one if none does (CommonMark, 4.5)."""
    for at in range(start + 1, len(lines)):
        found = _FENCE.fullmatch(lines[at].rstrip())
        if found and found[2][0] == marks[0] and len(found[2]) >= len(marks) and not found[3].strip():
            return at
    return len(lines)


def _code_block(code: list[str], language: str) -> list[str]:
    # Discord would end the block at the first three backticks: a mark of no width stands between them.
    safe = [line.replace("```", "`\u200b`\u200b`") for line in code]
    return [f"```{language}", *safe, "```"] if any(line.strip() for line in code) else []
