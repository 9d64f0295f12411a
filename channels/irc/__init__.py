"""IRC: RFC 1459, RFC 2812, https://modern.ircdocs.horse and IRCv3.

`wire` reads and builds lines, `people` remembers who is where, `inbound` turns lines into
notifications, `render` turns posts into lines, `sasl` and `registration` log in: all pure.
`connection` (the jaraco `irc` library, hardened), `outgoing` and `channel` do the IO.
"""
