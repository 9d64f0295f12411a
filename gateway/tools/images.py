"""A picture that a tool brought, made ready to be shown to a model."""

import logging
from typing import Protocol

from agent.models.base import MAX_IMAGE_BYTES, MAX_IMAGE_SIDE, Image
from agent.tools.schema import ToolCallRefused
from gateway.describe import describe_attachment
from gateway.events import Attachment, ToolImage
from gateway.pictures import ImageInfo, identify_image

logger = logging.getLogger("reverie.tools")


class ImageStore(Protocol):
    """Where pictures are kept: `gateway.media.MediaStore`."""

    async def save_picture(self, data: bytes, found: ImageInfo, about: str) -> ToolImage:
        """Raises OSError."""


async def prepare_image(keeps: ImageStore, data: bytes, name: str) -> tuple[ToolImage, Image]:
    """Keep it, and show it. `name` (untrusted): what it is called. Raises Refused for what models do not take."""
    found = identify_image(data)
    if found is None:
        raise ToolCallRefused(f"{name} is not a picture that can be shown: PNG, JPEG, GIF and WebP can.")
    if len(data) > MAX_IMAGE_BYTES:
        raise ToolCallRefused(
            f"{name} has {len(data):,} bytes, and a picture may have {MAX_IMAGE_BYTES:,}: make it smaller."
        )
    if not found.width or not found.height or not _is_complete_image(data, found.media_type):
        raise ToolCallRefused(
            f"{name} is damaged: it is not a whole {found.media_type.removeprefix('image/').upper()} file."
        )
    if max(found.width, found.height) > MAX_IMAGE_SIDE:
        raise ToolCallRefused(
            f"{name} has {found.width}x{found.height} pixels, and {MAX_IMAGE_SIDE:,} a side are shown: make it smaller."
        )
    sent = Attachment(id=name, name=name, content_type=found.media_type, form="image")
    about = describe_attachment(sent, size_bytes=len(data), pixels=(found.width, found.height))
    try:
        kept = await keeps.save_picture(data, found, about)
    except OSError as error:
        logger.warning("a picture cannot be kept: %s", error.strerror)
        raise ToolCallRefused(f"{name} could not be kept to be shown: an admin has to look at the disk.") from error
    return kept, Image(media_type=found.media_type, data=data, description=about)


def _is_complete_image(data: bytes, media_type: str) -> bool:
    """Whether its end is there: a provider refuses the whole request that has half a picture in it."""
    if media_type == "image/webp":
        return int.from_bytes(data[4:8], "little") + 8 <= len(data)  # the length in RIFF's header leaves out 8 bytes
    if media_type == "image/gif":
        return data.rstrip(b"\0\r\n").endswith(b";")
    return (b"IEND" if media_type == "image/png" else b"\xff\xd9") in data[len(data) // 2 :]
