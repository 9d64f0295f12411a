"""The agent's hands: what its tools do, where they may, and what they cannot reach."""
