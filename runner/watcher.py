"""Follow a job from a blocking thread, across lost connections and server restarts, without gap or duplicate.

The end comes from the log (`job.ended`) or from the leases (nobody has held the job for a while), never from a last
message that could be missed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from streamrunner.runner.follower import ABANDONED_S, Follower, ask_for_life
from streamrunner.runner.line import Line
from streamrunner.runner.view import View
from streamrunner.sinks.reader import drive

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from streamrunner.runner.fold import JobState
    from streamrunner.runner.job_events import Event
    from streamrunner.sinks.keys import JobKeys
    from streamrunner.sinks.server import LogServer


class Watcher:
    """Reads one job's log and folds it, for a process that has its own idea of the end. Not thread-safe.

    should_stop is asked while the log is away. Raises SinkError (`log_conflict`) at what a newer release wrote.
    """

    def __init__(
        self,
        server: LogServer,
        keys: JobKeys,
        *,
        patience_s: float = 600,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._line = Line(server)
        self._seen_alive = time.monotonic()
        self._follower = Follower(
            keys, View(tokens=False, payloads=False), any_version=False, patience_s=patience_s, should_stop=should_stop
        )

    @property
    def state(self) -> JobState:
        """The job as far as it has been read."""
        return self._follower.state

    def poll(self, block_ms: int | None) -> list[Event]:
        """The next events, empty when there are none within block_ms; after a `resync` the state begins anew."""
        return self._line.run(self._follower.next_page(block_ms))

    def abandoned(self) -> bool:
        """Whether no worker has held the job for so long that nobody will answer for it."""
        if self._line.run(self._follower.life()).workers:
            self._seen_alive = time.monotonic()
        return time.monotonic() - self._seen_alive > ABANDONED_S


def live_workers(client: redis.Redis, keys: JobKeys) -> list[str]:
    """Workers of the job that joined, did not leave, and hold their lease."""
    return drive(client, ask_for_life(keys)).workers
