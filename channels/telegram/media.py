"""What a message holds besides text: files stay with Telegram, the rest becomes a line. Pure."""

from typing import Literal

from channels.payload import Json, get_int, get_number, get_object, get_objects, get_raw_str, get_str
from channels.text import clean_name, single_line
from gateway.events import Attachment

_Form = Literal["image", "audio", "video", "file", "sticker", "location"]
_FILE_KINDS: dict[str, tuple[_Form, str | None]] = {
    "animation": ("video", "video/mp4"),
    "video": ("video", None),
    "video_note": ("video", "video/mp4"),
    "audio": ("audio", None),
    "voice": ("audio", "audio/ogg"),
    "document": ("file", None),
}
"""By key: the form, and the type where Telegram knows it without saying."""
_RECORDED_KINDS = ("voice", "video_note")
_FORMS_BY_TYPE: dict[str, _Form] = {"image": "image", "audio": "audio", "video": "video"}
_MAX_POLL_OPTIONS, _TEXT_CHARS = 12, 300


def parse_attachments(message: Json) -> tuple[Attachment, ...]:
    """Files, in the order in which they are listed above; a picture only in its largest size."""
    found = []
    sizes = [size for size in get_objects(message, "photo") if get_raw_str(size, "file_id")]
    if sizes:
        largest = max(sizes, key=lambda size: (get_int(size, "width") or 0) * (get_int(size, "height") or 0))
        found.append(_build_attachment(largest, "image", "image/jpeg"))
    for key, (form, known) in _FILE_KINDS.items():
        file = get_object(message, key)
        # A moving picture is sent as a document too, for old clients.
        if get_raw_str(file, "file_id") and not (key == "document" and "animation" in message):
            told = get_str(file, "mime_type") or known
            kind = _FORMS_BY_TYPE.get((told or "").partition("/")[0], form) if key == "document" else form
            found.append(_build_attachment(file, kind, told, recorded=key in _RECORDED_KINDS))
    sticker = get_object(message, "sticker")
    if get_raw_str(sticker, "file_id"):
        kind_of = "video/webm" if sticker.get("is_video") is True else "image/webp"
        found.append(_build_attachment(sticker, "sticker", None if sticker.get("is_animated") is True else kind_of))
    return tuple(found)


def _build_attachment(file: Json, form: _Form, content_type: str | None, *, recorded: bool = False) -> Attachment:
    size = get_number(file, "file_size")
    return Attachment(
        id=get_str(file, "file_id"),
        form=form,
        name=clean_name(get_raw_str(file, "file_name")) or None,
        content_type=content_type,
        size_bytes=int(size) if size is not None else None,
        duration_s=get_number(file, "duration"),
        recorded=recorded,
    )


def describe_content(message: Json) -> str:
    """A line for what is neither text nor a file; empty if there is nothing of the kind."""
    if venue := get_object(message, "venue"):
        where = _format_position(get_object(venue, "location"))
        return (
            f"[venue: {clean_name(get_raw_str(venue, 'title'))}, {clean_name(get_raw_str(venue, 'address'))} ({where})]"
        )
    if location := get_object(message, "location"):
        return f"[location: {_format_position(location)}]"
    if contact := get_object(message, "contact"):
        return f"[contact: {full_name(contact)}, {clean_name(get_raw_str(contact, 'phone_number'))}]"
    if poll := get_object(message, "poll"):
        options = " | ".join(
            clean_name(get_raw_str(option, "text")) for option in get_objects(poll, "options")[:_MAX_POLL_OPTIONS]
        )
        return f"[poll: {single_line(get_raw_str(poll, 'question'), _TEXT_CHARS)}: {options}]"
    if dice := get_object(message, "dice"):
        return f"[dice: {clean_name(get_raw_str(dice, 'emoji'))} {get_int(dice, 'value') or 0}]"
    if sticker := get_object(message, "sticker"):
        parts = (clean_name(get_raw_str(sticker, "emoji")), clean_name(get_raw_str(sticker, "set_name")))
        return f"[{' '.join(filter(None, ['sticker:', *parts]))}]"
    if game := get_object(message, "game"):
        return f"[game: {clean_name(get_raw_str(game, 'title'))}]"
    if checklist := get_object(message, "checklist"):
        tasks = " | ".join(
            clean_name(get_raw_str(task, "text")) for task in get_objects(checklist, "tasks")[:_MAX_POLL_OPTIONS]
        )
        return f"[checklist: {single_line(get_raw_str(checklist, 'title'), _TEXT_CHARS)}: {tasks}]"
    return "[story]" if get_object(message, "story") else ""


def _format_position(location: Json) -> str:
    def degrees(key: str) -> str:
        value = location.get(key)
        fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 180  # noqa: PLR2004
        return f"{value:.6f}".rstrip("0").rstrip(".") if fine else "?"

    return f"{degrees('latitude')}, {degrees('longitude')}"


def full_name(person: Json) -> str:
    """First and last name, else the title or the user name."""
    whole_name = " ".join(
        filter(None, [clean_name(get_raw_str(person, "first_name")), clean_name(get_raw_str(person, "last_name"))])
    )
    return whole_name or clean_name(get_raw_str(person, "title")) or clean_name(get_raw_str(person, "username"))
