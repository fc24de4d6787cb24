"""What of a job is still to do: its ranges with the bits of their rows, as the server has them.

Costs one short read per thousand ranges and a bit a row, whatever the rows hold.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamrunner.runner.row_work import NO_WORK, Kind, WorkSum
from streamrunner.sinks.wire import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    import redis

    from streamrunner.runner.spec import SamplingSpec
    from streamrunner.sinks.keys import JobKeys

_PAGE = 1_000
# Share of a worker's time that counting may take.
_MAX_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class RangeWork:
    """Rows [first, first + count) and what they ask, by kind."""

    first: int
    count: int
    sums: tuple[WorkSum, ...]


class OpenWork:
    """Ranges and open rows of one job; `refresh` now and then, the rest is from memory."""

    def __init__(self, client: redis.Redis, keys: JobKeys, sampling: SamplingSpec) -> None:
        self._client: Any = client
        self._keys = keys
        self._sampling = sampling
        self._last_id = "-"
        self._next = 0.0
        self._bits = b""
        self._ranges: dict[str, RangeWork] = {}

    def refresh(self) -> None:
        """Read new ranges and all bits, unless the last time is too recent for what it cost. Raises RedisError."""
        began = time.monotonic()
        if began < self._next:
            return
        self._read_ranges()
        self._bits = self._client.get(self._keys.done) or b""
        now = time.monotonic()
        self._next = now + (now - began) / _MAX_SHARE

    def waiting(self, in_flight: Iterable[str]) -> dict[Kind, WorkSum]:
        """Open rows that are not in flight, by kind. in_flight: the range of each row that is, with repeats."""
        num_in_flight = Counter(in_flight)
        num_open = {name: self._num_open(one) for name, one in self._ranges.items()}
        # A row that was split off or is retried stands in two ranges and is open in both.
        once = min(self._num_all_open() / max(sum(num_open.values()), 1), 1.0)
        found: dict[Kind, WorkSum] = {}
        for name, one in self._ranges.items():
            rows = num_open[name] * once - num_in_flight[name]
            if rows > 0:
                for part in one.sums:
                    found[part.kind] = found.get(part.kind, NO_WORK).plus(part, rows / one.count)
        return found

    def _num_all_open(self) -> int:
        rows = max((one.first + one.count for one in self._ranges.values()), default=0)
        return rows - int.from_bytes(self._bits, "big").bit_count()

    def _num_open(self, one: RangeWork) -> int:
        # Bit 0 is the highest of the first byte; rows behind the last byte are open.
        first_byte, after = one.first // 8, one.first + one.count
        known = self._bits[first_byte : (after + 7) // 8].ljust((after + 7) // 8 - first_byte, b"\0")
        word = int.from_bytes(known, "big") >> (-after % 8)
        return one.count - (word & ((1 << one.count) - 1)).bit_count()

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
        self._ranges[name] = RangeWork(int(spec["first"]), count, tuple(NO_WORK.plus(one, share) for one in sums))

    def _guess(self, spec: dict[str, Any]) -> WorkSum:
        """For a range without sums: every row as the job's sampling has it."""
        count, choices = int(spec["count"]), int(spec["count"]) * self._sampling.n
        return WorkSum(count, int(spec.get("bytes", 0)), choices, choices * self._sampling.max_tokens)
