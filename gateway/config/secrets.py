"""Secret values of the configuration, for `gateway.core.redaction`, and the price table of
models.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import SecretStr

from agent.cache.prices import PriceTable
from gateway.config.models import Settings
from gateway.config.source import Keys, read_text_file
from gateway.core.fields import ConfigSection
from gateway.core.redaction import looks_random

_MIN_VALUE_CHARS: Final = 12
"""Length of the shortest value that is taken for a secret because of its origin."""
_HOST_NAME: Final = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,}(?::\d+)?", re.IGNORECASE)


def collect_secrets(settings: Settings, references: Iterable[str] = ()) -> frozenset[str]:
    """Return all values marked as secret, credentials in URLs, and those of `references` that look
    random.

    `references`: the values of `${NAME}` and `${file:...}`, wherever they are used.
    """
    from_references = {
        one
        for one in references
        if len(one) >= _MIN_VALUE_CHARS and looks_random(one) and not _HOST_NAME.fullmatch(one)
    }
    return frozenset({*_secrets_in(settings), *from_references})


def walk_values(value: object, keys: Keys = ()) -> Iterator[tuple[Keys, object]]:
    """Yield every single value of a section, with its keys."""
    below: Iterable[tuple[Any, object]]
    if isinstance(value, ConfigSection):
        below = value
    elif isinstance(value, dict):
        below = value.items()
    elif isinstance(value, tuple):
        below = enumerate(value)
    else:
        yield keys, value
        return
    for name, one in below:
        yield from walk_values(one, (*keys, name))


def _secrets_in(settings: Settings) -> Iterator[str]:
    for _, value in walk_values(settings):
        if isinstance(value, SecretStr):
            yield from _secret_parts(value.get_secret_value())
        elif isinstance(value, str):
            yield from _secrets_in_url(value)


def _secret_parts(secret: str) -> Iterator[str]:
    """Yield the secret, the part after the scheme of a header, and each of its lines that is long
    enough.
    """
    if secret.strip().lower() in ("", "none"):
        return
    yield secret
    scheme, _, rest = secret.partition(" ")
    if scheme.isalpha() and rest:
        yield rest
    yield from _secrets_in_url(secret)
    yield from (
        line for line in secret.splitlines() if len(line) >= _MIN_VALUE_CHARS and looks_random(line)
    )


def _secrets_in_url(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        secrets = [
            parts.password,
            *(value for _, value in parse_qsl(parts.query) if looks_random(value)),
        ]
        if parts.password is None and looks_random(parts.username or ""):
            secrets.append(parts.username)
    except ValueError:  # not a URL
        return
    for one in secrets:
        if one:
            yield one
            yield unquote(one)


class PriceTableError(Exception):
    """The price table cannot be used. The message gives the remedy."""


def load_price_table(directory: Path | None) -> PriceTable:
    """Load the operator's `prices.yaml` from `directory` if there is one, else the table of the
    product.

    Raises PriceTableError, with the file's name.
    """
    own = directory / "prices.yaml" if directory is not None else None
    path = own if own is not None and own.is_file() else _shipped_path()
    try:
        return _parse_prices(read_text_file(path))
    except (OSError, ValueError) as error:
        raise PriceTableError(
            f"{path}: {error}; correct it, or remove it to use the table that comes with the "
            "product"
        ) from None


@lru_cache(maxsize=2)
def _parse_prices(text: str) -> PriceTable:
    """Cached: a reload reads the table again, and it has rarely changed."""
    return PriceTable.parse(text)


def _shipped_path() -> Path:
    here = Path(__file__).resolve().parent.parent
    packaged = here / "defaults" / "prices.yaml"
    return packaged if packaged.is_file() else here.parent / "config" / "prices.yaml"
