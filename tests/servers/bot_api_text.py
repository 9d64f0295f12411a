"""What the Bot API says to a text and its entities. Pure.

Lengths count UTF-16 units (core.telegram.org/bots/api#messageentity). The words of the refusals are those of
tdlib/td `MessageEntity.cpp`. Stricter than Telegram where it would mend silently what the bot got wrong: more than
100 entities, entities that overlap without one inside the other, anything inside `pre` or `code`.
"""

from typing import Any

from tests.servers.bot_api_http import Json

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_ENTITIES = 100
_TYPES = (
    "mention hashtag cashtag bot_command url email phone_number bold italic underline strikethrough spoiler "
    "blockquote expandable_blockquote code pre text_link text_mention custom_emoji date_time"
)
TYPES = frozenset(_TYPES.split())


class ApiError(Exception):
    """A refusal."""

    def __init__(self, code: int, description: str, **parameters: Any) -> None:
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters

    @property
    def body(self) -> Json:
        told: Json = {"ok": False, "error_code": self.code, "description": self.description}
        return told | ({"parameters": self.parameters} if self.parameters else {})


def units(text: str) -> int:
    """UTF-16 units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def checked(text: object, entities: object, limit: int = MAX_TEXT) -> str:
    """The text as it will be shown. Raises `ApiError`."""
    if not isinstance(text, str) or not text.strip():
        raise ApiError(400, "Bad Request: message text is empty" if limit == MAX_TEXT else "Bad Request: no caption")
    if any("\ud800" <= char <= "\udfff" for char in text) or "\0" in text:
        raise ApiError(400, "Bad Request: strings must be encoded in UTF-8")
    if units(text) > limit:
        what = "message is" if limit == MAX_TEXT else "message caption is"
        raise ApiError(400, f"Bad Request: {what} too long")
    if entities:
        _entities(text, entities)
    return text


def _entities(text: str, entities: object) -> None:
    if not isinstance(entities, list) or not all(isinstance(entity, dict) for entity in entities):
        raise ApiError(400, "Bad Request: can't parse entities JSON object")
    if len(entities) > MAX_ENTITIES:
        raise ApiError(400, f"Bad Request: strict: {len(entities)} entities, at most {MAX_ENTITIES}")
    size, raw = units(text), text.encode("utf-16-le")
    for entity in entities:
        offset, length = entity.get("offset"), entity.get("length")
        if entity.get("type") not in TYPES:
            raise ApiError(400, f"Bad Request: can't parse MessageEntity: unsupported type {entity.get('type')}")
        if entity["type"] == "text_link" and not entity.get("url"):
            raise ApiError(400, 'Bad Request: can\'t parse MessageEntity: field "url" must be of type String')
        if type(offset) is not int or type(length) is not int or offset < 0 or length <= 0:
            raise ApiError(400, f"Bad Request: receive an entity with incorrect offset {offset} or length {length}")
        for what, at in (("begins", offset), ("ends", offset + length)):
            if at > size:
                raise ApiError(
                    400,
                    f"Bad Request: entity beginning at UTF-16 offset {offset} {what} "
                    f"after the end of the text at UTF-16 offset {size}",
                )
            if at < size and 0xDC <= raw[2 * at + 1] <= 0xDF:
                raise ApiError(
                    400,
                    f"Bad Request: entity beginning at UTF-16 offset {offset} {what} in the middle of a UTF-16 symbol",
                )
    _nesting(entities)


def _nesting(entities: list[Json]) -> None:
    """`bold` and its like nest freely; `pre` and `code` hold nothing and stand in nothing but a quote."""
    quotes = ("blockquote", "expandable_blockquote")
    spans = sorted((e["offset"], -e["length"], e["type"] not in quotes, e["type"]) for e in entities)
    around: list[tuple[int, str]] = []
    for offset, length, plain, kind in spans:
        end = offset - length
        while around and around[-1][0] <= offset:
            around.pop()
        if around:
            outer_end, outer = around[-1]
            if end > outer_end:
                raise ApiError(400, f"Bad Request: strict: {kind} at {offset} overlaps {outer}")
            alone = outer in ("pre", "code") or (kind in ("pre", "code") and outer not in quotes)
            if alone or (not plain and outer in quotes) or kind == outer == "text_link":
                raise ApiError(400, f"Bad Request: strict: {kind} at {offset} can't be nested in {outer}")
        around.append((end, kind))
