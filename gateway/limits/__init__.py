"""How much may be asked of the agents, and what it may cost: so often, and so much money a day.

`bucket`, `costs`, `silence` and `words` decide and are pure; `limits` knows the clock and the log.
"""
