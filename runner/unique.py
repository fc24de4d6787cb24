"""Whether every custom_id of a job stands once, for any number of rows, at eight bytes a row.

Hashes are kept, not ids. Two rows with one hash are read again and compared, so a chance collision accuses nobody.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Repeated(NamedTuple):
    """A custom_id and the rows that have it, in order."""

    custom_id: str
    rows: list[int]


class CustomIds:
    """The ids of rows 0, 1, 2, …; None for a row whose id could not be read."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, custom_id: str | None) -> None:
        """Note the next row's id."""
        # Python's own string hash: 64 bits under a key of this process, which no file can be made to collide with.
        # A row without an id gets its negative number, which only it has (a hash there costs one comparison).
        self._hashes.append(~len(self._hashes) if custom_id is None else hash(custom_id))

    @property
    def num_bytes(self) -> int:
        """What the ids take in memory."""
        return self._hashes.itemsize * len(self._hashes)

    def suspects(self) -> dict[int, list[int]]:
        """Rows whose hashes are equal, by hash; empty for nearly every good file."""
        import numpy as np

        hashes = np.frombuffer(self._hashes, dtype=np.int64)
        ordered = np.sort(hashes)
        twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if not twice.size:
            return {}
        found: dict[int, list[int]] = defaultdict(list)
        for row in np.flatnonzero(np.isin(hashes, twice)).tolist():
            found[self._hashes[row]].append(row)
        return dict(found)


def repeated(ids: Iterable[tuple[int, str]]) -> list[Repeated]:
    """Those ids that more than one row has. ids: row and custom_id."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, custom_id in ids:
        rows[custom_id].append(row)
    return [Repeated(custom_id, places) for custom_id, places in rows.items() if len(places) > 1]
