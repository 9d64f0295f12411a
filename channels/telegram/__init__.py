"""Telegram adapter: the Bot API (core.telegram.org/bots/api) and python-telegram-bot.

- `channel`: `TelegramChannel`: previews, downloads, reactions, edits, topics, members, menus.
- `api`: the Bot API client: the library's `ExtBot` and requests, with errors for what it takes for
  something else.
- `rate_limit`: the pace of all requests, as the library's `BaseRateLimiter`.
- `updates` polls; `webhook` receives. Both pass the library's `Update`s to `wire.UpdateReader`.
- `wire`: updates into notifications, with albums, moved groups and service messages. `people`:
  senders, places, attachments, ranks.
- `outgoing`: paced sending without duplicates.
- `render`: Markdown to message entities and back. `ids`: message ids and the cursor.

`wire`, `people`, `render`, `ids` and `TelegramPacer` are pure: time is passed in.
docs/decisions/0052 says what is the library's and what is ours.

The token is part of every address, so it must not reach a log, an exception that leaves the
adapter, or a connection's reason. An update is confirmed only after its notifications are durable.
"""

import os

# The library's attributes that are lengths of time become `timedelta`; without this, reading one is
# a warning (docs.python-telegram-bot.org/en/v22.8/telegram.error.html#telegram.error.RetryAfter).
os.environ.setdefault("PTB_TIMEDELTA", "true")
