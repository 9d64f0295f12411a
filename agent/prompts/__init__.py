"""Prompt texts for the agent's modes, its inner conversation and its dreams. Short, because every
token costs money.

Each is a Markdown file beside this one; `load_prompt` reads it.
"""

from functools import cache
from importlib import resources


@cache
def load_prompt(name: str) -> str:
    """Return the prompt of this name, without surrounding white space. Raises FileNotFoundError for
    an unknown name.
    """
    return (resources.files("agent.prompts") / f"{name}.md").read_text(encoding="utf-8").strip()
