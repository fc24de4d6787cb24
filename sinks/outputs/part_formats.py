"""What one part of an output looks like: lines, a table, or Parquet."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from streamrunner.sinks.outputs.flat import FlatResult, flatten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamrunner.sinks.outputs.codec import Codec
    from streamrunner.sinks.outputs.formats import AppendFormat
    from streamrunner.sinks.outputs.record import ResultRecord

_ROWS_PER_GROUP = 10_000
_ROWS_PER_BLOCK = 1_000


class PartFormat(Protocol):
    """How a whole file of results is written."""

    suffix: str

    def write(self, file: BinaryIO, owner: bytes, records: Iterable[ResultRecord]) -> int:
        """Write all; returns how many there were."""


class LinesPart:
    """The records of an `AppendFormat`, behind its header."""

    def __init__(self, form: AppendFormat, codec: Codec | None, suffix: str) -> None:
        self._form = form
        self._codec = codec
        self.suffix = suffix

    def write(self, file: BinaryIO, owner: bytes, records: Iterable[ResultRecord]) -> int:
        """Write all, in memory for a block of them; returns how many there were."""
        rest, num_rows, head = iter(records), 0, self._form.header
        while True:
            block = [self._form.encode(owner, record) for record in islice(rest, _ROWS_PER_BLOCK)]
            content = head + b"".join(block)
            if content:
                file.write(self._codec.compress(content) if self._codec else content)
            num_rows, head = num_rows + len(block), b""
            if len(block) < _ROWS_PER_BLOCK:
                return num_rows


class ParquetPart:
    """Parquet with zstd pages, in groups of 10,000 rows: what pyarrow, pandas, DuckDB, Spark and `datasets` read."""

    suffix = ".parquet"

    def write(self, file: BinaryIO, owner: bytes, records: Iterable[ResultRecord]) -> int:
        """Write all, in memory for a group of them; returns how many there were."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _schema(pa)
        rest, num_rows = iter(records), 0
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            while rows := [flatten(owner, record) for record in islice(rest, _ROWS_PER_GROUP)]:
                columns = zip(zip(*rows, strict=True), schema.types, strict=True)
                writer.write_table(pa.table([pa.array(values, kind) for values, kind in columns], schema=schema))
                num_rows += len(rows)
        return num_rows


def _schema(pa: Any) -> Any:
    """One nullable column for each field of `FlatResult`; whole numbers have 64 bits."""
    kinds = {
        name: pa.int64() if "int" in str(hint) else pa.string() for name, hint in FlatResult.__annotations__.items()
    }
    return pa.schema(list(kinds.items()))
