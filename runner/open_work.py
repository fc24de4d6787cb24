"""What of a job is still to do: its ranges with the bits of their rows, as the server has them.

Costs one short read per thousand ranges and a bit a row, whatever the rows hold.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrunner.runner.row_work import NO_WORK, Kind, WorkSum
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis
    from numpy.typing import NDArray

    from streamrunner.runner.spec import SamplingSpec
    from streamrunner.sinks.keys import JobKeys

_PAGE = 1_000
# Share of a worker's time that counting may take.
_MAX_SHARE = 0.01


class OpenWork:
    """Ranges and open rows of one job. A million rows are 15,625 ranges: they are counted as arrays."""

    def __init__(self, client: redis.Redis, keys: JobKeys, sampling: SamplingSpec) -> None:
        self._client: Any = client
        self._keys = keys
        self._sampling = sampling
        self._last_id = "-"
        self._next = 0.0
        self._num_ended = 0
        self._found: dict[Kind, WorkSum] = {}
        self._number: dict[str, int] = {}
        self._kinds: dict[Kind, int] = {}
        # One item a range, then one a range and kind: its range, its kind, its four sums.
        self._first: list[int] = []
        self._count: list[int] = []
        self._part_range: list[int] = []
        self._part_kind: list[int] = []
        self._part_sums: list[WorkSum] = []
        self._arrays: tuple[NDArray[Any], ...] = ()

    def waiting(self, in_flight: Iterable[str], num_ended: int = 0) -> dict[Kind, WorkSum]:
        """Open rows that are not in flight, by kind. The last answer, if that is recent for what it cost, is given
        again, less the rows that this worker has ended since.

        in_flight: the range of each row that is, with repeats. num_ended: by this worker so far. Raises RedisError.
        """
        began = time.monotonic()
        if began >= self._next:
            self._num_ended = num_ended
            self._read_ranges()
            self._found = self._sum_up(self._client.get(self._keys.done) or b"", in_flight)
            now = time.monotonic()
            self._next = now + (now - began) / _MAX_SHARE
        rows = sum(one.rows for one in self._found.values())
        left = 1.0 - (num_ended - self._num_ended) / rows if rows else 0.0
        return {kind: NO_WORK.plus(one, left) for kind, one in self._found.items()} if left > 0 else {}

    def _sum_up(self, bits: bytes, in_flight: Iterable[str]) -> dict[Kind, WorkSum]:
        if not self._arrays:
            columns = (self._first, self._count, self._part_range, self._part_kind)
            self._arrays = (*(np.array(one, np.int64) for one in columns), np.array(self._part_sums, float))
        first, count, part_range, part_kind, part_sums = self._arrays
        num_open = self._num_open(bits, first, count)
        # A row that was split off or is retried stands in two ranges and is open in both.
        span = int((first + count).max(initial=0))
        once = (span - int.from_bytes(bits, "big").bit_count()) / max(float(num_open.sum()), 1.0)
        rows = num_open * min(once, 1.0)
        known = [self._number[name] for name in in_flight if name in self._number]
        rows = np.maximum(rows - np.bincount(known, minlength=len(rows)), 0.0) if known else rows
        share = (rows / count)[part_range]
        sums = [np.bincount(part_kind, share * part_sums[:, i], len(self._kinds)) for i in range(part_sums.shape[1])]
        found = {kind: WorkSum(*(float(one[number]) for one in sums)) for kind, number in self._kinds.items()}
        return {kind: one for kind, one in found.items() if one.rows > 0}

    def _num_open(self, bits: bytes, first: NDArray[Any], count: NDArray[Any]) -> NDArray[Any]:
        """Per range; rows behind the last byte are open."""
        span = int((first + count).max(initial=0))
        done = np.unpackbits(np.frombuffer(bits, np.uint8), count=span) if bits else np.zeros(span, np.uint8)
        before = np.concatenate(([0], np.cumsum(done, dtype=np.int64)))
        result: NDArray[Any] = count - (before[first + count] - before[first])
        return result

    def _read_ranges(self) -> None:
        while page := self._client.xrange(self._keys.work, min=self._last_id, count=_PAGE):
            for raw_id, fields in page:
                self._take(raw_id.decode(), decode_json(fields[b"range"]))
            self._last_id = f"({page[-1][0].decode()}"
            if len(page) < _PAGE:
                return

    def _take(self, name: str, spec: dict[str, Any]) -> None:
        count = int(spec["count"])
        sums = [WorkSum(*one) for one in spec.get("work") or ()] or [self._guess(spec)]
        # A part of a split range may still carry the sums of the whole.
        share = min(count / sum(one.rows for one in sums), 1.0)
        self._arrays = ()
        self._number[name] = len(self._first)
        self._first.append(int(spec["first"]))
        self._count.append(count)
        for one in sums:
            self._part_range.append(self._number[name])
            self._part_kind.append(self._kinds.setdefault(one.kind, len(self._kinds)))
            self._part_sums.append(NO_WORK.plus(one, share))

    def _guess(self, spec: dict[str, Any]) -> WorkSum:
        """For a range without sums: every row as the job's sampling has it."""
        count, choices = int(spec["count"]), int(spec["count"]) * self._sampling.n
        return WorkSum(count, int(spec.get("bytes", 0)), choices, choices * self._sampling.max_tokens)
