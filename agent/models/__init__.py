"""Language models behind one protocol (`agent.models.base`)."""
