"""IRC: RFC 1459, RFC 2812, https://modern.ircdocs.horse and IRCv3.

Lines: `wire` reads any and builds safe ones, `batches` and `labels` tell which belong together, `isupport` and `mask`
what the server takes, `ctcp`, `refusals`. In: `inbound` turns lines into notifications, with `formatting`, `people`,
`splits`, `identity` and `history`; `telling` tells each once, `memory` outlives connections. Out: `render` makes lines
of posts, `paging` and `compose` cut them, `window` knows which were taken, `bucket` and `writing` when. Login:
`registration`, `caps`, `sasl`, `sts`, `nick`, `rooms`. All these are pure.

`channel` connects and stays; `connection` is the jaraco `irc` library, hardened; `session` is one connection's life,
with `presence` and `upkeep`; `outgoing`, `parts` and `sending` send what `fitting` has cut; `inbox` holds the reading
back; `tls`.
"""
