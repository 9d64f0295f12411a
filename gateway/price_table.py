"""Where the price table is: the operator's own, or the one that ships with the product."""

from functools import lru_cache
from pathlib import Path

from agent.cache.prices import Prices
from gateway.settings_yaml import text_of


class BadPrices(Exception):
    """The price table cannot be used. The text says what to do."""


def price_table(directory: Path | None) -> Prices:
    """The operator's `prices.yaml` if there is one in `directory`, else the one that ships with the product.

    Raises BadPrices, with the file's name, for one that cannot be used.
    """
    own = directory / "prices.yaml" if directory is not None else None
    path = own if own is not None and own.is_file() else _shipped()
    try:
        return _parsed(text_of(path))
    except (OSError, ValueError) as error:
        raise BadPrices(f"{path}: {error}; mend it, or remove it for the table that ships with the product") from None


@lru_cache(maxsize=2)
def _parsed(text: str) -> Prices:
    """A reload reads it again, and mostly nobody has written it."""
    return Prices.parse(text)


def _shipped() -> Path:
    here = Path(__file__).resolve().parent
    packaged = here / "defaults" / "prices.yaml"
    return packaged if packaged.is_file() else here.parent / "config" / "prices.yaml"
