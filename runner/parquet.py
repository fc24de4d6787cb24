"""Rows of a Parquet file as JSON lines, a batch of one row group at a time and only the columns that are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO

from streamrunner.runner.errors import RunnerError
from streamrunner.runner.rows import refused_line
from streamrunner.runner.tables import Use, tell_unused, used_columns
from streamrunner.sinks.wire import encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BATCH_ROWS = 1024


def parquet_rows(file: BinaryIO, name: str, use: Use, note: Callable[[str], None]) -> Iterator[bytes]:
    """One JSON line for every row; a null column of a row is left out of it, unless a template asks for it.

    Raises RunnerError (`input_unreadable`, `invalid_parquet`).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not read ahead: a row group may be larger than the memory.
        parquet = pq.ParquetFile(file, pre_buffer=False)
        columns = used_columns(_checked(parquet.schema_arrow.names, name), use)
        tell_unused(columns, name, note)
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(columns.kept), use_threads=False):
            for row in batch.to_pylist() if columns.kept else [{}] * batch.num_rows:
                yield _line(row, keeps_nulls=use.columns is not None)
    except (pa.ArrowException, OSError) as error:
        detail = str(error).partition("\n")[0]
        raise RunnerError("input_unreadable", f"{name} is damaged or no Parquet file: {detail}") from error


def _checked(names: list[str], name: str) -> list[str]:
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise RunnerError("invalid_parquet", f"two columns of {name} are named {twice!r}: rename one")
    return names


def _line(row: dict[str, Any], *, keeps_nulls: bool) -> bytes:
    try:
        kept = {name: _json(value) for name, value in row.items() if keeps_nulls or value is not None}
        return encode_json(kept) + b"\n"
    except UnicodeDecodeError:
        return refused_line("not_utf8", "a binary column of this row is no UTF-8 text") + b"\n"
    except (TypeError, ValueError, OverflowError) as error:
        return (
            refused_line("invalid_request", f"a column of this row is no text, number, list or object: {error}") + b"\n"
        )


def _json(value: Any) -> Any:
    """Binary columns are text that its writer did not mark as such."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {name: _json(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_json(one) for one in value]
    return value
