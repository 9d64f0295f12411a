"""Discord adapter: the gateway, the HTTP API and discord.py.

- `channel`: `DiscordChannel`, the methods that the gateway calls, and what it does besides sending:
  reactions, edits, topics and members.
- `session`: one run of an account, from login to stop: socket, heartbeats, the IDENTIFY budget, and
  the state kept between runs. `rest`: requests of the HTTP API, and downloads.
- `inflow`: raw events in order, duplicates dropped, and gaps filled from the histories.
- `wire`: events into notifications. `directory`: known guilds, channels and roles; message text.
  `ids`: snowflakes.
- `outgoing`: messages in order, with nonces. `interactions`: answers to commands and
  autocompletion.

`wire`, `directory`, `ids` and `DiscordProgress` are pure: time is passed in.

discord.py carries the connections and requests: `rest.DiscordClient` is a `discord.Client` with its
smallest caches. Payloads are read by us, one at a time, before the library reads them (decision
53). Importing it takes 0.2 s and 18 MB, so `channel` imports it when it first runs. Events are not
queued by Discord while we are away: `DiscordProgress` says what may be missing, and the cursor
moves on only after that is read.
"""
