"""What the agent can do besides speaking."""
