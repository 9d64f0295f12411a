"""Number of tokens of a text or a whole request: estimated offline, counted by the provider,
corrected by its bills.

Open `counter` for the offline count (cl100k, and a heuristic until that is loaded), the sizes of a
request's parts and the correction of estimates by what providers bill, and `endpoint` for
Anthropic's own counter.

A count never waits for the network: the endpoint is asked in the background, and its answer
corrects later estimates. Texts are counted once and remembered, and the parts that a request has in
common with the one before are not counted again.
"""
