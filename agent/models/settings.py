"""Settings that the sections of all kinds of `llm.providers` share."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from agent.models.http import DEFAULT_TIMEOUT_S, join_endpoint
from gateway.core.fields import ConfigSection, Duration


def _check_url(value: str) -> str:
    join_endpoint(value, "/")  # raises ValueError with the remedy
    return value


def _check_key(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value().strip()
    if not (secret.isascii() and secret.isprintable()):
        raise ValueError("an api key is one line of plain ASCII; copy it again")
    return SecretStr(secret)


ProviderUrl = Annotated[str, AfterValidator(_check_url), Field(json_schema_extra={"format": "uri"})]
"""http or https; may end in `/v1` or not."""
ProviderKey = Annotated[SecretStr, AfterValidator(_check_key)]
"""Empty or `none`: no key is sent."""


class ProviderSettings(ConfigSection):
    """Settings of every provider. A subclass adds `kind`, a literal of one word."""

    timeout: Duration = DEFAULT_TIMEOUT_S
    """Seconds of silence, before the first byte or between bytes, after which an answer counts as
    cut. Not 0."""
    first_token: Duration = 60.0
    """Seconds until the first token of an answer, over all tries; then the next of `fallbacks`. 0:
    no limit."""

    @model_validator(mode="after")
    def _check_timeout(self) -> Self:
        if self.timeout <= 0:
            raise ValueError("a timeout of 0 lets no answer through; leave it out for 120 s")
        return self
