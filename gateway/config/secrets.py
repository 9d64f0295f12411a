"""What the configuration keeps secret, as texts: for `gateway.core.redaction`. Pure.

Where the price table is: the operator's own, or the one that ships with the product.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import SecretStr

from agent.cache.prices import PriceTable
from gateway.config.models import Settings
from gateway.config.source import read_text_file
from gateway.core.fields import ConfigSection
from gateway.core.redaction import looks_random

_MIN_VALUE_CHARS: Final = 12
"""Characters of the shortest value that is taken for a secret because of where it came from."""
_HOST_NAME: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}(?::\d+)?", re.IGNORECASE)


def collect_secrets(settings: Settings, references: Iterable[str] = ()) -> frozenset[str]:
    """Everything that is marked as secret, what stands in URLs as such, and of `references` what reads like one.

    `references`: what `${NAME}` and `${file:...}` stood for, wherever they were written.
    """
    referred = {
        one
        for one in references
        if len(one) >= _MIN_VALUE_CHARS and looks_random(one) and not _HOST_NAME.fullmatch(one)
    }
    return frozenset({*_secrets_in(settings), *referred})


def _secrets_in(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield from _secret_parts(value.get_secret_value())
    elif isinstance(value, str):
        yield from _secrets_in_url(value)
    elif isinstance(value, ConfigSection):
        for _, below in value:
            yield from _secrets_in(below)
    elif isinstance(value, dict):
        for below in value.values():
            yield from _secrets_in(below)
    elif isinstance(value, tuple):
        for below in value:
            yield from _secrets_in(below)


def _secret_parts(secret: str) -> Iterator[str]:
    """It, what stands behind the scheme of a header, and of several lines each that is long enough to tell."""
    if secret.strip().lower() in ("", "none"):
        return
    yield secret
    scheme, _, rest = secret.partition(" ")
    if scheme.isalpha() and rest:
        yield rest
    yield from _secrets_in_url(secret)
    yield from (line for line in secret.splitlines() if len(line) >= _MIN_VALUE_CHARS and looks_random(line))


def _secrets_in_url(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        found = [parts.password, *(value for _, value in parse_qsl(parts.query) if looks_random(value))]
        if parts.password is None and looks_random(parts.username or ""):
            found.append(parts.username)
    except ValueError:  # it is no URL after all
        return
    for one in found:
        if one:
            yield one
            yield unquote(one)


class PriceTableError(Exception):
    """The price table cannot be used. The text says what to do."""


def load_price_table(directory: Path | None) -> PriceTable:
    """The operator's `prices.yaml` if there is one in `directory`, else the one that ships with the product.

    Raises BadPrices, with the file's name, for one that cannot be used.
    """
    own = directory / "prices.yaml" if directory is not None else None
    path = own if own is not None and own.is_file() else _shipped_path()
    try:
        return _parse_prices(read_text_file(path))
    except (OSError, ValueError) as error:
        raise PriceTableError(
            f"{path}: {error}; mend it, or remove it for the table that ships with the product"
        ) from None


@lru_cache(maxsize=2)
def _parse_prices(text: str) -> PriceTable:
    """A reload reads it again, and mostly nobody has written it."""
    return PriceTable.parse(text)


def _shipped_path() -> Path:
    here = Path(__file__).resolve().parent.parent
    packaged = here / "defaults" / "prices.yaml"
    return packaged if packaged.is_file() else here.parent / "config" / "prices.yaml"
