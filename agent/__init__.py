"""The agent core: decides what to do next, builds prompts and runs turns. It knows no store, no
channel and no gateway.

Open `dmn` for the Default Mode Network, which decides when a turn starts (`signals` has its types),
`turn` for one turn from the first request to the reply, `prompt` for the input and the text of a
prompt, and `turn_context` for the requests and the outcome of a turn. `view` and `compaction`
decide what a model still sees of a long conversation, `summary` holds the formats that replace the
rest, and `tools` says which tools a request describes. The packages are `cache` (prompt caching by
price), `models` (providers), `tokens` (counting), `prompts` (texts) and `workspace` (persona).

Imports of the gateway are limited to `gateway.core`. Files that say "Pure" do no IO and read no
clock: times and ids are arguments. Prompts are byte-stable: equal facts give equal bytes, and what
changes seldom stands in front of what changes often, because providers cache prefixes.
"""
