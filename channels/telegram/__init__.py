"""Telegram, by the Bot API."""
