"""The gateway: everything between the platforms and the agent. See ARCHITECTURE.md."""
