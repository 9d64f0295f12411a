"""Tables of plugins: rows that are derived from the log, and rebuilt from it.

The tables of all plugins of the environment are made when a store is opened for writing
(`gateway.store.rebuild.prepare_tables`), and the statements of an entry are executed in the
transaction that appends it.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gateway.core.facts import fact_adapter
from gateway.core.frozen import frozen
from gateway.store.projections import Params, Statement
from gateway.store.types import LogEntry

logger = logging.getLogger("reverie.store")


@frozen
class Table:
    """A table that a plugin derives from the log. Its rows are read with `StoreReader.rows`."""

    name: str
    """Name of the plugin, or that name, `_` and a word."""
    columns: str
    """SQL of its columns and constraints, as between the brackets of CREATE TABLE: what both SQLite
    and PostgreSQL understand. If they change, the table is made anew from the log."""
    kinds: frozenset[str]
    """Kinds of entries that change its rows. If they change, the table is made anew, too."""
    fold: Callable[[LogEntry], Iterable[tuple[str, Params]]]
    """Returns the statements of one entry, each with its parameters (`$1` and so on), in order.

    Pure: the same entries always give the same rows. It changes this table alone, and reads no
    other one. An insert with `VALUES {}`, which has to end in ON CONFLICT DO NOTHING, is executed
    for many entries at once. An entry at which it raises is left out, and that is logged. A table
    for which the database refuses a statement is left as it is until the store is opened again."""

    @property
    def definition(self) -> str:
        """Text that changes when the table has to be made anew."""
        return f"{self.columns}\n{' '.join(sorted(self.kinds))}"


_TABLES: Final[dict[str, Table]] = {}


def register_tables(tables: Iterable[Table]) -> None:
    """Let stores have these tables, and no other ones of plugins."""
    _TABLES.clear()
    _TABLES.update({table.name: table for table in tables})


def stop_following(tables: Iterable[str], why: str) -> None:
    """Leave these tables as they are: entries change them no more in this process."""
    for name in tables:
        if _TABLES.pop(name, None) is not None:
            logger.error("the table %s of a plugin follows the log no more: %s", name, why)


def plugin_tables() -> tuple[Table, ...]:
    """Return the tables of the plugins of this environment."""
    fact_adapter()  # the plugins are found now
    return tuple(_TABLES.values())


def fold_entry(entry: LogEntry) -> Iterator[Statement]:
    """Yield the changes that one entry makes in the tables of plugins."""
    for table in _TABLES.values():
        if entry.kind in table.kinds:
            try:
                statements = [Statement(table.name, sql, row) for sql, row in table.fold(entry)]
            except Exception:
                logger.exception("entry %s is left out of the table %s", entry.seq, table.name)
            else:
                yield from statements
