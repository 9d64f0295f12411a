"""Telegram adapter: the Bot API (core.telegram.org/bots/api) and python-telegram-bot.

- `channel`: `TelegramChannel`; `TelegramExtras` holds typing, previews and downloads.
- `api`: the Bot API client over the library, its HTTP corrections and errors, and the back-off of polling.
- `updates` polls; `webhook` receives. Both pass updates to `wire.UpdateReader`.
- `wire`: updates into notifications, with albums, moved groups and service messages. `people`: senders, places,
  attachments, ranks.
- `outgoing`: paced sending without duplicates. `actions`: reactions, edits, topics, members, command menus.
- `render`: Markdown to message entities and back. `ids`: message ids and the cursor.

`wire`, `people`, `render`, `ids` and `TelegramPacer` are pure: time is passed in.

The token is part of every address, so it must not reach a log, an exception that leaves the adapter, or a connection's
reason. Updates and answers are read as JSON, without the library's objects: these insist on every field, and one
unknown field would stop all updates. An update is confirmed only after its notifications are durable.
"""
