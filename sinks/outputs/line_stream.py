"""Results for whoever reads a pipe: what has been written cannot be taken back."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, BinaryIO

from streamrunner.sinks.outputs.formats import jsonl_line
from streamrunner.sinks.outputs.record import ResultRecord, pack

if TYPE_CHECKING:
    from collections.abc import Container, Iterable


class LineStream:
    """OpenAI's batch lines on a stream, each row and attempt once.

    A row that is retried after its line was written gets a second line under its new attempt's id.
    """

    compressed = False

    def __init__(self, stream: BinaryIO, owner: str) -> None:
        self._stream = stream
        self._owner = owner.encode()
        self.packed = array("Q")

    def append(self, records: Iterable[ResultRecord]) -> None:
        """Write results."""
        for record in records:
            self._stream.write(jsonl_line(self._owner, record) + b"\n")
            self.packed.append(pack(record.row, record.attempt))

    def sync(self) -> None:
        """Hand everything on to the reader."""
        self._stream.flush()

    def drop(self, places: Container[int]) -> None:
        """Forget these results, so that their rows can come again."""
        self.packed = array("Q", [one for place, one in enumerate(self.packed) if place not in places])
