"""The texts that the agent's states, its inner conversation and its dreams begin with. Short: they are paid for."""

from functools import cache
from importlib import resources


@cache
def load_prompt(name: str) -> str:
    """The text of that name, without blank ends. Raises FileNotFoundError for a name that has none."""
    return (resources.files("agent.prompts") / f"{name}.md").read_text(encoding="utf-8").strip()
