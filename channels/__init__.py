"""Channel adapters: one folder per platform, all behind `channels.base.Channel`.

`base` is the contract: `Channel`, the optional abilities (`CanEdit`, `HasRooms`, ...) and the
`SendError` tree. `irc/`, `telegram/` and `discord/` implement it; `console` is the adapter without
a platform. Adapters import `gateway.core` and the shared modules here, and never each other:

- `aio`: timeouts, cancellation, the back-pressure buffer between a connection and `emit`, and the
  reconnect back-off.
- `text`: cleaning of incoming and outgoing text, and readers of untrusted JSON.
- `markdown` and `commonmark`: Markdown parsed once, for all renderers.
- `split`: text cut to a platform's limit.

Rules for every adapter:

- Decisions are pure: clock, random numbers and ids are passed in. IO is done by `channel`,
  `session` and the modules of connections and requests.
- An event is acknowledged to the platform only after `emit` returned (`base.Emit`).
- A send that may have arrived raises `Uncertain`, never `Unreachable`.
- Text from a platform is untrusted: it is cleaned with `text.clean_text`, bounded in length, and
  becomes neither a command nor a mass mention when it is sent.
"""
