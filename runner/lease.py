"""A worker's right to write: acquired by `join`, kept by a beat from a thread of its own, never shared or reused."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from typing import Any

from streamrunner.sinks.errors import SinkError
from streamrunner.sinks.log import BEAT_MS, JobLog, Reply, WorkerLease

# How late a worker may hear of a command while its engine makes a long step, and nothing is flushed.
LOOK_S = 0.5
_STANDING = ("status", "paused", "ctl", "clock")


def new_worker_id() -> str:
    """Host and 8 random characters: one per process, never used again."""
    host = "".join(c if c.isalnum() or c == "-" else "-" for c in socket.gethostname())[:40] or "host"
    return f"{host}-{secrets.token_hex(4)}"


class LeaseKeeper:
    """Holds the current acquisition and renews it. The worker thread joins; the beat thread only renews and reports.

    `faulted` is set when a beat finds the lease gone: the worker must join anew before it writes again.
    `control` is the newest standing of the job (status, paused, ctl, clock) that any reply carried.
    """

    def __init__(self, worker: str, beat_log: JobLog, data: dict[str, Any]) -> None:
        self.worker = worker
        self.faulted = threading.Event()
        self.control: Reply = {}
        self._log = beat_log
        self._data = data
        self._lease: WorkerLease | None = None
        self._clock_offset_ms = 0
        self._untold: dict[str, Any] | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-beat", daemon=True)

    @property
    def lease(self) -> WorkerLease:
        """The acquisition that writes go under."""
        if self._lease is None:
            raise RuntimeError("join first")
        return self._lease

    def join(self, log: JobLog) -> Reply:
        """Acquire (again); every acquisition has its own epoch and token. The reply is sr_v1's."""
        token = secrets.token_hex(8)
        reply = log.join(self.worker, token, self._data)
        self.observe(reply)
        if reply["s"] == "OK":
            self._lease = WorkerLease(self.worker, int(reply["epoch"]), token)
            self.faulted.clear()
            if not self._thread.is_alive():
                self._thread.start()
        return reply

    def observe(self, reply: Reply) -> None:
        """Remember the job's standing as a reply gave it."""
        if "status" in reply:
            self.control = {**self.control, **{name: reply[name] for name in _STANDING if name in reply}}
        if "time" in reply:
            self._clock_offset_ms = int(reply["time"]) - int(time.time() * 1000)

    @property
    def now_ms(self) -> int:
        """The server's clock, which deadlines go by; Unix ms."""
        return int(time.time() * 1000) + self._clock_offset_ms

    def leave(self, log: JobLog, reason: str) -> None:
        """Give the lease back; silent if it was gone already."""
        self.stop()
        log.leave(self.lease, reason)

    def stop(self) -> None:
        """End the beat thread."""
        self._stopping = True
        self._wake.set()

    def tell(self, progress: dict[str, Any]) -> None:
        """Append a `progress` with the next beat, which comes at once: for a worker that cannot flush yet."""
        self._untold = progress
        self._wake.set()

    def _run(self) -> None:
        next_beat = time.monotonic() + BEAT_MS / 1000
        while True:
            self._wake.wait(min(LOOK_S, BEAT_MS / 1000))
            if self._stopping:
                return
            self._wake.clear()
            lease, told = self.lease, self._untold
            is_due = told is not None or time.monotonic() >= next_beat
            try:
                reply = self._log.beat(lease, told) if is_due else self._log.standing()
            except SinkError:
                continue  # the writer meets the same outage and has the patience for it
            if self._untold is told:
                self._untold = None
            self.observe(reply)
            if is_due:
                next_beat = time.monotonic() + BEAT_MS / 1000
                if reply["s"] != "OK" and lease == self._lease:
                    self.faulted.set()
