"""Removal of secrets from text: those of the configuration, in every encoding, and everything like
a credential. Pure.

The rest stays readable: `password=hunter2-9` becomes `password=[redacted]`. The result is
deterministic, and redacting twice equals redacting once, so a text may pass through here any number
of times.

The log of events keeps messages as people wrote them, and is readable by its owner alone. Every
text that is shown, sent to a model or written anywhere else is redacted here.

The patterns find well-known credentials, and the places where a secret usually stands. Each runs in
linear time on any text: repetitions are bounded, possessive, or begin only where none of them has
been before. Sources of the prefixes:
https://docs.github.com/en/code-security/secret-scanning/introduction/supported-secret-scanning-patterns
and https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml; other sources are beside
their patterns.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

from gateway.core.frozen import frozen
from gateway.core.text_safety import strip_invisible

_MIN_SECRET_CHARS: Final = 6
"""Length of the shortest password that can be distinguished from a word."""
_LONG_SECRET_CHARS: Final = 24
"""Length that no word has."""
REDACTED: Final = "[redacted]"
MIN_KNOWN_SECRET_CHARS: Final = 6
"""Minimal length of a secret of the configuration: shorter ones reveal nothing, and would hide
ordinary words."""
_MAX_ROUNDS: Final = 4
"""A replacement may bring the words beside it closer together; two rounds have been enough for
every text so far."""
_CACHED_TEXT_CHARS: Final = 100
"""Maximal length of a cached text: the same few names are in most texts."""


def looks_random(text: str) -> bool:
    """Return whether the text is no word, number, path or identifier: letters mixed with digits, or
    very long.
    """
    if len(text) < _MIN_SECRET_CHARS or _CODE_LIKE.fullmatch(text):
        return False
    letters, digits = any(char.isalpha() for char in text), any(char.isdigit() for char in text)
    mixed = any(char.islower() for char in text) and any(char.isupper() for char in text[1:])
    return (letters and (digits or mixed)) or (len(text) >= _LONG_SECRET_CHARS and "/" not in text)


_CODE_LIKE: Final = re.compile(
    r"[A-Za-z_][a-z_]*(?:\.[A-Za-z_]\w*)+|[A-Z]?[a-z]+(?:[A-Z][a-z]+)+|[A-Z][A-Z_]+|[a-z]+(?:_[a-z]+)+"
    r"|v?\d+(?:\.\d+)+\w*|(?:/?[\w.-]+/)+[\w.-]*|\$?[{<%].*"
)
"""An attribute, CamelCase, a CONSTANT, a snake_case name, a version, a path, a placeholder."""
_PLAIN_WORDS: Final = frozenset(
    re.findall(
        r"\S+",
        "required optional string none null true false undefined empty unset missing invalid "
        "expired wrong changed incorrect correct needed secret secrets token tokens password "
        "passwords default example changeme hidden redacted value number bytes integer object "
        "array boolean float double literal unknown please always never accepted rejected denied "
        "refused protected",
    )
)


@frozen(kw_only=False)
class CredentialRule:
    """A pattern for a secret: group `s` of each match, or the whole match if there is no such
    group.
    """

    needles: tuple[str, ...]
    """At least one of these, in lower case, is in every text with a match; searching for them is
    cheap."""
    pattern: str
    """Compiled once a text has a needle."""
    is_credential: Callable[[re.Match[str]], bool] = lambda _: True


def _credential_rule(
    needles: str, pattern: str, is_credential: Callable[[re.Match[str]], bool] = lambda _: True
) -> CredentialRule:
    return CredentialRule(tuple(needles.split(" ")), pattern, is_credential)


def _is_random_match(match: re.Match[str]) -> bool:
    return looks_random(match["s"])


def _is_assigned_secret(match: re.Match[str]) -> bool:
    """Return whether the value behind a name like `password` is a secret, and not prose or code."""
    value, named, mark = match["s"], match["name"].lower(), match["mark"]
    if (
        named == "pwd" and value[0] in "/~"
    ):  # the working directory of a shell, https://man7.org/linux/man-pages/man1/pwd.1.html
        return False
    if (
        value.lower().strip("*.,;!?") in _PLAIN_WORDS
        or _PLACEHOLDER.fullmatch(value)
        or len(value) < _MIN_SECRET_CHARS
    ):
        return False
    if match["quote"]:
        return " " not in value.strip() and (mark.strip() != ":" or not _CODE_LIKE.fullmatch(value))
    if _CODE_LIKE.fullmatch(value) or (
        value.replace(".", "_").isidentifier() and match.string[match.end() :][:1] in ("(", "[")
    ):
        return False
    if ("pass" in named or "pwd" in named) and mark != " = ":  # in programs a name follows that
        return True
    return looks_random(value) or (mark == "=" and not value.isdigit())


_PLACEHOLDER: Final = re.compile(r"[.*x_-]+|[$<{\[%(].*|\.\.\..*|your[-_ ].*", re.IGNORECASE)

_TOKEN_PATTERNS: Final = (
    r"sk-(?:ant|proj|svcacct|admin|or-v1)-[\w-]{16,}",  # Anthropic, OpenAI, OpenRouter
    # older OpenAI keys, DeepSeek and others with the same format
    r"(?<!-)sk-(?=[A-Za-z_-]{0,40}\d)[A-Za-z0-9_-]{20,}",
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat)-[\w.-]{20,}",
    r"xox[abcdeoprs]-[\w-]{10,}|xapp-\d-[\w-]{10,}",
    r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{30,}",
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?!\w)",
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/=]{20,}",
    r"hf_[A-Za-z0-9]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{50,}",
    r"gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|tvly-[\w-]{16,}|pplx-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[a-f0-9]{32,}|shpat_[a-f0-9]{20,}|ntn_\w{20,}|lin_api_\w{20,}|hvs\.[\w-]{20,}",
    r"AGE-SECRET-KEY-1[A-Z0-9]{20,}",
)
_CREDENTIAL_NAMES: Final = (
    r"pass(?:word|wd|phrase|wort)|pwd|secret(?:[_-]?key)?|token|credentials?|authorization"
    r"|(?:api|access|private|auth|account|signing|encryption)[_-]?key"
)
_QUERY_NAMES: Final = (
    r"x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|sig|signature"
    r"|(?:access_|id_|refresh_|auth_|bot_)?token|api[_-]?key|apikey|client_secret|secret|password|passwd|pwd|auth"
)

CREDENTIAL_RULES: Final = (
    _credential_rule(
        "private key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: "
        r"BLOCK)?-----(?P<s>(?:[^-]|-(?!----)){0,20000}+(?=-----END)"
        r"|(?:(?:\s|\\[nr])*+[A-Za-z0-9+/=]{16,}+)*+)",
        lambda match: match["s"].strip() not in ("", "[redacted]"),
    ),
    _credential_rule(
        "sk- ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ gl xox xapp- aiza ya29. gocspx- 1//0 akia asia "
        "abia acca k_live_ k_test_ whsec_ hf_ npm_ pypi- gsk_ xai- tvly- pplx- r8_ sg. dop_v1_ "
        "shpat_ ntn_ lin_api_ hvs. age-secret-key-",
        rf"(?<![A-Za-z0-9_])(?P<s>{'|'.join(_TOKEN_PATTERNS)})",
    ),
    # https://core.telegram.org/bots/features#botfather
    _credential_rule(":", r"(?<!\d)\d{6,12}:(?P<s>[\w-]{35})(?![\w-])", _is_random_match),
    # https://docs.discord.com/developers/reference#authentication
    _credential_rule(
        ".",
        r"(?<![\w-])(?P<s>[A-Z][\w-]{22,28}\.[\w-]{6}\.[\w-]{27,45}|mfa\.[\w-]{60,})(?![\w-])",
        _is_random_match,
    ),
    _credential_rule(
        "webhooks/ interactions/", r"/(?:webhooks|interactions)/\d{5,25}/(?P<s>[\w-]{20,})"
    ),  # Discord: the URL is the only credential
    _credential_rule(
        "hooks.slack.com",
        r"(?i:hooks\.slack\.com)/(?:services|workflows|triggers)/(?P<s>[\w/-]{10,})",
    ),
    # https://www.rfc-editor.org/rfc/rfc7519#section-3
    _credential_rule("eyj", r"(?<![\w-])(?P<s>eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+){0,3})"),
    # https://www.rfc-editor.org/rfc/rfc9110#section-11.6.2
    _credential_rule(
        "authorization",
        r"(?i)authorization\\{0,3}[\"']?\s{0,3}[:=]\s{0,3}\\{0,3}[\"']?(?:bearer|basic|bot|token|digest|apikey)\s{1,3}"
        r"(?![$<{])(?P<s>[^\s\"'\\,;]{4,}+)",
    ),
    _credential_rule(
        "bearer basic",
        r"(?i)\b(?:bearer|basic)\s{1,3}(?P<s>[\w.~+/-]{8,}+={0,2})",
        _is_random_match,
    ),
    # https://www.rfc-editor.org/rfc/rfc3986#section-3.2.1
    _credential_rule("://", r"://[^\s/?#@:\"'<>`]*+:(?P<s>[^\s/?#\"'<>`]{1,400})(?=@[\w\[])"),
    _credential_rule("://", r"://(?P<s>[^\s/?#@:\"'<>`]{8,400})(?=@[\w\[])", _is_random_match),
    _credential_rule("=", rf"(?i)[?&;](?:{_QUERY_NAMES})=(?P<s>[^\s&#\"'<>`()\[\]]{{4,}}+)"),
    _credential_rule(
        "pass pwd secret token key credential authorization",
        rf"(?i)(?P<name>{_CREDENTIAL_NAMES})\d{{0,2}}\\{{0,3}}[\"'`]?(?P<mark>\s{{0,3}}(?::=|=>|[=:])\s{{0,3}})(?=[^\s=])"
        r"(?:[rbf]?(?P<quote>\\{0,3}[\"'`]))?(?P<s>(?(quote)(?:(?!(?P=quote))(?:[^\\\n]|\\[^\n]))++"
        r"|(?:[^\x00-\x20\"'`,;(){}<>|\\\[\]]++|\[redacted\])))",
        _is_assigned_secret,
    ),
    _credential_rule(
        "--",
        rf"(?i)(?<![\w-])--[\w-]{{0,20}}?(?:{_CREDENTIAL_NAMES})[ "
        rf"=](?![-<$\[{{])[\"']?(?P<s>[^\s\"']{{4,}}+)",
        _is_random_match,
    ),
    _credential_rule(" -u", r"\s-u\s{0,2}[\"']?[\w.@-]{1,64}:(?P<s>[^\s\"'@]{4,}+)(?=[\"'\s]|\Z)"),
    # https://modern.ircdocs.horse/#pass-message; commands of services, e.g.
    # https://libera.chat/guides/registration
    _credential_rule(
        "pass ", r"(?m)(?:^|[\"'>]\s?)PASS :?(?P<s>[^\s/\"'\\]{4,}+)(?=[\"'\\]|\s{0,3}$)"
    ),
    _credential_rule(
        "oper ", r"(?m)(?:^|[\"'>]\s?)OPER \S{1,50} :?(?P<s>[^\s\"'\\]{4,}+)(?=[\"'\\]|\s{0,3}$)"
    ),
    _credential_rule(
        "identify regain ghost recover release",
        r"(?i)\b(?:ns|nickserv|nickserv@\S{1,64}) "
        r"{1,2}:?(?:identify|id|regain|ghost|recover|release)"
        r" (?P<s>[^\s\"']{1,64}+(?: [^\s\"'\\]{4,64}+)?)",
    ),
    _credential_rule(
        "identify",
        r"(?m)(?:^|[:>\"']\s?)IDENTIFY (?:\S{1,64}+ "
        r"(?=\S))?(?P<s>[^\s\"'\\]{4,}+)(?=[\"'\\]|\s{0,3}$)",
    ),
    _credential_rule(
        "pass oper identify",
        r"\b(?:PASS|OPER \S{1,50}|IDENTIFY(?: \S{1,64})?) :?(?P<s>[^\s/\"'\\]{6,}+)",
        _is_random_match,
    ),
    _credential_rule(
        "register set",
        r"(?im)\b(?:ns|nickserv|nickserv@\S{1,64})\s{1,2}:?(?:register|set password) "
        r"(?P<s>[^\s\"']{4,}+)",
    ),
    # https://ircv3.net/specs/extensions/sasl-3.1
    _credential_rule(
        "authenticate",
        r"AUTHENTICATE "
        r":?(?!(?:PLAIN|EXTERNAL|SCRAM-\S*|ECDSA\S*|[+*])(?:\s|$))(?P<s>[A-Za-z0-9+/]{8,}+={0,2})",
        _is_random_match,
    ),
)
"""Applied in this order; each sees the result of those before it."""


_NEEDLES: Final = frozenset(needle for rule in CREDENTIAL_RULES for needle in rule.needles)


class Redactor:
    """Removes secrets from texts."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """`known`: the configuration's own secrets, in plain text."""
        self._encoded: tuple[str, ...] = ()
        self._known: frozenset[str] = frozenset()
        self.add_secrets(known)

    def add_secrets(self, known: Iterable[str]) -> None:
        """Redact these from now on, too."""
        self._known |= {
            one
            for one in (secret.strip() for secret in known)
            if len(one) >= MIN_KNOWN_SECRET_CHARS
        }
        forms = {form for secret in self._known for form in encoded_forms(secret)}
        self._encoded = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self._cached_clean = lru_cache(1_024)(
            self._clean
        )  # calls in other threads finish on the cache before

    def __call__(self, text: str) -> str:
        """Return the text without secrets. Takes time linear in its length, and microseconds for a
        line.

        Invisible characters do not hide a secret: they are removed from a text that has a secret
        around them. (Other code removes them from many texts later on.)
        """
        return self._cached_clean(text) if len(text) <= _CACHED_TEXT_CHARS else self._clean(text)

    def _clean(self, text: str) -> str:
        redacted = self._redact(text)
        visible = strip_invisible(redacted)
        visible_redacted = visible if visible == redacted else self._redact(visible)
        return redacted if visible_redacted == visible else visible_redacted

    def _redact(self, text: str) -> str:
        for _ in range(_MAX_ROUNDS):
            after = self._redact_once(text)
            if after == text:
                break
            text = after
        return text

    def _redact_once(self, text: str) -> str:
        present = [form for form in self._encoded if form in text]
        if present:
            exact = re.compile("|".join([re.escape(REDACTED), *map(re.escape, present)]))
            text = exact.sub(REDACTED, text)
        lowered = text.lower()
        needles = {needle for needle in _NEEDLES if needle in lowered}
        for rule in CREDENTIAL_RULES:
            if not needles.isdisjoint(rule.needles):
                text = _apply_rule(rule, text)
        return text


def _apply_rule(rule: CredentialRule, text: str) -> str:
    def cut(match: re.Match[str]) -> str:
        start, end = match.span("s")
        if text.startswith(REDACTED, start) or not rule.is_credential(match):
            return match[0]
        return f"{match[0][: start - match.start()]}{REDACTED}{match[0][end - match.start() :]}"

    return re.sub(rule.pattern, cut, text)


def encoded_forms(secret: str) -> Iterator[str]:
    """Yield the forms of a secret in texts: plain, escaped as in URLs, JSON and terminals, and in
    base64.
    """
    yield secret
    for escaped in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield escaped
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), escaped)
    for ascii_only in (True, False):
        yield json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield json.dumps(json.dumps(secret, ensure_ascii=ascii_only)[1:-1])[1:-1]  # JSON in JSON
    yield repr(secret)[1:-1]
    yield secret.encode("unicode_escape").decode()
    yield from _base64_forms(secret.encode())


def _base64_forms(secret: bytes) -> Iterator[str]:
    """Yield the base64 characters that are independent of the context: three bytes are four, so
    three forms.
    """
    for before in range(3):
        shifted = b"\0" * before + secret
        encoded = base64.b64encode(shifted).decode()
        first, end = (0, 2, 3)[before], len(shifted) * 8 // 6
        for form in (encoded[first:end], encoded[first:end].replace("+", "-").replace("/", "_")):
            if len(form) >= MIN_KNOWN_SECRET_CHARS:
                yield form
