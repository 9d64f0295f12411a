"""A loopback Vertex AI with Claude, and what gives tokens for it: Google's token endpoint and the
metadata server of a machine.

    async with VertexApi(clock=clock) as api: ...     # besides what `ModelApi` has
        VertexModel(..., project=api.project, region=api.region, base_url=api.url,
                    account=parse_service_account(api.credentials()), metadata_url=api.url)

- `/token` takes a claim that is signed with the account's key, for this endpoint, and an hour at
  most (developers.google.com/identity/protocols/oauth2/service-account). The metadata server wants
  its header (docs.cloud.google.com/compute/docs/metadata/querying-metadata).
  `quotes_claims=True`: a claim that it refuses stands in its answer.
- Tokens live 3,599 s by `clock`; `revoke()` ends those that are out. Without a good one the answer
  is 401 in Google's form.
- The Messages API stands at `:rawPredict`, streamed at `:streamRawPredict`
  (platform.claude.com/docs/en/build-with-claude/claude-on-vertex-ai, api/versioning): a model in
  the body, or a version that is not known, is refused, and what `model_api_rules` refuses. The
  cache is the project's.

Needs the extra `vertex`.
"""

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from gateway.core.clock import Clock, SystemClock
from reverie.testing.servers.messages_cache import MessagesCache
from reverie.testing.servers.messages_prompt import verify
from reverie.testing.servers.model_api import Answer, ModelApi, Reply, Seen, Violation
from reverie.testing.servers.model_api_rules import Complaint, check

Json = dict[str, Any]
_JSON = {"content-type": "application/json; charset=UTF-8"}
_LIFETIME_S = 3599
_VERSIONS = {"vertex-2023-10-16", "2026-10-21"}
_MAX_BYTES = 30_000_000
"""Of a request (docs.cloud.google.com, partner-models/claude: 30 MB)."""
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_METADATA = "/computeMetadata/v1/instance/service-accounts/default/token"
_MODEL_PATH = re.compile(
    r"/v1/projects/([^/]+)/locations/([^/]+)/publishers/anthropic/models/([^/:]+):(\w+)"
)


def google_error(status: int, name: str, message: str) -> Answer:
    """An error as Google's APIs write it (google.aip.dev/193)."""
    error = {"code": status, "message": message, "status": name, "details": [{"@type": "x"}]}
    return Answer(status=status, body=json.dumps({"error": error}).encode(), headers=_JSON)


@dataclass(kw_only=True)
class VertexApi(ModelApi):
    """See the top of the file."""

    project: str = "a-project"
    region: str = "europe-west1"
    clock: Clock = field(default_factory=SystemClock)
    prompt_cache: MessagesCache | None = None
    quotes_claims: bool = False

    def __post_init__(self) -> None:
        super().__init__(cache=self.prompt_cache, clock=self.clock.monotonic)
        self._private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._good_until_s: dict[str, float] = {}
        self.issued: list[str] = []
        """All tokens, oldest first."""
        self.claims: list[Json] = []
        self.token_requests: list[Seen] = []
        """These are not in `seen`."""

    def credentials(self, **changes: str) -> str:
        """Return a JSON key of the account, with `changes`."""
        pem = self._private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        key = {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": "key-1",
            "private_key": pem.decode(),
            "client_email": "bot@a-project.iam.gserviceaccount.com",
            "token_uri": f"{self.url}/token",
        }
        return json.dumps(key | changes)

    def revoke(self) -> None:
        """Let no token in that is out."""
        self._good_until_s.clear()

    def reply(self, seen: Seen) -> Reply:
        if seen.path in ("/token", _METADATA):
            self.seen.remove(seen)
            self.token_requests.append(seen)
        if (seen.method, seen.path) == ("POST", "/token"):
            return self._exchange(seen)
        if (seen.method, seen.path) == ("GET", _METADATA):
            if seen.headers.get("metadata-flavor") != "Google":
                return Reply(answer=Answer(status=403, body=b"Missing Metadata-Flavor"), events=[])
            return self._issue()
        if (path := _MODEL_PATH.fullmatch(seen.path)) is None:
            return Reply(answer=google_error(404, "NOT_FOUND", "no such method"), events=[])
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if self._good_until_s.get(token, 0) <= self.clock.monotonic():
            told = "Request had invalid authentication credentials."
            return Reply(answer=google_error(401, "UNAUTHENTICATED", told), events=[])
        project, region, model, method = (unquote(part) for part in path.groups())
        if (project, region) != (self.project, self.region):
            told = f"Permission 'aiplatform.endpoints.predict' denied on {project} ({region})"
            return Reply(answer=google_error(403, "PERMISSION_DENIED", told), events=[])
        if len(seen.raw) > _MAX_BYTES:
            told = "Request payload size exceeds the limit"
            return Reply(answer=google_error(413, "INVALID_ARGUMENT", told), events=[])
        return self._predict(seen, model, streams=method == "streamRawPredict")

    def _predict(self, seen: Seen, model: str, *, streams: bool) -> Reply:
        body = {key: value for key, value in seen.body.items() if key != "anthropic_version"}
        wrong = None
        if (version := seen.body.get("anthropic_version")) not in _VERSIONS:
            wrong = Complaint(f"anthropic_version: {version} is not a valid version")
        elif "model" in body:
            wrong = Complaint("model: Extra inputs are not permitted")
        elif body.get("stream", False) is not streams:
            wrong = Complaint("stream: use streamRawPredict for streams alone")
        body["model"] = model
        wrong = wrong or check(body)
        if wrong is None and (bound := verify(body)):
            wrong = Complaint(bound)
        if wrong is not None:
            self.violations.append(
                Violation(
                    status=wrong.status, complaint=wrong.message, path=seen.path, body=seen.body
                )
            )
            return self._messages.refusal(wrong)
        answer = Answer()
        if body["max_tokens"]:
            answer = self.take(body)
        return self._messages.reply(answer, {"x-api-key": self.project}, body)

    def _exchange(self, seen: Seen) -> Reply:
        form = {key: values[0] for key, values in parse_qs(seen.raw.decode()).items()}
        typed = seen.headers.get("content-type") == "application/x-www-form-urlencoded"
        grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
        if not typed or form.get("grant_type") != grant:
            return _refused_grant("unsupported_grant_type", "Invalid grant_type")
        assertion = form.get("assertion", "")
        signed, _, signature = assertion.rpartition(".")
        quoted = f" {assertion}" * self.quotes_claims
        try:
            self._private.public_key().verify(
                _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            head, claim = (json.loads(_decoded(part)) for part in signed.split("."))
        except (InvalidSignature, ValueError):
            return _refused_grant("invalid_grant", f"Invalid JWT Signature.{quoted}")
        self.claims.append(claim)
        now_s = self.clock.now().timestamp()
        expected = {
            "alg": "RS256",
            "kid": "key-1",
            "iss": "bot@a-project.iam.gserviceaccount.com",
            "aud": "https://oauth2.googleapis.com/token",
            "scope": _SCOPE,
        }
        if any((head | claim).get(key) != value for key, value in expected.items()):
            return _refused_grant("invalid_grant", f"Invalid JWT: wrong header or claim{quoted}")
        if claim["exp"] - claim["iat"] > 3600 or abs(claim["iat"] - now_s) > 300:
            return _refused_grant("invalid_grant", "Token must be a short-lived token (60 minutes)")
        return self._issue()

    def _issue(self) -> Reply:
        token = f"ya29.very-secret-{len(self.issued):04}"
        self.issued.append(token)
        self._good_until_s[token] = self.clock.monotonic() + _LIFETIME_S
        told = {"access_token": token, "expires_in": _LIFETIME_S, "token_type": "Bearer"}
        return Reply(answer=Answer(headers=_JSON), events=[json.dumps(told).encode()])


def _refused_grant(error: str, why: str) -> Reply:
    body = json.dumps({"error": error, "error_description": why}).encode()
    return Reply(answer=Answer(status=400, body=body, headers=_JSON), events=[])


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
