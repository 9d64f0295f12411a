"""The client holds what every client must hold, and works in a whole gateway."""

from pathlib import Path
from typing import Any

from acme_server import AcmeApi
from pydantic import SecretStr
from reverie_acme import AcmeSettings

from reverie.testing.gateway import Gateway, settings
from reverie.testing.providers import ModelApiKit, ProviderConformance
from reverie.testing.servers.model_api import Answer

KEY = "a-very-secret-key-0123456789"


class AcmeKit(ModelApiKit):
    """The server, and how it words things."""

    server = AcmeApi
    length_stop = "limit"

    def settings(self, timeout_s: float = 10.0) -> AcmeSettings:
        return AcmeSettings(
            kind="acme", base_url=self.api.url, api_key=SecretStr(KEY), timeout=timeout_s
        )

    def usage(self, prompt: int, output: int) -> dict[str, Any]:
        return {"prompt": prompt, "output": output}


class TestAcme(ProviderConformance):
    """All checks."""

    kit = AcmeKit


async def test_a_gateway_answers_through_it(tmp_path: Path) -> None:
    async with AcmeApi() as api:
        llm = {
            "providers": {"p": {"kind": "acme", "base_url": api.url, "api_key": KEY}},
            "models": {"main": {"provider": "p", "name": "m-1"}},
        }
        api.then(Answer(text="Good morning."))
        async with Gateway(settings(tmp_path, llm=llm)) as gateway:
            assert await gateway.ask("hello") == "Good morning."
        assert not api.violations
