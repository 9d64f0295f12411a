"""How many tokens a text or a whole request has: estimated offline, asked of the provider, corrected by its bills."""
