"""What a message holds besides text: files stay with Telegram, the rest becomes a line. Pure."""

from typing import Literal

from channels.payload import Json, number, obj, objs, raw, string, whole
from channels.text import line, name
from gateway.events import Attachment

_Form = Literal["image", "audio", "video", "file", "sticker", "location"]
_FILES: dict[str, tuple[_Form, str | None]] = {
    "animation": ("video", "video/mp4"),
    "video": ("video", None),
    "video_note": ("video", "video/mp4"),
    "audio": ("audio", None),
    "voice": ("audio", "audio/ogg"),
    "document": ("file", None),
}
"""By key: the form, and the type where Telegram knows it without saying."""
_RECORDED = ("voice", "video_note")
_BY_TYPE: dict[str, _Form] = {"image": "image", "audio": "audio", "video": "video"}
_POLL_OPTIONS, _TEXT_CHARS = 12, 300


def attachments(message: Json) -> tuple[Attachment, ...]:
    """Files, in the order in which they are listed above; a picture only in its largest size."""
    found = []
    sizes = [size for size in objs(message, "photo") if raw(size, "file_id")]
    if sizes:
        largest = max(sizes, key=lambda size: (whole(size, "width") or 0) * (whole(size, "height") or 0))
        found.append(_attachment(largest, "image", "image/jpeg"))
    for key, (form, known) in _FILES.items():
        file = obj(message, key)
        # A moving picture is sent as a document too, for old clients.
        if raw(file, "file_id") and not (key == "document" and "animation" in message):
            told = string(file, "mime_type") or known
            kind = _BY_TYPE.get((told or "").partition("/")[0], form) if key == "document" else form
            found.append(_attachment(file, kind, told, recorded=key in _RECORDED))
    sticker = obj(message, "sticker")
    if raw(sticker, "file_id"):
        kind_of = "video/webm" if sticker.get("is_video") is True else "image/webp"
        found.append(_attachment(sticker, "sticker", None if sticker.get("is_animated") is True else kind_of))
    return tuple(found)


def _attachment(file: Json, form: _Form, content_type: str | None, *, recorded: bool = False) -> Attachment:
    size = number(file, "file_size")
    return Attachment(
        id=string(file, "file_id"),
        form=form,
        name=name(raw(file, "file_name")) or None,
        content_type=content_type,
        size_bytes=int(size) if size is not None else None,
        duration_s=number(file, "duration"),
        recorded=recorded,
    )


def described(message: Json) -> str:
    """A line for what is neither text nor a file; empty if there is nothing of the kind."""
    if venue := obj(message, "venue"):
        where = _position(obj(venue, "location"))
        return f"[venue: {name(raw(venue, 'title'))}, {name(raw(venue, 'address'))} ({where})]"
    if location := obj(message, "location"):
        return f"[location: {_position(location)}]"
    if contact := obj(message, "contact"):
        return f"[contact: {full_name(contact)}, {name(raw(contact, 'phone_number'))}]"
    if poll := obj(message, "poll"):
        options = " | ".join(name(raw(option, "text")) for option in objs(poll, "options")[:_POLL_OPTIONS])
        return f"[poll: {line(raw(poll, 'question'), _TEXT_CHARS)}: {options}]"
    if dice := obj(message, "dice"):
        return f"[dice: {name(raw(dice, 'emoji'))} {whole(dice, 'value') or 0}]"
    if sticker := obj(message, "sticker"):
        return f"[{' '.join(filter(None, ['sticker:', name(raw(sticker, 'emoji')), name(raw(sticker, 'set_name'))]))}]"
    if game := obj(message, "game"):
        return f"[game: {name(raw(game, 'title'))}]"
    if checklist := obj(message, "checklist"):
        tasks = " | ".join(name(raw(task, "text")) for task in objs(checklist, "tasks")[:_POLL_OPTIONS])
        return f"[checklist: {line(raw(checklist, 'title'), _TEXT_CHARS)}: {tasks}]"
    return "[story]" if obj(message, "story") else ""


def _position(location: Json) -> str:
    def degrees(key: str) -> str:
        value = location.get(key)
        fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 180  # noqa: PLR2004
        return f"{value:.6f}".rstrip("0").rstrip(".") if fine else "?"

    return f"{degrees('latitude')}, {degrees('longitude')}"


def full_name(person: Json) -> str:
    """First and last name, else the title or the user name."""
    whole_name = " ".join(filter(None, [name(raw(person, "first_name")), name(raw(person, "last_name"))]))
    return whole_name or name(raw(person, "title")) or name(raw(person, "username"))
