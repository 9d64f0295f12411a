"""Claude through Google's Vertex AI: the Messages API at another address, with Google's tokens.

Obeys platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai (the model stands in the
URL, the version in the body; everything else is as in `agent.models.anthropic`),
docs.cloud.google.com/vertex-ai/generative-ai/docs/partner-models/claude/{use-claude,
prompt-caching} (endpoints; marks with the lifetimes 5m and 1h),
developers.google.com/identity/protocols/oauth2/service-account (a signed claim is exchanged for a
token) and docs.cloud.google.com/compute/docs/access/authenticate-workloads (the metadata server).
"""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from agent.models.anthropic import AnthropicModel
from agent.models.base import Effort, ModelBusy, ModelUnusable, RequestRefused, ThinkingMode
from agent.models.http import (
    DEFAULT_TIMEOUT_S,
    ModelHttpClient,
    SseEvent,
    encode_json,
    format_host,
    join_endpoint,
    strip_version,
)
from gateway.core.clock import Clock
from gateway.core.installing import install_command

if TYPE_CHECKING:
    import httpx

METADATA_URL = "http://metadata.google.internal"
_VERSION = "vertex-2023-10-16"
"""The same as 2023-06-01, which `agent.models.anthropic` sends."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_AUDIENCE = "https://oauth2.googleapis.com/token"
"""Always this, wherever the claim is sent (the same page on service accounts, and google-auth)."""
_CLAIM_S = 3600
"""Seconds: the longest that Google lets a claim live, and as long as its tokens do."""
_EARLY_S = 225.0
"""Seconds before its end from which a token is not used: the metadata server gives a new one by
then (google-auth, `REFRESH_THRESHOLD`)."""
_UNAUTHORIZED = 401


class ServiceAccount(BaseModel):
    """The JSON key of a service account, as Google gives it."""

    model_config = ConfigDict(hide_input_in_errors=True)

    type: Literal["service_account"]
    client_email: str
    private_key: SecretStr
    private_key_id: str = ""
    token_uri: str


def parse_service_account(written: str) -> ServiceAccount:
    """Parse a JSON key. Raises ValueError, which holds nothing of it."""
    try:
        account = ServiceAccount.model_validate_json(written)
        format_host(account.token_uri)
    except ValueError:
        raise ValueError(
            "not the JSON key of a service account; write ${file:PATH} with the file that Google "
            "Cloud gave for it"
        ) from None
    return account


def sign_claim(account: ServiceAccount, now_s: int) -> str:
    """Return the claim to be this account, a JSON Web Token signed with RS256. `now_s`: Unix time.

    Raises ModelUnusable if the key cannot be read or the package `cryptography` is missing.
    """
    try:
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: PLC0415 - as above
    except ImportError:
        raise ModelUnusable(
            f"keys of service accounts need the extra vertex: {install_command('vertex')}"
        ) from None
    try:
        pem = account.private_key.get_secret_value().encode()
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError):  # TypeError: it has a password
        key = None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ModelUnusable("the private key of the service account cannot be read")
    head = {"alg": "RS256", "typ": "JWT", "kid": account.private_key_id}
    claim = {
        "iss": account.client_email,
        "scope": _SCOPE,
        "aud": _AUDIENCE,
        "iat": now_s,
        "exp": now_s + _CLAIM_S,
    }
    signed = b".".join(_encode_part(encode_json(part)) for part in (head, claim))
    signature = key.sign(signed, padding.PKCS1v15(), hashes.SHA256())
    return b".".join((signed, _encode_part(signature))).decode()


def _encode_part(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


class _TokenAnswer(BaseModel):
    access_token: str = Field(min_length=1)
    expires_in: float


class GoogleTokens:
    """Access tokens of a service account, or of the machine's own from the metadata server."""

    def __init__(
        self,
        account: ServiceAccount | None,
        *,
        clock: Clock,
        metadata_url: str = METADATA_URL,
        proxy: SecretStr | None = None,
    ) -> None:
        """`account` None: the metadata server is asked, never through `proxy`."""
        self._account = account
        self._clock = clock
        self._metadata_url = metadata_url
        self._proxy = proxy
        self._asking = asyncio.Lock()
        self._token = ""
        self._good_until_s = 0.0

    async def get(self, refused: str = "") -> str:
        """Return a token, a new one if the last is `refused` or about to expire. Raises a
        ModelError. All who wait for a new one get the same.
        """
        async with self._asking:
            now_s = self._clock.monotonic()
            if self._token in ("", refused) or now_s >= self._good_until_s:
                answer = await self._ask()
                self._token = answer.access_token
                self._good_until_s = now_s + answer.expires_in - _EARLY_S
            return self._token

    async def _ask(self) -> _TokenAnswer:
        """Request a token. Raises a ModelError, which holds neither it nor the claim."""
        url = (
            strip_version(self._metadata_url)
            + "/computeMetadata/v1/instance/service-accounts/default/token"
        )
        headers, claim, body = {"metadata-flavor": "Google"}, "", None
        if self._account is not None:
            now_s = int(self._clock.now().timestamp())
            claim = await asyncio.to_thread(sign_claim, self._account, now_s)
            url = self._account.token_uri
            headers = {"content-type": "application/x-www-form-urlencoded"}
            grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
            body = urlencode({"grant_type": grant, "assertion": claim}).encode()
        api = ModelHttpClient(
            url=url,
            headers=headers,
            secret=claim,
            timeout_s=20.0,
            proxy=self._proxy if self._account else SecretStr("none"),
        )
        try:
            return _TokenAnswer.model_validate_json(await api.fetch(body))
        except ValueError:
            raise ModelBusy(f"{api.host} sent no access token") from None
        except RequestRefused as error:
            raise ModelUnusable(f"no access token: {error.reason}") from None
        finally:
            await api.aclose()


class _VertexClient(ModelHttpClient):
    """Sends requests of the Messages API to one model in Vertex AI."""

    def __init__(
        self, tokens: GoogleTokens, *, url: str, timeout_s: float, proxy: SecretStr | None
    ) -> None:
        super().__init__(url=url, headers={}, timeout_s=timeout_s, proxy=proxy)
        self._tokens = tokens

    def stream_events(
        self,
        body: Mapping[str, object],
        *,
        max_tokens: int = 0,
        ending: Sequence[SseEvent] = (),
    ) -> AsyncGenerator[SseEvent]:
        return super().stream_events(_convert_body(body), max_tokens=max_tokens, ending=ending)

    async def fetch(self, body: Mapping[str, object] | bytes | None = None) -> bytes:
        return await super().fetch(_convert_body(body) if isinstance(body, Mapping) else body)

    @asynccontextmanager
    async def _send(
        self, method: str, content: bytes | None, media_type: str, *, action: str = ""
    ) -> AsyncIterator["httpx.Response"]:
        action = ":streamRawPredict" if media_type == "text/event-stream" else ":rawPredict"
        async with AsyncExitStack() as stack:
            token = ""
            for is_last in (False, True):
                token = await self._tokens.get(refused=token)
                self._secret, self._headers["authorization"] = token, f"Bearer {token}"
                sending = super()._send(method, content, media_type, action=action)
                try:
                    response = await stack.enter_async_context(sending)
                except ModelUnusable as error:
                    if is_last or error.status != _UNAUTHORIZED:
                        raise
                else:
                    yield response
                    return


def _convert_body(body: Mapping[str, object]) -> dict[str, object]:
    rest = {field: value for field, value in body.items() if field != "model"}
    return {"anthropic_version": _VERSION, **rest}


def find_base_url(region: str) -> str:
    """Return the address of an endpoint: of one region, of several (`us`, `eu`), or `global`."""
    if region == "global":
        host = "aiplatform.googleapis.com"
    elif region in ("us", "eu"):
        host = f"aiplatform.{region}.rep.googleapis.com"
    else:
        host = f"{region}-aiplatform.googleapis.com"
    return f"https://{host}/v1"


class VertexModel(AnthropicModel):
    """One Claude model in Vertex AI: an `AnthropicModel` that sends its requests there.

    A token is asked for at the first request, used until shortly before it expires, and replaced
    once if it is refused (401).
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        project: str,
        clock: Clock,
        region: str = "global",
        account: ServiceAccount | None = None,
        base_url: str = "",
        metadata_url: str = METADATA_URL,
        context_tokens: int = 200_000,
        max_output_tokens: int = 4096,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        takes_images: bool = True,
        effort: Effort | None = None,
        thinking: ThinkingMode = "default",
        may_leak_calls: bool = False,
        proxy: SecretStr | None = None,
    ) -> None:
        """`account` None: the machine's own. `base_url` empty: that of the region. The rest as
        `AnthropicModel`. Raises ValueError.
        """
        path = (
            f"/projects/{quote(project, safe=':')}/locations/{quote(region)}"
            f"/publishers/anthropic/models/{quote(model, safe='@')}"
        )
        tokens = GoogleTokens(account, clock=clock, metadata_url=metadata_url, proxy=proxy)
        url = join_endpoint(base_url or find_base_url(region), path)
        super().__init__(
            name=name,
            model=model,
            context_tokens=context_tokens,
            max_output_tokens=max_output_tokens,
            timeout_s=timeout_s,
            takes_images=takes_images,
            effort=effort,
            thinking=thinking,
            may_leak_calls=may_leak_calls,
            api=_VertexClient(tokens, url=url, timeout_s=timeout_s, proxy=proxy),
        )
