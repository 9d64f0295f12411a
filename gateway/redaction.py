"""Secrets taken out of texts: those of the configuration, in every form, and what looks like a credential. Pure.

What is said stays readable: `password=hunter2-9` becomes `password=[redacted]`. The same text always becomes the same,
and what was redacted once stays as it is, so that it does not matter how often a text comes by.

What people said stands in the log of events as they said it: that is what it is for, and it is its owner's alone. What
is shown of it, told to a model, or written anywhere else has come through here.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus

from gateway.credentials import CREDENTIAL_RULES, CredentialRule
from gateway.safety.marks import strip_invisible

REDACTED: Final = "[redacted]"
MIN_KNOWN_SECRET_CHARS: Final = 6
"""Of a secret of the configuration: shorter ones give nothing away, and would blot out ordinary words."""
_MAX_ROUNDS: Final = 4
"""What is taken out may bring the words beside it nearer; two rounds have been enough for everything so far."""
_NEEDLES: Final = frozenset(needle for rule in CREDENTIAL_RULES for needle in rule.needles)
_CACHED_TEXTS: Final = 1_024
_CACHED_TEXT_CHARS: Final = 100
"""Of a text whose answer is remembered: the same few names stand in most of what is told."""

Redact = Callable[[str], str]
"""`Redactor.__call__`."""


class Redactor:
    """Takes out of a text what nobody is to read."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        """`known`: the configuration's own secrets, as they are."""
        self._encoded: tuple[str, ...] = ()
        self._known: frozenset[str] = frozenset()
        self.add_secrets(known)

    def add_secrets(self, known: Iterable[str]) -> None:
        """These are secrets, too, from now on."""
        self._known |= {one for one in (secret.strip() for secret in known) if len(one) >= MIN_KNOWN_SECRET_CHARS}
        forms = {form for secret in self._known for form in encoded_forms(secret)}
        self._encoded = tuple(sorted(forms, key=lambda form: (-len(form), form)))
        self._cached_clean = lru_cache(_CACHED_TEXTS)(self._clean)  # what other threads are at goes to the one before

    def __call__(self, text: str) -> str:
        """The text without secrets. Takes time that grows with its length alone, and microseconds for a line.

        Characters that nobody sees hide none: they are left out of many texts later on, and out of one that has a
        secret around them here.
        """
        return self._cached_clean(text) if len(text) <= _CACHED_TEXT_CHARS else self._clean(text)

    def _clean(self, text: str) -> str:
        cut = self._redact(text)
        bare = strip_invisible(cut)
        without = bare if bare == cut else self._redact(bare)
        return cut if without == bare else without

    def _redact(self, text: str) -> str:
        for _ in range(_MAX_ROUNDS):
            after = self._redact_once(text)
            if after == text:
                break
            text = after
        return text

    def _redact_once(self, text: str) -> str:
        there = [form for form in self._encoded if form in text]
        if there:
            exact = re.compile("|".join([re.escape(REDACTED), *map(re.escape, there)]))
            text = exact.sub(REDACTED, text)
        low = text.lower()
        found = {needle for needle in _NEEDLES if needle in low}
        for rule in CREDENTIAL_RULES:
            if not found.isdisjoint(rule.needles):
                text = _apply_rule(rule, text)
        return text


def _apply_rule(rule: CredentialRule, text: str) -> str:
    def cut(match: re.Match[str]) -> str:
        start, end = match.span("s")
        if text.startswith(REDACTED, start) or not rule.is_credential(match):
            return match[0]
        return f"{match[0][: start - match.start()]}{REDACTED}{match[0][end - match.start() :]}"

    return rule.pattern.sub(cut, text)


def encoded_forms(secret: str) -> Iterator[str]:
    """As it may stand in a text: as it is, escaped as in URLs, JSON and terminals, and in base64."""
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
    """What is sure of it whatever stands around it: three bytes are four characters, so there are three ways."""
    for before in range(3):
        shifted = b"\0" * before + secret
        whole = base64.b64encode(shifted).decode()
        first, end = (0, 2, 3)[before], len(shifted) * 8 // 6
        for form in (whole[first:end], whole[first:end].replace("+", "-").replace("/", "_")):
            if len(form) >= MIN_KNOWN_SECRET_CHARS:
                yield form
