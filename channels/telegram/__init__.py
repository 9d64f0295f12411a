"""Telegram, by the Bot API (core.telegram.org/bots/api) and python-telegram-bot.

In: `entities`, `media`, `people`, `whom` and `service` read a message's sides, `wire` an update, `inbound` a batch
(albums, moved groups); `ids` names messages, `cursor` is what must outlive a restart. Out: `render` makes texts with
entities, `pace` says when. All these are pure. `calls` is the library, made discreet, over `transport`, its HTTP made
stricter; `trouble` waits and tells; `polling` or `webhook` receives, `outgoing` sends, `extras` shows and fetches;
`channel` holds them together.
"""
