"""Acme: a plugin of Reverie with a tool, a line in the prompt, and settings."""

from collections.abc import Iterable

from reverie import (
    OWN,
    TRUSTED_LABEL,
    ConfigSection,
    Part,
    Plugin,
    ToolContext,
    hook,
    tool,
)


class AcmeSettings(ConfigSection):
    """The section `acme` of the configuration."""

    greeting: str = "Hello"
    """How somebody is greeted."""


class AcmePlugin(Plugin):
    """Greets people."""

    name = "acme"
    summary = "greets people"
    Settings = AcmeSettings

    @tool("Return a greeting for somebody.", effect=OWN)
    async def acme_greet(self, _context: ToolContext, *, who: str) -> str:
        """`who`: a name. OWN: the call changes nothing outside of the agent's own place."""
        return f"{self.settings.greeting}, {who}!"

    @hook
    async def parts(self) -> Iterable[Part]:
        """Tell the agent when to use it, in each turn."""
        text = "Greet people whom you meet for the first time with acme_greet."
        return [Part(block="now", text=text, label=TRUSTED_LABEL)]
