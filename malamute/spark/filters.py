"""Row filters of the options `subject` and `where`, exact and equal at every source.

Conditions of queries do not come here. Spark plans a source in Python once for a table, and again only where
it has conditions to push down: a condition left in the source by one query would narrow the next one, and so
a union of two parts, a join of a frame with itself, or a second query of a view would lose rows. So Spark
evaluates conditions itself, with its own notion of numbers, and only the options narrow a source: all queries
of a frame share them.

A broker looks at these options itself. Rows of a data directory or an export are looked at here, as columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from malamute.matching import Index, Selector, parse_normal
from malamute.spark.conditions import Rows
from malamute.spark.history import ReadFilter


class RowFilter:
    """Keeps the rows that match a filter."""

    def __init__(self, wanted: ReadFilter) -> None:
        self._index: Index | None = None
        if wanted.criteria:
            self._index = Index()
            self._index.add("wanted", Selector.parse([[*pair] for pair in wanted.criteria]))
        self._where = parse_normal(wanted.where) if wanted.where else None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the filter needs."""
        if self._where is not None:
            return ("subject", "sender", "headers")
        return ("subject",) if self._index is not None else ()

    def keeps(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows."""
        if not self.columns or not batch.num_rows:
            return batch
        kept = np.arange(batch.num_rows)
        subjects = batch.column("subject").dictionary_encode()
        if self._index is not None:
            results = self._index.match_many(subjects.dictionary.to_pylist())
            matched = np.fromiter(map(bool, results), bool, len(results))
            kept = np.flatnonzero(matched[subjects.indices.to_numpy()])
        if self._where is not None:
            kept = kept[Rows(_encoded(batch, subjects)).holding(self._where, kept)]
        return batch if len(kept) == batch.num_rows else batch.take(pa.array(kept))


def _encoded(batch: pa.RecordBatch, subjects: pa.DictionaryArray) -> pa.RecordBatch:
    """Return columns of conditions, with texts as dictionaries, as `Rows` wants them."""
    headers = batch.column("headers")
    fields = [headers.items.field(number) for number in range(headers.items.type.num_fields)]
    names = [headers.items.type.field(number).name for number in range(headers.items.type.num_fields)]
    values: Any = [field.dictionary_encode() if pa.types.is_string(field.type) else field for field in fields]
    items = pa.StructArray.from_arrays(values, names)
    maps = pa.MapArray.from_arrays(headers.offsets, headers.keys.dictionary_encode(), items)
    columns = {"subject": subjects, "sender": batch.column("sender").dictionary_encode(), "headers": maps}
    return pa.RecordBatch.from_pydict(columns)
