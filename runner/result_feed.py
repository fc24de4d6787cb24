"""A job's results as they come: the log read once from its beginning, then followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrunner.runner.results import ResultReader
from streamrunner.runner.row_index import Applied, RowIndex
from streamrunner.sinks.merge import Cursor
from streamrunner.sinks.reader import LogReader, read_log_pages
from streamrunner.sinks.wire import LogEntry

if TYPE_CHECKING:
    import redis

    from streamrunner.sinks.keys import JobKeys


class ResultFeed:
    """`index` says which rows have ended as far as the log has been read; `results` makes their records.

    client: its own, blocking if `poll` is to wait. After a lost connection begin again with a new feed: a server that
    lost its tail hands seqs out twice.
    """

    def __init__(self, client: redis.Redis, keys: JobKeys) -> None:
        self.index = RowIndex()
        self.results = ResultReader(client, keys, self.index)
        last_id = "0-0"
        for page in read_log_pages(client, keys):
            self.index.apply(page)
            last_id = page[-1].id
        self._reader = LogReader(client, keys, cursor=Cursor(last_id))

    @property
    def last_id(self) -> str:
        """The last entry that was read."""
        return self._reader.cursor.log

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.index.state.ended

    def poll(self, block_ms: int | None) -> Applied | None:
        """Read on; None if there is nothing new within that time."""
        items = self._reader.poll(block_ms)
        if not items:
            return None
        return self.index.apply(item.entry for item in items if isinstance(item.entry, LogEntry))
