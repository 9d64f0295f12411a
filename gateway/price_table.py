"""Where the price table is: the operator's own, or the one that ships with the product."""

from functools import lru_cache
from pathlib import Path

from agent.cache.prices import PriceTable
from gateway.settings_yaml import read_text_file


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
    here = Path(__file__).resolve().parent
    packaged = here / "defaults" / "prices.yaml"
    return packaged if packaged.is_file() else here.parent / "config" / "prices.yaml"
