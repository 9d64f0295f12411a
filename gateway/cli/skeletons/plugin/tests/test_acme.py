"""The plugin on a whole gateway: consoles in place of platforms, and a model with a script."""

from reverie_acme import AcmePlugin

from reverie.testing.gateway import Script, ScriptRule
from reverie.testing.plugins import PluginConformance
from reverie.testing.pytest_plugin import MakeGateway

GREETS = Script(rules=(ScriptRule(match="I am Ann", calls=(("acme_greet", '{"who": "Ann"}'),)),))
"""What the model does: at "I am Ann" it calls the tool, and then says what that returned."""


async def test_the_tool_greets_as_the_settings_say(make_gateway: MakeGateway) -> None:
    async with make_gateway(GREETS, acme={"greeting": "Good morning"}) as gateway:
        assert "Good morning, Ann!" in await gateway.ask("I am Ann")


async def test_the_agent_is_told_of_the_tool(make_gateway: MakeGateway) -> None:
    async with make_gateway() as gateway:
        await gateway.ask("hello")
        [request] = gateway.scripted.requests
    assert "acme_greet" in request.now
    assert "Return a greeting for somebody" in str(request)


class TestAcme(PluginConformance):
    """What every plugin must hold."""

    plugin = AcmePlugin
    lines = ("I am Ann",)
    script = GREETS
