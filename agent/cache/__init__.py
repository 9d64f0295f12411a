"""Prompt caching: which parts of a prompt to cache, and for how long, decided by price.

Open `prompt_cache` for the cache of one model (`PromptCache`) and the service that refreshes caches
before they expire (`CacheWarmer`), `plan` for the plan of one request: where it is cached and for
how long, `idle` for what is done for a conversation between its requests, `state` for what is known
of a cache and of the gaps between requests, and `prices` for the cost of tokens. The last four are
pure.

The way of a request: `PromptCache` measures it (`agent.tokens`), and `plan.segment_prompt` divides
it into segments that end where a breakpoint can stand, each named by a digest of all bytes up to
there. `state.CacheState` holds which of these prefixes are probably cached, `state.Cadence` chooses
by the gaps between requests how long they are cached, and `plan.plan_cache` the breakpoints.
After the answer the bill is compared with the plan (`plan.find_cache_miss`), and the state is
corrected by it.

Times are seconds since the epoch, not of the monotonic clock, because gaps that began before a
restart count. A digest covers no byte behind its segment, so an unchanged prefix keeps its digest.
"""
