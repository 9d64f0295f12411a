"""Notification stream: attention, inbox windows, routing, presence, outbox, previews, media, channel supervisor."""
