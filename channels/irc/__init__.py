"""IRC adapter: RFC 1459, RFC 2812, https://modern.ircdocs.horse and IRCv3.

- `channel`: `IrcChannel`, its actions in rooms, and the splitting of posts. It connects and
  reconnects.
- `connection`: the `irc` library's asyncio connection, and its login, made safe.
- `session`: one connection from login to loss; what each line calls for.
- `state`: what the lines of a connection have said: rooms, people, ranks, accounts, netsplits, and
  who has a nick before a private answer goes out. Each line is applied once, and the others read
  what it changed.
- `registration`: capabilities, SASL and the end of the login. `membership`: rooms and nick
  recovery.
- `outgoing`: paced sending, confirmed by PING barriers.
- `wire`: lines, ISUPPORT and refusals.
- `inbound`: lines into notifications, CTCP. `history`: CHATHISTORY, each event emitted once and in
  order, the state that outlives connections, and the queue of notifications that holds back
  reading.
- `render`: Markdown to lines with mIRC formatting, their length, and pages.

A line can be followed from the socket to `emit` by method names: `IrcConnection.process_data`,
`IrcSession.on_line`, `IrcState.apply`, `IrcEmitter.emit_line`, `IrcNotificationQueue.run`.

`channel`, `session`, `connection`, `registration`, `outgoing`, `membership` and `history` act; all
other modules are pure: time and random values are passed in.

IRC has no acknowledgements, sends nothing twice and lets a nick change hands. So a sent part counts
as accepted only after the answer to a later PING, received events are kept while `emit` blocks, and
a private answer goes to an account or a `user@host`, never to a nick alone. Names are compared only
after `Isupport.fold`; "folded" means that.
"""
